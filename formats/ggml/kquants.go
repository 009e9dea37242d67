package ggml

import (
	"encoding/binary"
	"math"
)

// The k-quants and their kin hold 256 elements in a block of sub-blocks, whose scales are
// themselves quantized. Elements are not stored in order: a run of 32 bytes holds 32
// neighbours in its lowest bits, the 32 after them in the next bits, and so on.

// decodeQ2_K: 84 bytes: 16 × (4-bit scale, 4-bit minimum), 64 bytes of 2-bit codes (each 32
// bytes hold 128 elements), d and dmin f16. Sub-blocks of 16; value d·s·q − dmin·m.
func decodeQ2_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[84:] {
		y, b := (*[256]float32)(dst), (*[84]byte)(src)
		d, dmin := f16(b[80:]), f16(b[82:])
		for sub := range 16 { // sub-block of elements 16·sub …
			scale := b[sub]
			dl, ml := d*float32(int32(scale&15)), dmin*float32(int32(scale>>4))
			level := [4]float32{float32(dl*0) - ml, dl - ml, float32(dl*2) - ml, float32(dl*3) - ml}
			at := 16 + sub/8*32 + sub%2*16
			shift := sub / 2 % 4 * 2
			q, out := (*[16]byte)(b[at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = level[q[j]>>shift&3]
			}
		}
	}
}

// decodeQ3_K: 110 bytes: 32 bytes of third bits, 64 bytes of 2-bit codes as in Q2_K, 16 scales
// of 6 bits in 12 bytes (8 bytes of low nibbles, 4 of high pairs), d f16. Sub-blocks of 16;
// value d·(s − 32)·q, q from −4 to 3: where the third bit is missing, 4 is subtracted.
func decodeQ3_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[110:] {
		y, b := (*[256]float32)(dst), (*[110]byte)(src)
		d := f16(b[108:])
		for sub := range 16 {
			low := b[96+sub%8] >> (sub / 8 * 4) & 15
			high := b[104+sub%4] >> (sub / 4 * 2) & 3
			dl := d * float32(int32(low|high<<4)-32)
			var level [8]float32
			for i := range level {
				level[i] = dl * float32(i-4)
			}
			at := sub % 2 * 16
			shift, bit := sub/2%4*2, sub/2
			q, h, out := (*[16]byte)(b[32+sub/8*32+at:]), (*[16]byte)(b[at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = level[q[j]>>shift&3|h[j]>>bit&1<<2]
			}
		}
	}
}

// scaleMin gives the eight 6-bit scales and minima of Q4_K and Q5_K: bytes 0–3 and 4–7 hold
// those of the first four sub-blocks in six bits and the upper two bits of the others, bytes
// 8–11 the others' lower four bits, scale in the low nibble.
func scaleMin(b *[12]byte) (scale, minimum [8]uint8) {
	for i := range 4 {
		s, m, low := b[i], b[4+i], b[8+i]
		scale[i], minimum[i] = s&63, m&63
		scale[4+i], minimum[4+i] = low&15|s>>6<<4, low>>4|m>>6<<4
	}
	return scale, minimum
}

// decodeQ4_K: 144 bytes: d and dmin f16, 12 bytes of scales and minima, 128 bytes of nibbles
// (each 32 bytes hold 64 elements). Sub-blocks of 32; value d·s·q − dmin·m.
func decodeQ4_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		y, b := (*[256]float32)(dst), (*[144]byte)(src)
		d, dmin := f16(b[:]), f16(b[2:])
		scale, minimum := scaleMin((*[12]byte)(b[4:]))
		for pair := range 4 {
			q, out := (*[32]byte)(b[16+32*pair:]), (*[64]float32)(y[64*pair:])
			d0, m0 := d*float32(int32(scale[2*pair])), dmin*float32(int32(minimum[2*pair]))
			d1, m1 := d*float32(int32(scale[2*pair+1])), dmin*float32(int32(minimum[2*pair+1]))
			for j := range q {
				out[j] = float32(d0*float32(int32(q[j]&15))) - m0
				out[j+32] = float32(d1*float32(int32(q[j]>>4))) - m1
			}
		}
	}
}

