package ggml

import (
	"encoding/binary"
	"math"
)

// The types of ik_llama.cpp hold 256 elements in a block of sub-blocks, as k-quants do. Codes are
// indices into a codebook; in most types a bit of each sub-block says whether all its levels are
// shifted by a small constant. Layouts are those of the fork's ggml-common.h, values those of the
// dequantize_row functions in its iqk_quantize.cpp, bit for bit; both multiply scale by sub-scale
// first. Types whose names end in S, L or T have a scale of the whole row, before its blocks, in
// place of one in each block: see ikrows.go and iktrellis.go.

// f32 reads a single-precision number.
func f32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// Levels and shifts by the bits of a code. The types of four bits take codebookIQ4.
var (
	codebookIQ2K = [4]float32{-31, -13, 1, 17}
	codebookIQ3K = [8]float32{-63, -40, -23, -10, 1, 13, 28, 47}
	codebookIQ5K = [32]float32{
		-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
		-1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121,
	}
)

const (
	shiftIQ2 = 5
	shiftIQ3 = 4
	shiftIQ4 = 4
	shiftIQ5 = 2
	shiftIQ6 = 1
)

// nibble gives the i-th half of a byte, the lower first, and pair the i-th quarter.
func nibble(b []byte, i int) int32 { return int32(b[i/2] >> (i % 2 * 4) & 15) }
func pair(b []byte, i int) int32   { return int32(b[i/4] >> (i % 4 * 2) & 3) }

// bit gives the i-th bit, the lowest first.
func bit(v uint16, i int) int32 { return int32(v >> i & 1) }

// decodeIQ2_K: 76 bytes: d f16, 16 shifts in a uint16, 16 scales of 4 bits, 64 bytes of 2-bit codes
// as in Q2_K. Sub-blocks of 16; value d·(s − 8)·(level[q] + shift).
func decodeIQ2_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[76:] {
		y, b := (*[256]float32)(dst), (*[76]byte)(src)
		d, shifts := f16(b[:]), binary.LittleEndian.Uint16(b[2:])
		for sub := range 16 {
			dl := d * float32(nibble(b[4:12], sub)-8)
			add := float32(shiftIQ2 * bit(shifts, sub))
			at, low := 12+sub/8*32+sub%2*16, sub/2%4*2
			q, out := (*[16]byte)(b[at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ2K[q[j]>>low&3] + add)
			}
		}
	}
}

// decodeIQ3_K: 110 bytes: d f16, 16 shifts and 16 signs of scales in a uint16 each, 16 scales of 4
// bits, 64 bytes of 2-bit codes as in Q2_K, 32 bytes of third bits: bit i of byte j belongs to
// element 32·i + j. Sub-blocks of 16; value ±d·(2·s + 1)·(level[q] + shift).
func decodeIQ3_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[110:] {
		y, b := (*[256]float32)(dst), (*[110]byte)(src)
		d, shifts, signs := f16(b[:]), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint16(b[4:])
		for sub := range 16 {
			dl := d * float32((2*nibble(b[6:14], sub)+1)*(1-2*bit(signs, sub)))
			add := float32(shiftIQ3 * bit(shifts, sub))
			at, low, high := sub%2*16, sub/2%4*2, sub/2
			q, h, out := (*[16]byte)(b[14+sub/8*32+at:]), (*[16]byte)(b[78+at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ3K[q[j]>>low&3|h[j]>>high&1<<2] + add)
			}
		}
	}
}

// decodeIQ4_K: 144 bytes: d f16, 16 shifts in a uint16, 16 scales of 6 bits (upper pairs in 4
// bytes, low nibbles in 8), 128 bytes of nibbles as in IQ4_XS. Sub-blocks of 16; value
// d·(s − 32)·(level[q] + shift).
func decodeIQ4_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		y, b := (*[256]float32)(dst), (*[144]byte)(src)
		d, shifts := f16(b[:]), binary.LittleEndian.Uint16(b[2:])
		for sub := range 16 {
			dl := d * float32((nibble(b[8:16], sub)|pair(b[4:8], sub)<<4)-32)
			add := float32(shiftIQ4 * bit(shifts, sub))
			low := sub % 2 * 4
			q, out := (*[16]byte)(b[16+sub/2*16:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ4[q[j]>>low&15] + add)
			}
		}
	}
}

// decodeIQ5_K: 176 bytes: d, shifts and scales as in IQ4_K, 128 bytes of nibbles (each 32 bytes hold
// 64 elements), 32 bytes of fifth bits as the third ones of IQ3_K. Sub-blocks of 16; value
// d·(s − 32)·(level[q] + shift).
func decodeIQ5_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		y, b := (*[256]float32)(dst), (*[176]byte)(src)
		d, shifts := f16(b[:]), binary.LittleEndian.Uint16(b[2:])
		for sub := range 16 {
			dl := d * float32((nibble(b[8:16], sub)|pair(b[4:8], sub)<<4)-32)
			add := float32(shiftIQ5 * bit(shifts, sub))
			at, low, high := sub%2*16, sub/2%2*4, sub/2
			q, h, out := (*[16]byte)(b[16+sub/4*32+at:]), (*[16]byte)(b[144+at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ5K[q[j]>>low&15|h[j]>>high&1<<4] + add)
			}
		}
	}
}

// codebookIQ6K holds the levels of IQ6_K, which are a cubic of the code: −127 + 6.2568·q −
// 0.11218·q² + 0.0011972·q³ in single precision, rounded after each step. (The fork's products of
// matrices take them rounded to whole numbers, its dequantization, which this follows, as they are.)
var codebookIQ6K = func() (level [64]float32) {
	for i := range level {
		q := float32(i)
		slope := float32(q*0.0011972) - 0.11218
		slope = float32(q*slope) + 6.2568
		level[i] = float32(q*slope) - 127
	}
	return level
}()

// decodeIQ6_K: 212 bytes: d f16, 16 shifts in a uint16, 16 signed scales, nibbles as in IQ5_K, 64
// bytes of upper pairs (each 32 bytes hold 128 elements). Sub-blocks of 16; value
// d·s·(level[q] + shift).
func decodeIQ6_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[212:] {
		y, b := (*[256]float32)(dst), (*[212]byte)(src)
		d, shifts := f16(b[:]), binary.LittleEndian.Uint16(b[2:])
		for sub := range 16 {
			dl := d * float32(int8(b[4+sub]))
			add := float32(shiftIQ6 * bit(shifts, sub))
			at, low, high := sub%2*16, sub/2%2*4, sub/2%4*2
			q, h, out := (*[16]byte)(b[20+sub/4*32+at:]), (*[16]byte)(b[148+sub/8*32+at:]), (*[16]float32)(y[16*sub:])
			for j := range out {
				out[j] = dl * (codebookIQ6K[q[j]>>low&15|h[j]>>high&3<<4] + add)
			}
		}
	}
}

// decodeQ6_0: 32 elements in 26 bytes: scale f16; 8 bytes of upper pairs, those of nibble j in the
// low or, from j = 8 on, the high half of byte j mod 8, low nibble first; nibbles as in Q4_0. Value
// d·(q − 32).
func decodeQ6_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[26:] {
		y, b := (*[32]float32)(dst), (*[26]byte)(src)
		d := f16(b[:])
		for j := range 16 {
			q, h := int32(b[10+j]), int32(b[2+j%8]>>(j/8*4))
			y[j] = d * float32((q&15|h&3<<4)-32)
			y[j+16] = d * float32((q>>4|h>>2&3<<4)-32)
		}
	}
}
