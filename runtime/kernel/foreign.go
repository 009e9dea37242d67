package kernel

import (
	"encoding/binary"
	"fmt"

	"qtool/formats/half"
	"qtool/formats/packed"
)

// Layout is how the weights of a Foreign matrix are stored. Panels are of 8 rows and blocks of 32 columns, codes unsigned:
// low nibbles as in packed matrices of 4 bits (dword r of vector v holds row r, columns 4v… in the low nibbles and 16+4v…
// in the high ones), bits above them in vectors before.
//
//	Super4, Super5:   w = d·s·code − m·t         s, t 0…255, one a block; d, m of half precision, one a 256 columns
//	Super6:           w = d·s·(code − 32)        s −128…127, one a 16 columns; d as above
//	Offset4, Offset5: w = d·code − m             d, m of half precision, one a block
//
// A span of 256 columns of Super4 and Super5 is d and m of the rows, 16 bytes each, and 8 blocks of: s of the rows, t of the
// rows, 8 bytes each, codes. One of Super6 is d and 8 blocks of: for each row the s of both halves, 16 bytes, codes. A block of
// Offset4 and Offset5 is d, m, codes. Codes of 5 bits are a vector of fifth bits, then nibbles: bit 4h+v of a byte belongs
// to the columns of half h that vector v has its nibble of. Codes of 6 bits are two vectors of upper pairs, one a half, whose
// bits 2v and 2v+1 belong to vector v, then nibbles.
type Layout int

// Layouts.
const (
	Super4 Layout = iota + 1
	Super5
	Super6
	Offset4
	Offset5
)

// Bits is the size of a code.
func (l Layout) Bits() int { return [...]int{4, 5, 6, 4, 5}[l-1] }

// Super reports whether 256 columns share factors of half precision.
func (l Layout) Super() bool { return l <= Super6 }

// CodeBytes is the storage of the codes of a block of a panel.
func (l Layout) CodeBytes() int { return packed.Panel * packed.Block * l.Bits() / 8 }

// HeadBytes is the storage before the codes of each block.
func (l Layout) HeadBytes() int {
	if l.Super() {
		return 2 * packed.Panel
	}
	return 4 * packed.Panel
}

// SpanBytes is the storage before the blocks of 256 columns.
func (l Layout) SpanBytes() int {
	switch l {
	case Super4, Super5:
		return 4 * packed.Panel
	case Super6:
		return 2 * packed.Panel
	}
	return 0
}

// PanelBytes is the storage of a panel of rows of cols weights.
func (l Layout) PanelBytes(cols int) int {
	return cols/packed.Super*l.SpanBytes() + cols/packed.Block*(l.HeadBytes()+l.CodeBytes())
}

// Foreign is a matrix of block types of other programs, in memory: the same weights as theirs, laid out for the loops here.
type Foreign struct {
	Layout Layout
	Rows   int
	Cols   int // a multiple of 32, with Super layouts of 256
	Data   []byte
}

// NewForeign checks that data is the storage of such a matrix.
func NewForeign(l Layout, rows, cols int, data []byte) (Foreign, error) {
	unit := packed.Block
	if l.Super() {
		unit = packed.Super
	}
	if cols%unit != 0 {
		return Foreign{}, fmt.Errorf("rows of %d weights are no multiple of %d", cols, unit)
	}
	m := Foreign{Layout: l, Rows: rows, Cols: cols, Data: data}
	if want := m.PanelCount() * l.PanelBytes(cols); len(data) != want {
		return Foreign{}, fmt.Errorf("a matrix of %d × %d takes %d bytes, found %d", rows, cols, want, len(data))
	}
	return m, nil
}

// PanelCount is the number of panels.
func (m Foreign) PanelCount() int { return (m.Rows + packed.Panel - 1) / packed.Panel }

// foreignArgs is what a loop over panels of a Foreign matrix works on: see panelArgs.
type foreignArgs struct {
	layout Layout
	data   []byte
	panels int
	cols   int

	q          []int8
	scale, sum []float32
	halves     []int16
	tokens     int

	out    []float32
	stride int
}

// Halve sets the sums of the codes of half blocks of one token, which Super6 and schemes that are Halved need. The codes are set before.
func (s *Set) Halve(a *Activations, token int) {
	a.checkHalves()
	b := a.Blocks
	if b > 0 {
		s.halve(a.Halves[2*token*b:2*(token+1)*b], a.Q[token*b*packed.Block:(token+1)*b*packed.Block])
	}
}

// checkHalves panics where there is no room for the sums of half blocks: those of other vectors might be read.
func (a *Activations) checkHalves() {
	if len(a.Halves) != 2*a.Tokens*a.Blocks {
		panic("kernel: sums of half blocks without ResizeHalves")
	}
}

// ResizeHalves makes room for the sums of half blocks, after Resize.
func (a *Activations) ResizeHalves() { a.Halves = grow(a.Halves, 2*a.Tokens*a.Blocks) }

func halveGeneric(halves []int16, q []int8) {
	for i := range halves {
		sum := int16(0)
		for _, v := range q[16*i : 16*i+16] {
			sum += int16(v)
		}
		halves[i] = sum
	}
}

