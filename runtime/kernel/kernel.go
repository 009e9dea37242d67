// Package kernel holds the inner loops of the engine: products of packed and of plain matrices
// with a few tokens' activations, and the quantization of activations to int8.
//
// Each loop exists as portable Go, which defines the result, and where the machine allows as
// assembly. A Set is one choice of all of them.
package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"qtool/formats"
	"qtool/formats/half"
	"qtool/formats/packed"
)

// Set is one implementation of every loop. Integer parts are exact and equal in all sets; sums of
// floating-point products may differ in their order, so in the last bits.
type Set struct {
	// Name is generic, avx2 or avx512.
	Name string

	// quantize fills one token's part of Activations: see Activations.Quantize.
	quantize func(q []int8, scale, sum, x []float32)
	// panel4 and panel8 multiply panels of a 4-bit or 8-bit matrix with tokens: see MulPanels.
	panel4, panel8 func(p panelArgs)
	// quantizeFine and panelFine are the same for Fine, codes as int16; nil where the set keeps planes of int8.
	quantizeFine func(q []int16, scale, sum, x []float32)
	panelFine    func(p panelArgs)
	// panelBoth is panel8 for one token whose activations are two planes: see MulPanelsBoth. nil where there is no such loop.
	panelBoth func(p panelArgs)
	// tiled gives the tiles of tokens that the loops take where activations are arranged in them; nil where there are none.
	tiled func(packed.Scheme) Tiles
	// widen lays out the codes and scales of four tokens for panelTable; nil without such tiles.
	widen func(to []uint32, q []int8, scale []float32, blocks int)
	// panelTable multiplies panels whose codes stand for the entries of a table: see byTable.
	panelTable func(p panelArgs)
	// halved tells for which schemes panelTable needs the sums of halves of blocks; nil where for none.
	halved func(packed.Scheme) bool
	// foreign multiplies panels of a Foreign matrix with tokens, and halve sums codes for it.
	foreign func(p foreignArgs)
	halve   func(halves []int16, q []int8)
	// mulSliver multiplies rows of float32 with a sliver, and transpose turns rows for it: see MulSliver and Transpose.
	mulSliver func(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool)
	transpose func(to []float32, toStride int, b []float32, stride, rows, n int)
	// mulSlivers multiplies with two whole slivers; nil where that is no faster.
	mulSlivers func(out []float32, stride int, a []float32, aStride, rows int, slivers []float32, sliverStride, n int, add bool)
	// mulRows multiplies rows as they are stored with a vector: see MulRows.
	mulRows func(out []float32, d formats.DType, rows *[SliverWidth][]byte, from int, x []float32, add bool) bool

	dot  func(x, y []float32) float32
	axpy func(a float32, x, y []float32)
	exp  func(x []float32, shift float32) (sum float32)

	decodeF16, decodeBF16 func(dst []float32, src []byte)

	// F32, F16 and I8 are the loops of attention by the type of its keys and values.
	F32 Vectors[float32]
	F16 Vectors[uint16]
	I8  Vectors[int8]

	gate      func(e, gate, up []float32)
	multiply  func(x, y []float32)
	greatest  func(x []float32) float32
	encodeF16 func(dst []uint16, src []float32)

	// Loops of the quantizers: see quantizers.go. The same bits in every set.
	largest func(w []float32) uint32
	encode  func(codes []int8, w []float32, inverse float32, least, most, offset int8)
	fit     func(w, a []float32, low, inverse, least, most float32) (c, cc, cw float32)
	// fitTable: see FitTable.
	fitTable func(w, a []float32, inverse float32, t *LevelTable) (lw, ll float32)
	loss     func(w, a []float32, inverse, zero, least, most, scale float32) float32
}

// EnvLevel is the environment variable that limits the instructions in use: generic, avx2 or
// avx512. It can only lower the level that the machine has.
const EnvLevel = "QTOOL_CPU"

// Generic is the portable implementation.
func Generic() *Set {
	return &Set{
		Name: "generic", quantize: quantizeGeneric, panel4: panelGeneric, panel8: panelGeneric, panelTable: panelGeneric,
		quantizeFine: quantizeFineGeneric, panelFine: panelGeneric,
		foreign: foreignGeneric, halve: halveGeneric,
		mulSliver: mulSliverGeneric, transpose: transposeGeneric, mulRows: mulRowsGeneric,
		dot: dotGeneric, axpy: axpyGeneric, exp: expGeneric,
		decodeF16: half.DecodeF16, decodeBF16: half.DecodeBF16,
		F32: vectorsGeneric(widenF32), F16: vectorsGeneric(widenF16), I8: vectorsGeneric(widenI8),
		gate: gateGeneric, multiply: multiplyGeneric, greatest: greatestGeneric, encodeF16: encodeF16Generic,
		largest: largestGeneric, encode: encodeGeneric, fit: fitGeneric, fitTable: fitTableGeneric, loss: lossGeneric,
	}
}

