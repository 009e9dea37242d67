package kernel

import (
	"encoding/binary"

	"qtool/formats/half"
	"qtool/formats/packed"
)

// byTable reports whether the codes of a scheme are multiplied by way of a table of what they stand for: those
// with a codebook, those of 3 bits, and those whose scales have two levels.
func byTable(s packed.Scheme) bool { return s.Codebook || s.TwoLevel || s.Bits == 3 }

// halved reports whether a block of a scheme has two integers of two-level scales.
func halved(s packed.Scheme) bool { return s.TwoLevel && s.Group < packed.Block }

// even are the tables of codes that are evenly spaced around zero, of 3 and of 4 bits.
var even = [2][16]byte{evenTable(3), evenTable(4)}

func evenTable(bits int) (t [16]byte) {
	for i := range 1 << bits {
		t[i] = byte(i - 1<<(bits-1))
	}
	return t
}

// table gives what the codes of a matrix stand for before they are scaled. It is not made anew, and so takes no memory.
func table(m packed.Matrix) []byte {
	if m.Scheme.Codebook {
		return m.Data[:16]
	}
	return even[m.Scheme.Bits-3][:]
}

// tableToken is panelToken where codes stand for the entries of a table: in each block the integer Σ table[code]·q, where scales have two levels
// each term times the integer of its group, is exact and then scaled.
func tableToken(acc *[packed.Panel]float32, p panelArgs, data []byte, t int) {
	s := p.scheme
	blocks := (p.cols + packed.Block - 1) / packed.Block
	q, scale := p.q[t*blocks*packed.Block:], p.scale[t*blocks:]
	group := min(s.Group, packed.Block) // columns under one scale within a block
	for col := 0; col < p.cols; {
		n := min(s.Span(), p.cols-col)
		head := data[:s.HeadBytes(n)]
		data = data[len(head):]
		for b := 0; b < n; b += packed.Block {
			block := data[:s.BlockBytes()]
			data = data[len(block):]
			x := (*[packed.Block]int8)(q[col+b:])
			var dots [packed.Panel]int32
			for from := 0; from < min(packed.Block, n-b); from += group {
				for r, d := range tableDots((*[16]byte)(p.table), block, x, s.Bits, from, from+group) {
					if s.TwoLevel {
						d *= int32(packed.SubScale(head[2*packed.Panel:], s.Groups(n), (b+from)/s.Group, r))
					}
					dots[r] += d
				}
			}
			for r, d := range dots {
				f := half.F16ToF32(binary.LittleEndian.Uint16(head[2*r:]))
				acc[r] += float32(f*scale[(col+b)/packed.Block]) * float32(d)
			}
		}
		col += n
	}
}

// tableDots gives Σ table[code]·q over columns first … last-1 of a block, a row each.
func tableDots(table *[16]byte, block []byte, q *[packed.Block]int8, bits, first, last int) (dots [packed.Panel]int32) {
	for k := first; k < last; k++ {
		x := int32(q[k])
		for r := range dots {
			var code int8
			if bits == 3 {
				code = packed.Code3(block, r, k)
			} else {
				code = int8(block[k%16/4*32+4*r+k%4] >> (k / 16 * 4) & 15)
			}
			dots[r] += int32(int8(table[code])) * x
		}
	}
	return dots
}