// MulForeign is MulPanels for a Foreign matrix. With Super6, Halve has been called for the tokens.
func (s *Set) MulForeign(out []float32, stride int, m Foreign, p, panels int, a *Activations, first, n int) {
	b, size := a.Blocks, m.Layout.PanelBytes(m.Cols)
	args := foreignArgs{
		layout: m.Layout, data: m.Data[p*size : (p+panels)*size], panels: panels, cols: m.Cols,
		q:     a.Q[first*b*packed.Block : (first+n)*b*packed.Block],
		scale: a.Scale[first*b : (first+n)*b], sum: a.Sum[first*b : (first+n)*b],
		tokens: n, out: out, stride: stride,
	}
	if m.Layout == Super6 {
		args.halves = a.Halves[2*first*b : 2*(first+n)*b]
	}
	rest := m.Rows - p*packed.Panel
	if rest >= panels*packed.Panel {
		s.foreign(args)
		return
	}
	// The last panel has fewer rows: its results go to a place of their own first.
	args.panels--
	if args.panels > 0 {
		s.foreign(args)
	}
	done := args.panels * packed.Panel
	all := tails.Get().(*[packed.Panel]float32)
	defer tails.Put(all)
	for t := range n {
		one := args
		one.data, one.panels = args.data[args.panels*size:], 1
		one.q = args.q[t*b*packed.Block : (t+1)*b*packed.Block]
		one.scale, one.sum = args.scale[t*b:(t+1)*b], args.sum[t*b:(t+1)*b]
		if args.halves != nil {
			one.halves = args.halves[2*t*b : 2*(t+1)*b]
		}
		one.tokens, one.out, one.stride = 1, all[:], packed.Panel
		s.foreign(one)
		copy(out[t*stride+done:t*stride+rest], all[:])
	}
}

// foreignGeneric defines the product of a panel: in each block the integers Σ s·code·q (less 32·Σ s·q) are exact, and
// what is taken off for the offset is a factor times the exact sum of the activations' codes.
func foreignGeneric(p foreignArgs) {
	size := p.layout.PanelBytes(p.cols)
	for i := range p.panels {
		for t := range p.tokens {
			var acc [packed.Panel]float32
			foreignToken(&acc, p, p.data[i*size:(i+1)*size], t)
			copy(p.out[t*p.stride+i*packed.Panel:], acc[:])
		}
	}
}

// foreignToken multiplies one panel with one token.
func foreignToken(acc *[packed.Panel]float32, p foreignArgs, data []byte, t int) {
	l, blocks := p.layout, p.cols/packed.Block
	q, scale, sum := p.q[t*blocks*packed.Block:], p.scale[t*blocks:], p.sum[t*blocks:]
	var d, m [packed.Panel]float32
	halves := func(head []byte) {
		for r := range d {
			d[r] = half.F16ToF32(binary.LittleEndian.Uint16(head[2*r:]))
			if l != Super6 {
				m[r] = half.F16ToF32(binary.LittleEndian.Uint16(head[2*packed.Panel+2*r:]))
			}
		}
	}
	for b := range blocks {
		if n := l.SpanBytes(); n > 0 && b%(packed.Super/packed.Block) == 0 {
			halves(data)
			data = data[n:]
		}
		head, codes := data[:l.HeadBytes()], data[l.HeadBytes():]
		data = codes[l.CodeBytes():]
		if !l.Super() {
			halves(head)
		}
		x := (*[packed.Block]int8)(q[b*packed.Block:])
		for r := range acc {
			low, high := foreignDots(l, codes, r, x)
			whole, off := low+high, float32(0)
			switch l {
			case Super4, Super5:
				whole *= int32(head[r])
				off = m[r] * float32(head[packed.Panel+r])
			case Super6:
				h := p.halves[2*(t*blocks+b):]
				whole = int32(int8(head[2*r]))*(low-32*int32(h[0])) + int32(int8(head[2*r+1]))*(high-32*int32(h[1]))
			default:
				off = m[r]
			}
			acc[r] += scale[b] * float32(float32(d[r]*float32(whole))-float32(off*sum[b]))
		}
	}
}

// foreignDots gives Σ code·q over both halves of a block of row r.
func foreignDots(l Layout, codes []byte, r int, q *[packed.Block]int8) (low, high int32) {
	for k, x := range q {
		c := int32(foreignCode(l, codes, r, k)) * int32(x)
		if k < 16 {
			low += c
		} else {
			high += c
		}
	}
	return low, high
}

// foreignCode reads the code of row r, column k of a block.
func foreignCode(l Layout, codes []byte, r, k int) uint8 {
	h, v, j := k/16, k/4%4, 4*r+k%4
	nibble := func(at int) uint8 { return codes[at+32*v+j] >> (4 * h) & 15 }
	switch l.Bits() {
	case 5:
		return nibble(32) | codes[j]>>(4*h+v)&1<<4
	case 6:
		return nibble(64) | codes[32*h+j]>>(2*v)&3<<4
	}
	return nibble(0)
}
