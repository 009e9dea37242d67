package kernel

import (
	"encoding/binary"
	"math"

	"qtool/formats/half"
	"qtool/formats/packed"
)

// fineLimit is the largest code of Fine: in a block of 32 products with weights of 8 bits, zero point taken off, no
// sum exceeds 32 · 255 · 2047 < 2^24, so that float32 holds them all exactly.
const fineLimit = 2047

// Fine holds vectors as Activations does, with codes of more than 8 bits: where weights have 8 bits, activations of 8
// would lose as much as the weights do. A set that multiplies 16 bits by 8 keeps codes of 12 bits as int16; others keep
// two planes of int8, the second of what the first left.
type Fine struct {
	Tokens, Cols int

	Blocks int
	Q      []int16   // [Tokens][32·Blocks], from −2047 to 2047; of each four neighbours the second and the third change places
	Scale  []float32 // [Tokens][Blocks]
	Sum    []float32 // [Tokens][Blocks], sum of the block's codes

	tiles       tiling
	first, rest Activations // the planes
}

// wide reports whether the set multiplies int16 with int8.
func (s *Set) wide() bool { return s.panelFine != nil }

// ResizeFine makes room for tokens vectors of cols elements. Contents are undefined afterwards.
func (s *Set) ResizeFine(f *Fine, tokens, cols int) {
	f.Tokens, f.Cols, f.Blocks, f.tiles.valid = tokens, cols, (cols+packed.Block-1)/packed.Block, false
	if !s.wide() {
		f.first.Resize(tokens, cols)
		f.rest.Resize(tokens, cols)
		return
	}
	f.Q = grow(f.Q, tokens*f.Blocks*packed.Block)
	f.Scale = grow(f.Scale, tokens*f.Blocks)
	f.Sum = grow(f.Sum, tokens*f.Blocks)
}

// QuantizeFine sets the vector of one token, of finite elements. Different tokens may be set at the same time, each with
// a scratch of its own for f.Cols elements.
func (s *Set) QuantizeFine(f *Fine, token int, x, scratch []float32) {
	if !s.wide() {
		s.Quantize(&f.first, token, x)
		s.QuantizeRest(&f.rest, &f.first, token, x, scratch)
		return
	}
	n, b := f.Blocks*packed.Block, f.Blocks
	s.quantizeFine(f.Q[token*n:(token+1)*n], f.Scale[token*b:(token+1)*b], f.Sum[token*b:(token+1)*b], x[:f.Cols])
}

// FineBits is the size of the codes of Fine, of which two planes of int8 make 16.
func (s *Set) FineBits() int {
	if s.wide() {
		return 12
	}
	return 16
}

// QuantizeRest sets in rest what the codes of a token in a left of x: products with both together are those with activations
// of 16 bits. Different tokens may be set at the same time, each with a scratch of its own for a.Cols elements.
func (s *Set) QuantizeRest(rest, a *Activations, token int, x, scratch []float32) {
	n, b := a.Blocks*packed.Block, a.Blocks
	q, scale := a.Q[token*n:], a.Scale[token*b:]
	x, scratch = x[:a.Cols], scratch[:a.Cols]
	for i, v := range x {
		scratch[i] = v - float32(float32(q[i])*scale[i/packed.Block])
	}
	s.Quantize(rest, token, scratch)
}

// FineScratch is the number of elements that MulPanelsFine needs to work in.
func (s *Set) FineScratch(panels, tokens int) int {
	if s.wide() {
		return 0
	}
	return panels * packed.Panel * tokens
}

// MulPanelsFine is MulPanels for a matrix of 8 bits with the vectors of f. scratch has FineScratch(panels, n) elements.
func (s *Set) MulPanelsFine(out []float32, stride int, m packed.Matrix, p, panels int, f *Fine, first, n int, scratch []float32) {
	if s.wide() {
		b := f.Blocks
		s.mulPanels(s.panelFine, panelArgs{
			scheme: m.Scheme, data: m.Panels(p, panels), panels: panels, cols: m.Cols,
			fine:  f.Q[first*b*packed.Block : (first+n)*b*packed.Block],
			scale: f.Scale[first*b : (first+n)*b], sum: f.Sum[first*b : (first+n)*b],
			tokens: n, tiles: f.tiles, first: first, out: out, stride: stride,
		}, m, p)
		return
	}
	s.MulPanelsBoth(out, stride, m, p, panels, &f.first, &f.rest, first, n, scratch)
}

