package ggml

import "encoding/binary"

// The types of ik_llama.cpp whose rows begin with a scale: sub-blocks hold 32 elements.

// rowScale gives scale and shift of a sub-block of IQ4_KS and IQ5_KS from its byte: an odd
// multiple of the row's scale, and the shift where the lowest bit is set.
func rowScale(d float32, b byte, shift float32) (scale, add float32) {
	return d * float32(int32(b&^1)-127), shift * float32(int32(b&1))
}

// decodeIQ4_KS: a scale f32 of the row, then blocks of 136 bytes: 8 scales of 8 bits (the lowest
// is the shift), 128 bytes of nibbles. Sub-blocks of 32, each stored as in IQ4_NL; value
// d·(s − 127)·(level[q] + shift).
func decodeIQ4_KS(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[136:] {
		y, b := (*[256]float32)(dst), (*[136]byte)(src)
		for sub := range 8 {
			dl, add := rowScale(d, b[sub], shiftIQ4)
			q, out := (*[16]byte)(b[8+16*sub:]), (*[32]float32)(y[32*sub:])
			for j := range q {
				out[j] = dl * (codebookIQ4[q[j]&15] + add)
				out[j+16] = dl * (codebookIQ4[q[j]>>4] + add)
			}
		}
	}
}

// decodeIQ5_KS: a scale f32 of the row, then blocks of 168 bytes: 8 scales as in IQ4_KS, nibbles and
// fifth bits as in IQ5_K. Sub-blocks of 32; value d·(s − 127)·(level[q] + shift).
func decodeIQ5_KS(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[168:] {
		y, b := (*[256]float32)(dst), (*[168]byte)(src)
		high := (*[32]byte)(b[136:])
		for sub := range 8 {
			dl, add := rowScale(d, b[sub], shiftIQ5)
			low := sub % 2 * 4
			q, out := (*[32]byte)(b[8+sub/2*32:]), (*[32]float32)(y[32*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ5K[q[j]>>low&15|high[j]>>sub&1<<4] + add)
			}
		}
	}
}

// decodeIQ4_KSS: a scale f32 of the row, then blocks of 128 bytes: sub-blocks of 32 in 8 uint16
// each, whose lowest bits are the sub-block's scale as in IQ4_KS. The other bits are a Gray code:
// with the lowest bit cleared, v xor v/2 is four nibbles, stored as in IQ4_NL. Value
// d·(s − 127)·(level[q] + shift).
func decodeIQ4_KSS(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[128:] {
		y, b := (*[256]float32)(dst), (*[128]byte)(src)
		for sub := range 8 {
			var q [16]byte
			var s byte
			for k := range 8 {
				v := binary.LittleEndian.Uint16(b[16*sub+2*k:])
				s |= byte(v&1) << k
				v &^= 1
				binary.LittleEndian.PutUint16(q[2*k:], v^v>>1)
			}
			dl, add := rowScale(d, s, shiftIQ4)
			out := (*[32]float32)(y[32*sub:])
			for j := range q {
				out[j] = dl * (codebookIQ4[q[j]&15] + add)
				out[j+16] = dl * (codebookIQ4[q[j]>>4] + add)
			}
		}
	}
}

// decodeIQ2_KS: a scale f16 of the row, then blocks of 70 bytes: 8 shifts and above them the fifth
// bits of 8 scales in a uint16, the scales' nibbles, 64 bytes of 2-bit codes as in Q2_K. Sub-blocks
// of 32; value d·(s − 16)·(level[q] + shift).
func decodeIQ2_KS(dst []float32, src []byte) {
	d := f16(src)
	for src = src[2:]; len(dst) >= 256; dst, src = dst[256:], src[70:] {
		y, b := (*[256]float32)(dst), (*[70]byte)(src)
		extra := binary.LittleEndian.Uint16(b[:])
		for sub := range 8 {
			dl := d * float32((nibble(b[2:6], sub)|bit(extra, 8+sub)<<4)-16)
			add := float32(shiftIQ2 * bit(extra, sub))
			low := sub % 4 * 2
			q, out := (*[32]byte)(b[6+sub/4*32:]), (*[32]float32)(y[32*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ2K[q[j]>>low&3] + add)
			}
		}
	}
}

// decodeIQ3_KS: a scale f16 of the row, then blocks of 102 bytes: the fifth bits of 8 scales and
// above them 8 shifts in a uint16, the scales' nibbles (the first four in the low ones), codes and
// third bits as in IQ3_K. Sub-blocks of 32; value d·(s − 16)·(level[q] + shift).
func decodeIQ3_KS(dst []float32, src []byte) {
	d := f16(src)
	for src = src[2:]; len(dst) >= 256; dst, src = dst[256:], src[102:] {
		y, b := (*[256]float32)(dst), (*[102]byte)(src)
		extra, high := binary.LittleEndian.Uint16(b[:]), (*[32]byte)(b[70:])
		for sub := range 8 {
			s := int32(b[2+sub%4] >> (sub / 4 * 4) & 15)
			dl := d * float32((s|bit(extra, sub)<<4)-16)
			add := float32(shiftIQ3 * bit(extra, 8+sub))
			low := sub % 4 * 2
			q, out := (*[32]byte)(b[6+sub/4*32:]), (*[32]float32)(y[32*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ3K[q[j]>>low&3|high[j]>>sub&1<<2] + add)
			}
		}
	}
}

// codebookIQ2KL holds the 32 pairs of IQ2_KL: indices of two levels of codebookIQ3K as octal
// digits, the first element's in the lower.
var codebookIQ2KL = [32]uint8{
	0o20, 0o50, 0o01, 0o31, 0o51, 0o71, 0o12, 0o22, 0o42, 0o52, 0o62, 0o03, 0o43, 0o53, 0o73, 0o24,
	0o34, 0o44, 0o54, 0o64, 0o15, 0o25, 0o35, 0o45, 0o55, 0o06, 0o26, 0o46, 0o66, 0o76, 0o27, 0o57,
}

// decodeIQ2_KL: a scale f16 of the row, then blocks of 86 bytes: 8 scales of 6 bits (upper pairs in
// a uint16, low nibbles in 4 bytes, the first four's in the low ones), 64 bytes of nibbles (each 16
// bytes hold 64 elements), 16 bytes of fifth bits: bit i of byte j belongs to elements 32·i + 2·j
// and the one after. A code is two elements. Sub-blocks of 32; value d·(s − 32)·level.
func decodeIQ2_KL(dst []float32, src []byte) {
	d := f16(src)
	for src = src[2:]; len(dst) >= 256; dst, src = dst[256:], src[86:] {
		y, b := (*[256]float32)(dst), (*[86]byte)(src)
		high := (*[16]byte)(b[70:])
		for sub := range 8 {
			s := int32(b[2+sub%4]>>(sub/4*4)&15) | int32(binary.LittleEndian.Uint16(b[:])>>(2*sub)&3)<<4
			dl := d * float32(s-32)
			low := sub % 2 * 4
			q, out := (*[16]byte)(b[6+sub/2*16:]), (*[32]float32)(y[32*sub:])
			for j := range q {
				two := codebookIQ2KL[q[j]>>low&15|high[j]>>sub&1<<4]
				out[2*j] = dl * codebookIQ3K[two&7]
				out[2*j+1] = dl * codebookIQ3K[two>>3]
			}
		}
	}
}