// Available lists what the machine can run, the portable set first and the fastest last.
func Available() []*Set { return append([]*Set{Generic()}, machineSets()...) }

// Best is the fastest set that the machine and the environment variable QTOOL_CPU allow. A value
// that is not known, or above what the machine has, is an error.
func Best() (*Set, error) {
	sets := Available()
	level := os.Getenv(EnvLevel)
	if level == "" {
		return sets[len(sets)-1], nil
	}
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.Name
	}
	i := slices.Index(names, level)
	if i < 0 {
		return nil, fmt.Errorf("%s=%s: expected one of %s, which this machine can run", EnvLevel, level, strings.Join(names, ", "))
	}
	return sets[i], nil
}

// Activations holds the vectors that a packed matrix is multiplied with, one a token, as int8 codes:
// in each block of 32 neighbours x = Scale·q, q from −127 to 127. The last block is filled up with
// zeros.
type Activations struct {
	Tokens, Cols int

	Blocks int       // of a token
	Q      []int8    // [Tokens][32·Blocks]
	Scale  []float32 // [Tokens][Blocks]
	Sum    []float32 // [Tokens][Blocks], sum of the block's codes
	Halves []int16   // [Tokens][Blocks][2], sums of its halves, where ResizeHalves and Halve were called

	tiles [kinds]tiling // by Tiles.index
}

