package packed

import (
	"encoding/binary"
	"fmt"
	"math"

	"qtool/formats/half"
)

// Matrix is a packed matrix of Rows × Cols weights, output features first. Data is its storage, which
// may be a map of a file; SPEC.md has the layout.
type Matrix struct {
	Scheme Scheme
	Rows   int
	Cols   int
	Data   []byte
}

// NewMatrix checks that data is the storage of such a matrix.
func NewMatrix(s Scheme, rows, cols int, data []byte) (Matrix, error) {
	if err := s.Validate(); err != nil {
		return Matrix{}, err
	}
	if want := s.Bytes(rows, cols); len(data) != want {
		return Matrix{}, fmt.Errorf("a %s matrix of %d × %d takes %d bytes, found %d", s, rows, cols, want, len(data))
	}
	return Matrix{Scheme: s, Rows: rows, Cols: cols, Data: data}, nil
}

// PanelCount is the number of panels.
func (m Matrix) PanelCount() int { return (m.Rows + Panel - 1) / Panel }

// Panels gives the storage of n neighbouring panels, from panel i on.
func (m Matrix) Panels(i, n int) []byte {
	size := m.Scheme.PanelBytes(m.Cols)
	data := m.Data[m.Scheme.PreludeBytes():]
	return data[i*size : (i+n)*size : (i+n)*size]
}

// Panel gives the storage of panel i.
func (m Matrix) Panel(i int) []byte { return m.Panels(i, 1) }

// CopyRows copies the rows first … first+n-1 to dst, of Scheme.Bytes(n, Cols), as a matrix of their own. They are whole panels,
// but for the last of the matrix.
func (m Matrix) CopyRows(dst []byte, first, n int) (Matrix, error) {
	if first < 0 || n < 0 || first > m.Rows-n || first%Panel != 0 || (n%Panel != 0 && first+n != m.Rows) {
		return Matrix{}, fmt.Errorf("rows %d to %d of %d are no whole panels", first, first+n, m.Rows)
	}
	out, err := NewMatrix(m.Scheme, n, m.Cols, dst)
	if err != nil {
		return Matrix{}, err
	}
	prelude := m.Scheme.PreludeBytes()
	copy(dst, m.Data[:prelude])
	copy(dst[prelude:], m.Panels(first/Panel, out.PanelCount()))
	return out, nil
}

// Book gives the codebook, of which a scheme of 3 bits uses the first 8 entries; zeros where the scheme has none.
func (m Matrix) Book() (b [16]int8) {
	if m.Scheme.Codebook {
		for i, v := range m.Data[:16] {
			b[i] = int8(v)
		}
	}
	return b
}

// Range gives the magnitude that activations are cut to, which stands for the code 127, of a scheme with static
// activations; else 0. A damaged file may hold anything: NaN, infinities and negative numbers count as 0.
func (m Matrix) Range() float32 {
	if !m.Scheme.Static {
		return 0
	}
	r := math.Float32frombits(binary.LittleEndian.Uint32(m.Data[16:]))
	if !(r > 0) || r > math.MaxFloat32 {
		return 0
	}
	return r
}

// PutPrelude writes what comes before the panels to the storage of a matrix: the codebook (nil: none) and the range
// of activations. It returns the storage of the panels.
func PutPrelude(s Scheme, data []byte, book *[16]int8, activations float32) []byte {
	n := s.PreludeBytes()
	clear(data[:n])
	if s.Codebook {
		for i, v := range book {
			data[i] = byte(v)
		}
	}
	if s.Static {
		binary.LittleEndian.PutUint32(data[16:], math.Float32bits(activations))
	}
	return data[n:]
}

// Codes holds what one row of a matrix is made of before it is packed.
type Codes struct {
	Codes  []int8   // one a column, within Scheme.Levels
	Scales []uint16 // binary16, one a span
	Subs   []int8   // −32…31, one a group of a two-level scheme; else none
	Zeros  []uint8  // one a group; unused by symmetric schemes
}