// MulPanelsBoth is MulPanels with the sum of two planes of the same shape, such as QuantizeRest makes the second of; where Halved says so, Halve
// has been called for both. scratch is memory to work in, 8·panels·n elements that are not those of out.
func (s *Set) MulPanelsBoth(out []float32, stride int, m packed.Matrix, p, panels int, a, rest *Activations, first, n int, scratch []float32) {
	if n == 1 && s.panelBoth != nil && m.Scheme.Bits == 8 {
		args := s.panelArgs(out, stride, m, p, panels, a, first, n)
		more := s.panelArgs(nil, 0, m, p, panels, rest, first, n)
		args.rest = plane{q: more.q, scale: more.scale, sum: more.sum}
		s.mulPanels(s.panelBoth, args, m, p)
		return
	}
	s.MulPanels(out, stride, m, p, panels, a, first, n)
	rows := min(panels*packed.Panel, m.Rows-p*packed.Panel)
	s.MulPanels(scratch, rows, m, p, panels, rest, first, n)
	for t := range n {
		s.Axpy(1, scratch[t*rows:(t+1)*rows], out[t*stride:])
	}
}

// finePlace is where element k of a vector is kept: pairs of int16 stand under the even and under the odd bytes of a
// dword of weights.
func finePlace(k int) int { return k&^3 | k&1<<1 | k>>1&1 }

func quantizeFineGeneric(q []int16, scale, sum, x []float32) {
	for b := range scale {
		in := x[b*packed.Block : min((b+1)*packed.Block, len(x))]
		out := q[b*packed.Block : (b+1)*packed.Block]
		var most float32
		for _, v := range in {
			most = max(most, abs(v))
		}
		scale[b] = most / fineLimit
		var inverse float32
		if most > 0 {
			inverse = fineLimit / most
		}
		if math.IsInf(float64(inverse), 0) { // as in quantizeGeneric
			inverse, scale[b] = 0, 0
		}
		clear(out)
		total := int32(0)
		for i, v := range in {
			c := roundEven(v * inverse)
			total += c
			out[finePlace(i)] = int16(c)
		}
		sum[b] = float32(total)
	}
}

// panelFineToken is panelToken for codes of activations in p.fine and weights of 8 bits.
func panelFineToken(acc *[packed.Panel]float32, p panelArgs, data []byte, t int) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	q := p.fine[t*blocks*packed.Block:]
	scale, sum := p.scale[t*blocks:], p.sum[t*blocks:]
	for b := 0; b < blocks; {
		var s, zero [packed.Panel]float32
		for r := range s {
			s[r] = half.F16ToF32(binary.LittleEndian.Uint16(data[2*r:]))
			if p.scheme.Asym {
				zero[r] = p.scheme.Zero(data[2*packed.Panel+r])
			}
		}
		data = data[p.scheme.HeadBytes(p.scheme.Group):]
		for end := min(b+p.scheme.Group/packed.Block, blocks); b < end; b++ {
			var dots [packed.Panel]int32
			dotFine(&dots, (*[8 * packed.Block]byte)(data), (*[packed.Block]int16)(q[b*packed.Block:]))
			data = data[8*packed.Block:]
			for r := range acc {
				exact := float32(dots[r]) - float32(zero[r]*sum[b])
				acc[r] += float32(s[r]*scale[b]) * exact
			}
		}
	}
}

// dotFine adds the products of a block of 8-bit codes to dots, a row each.
func dotFine(dots *[packed.Panel]int32, block *[8 * packed.Block]byte, q *[packed.Block]int16) {
	for v := range 8 {
		x := (*[4]int16)(q[4*v:])
		for r := range dots {
			w := (*[4]byte)(block[32*v+4*r:])
			dots[r] += int32(int8(w[0]))*int32(x[0]) + int32(int8(w[2]))*int32(x[1]) +
				int32(int8(w[1]))*int32(x[2]) + int32(int8(w[3]))*int32(x[3])
		}
	}
}
