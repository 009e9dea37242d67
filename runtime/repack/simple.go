package repack

import (
	"encoding/binary"

	"qtool/formats/half"
	"qtool/formats/packed"
)

// levelsIQ4 are the sixteen levels of IQ4_NL and IQ4_XS in ggml.
var levelsIQ4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

var order = binary.LittleEndian

// dwords copies the bytes of a row, four at a time, to their places in the vectors of a panel.
func dwords(dst, src []byte, r int) {
	for at := 4 * r; len(src) >= 4; at, src = at+4*packed.Panel, src[4:] {
		order.PutUint32(dst[at:], order.Uint32(src))
	}
}

// packQ4_0: a block is a scale and nibbles in the order of ours.
func packQ4_0(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 32 {
			copy(out[2*r:2*r+2], row)
			dwords(out[16:144], row[2:18], r)
			out, row = out[144:], row[18:]
		}
	}
	return true
}

// packQ8_0: a block is a scale and codes.
func packQ8_0(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 32 {
			copy(out[2*r:2*r+2], row)
			dwords(out[16:272], row[2:34], r)
			out, row = out[272:], row[34:]
		}
	}
	return true
}

// negative is the sign of a half-precision number.
const negative = 0x8000

// packQ4_1: a block is a scale, a minimum and nibbles; what is taken off is minus the minimum.
func packQ4_1(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 32 {
			copy(out[2*r:2*r+2], row)
			order.PutUint16(out[16+2*r:], order.Uint16(row[2:])^negative)
			dwords(out[32:160], row[4:20], r)
			out, row = out[160:], row[20:]
		}
	}
	return true
}

// fifths lays 32 fifth bits out: bit 4h+v of byte j is that of column 16h+4v+j.
func fifths(high uint32) (out uint32) {
	for i := range 8 { // four columns each, a bit in each byte
		out |= high >> (4 * i) & 15 * 0x00204081 & 0x01010101 << i
	}
	return out
}

// largest is the largest number of half precision. Sixteen times one is one too, up to here.
const largest = 65504

// packQ5_0: a block is a scale, fifth bits and nibbles; what is taken off is 16 times the scale.
func packQ5_0(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 32 {
			off := 16 * half.F16ToF32(order.Uint16(row))
			if !(off >= -largest && off <= largest) { // too large, or no number
				return false
			}
			copy(out[2*r:2*r+2], row)
			order.PutUint16(out[16+2*r:], half.F32ToF16(off))
			order.PutUint32(out[32+4*r:], fifths(order.Uint32(row[2:])))
			dwords(out[64:192], row[6:22], r)
			out, row = out[192:], row[22:]
		}
	}
	return true
}

// packQ5_1: a block is a scale, a minimum, fifth bits and nibbles.
func packQ5_1(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 32 {
			copy(out[2*r:2*r+2], row)
			order.PutUint16(out[16+2*r:], order.Uint16(row[2:])^negative)
			order.PutUint32(out[32+4*r:], fifths(order.Uint32(row[4:])))
			dwords(out[64:192], row[8:24], r)
			out, row = out[192:], row[24:]
		}
	}
	return true
}