// NewCodes returns room for a row of cols weights.
func NewCodes(s Scheme, cols int) Codes {
	c := Codes{Codes: make([]int8, cols), Scales: make([]uint16, s.Spans(cols)), Zeros: make([]uint8, s.Groups(cols))}
	if s.TwoLevel {
		c.Subs = make([]int8, s.Groups(cols))
	}
	return c
}

// Scale is the scale of group g.
func (s Scheme) Scale(c Codes, g int) float32 {
	if s.TwoLevel {
		return half.F16ToF32(c.Scales[g*s.Group/Super]) * float32(c.Subs[g])
	}
	return half.F16ToF32(c.Scales[g])
}

// PackPanel writes the storage of one panel from its rows, at most 8 and at least one, all of cols
// weights. dst must have PanelBytes(cols) bytes and is overwritten.
func PackPanel(s Scheme, dst []byte, rows []Codes, cols int) {
	clear(dst)
	block, span := s.BlockBytes(), s.Span()
	at := 0
	for i, col := 0, 0; col < cols; i, col = i+1, col+span {
		n := min(span, cols-col)
		for r := range rows {
			packHead(s, dst[at:], rows[r], i, n, r)
		}
		at += s.HeadBytes(n)
		for b := col; b < col+n; b += Block {
			out := dst[at : at+block : at+block]
			for r := range rows {
				codes := rows[r].Codes[b:min(b+Block, cols)]
				switch {
				case s.Bits == 8:
					pack8(out, codes, r)
				case s.Bits == 3:
					pack3((*[96]byte)(out), codes, r)
				case len(codes) == Block:
					pack4((*[128]byte)(out), (*[Block]int8)(codes), r)
				default:
					pack4Tail((*[128]byte)(out), codes, r, s.Asym)
				}
			}
			at += block
		}
	}
}

// packHead writes row r's scales of span i, of n weights.
func packHead(s Scheme, head []byte, c Codes, i, n, r int) {
	binary.LittleEndian.PutUint16(head[2*r:], c.Scales[i])
	head = head[2*Panel:]
	switch {
	case s.Asym:
		head[r] = c.Zeros[i]
	case s.TwoLevel:
		groups := s.Groups(n)
		high := head[(groups+1)/2*Panel:]
		for g := range groups {
			v := uint8(c.Subs[i*Super/s.Group+g] + 32)
			head[g/2*Panel+r] |= v & 15 << (g % 2 * 4)
			high[g/4*Panel+r] |= v >> 4 << (g % 4 * 2)
		}
	}
}

// unpackHead reads what packHead writes.
func unpackHead(s Scheme, head []byte, c Codes, i, n, r int) {
	c.Scales[i] = binary.LittleEndian.Uint16(head[2*r:])
	head = head[2*Panel:]
	switch {
	case s.Asym:
		c.Zeros[i] = head[r]
	case s.TwoLevel:
		groups := s.Groups(n)
		for g := range groups {
			c.Subs[i*Super/s.Group+g] = SubScale(head, groups, g, r)
		}
	}
}

// SubScale reads the 6-bit scale of row r, group g of a span; head is what follows the half-precision scales.
func SubScale(head []byte, groups, g, r int) int8 {
	low := head[g/2*Panel+r] >> (g % 2 * 4) & 15
	high := head[(groups+1)/2*Panel+g/4*Panel+r] >> (g % 4 * 2) & 3
	return int8(low|high<<4) - 32
}

// pack8 writes row r of an 8-bit block.
func pack8(out []byte, codes []int8, r int) {
	for len(codes) >= 4 {
		binary.LittleEndian.PutUint32(out[4*r:], uint32(uint8(codes[0]))|uint32(uint8(codes[1]))<<8|
			uint32(uint8(codes[2]))<<16|uint32(uint8(codes[3]))<<24)
		codes, out = codes[4:], out[32:]
	}
	for i, c := range codes {
		out[4*r+i] = uint8(c)
	}
}