// Resize makes room for tokens vectors of cols elements. Contents are undefined afterwards.
func (a *Activations) Resize(tokens, cols int) {
	a.Tokens, a.Cols, a.Blocks = tokens, cols, (cols+packed.Block-1)/packed.Block
	for i := range a.tiles {
		a.tiles[i].valid = false
	}
	a.Halves = a.Halves[:0]
	a.Q = grow(a.Q, tokens*a.Blocks*packed.Block)
	a.Scale = grow(a.Scale, tokens*a.Blocks)
	a.Sum = grow(a.Sum, tokens*a.Blocks)
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Quantize sets the vector of one token: Scale is the largest magnitude of a block by 127, codes
// round to nearest, ties to even. Different tokens may be set at the same time. x has Cols finite
// elements. Products with several tokens at a time are not of the new vector if Tile was called since Resize.
func (s *Set) Quantize(a *Activations, token int, x []float32) {
	n, b := a.Blocks*packed.Block, a.Blocks
	s.quantize(a.Q[token*n:(token+1)*n], a.Scale[token*b:(token+1)*b], a.Sum[token*b:(token+1)*b], x[:a.Cols])
}

// QuantizeStatic sets the vector of one token under a range that was chosen beforehand: Scale is limit/127 for every block, and what lies
// beyond ±limit is cut to it.
func (s *Set) QuantizeStatic(a *Activations, token int, x []float32, limit float32) {
	n, b := a.Blocks*packed.Block, a.Blocks
	q, scale, sum := a.Q[token*n:(token+1)*n], a.Scale[token*b:(token+1)*b], a.Sum[token*b:(token+1)*b]
	inverse := 127 / limit
	for i := range scale {
		part := x[i*packed.Block : min((i+1)*packed.Block, a.Cols)]
		codes := q[i*packed.Block : (i+1)*packed.Block]
		total := int32(0)
		for k, v := range part {
			c := roundEven(min(max(v, -limit), limit) * inverse)
			codes[k] = int8(c)
			total += c
		}
		clear(codes[len(part):])
		scale[i], sum[i] = limit/127, float32(total)
	}
}

// panelArgs is what a panel loop works on. Rows of a panel beyond the matrix are computed too.
type panelArgs struct {
	scheme packed.Scheme
	table  []byte // what codes stand for, 16 signed bytes, where byTable
	data   []byte // of neighbouring panels
	panels int
	cols   int

	// Of the tokens, first to last: codes, scales and sums as in Activations.
	q          []int8
	fine       []int16 // in place of q, as in Fine
	scale, sum []float32
	halves     []int16 // where the set needs them
	rest       plane   // the second one, for panelBoth
	tokens     int
	tiles      tiling // of all tokens there are, as Tiled says
	first      int    // which of them is the first here

	out    []float32 // out[token·stride + 8·panel + row] is set, row < 8
	stride int
}

// plane is codes, scales and sums as in Activations.
type plane struct {
	q          []int8
	scale, sum []float32
}

// tails are the places for a last panel's results: loops are called by their values, so that a variable would be
// memory taken for each call.
var tails = sync.Pool{New: func() any { return new([packed.Panel]float32) }}

// MulPanels multiplies panels of m, from p on, with the tokens first … first+n-1 of a:
//
//	out[t·stride + r] = Σ_k m[8p + r, k] · a[first + t, k]
//
// for all rows r < 8·panels that m has. a.Cols must be m.Cols. Where Halved says so for m's scheme, Halve has been called for the tokens.
func (s *Set) MulPanels(out []float32, stride int, m packed.Matrix, p, panels int, a *Activations, first, n int) {
	args := s.panelArgs(out, stride, m, p, panels, a, first, n)
	loop := s.panel4
	switch {
	case byTable(m.Scheme):
		loop, args.table = s.panelTable, table(m)
	case m.Scheme.Bits == 8:
		loop = s.panel8
	}
	s.mulPanels(loop, args, m, p)
}

// panelArgs is what loops of MulPanels are given.
func (s *Set) panelArgs(out []float32, stride int, m packed.Matrix, p, panels int, a *Activations, first, n int) panelArgs {
	b := a.Blocks
	args := panelArgs{
		scheme: m.Scheme, data: m.Panels(p, panels), panels: panels, cols: m.Cols,
		q:     a.Q[first*b*packed.Block : (first+n)*b*packed.Block],
		scale: a.Scale[first*b : (first+n)*b], sum: a.Sum[first*b : (first+n)*b],
		tokens: n, first: first, out: out, stride: stride,
	}
	if kind := s.Tiled(m.Scheme); kind != 0 {
		args.tiles = a.tiles[kind.index()]
	}
	if s.Halved(m.Scheme) {
		a.checkHalves()
		args.halves = a.Halves[2*first*b : 2*(first+n)*b]
	}
	return args
}

// Halved reports whether products with a matrix of the scheme need the sums of halves of blocks, as Halve sets them.
func (s *Set) Halved(scheme packed.Scheme) bool { return s.halved != nil && s.halved(scheme) }

// mulPanels calls a loop for panels of m from p on, of which the last may have fewer rows.
func (s *Set) mulPanels(loop func(panelArgs), args panelArgs, m packed.Matrix, p int) {
	out, stride, panels, n := args.out, args.stride, args.panels, args.tokens
	rest := m.Rows - p*packed.Panel
	if rest >= panels*packed.Panel {
		loop(args)
		return
	}
	// The last panel has fewer rows: its results go to a place of their own first.
	args.panels--
	if args.panels > 0 {
		loop(args)
	}
	done := args.panels * packed.Panel
	all := tails.Get().(*[packed.Panel]float32)
	defer tails.Put(all)
	b := len(args.scale) / n
	for t := range n {
		one := args
		one.data, one.panels = m.Panels(p+args.panels, 1), 1
		if args.fine != nil {
			one.fine = args.fine[t*b*packed.Block : (t+1)*b*packed.Block]
		} else {
			one.q = args.q[t*b*packed.Block : (t+1)*b*packed.Block]
		}
		if args.halves != nil {
			one.halves = args.halves[2*t*b : 2*(t+1)*b]
		}
		one.scale, one.sum = args.scale[t*b:(t+1)*b], args.sum[t*b:(t+1)*b]
		one.tokens, one.first, one.out, one.stride = 1, args.first+t, all[:], packed.Panel
		loop(one)
		copy(out[t*stride+done:t*stride+rest], all[:])
	}
}

// Dot is the inner product of two vectors of equal length.
func (s *Set) Dot(x, y []float32) float32 { return s.dot(x, y[:len(x)]) }

// Axpy adds a·x to y, which has at least x's length.
func (s *Set) Axpy(a float32, x, y []float32) { s.axpy(a, x, y[:len(x)]) }

// Exp replaces each x by exp(x − shift), of which the difference must be finite, and returns the sum.
func (s *Set) Exp(x []float32, shift float32) (sum float32) { return s.exp(x, shift) }

// SiLU sets dst to gate/(1 + exp(−gate))·up, all of the same length.
func (s *Set) SiLU(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, g := range gate {
		dst[i] = -g
	}
	s.exp(dst, 0)
	s.gate(dst, gate, up)
}

// Softmax replaces x, of at least one finite element, by their exponentials, scaled to add up to one.
func (s *Set) Softmax(x []float32) {
	most := x[0]
	for _, v := range x {
		if v > most {
			most = v
		}
	}
	f := 1 / s.exp(x, most)
	for i := range x {
		x[i] *= f
	}
}

// DecodeF16 reads len(dst) binary16 numbers, little-endian.
func (s *Set) DecodeF16(dst []float32, src []byte) { s.decodeF16(dst, src) }

// DecodeBF16 reads len(dst) bfloat16 numbers, little-endian.
func (s *Set) DecodeBF16(dst []float32, src []byte) { s.decodeBF16(dst, src) }
