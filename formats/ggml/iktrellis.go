package ggml

import (
	"encoding/binary"
	"math"
)

// The trellis types of ik_llama.cpp (QuantizerIQKT in its iqk_quantize.cpp): a scale f32 of the
// row, then blocks of 256 elements in sub-blocks of 32. A code is the seed of a generator that gives
// the values of a group of neighbours.

// seedShift is added to the seeds of the trellis types; farSeedShift more in sub-blocks of IQ4_KT
// that say so.
const (
	seedShift    = 4096
	farSeedShift = 32768
)

// trellis is the generator.
type trellis uint32

// next gives the next value, a whole number from −126 to 126: the sum of four bytes' lower six bits,
// moved to the middle.
func (x *trellis) next() float32 {
	*x *= 0xcbac1fed
	s := uint32(*x) & 0x3f3f3f3f
	s += s >> 16
	return float32(int32(s&0xff+s>>8&0xff) - 126)
}

// decodeIQ1_KT: blocks of 56 bytes: 8 bytes of a scale's nibble and above it the thirteenth bits of
// four codes, 32 bytes of the codes' lowest 8 bits, 16 bytes of their upper nibbles (those of the
// first half of the block in the low ones). Groups of 8; value d·level[s]·t, levels as of IQ4_NL.
func decodeIQ1_KT(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[56:] {
		y, b := (*[256]float32)(dst), (*[56]byte)(src)
		for group := range 32 {
			sub, in := group/4, group%4
			dl := d * codebookIQ4[b[sub]&15]
			high := b[40+group%16] >> (group / 16 * 4) & 15
			x := trellis(b[8+group]) | trellis(high)<<8 | trellis(b[sub]>>(4+in)&1)<<12
			x += seedShift
			out := (*[8]float32)(y[8*group:])
			for j := range out {
				out[j] = dl * x.next()
			}
		}
	}
}

// decodeIQ2_KT: blocks of 68 bytes: 8 scales of 4 bits (the first four in the low nibbles), 32 codes
// of 16 bits. Groups of 8; value d·level[s]·t, levels as of IQ4_NL.
func decodeIQ2_KT(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[68:] {
		y, b := (*[256]float32)(dst), (*[68]byte)(src)
		for group := range 32 {
			sub := group / 4
			dl := d * codebookIQ4[b[sub%4]>>(sub/4*4)&15]
			x := trellis(binary.LittleEndian.Uint16(b[4+2*group:])) + seedShift
			out := (*[8]float32)(y[8*group:])
			for j := range out {
				out[j] = dl * x.next()
			}
		}
	}
}

// decodeIQ3_KT: blocks of 100 bytes: scales and codes as in IQ2_KT, 32 bytes of signs: bit i of
// byte j belongs to element 32·i + j. Groups of 8; value ±d·s·|t|.
func decodeIQ3_KT(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[100:] {
		y, b := (*[256]float32)(dst), (*[100]byte)(src)
		for group := range 32 {
			sub := group / 4
			dl := d * float32(int32(b[sub%4]>>(sub/4*4)&15))
			x := trellis(binary.LittleEndian.Uint16(b[4+2*group:])) + seedShift
			signs, out := (*[8]byte)(b[68+group%4*8:]), (*[8]float32)(y[8*group:])
			for j := range out {
				t := x.next()
				if t < 0 {
					t = -t
				}
				v := math.Float32bits(dl * t)
				out[j] = math.Float32frombits(v ^ uint32(signs[j]>>sub&1)<<31)
			}
		}
	}
}

// decodeIQ4_KT: blocks of 128 bytes: 8 uint32, which hold a bit of the sub-block's seeds, a scale of
// 7 bits and the upper three bits of eight codes; 64 bytes of the codes' lowest 8 bits, 32 bytes of
// the nibbles between (those of the first half of the block in the low ones). Groups of 4; value
// d·(s − 64)·t.
func decodeIQ4_KT(dst []float32, src []byte) {
	d := f32(src)
	for src = src[4:]; len(dst) >= 256; dst, src = dst[256:], src[128:] {
		y, b := (*[256]float32)(dst), (*[128]byte)(src)
		for group := range 64 {
			sub, in := group/8, group%8
			head := binary.LittleEndian.Uint32(b[4*sub:])
			dl := d * float32(int32(head>>1&127)-64)
			mid := b[96+group%32] >> (group / 32 * 4) & 15
			x := trellis(b[32+group]) | trellis(mid)<<8 | trellis(head>>(8+3*in)&7)<<12
			x += seedShift + trellis(head&1)*farSeedShift
			out := (*[4]float32)(y[4*group:])
			for j := range out {
				out[j] = dl * x.next()
			}
		}
	}
}