// decodeQ5_K: 176 bytes: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit i of
// byte j belongs to element 32·i + j.
func decodeQ5_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		y, b := (*[256]float32)(dst), (*[176]byte)(src)
		d, dmin := f16(b[:]), f16(b[2:])
		scale, minimum := scaleMin((*[12]byte)(b[4:]))
		high := (*[32]byte)(b[16:])
		for pair := range 4 {
			q, out := (*[32]byte)(b[48+32*pair:]), (*[64]float32)(y[64*pair:])
			d0, m0 := d*float32(int32(scale[2*pair])), dmin*float32(int32(minimum[2*pair]))
			d1, m1 := d*float32(int32(scale[2*pair+1])), dmin*float32(int32(minimum[2*pair+1]))
			for j := range q {
				h := high[j] >> (2 * pair)
				out[j] = float32(d0*float32(int32(q[j]&15|h&1<<4))) - m0
				out[j+32] = float32(d1*float32(int32(q[j]>>4|h>>1&1<<4))) - m1
			}
		}
	}
}

// decodeQ6_K: 210 bytes: 128 bytes of nibbles (each 64 bytes hold 128 elements, the first 64
// in the low nibbles), 64 bytes of upper pairs (each 32 bytes hold 128), 16 signed scales, d
// f16. Sub-blocks of 16; value d·s·(q − 32).
func decodeQ6_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		y, b := (*[256]float32)(dst), (*[210]byte)(src)
		d := f16(b[208:])
		for sub := range 16 {
			dl := d * float32(int8(b[192+sub]))
			half, row, at := sub/8, sub/2%4, sub%2*16
			low := (*[16]byte)(b[64*half+32*(row&1)+at:])
			high := (*[16]byte)(b[128+32*half+at:])
			lowShift, highShift := row/2*4, row*2
			out := (*[16]float32)(y[16*sub:])
			for j := range out {
				q := low[j]>>lowShift&15 | high[j]>>highShift&3<<4
				out[j] = dl * float32(int32(q)-32)
			}
		}
	}
}

// decodeIQ4_XS: 136 bytes: d f16, 8 scales of 6 bits (upper pairs in a uint16, low nibbles in
// 4 bytes), 128 bytes of nibbles. Sub-blocks of 32, each stored as in IQ4_NL; value
// d·(s − 32)·level[q].
func decodeIQ4_XS(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[136:] {
		y, b := (*[256]float32)(dst), (*[136]byte)(src)
		d, high := f16(b[:]), binary.LittleEndian.Uint16(b[2:])
		for sub := range 8 {
			s := int32(b[4+sub/2]>>(sub%2*4)&15) | int32(high>>(2*sub)&3)<<4
			dl := d * float32(s-32)
			q, out := (*[16]byte)(b[8+16*sub:]), (*[32]float32)(y[32*sub:])
			for j := range q {
				out[j] = dl * codebookIQ4[q[j]&15]
				out[j+16] = dl * codebookIQ4[q[j]>>4]
			}
		}
	}
}

// decodeIQ3_S: 110 bytes: d f16, 64 bytes of indices into a codebook of 512 vectors of four
// magnitudes, 8 bytes of their ninth bits, 32 bytes of signs (a set bit is minus), 8 scales of
// 4 bits. Sub-blocks of 32; value ±d·(1 + 2·s)·magnitude.
func decodeIQ3_S(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[110:] {
		y, b := (*[256]float32)(dst), (*[110]byte)(src)
		d := f16(b[:])
		for i := range 64 { // vector of elements 4·i …
			s := int32(b[106+i/16]>>(i/8%2*4)) & 15
			dl := d * float32(1+2*s)
			entry := codebookIQ3S[int(b[2+i])|int(b[66+i/8]>>(i%8)&1)<<8]
			signs := uint32(b[74+i/2] >> (i % 2 * 4))
			out := (*[4]float32)(y[4*i:])
			for j := range out {
				// Each magnitude is the odd number 2·octal digit + 1; the sign is set without a branch.
				v := math.Float32bits(dl * float32(int32(entry&7)*2+1))
				out[j] = math.Float32frombits(v ^ signs<<31)
				entry, signs = entry>>3, signs>>1
			}
		}
	}
}
