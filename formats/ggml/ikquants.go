package ggml

import (
	"encoding/binary"
	"math"
)

// The types of ik_llama.cpp hold 256 elements in a block of sub-blocks, as k-quants do. Codes are
// indices into a codebook; a bit of each sub-block says whether all its levels are shifted by a
// small constant. Those whose names end in S have a scale of the whole row, before its blocks, in
// place of one of each block. Layouts are those of the fork's ggml-common.h, values those of the
// dequantize_row functions in its iqk_quantize.cpp; both multiply scale by sub-scale first.

// f32 reads a single-precision number.
func f32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// shiftIQ4 is added to the levels of a shifted sub-block in the types of four bits, whose levels
// are codebookIQ4.
const shiftIQ4 = 4

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
