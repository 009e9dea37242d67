package packed

import (
	"encoding/binary"
	"fmt"

	"qtool/formats/half"
)

// Matrix is a packed matrix of Rows × Cols weights, output features first. Data is its storage, which
// may be a map of a file:
//
//   - Panels of 8 rows, one after another; rows beyond the last have scale 0.
//   - A panel is a sequence of groups; a group is its 8 scales (binary16, row 0 first), for an
//     asymmetric scheme then its 8 zero points (a byte each), then its blocks of 32 columns.
//   - An 8-bit block has 8 vectors of 32 bytes. In vector v, bytes 4r…4r+3 are row r's codes of
//     columns 4v…4v+3 of the block.
//   - A 4-bit block has 4 vectors of 32 bytes. In vector v, byte 4r+j holds row r's code of column
//     4v+j in its low half, and of column 16+4v+j in its high half.
//   - Columns beyond the last have code 0 (8 bits), 8 (4 bits, symmetric) or 0 (4 bits, asymmetric);
//     readers must not rely on it, activations are padded with zeros.
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
	return m.Data[i*size : (i+n)*size : (i+n)*size]
}

// Panel gives the storage of panel i.
func (m Matrix) Panel(i int) []byte { return m.Panels(i, 1) }

// Codes holds what one row of a matrix is made of before it is packed.
type Codes struct {
	Codes  []int8   // one a column, within Scheme.Levels
	Scales []uint16 // binary16, one a group
	Zeros  []uint8  // one a group; unused by symmetric schemes
}

// NewCodes returns room for a row of cols weights.
func NewCodes(s Scheme, cols int) Codes {
	return Codes{Codes: make([]int8, cols), Scales: make([]uint16, s.Groups(cols)), Zeros: make([]uint8, s.Groups(cols))}
}

// PackPanel writes the storage of one panel from its rows, at most 8 and at least one, all of cols
// weights. dst must have PanelBytes(cols) bytes and is overwritten.
func PackPanel(s Scheme, dst []byte, rows []Codes, cols int) {
	clear(dst)
	head, block := s.headBytes(), s.blockBytes()
	at := 0
	for g, col := 0, 0; col < cols; g, col = g+1, col+s.Group {
		for r := range rows {
			binary.LittleEndian.PutUint16(dst[at+2*r:], rows[r].Scales[g])
			if s.Asym {
				dst[at+2*Panel+r] = rows[r].Zeros[g]
			}
		}
		at += head
		for b := col; b < min(col+s.Group, cols); b += Block {
			out := dst[at : at+block : at+block]
			for r := range rows {
				codes := rows[r].Codes[b:min(b+Block, cols)]
				switch {
				case s.Bits == 8:
					pack8(out, codes, r)
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

// UnpackRow reads row i into c, which NewCodes made for the matrix.
func (m Matrix) UnpackRow(i int, c Codes) {
	s, r := m.Scheme, i%Panel
	panel := m.Panel(i / Panel)
	head, block := s.headBytes(), s.blockBytes()
	at := 0
	for g, col := 0, 0; col < m.Cols; g, col = g+1, col+s.Group {
		c.Scales[g] = binary.LittleEndian.Uint16(panel[at+2*r:])
		if s.Asym {
			c.Zeros[g] = panel[at+2*Panel+r]
		}
		at += head
		for b := col; b < min(col+s.Group, m.Cols); b += Block {
			in := panel[at : at+block]
			codes := c.Codes[b:min(b+Block, m.Cols)]
			for k := range codes {
				if s.Bits == 8 {
					codes[k] = int8(in[k/4*32+4*r+k%4])
				} else {
					codes[k] = int8(in[k%16/4*32+4*r+k%4] >> (k / 16 * 4) & 15)
				}
			}
			at += block
		}
	}
}

// DequantizeRow writes the weights of row i to dst, which has Cols elements: (code − zero) and then
// the product with the scale, each rounded to float32. scratch is what UnpackRow needs.
func (m Matrix) DequantizeRow(dst []float32, i int, scratch Codes) {
	m.UnpackRow(i, scratch)
	m.Scheme.Dequantize(dst, scratch)
}

// Dequantize gives the weights that a row of codes stands for.
func (s Scheme) Dequantize(dst []float32, c Codes) {
	for g, col := 0, 0; col < len(dst); g, col = g+1, col+s.Group {
		scale, zero := half.F16ToF32(c.Scales[g]), s.Zero(c.Zeros[g])
		codes := c.Codes[col:min(col+s.Group, len(dst))]
		out := dst[col : col+len(codes)]
		for k, code := range codes {
			out[k] = scale * (float32(code) - zero)
		}
	}
}
