// Package half converts between float32 and the narrower floating-point types that weights are
// stored in: IEEE 754 binary16 (F16), bfloat16 (BF16) and the two OCP 8-bit types, and reads
// and writes runs of them as little-endian bytes.
//
// Narrowing rounds to nearest, ties to even, and keeps NaN.
package half

import (
	"encoding/binary"
	"math"

	"github.com/x448/float16"
)

// F16ToF32 widens a binary16 number; it is exact, subnormals included. A signaling NaN becomes a
// quiet one.
func F16ToF32(h uint16) float32 { return math.Float32frombits(f16Bits(uint32(h))) }

// f16Bits gives the float32 bits of a binary16 number.
//
// A normal number only moves: its exponent and fraction shift up by 13 and the exponent is
// rebiased. A subnormal one is fraction·2^-24, which a float32 subtraction normalizes: put into the
// fraction of 2^-14·(1+f), less 2^-14.
func f16Bits(h uint32) uint32 {
	sign, rest := h<<16&0x80000000, h&0x7fff
	switch {
	case rest >= 0x7c00: // infinity, NaN
		bits := rest<<13 | 0x7f800000
		if rest > 0x7c00 {
			bits |= 0x00400000
		}
		return sign | bits
	case rest < 0x0400: // zero, subnormal
		const base = 113 << 23
		f := math.Float32frombits(rest<<13|base) - math.Float32frombits(base)
		return sign | math.Float32bits(f)
	}
	return sign | (rest<<13 + 112<<23)
}

// F32ToF16 narrows to binary16. A number beyond its range becomes an infinity.
func F32ToF16(f float32) uint16 { return float16.Fromfloat32(f).Bits() }

// BF16ToF32 widens a bfloat16 number; it is exact.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToBF16 narrows to bfloat16. A number that rounds beyond its range becomes an infinity.
func F32ToBF16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		// Rounding could carry a NaN's fraction out of it.
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// F8E4M3ToF32 widens an OCP E4M3 number ("FN": no infinities, one NaN per sign).
func F8E4M3ToF32(b uint8) float32 {
	exponent, fraction := int(b>>3&15), float64(b&7)
	var v float64
	switch {
	case exponent == 15 && b&7 == 7:
		return math.Float32frombits(0x7fc00000 | uint32(b&0x80)<<24)
	case exponent == 0:
		v = math.Ldexp(fraction, -9)
	default:
		v = math.Ldexp(8+fraction, exponent-10)
	}
	if b&0x80 != 0 {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}

// F8E5M2ToF32 widens an OCP E5M2 number, which is the upper half of a binary16.
func F8E5M2ToF32(b uint8) float32 { return F16ToF32(uint16(b) << 8) }

// DecodeF32 reads len(dst) numbers from src, which has 4 bytes for each.
func DecodeF32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// DecodeF64 reads len(dst) doubles from src, which has 8 bytes for each, and rounds them.
func DecodeF64(dst []float32, src []byte) {
	src = src[:8*len(dst)]
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

// DecodeF16 reads len(dst) numbers from src, which has 2 bytes for each.
func DecodeF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for len(dst) >= 4 {
		w := binary.LittleEndian.Uint64(src)
		out := (*[4]float32)(dst)
		// Four at a time: adding to exponents that are all ones carries into the sign's place.
		const exponents, least, signs = 0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000
		if (w&exponents+least)&signs == 0 {
			out[0] = finite(uint32(w))
			out[1] = finite(uint32(w >> 16))
			out[2] = finite(uint32(w >> 32))
			out[3] = finite(uint32(w >> 48))
		} else {
			for i := range out {
				out[i] = F16ToF32(uint16(w >> (16 * i)))
			}
		}
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// finite gives the number of a binary16 in the lower half of h that is no infinity or NaN: its bits in the
// place of a float32's are 2^-112 of it, subnormal or not.
func finite(h uint32) float32 {
	const rebias = 1 << 112
	return math.Float32frombits(h<<16&0x80000000|h&0x7fff<<13) * rebias
}

// DecodeBF16 reads len(dst) numbers from src, which has 2 bytes for each.
func DecodeBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// DecodeF8E4M3 reads len(dst) numbers from src, which has one byte for each.
func DecodeF8E4M3(dst []float32, src []byte) {
	for i, b := range src[:len(dst)] {
		dst[i] = F8E4M3ToF32(b)
	}
}

// DecodeF8E5M2 reads len(dst) numbers from src, which has one byte for each.
func DecodeF8E5M2(dst []float32, src []byte) {
	for i, b := range src[:len(dst)] {
		dst[i] = F8E5M2ToF32(b)
	}
}

// EncodeF32 writes src into dst, which has 4 bytes for each number.
func EncodeF32(dst []byte, src []float32) {
	dst = dst[:4*len(src)]
	for i, f := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}

// EncodeF16 writes src into dst, which has 2 bytes for each number, and returns how many finite
// numbers became infinite.
func EncodeF16(dst []byte, src []float32) (overflowed int) {
	dst = dst[:2*len(src)]
	for i, f := range src {
		h := F32ToF16(f)
		if h&0x7fff == 0x7c00 && !math.IsInf(float64(f), 0) {
			overflowed++
		}
		binary.LittleEndian.PutUint16(dst[2*i:], h)
	}
	return overflowed
}

// EncodeBF16 writes src into dst, which has 2 bytes for each number, and returns how many finite
// numbers became infinite.
func EncodeBF16(dst []byte, src []float32) (overflowed int) {
	dst = dst[:2*len(src)]
	for i, f := range src {
		b := F32ToBF16(f)
		if b&0x7fff == 0x7f80 && !math.IsInf(float64(f), 0) {
			overflowed++
		}
		binary.LittleEndian.PutUint16(dst[2*i:], b)
	}
	return overflowed
}