// pack4 writes row r of a 4-bit block.
func pack4(out *[128]byte, codes *[Block]int8, r int) {
	for v := range 4 {
		low, high := (*[4]int8)(codes[4*v:]), (*[4]int8)(codes[16+4*v:])
		w := uint32(low[0]) | uint32(high[0])<<4 | uint32(low[1])<<8 | uint32(high[1])<<12 |
			uint32(low[2])<<16 | uint32(high[2])<<20 | uint32(low[3])<<24 | uint32(high[3])<<28
		binary.LittleEndian.PutUint32(out[32*v+4*(r&7):], w)
	}
}

// pack4Tail is pack4 for a block that the row ends in.
func pack4Tail(out *[128]byte, codes []int8, r int, asym bool) {
	var full [Block]int8
	if !asym {
		for i := range full {
			full[i] = 8
		}
	}
	copy(full[:], codes)
	pack4(out, &full, r)
}

// pack3 writes row r of a 3-bit block, or of one that the row ends in: the two low bits of the codes, four in a byte, and
// the third bits of them, eight in a byte.
func pack3(out *[96]byte, codes []int8, r int) {
	for k, c := range codes {
		f, v, j := k/8, k/4%2, k%4
		out[32*v+4*r+j] |= uint8(c) & 3 << (2 * f)
		out[64+4*r+j] |= uint8(c) >> 2 & 1 << (2*f + v)
	}
}

// Code3 reads the code of row r, column k of a 3-bit block.
func Code3(in []byte, r, k int) int8 {
	f, v, j := k/8, k/4%2, k%4
	return int8(in[32*v+4*r+j]>>(2*f)&3 | in[64+4*r+j]>>(2*f+v)&1<<2)
}

// UnpackRow reads row i into c, which NewCodes made for the matrix.
func (m Matrix) UnpackRow(i int, c Codes) {
	s, r := m.Scheme, i%Panel
	panel := m.Panel(i / Panel)
	block, span := s.BlockBytes(), s.Span()
	at := 0
	for i, col := 0, 0; col < m.Cols; i, col = i+1, col+span {
		n := min(span, m.Cols-col)
		unpackHead(s, panel[at:], c, i, n, r)
		at += s.HeadBytes(n)
		for b := col; b < col+n; b += Block {
			in := panel[at : at+block]
			codes := c.Codes[b:min(b+Block, m.Cols)]
			for k := range codes {
				switch s.Bits {
				case 8:
					codes[k] = int8(in[k/4*32+4*r+k%4])
				case 3:
					codes[k] = Code3(in, r, k)
				default:
					codes[k] = int8(in[k%16/4*32+4*r+k%4] >> (k / 16 * 4) & 15)
				}
			}
			at += block
		}
	}
}

// DequantizeRow writes the weights of row i to dst, which has Cols elements: (code − zero), or the entry of the
// codebook, and then the product with the scale, each rounded to float32. scratch is what UnpackRow needs.
func (m Matrix) DequantizeRow(dst []float32, i int, scratch Codes) {
	m.UnpackRow(i, scratch)
	book := m.Book()
	m.Scheme.Dequantize(dst, scratch, &book)
}

// Dequantize gives the weights that a row of codes stands for. book is that of a scheme with a codebook.
func (s Scheme) Dequantize(dst []float32, c Codes, book *[16]int8) {
	for g, col := 0, 0; col < len(dst); g, col = g+1, col+s.Group {
		scale := s.Scale(c, g)
		codes := c.Codes[col:min(col+s.Group, len(dst))]
		out := dst[col : col+len(codes)]
		if s.Codebook {
			for k, code := range codes {
				out[k] = scale * float32(book[code&15])
			}
			continue
		}
		zero := s.Zero(c.Zeros[g])
		for k, code := range codes {
			out[k] = scale * (float32(code) - zero)
		}
	}
}
