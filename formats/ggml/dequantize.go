package ggml

import (
	"encoding/binary"

	"qtool/formats"
	"qtool/formats/half"
)

// Products that are added to something are converted explicitly, float32(d*q) + m, all through
// this package: Go may otherwise fuse them on some machines and round once instead of twice.

// decoders decode whole blocks: len(src) is a multiple of the block's bytes and dst has
// exactly the elements of these blocks. Where rows have a head (Type.RowHead), they decode one
// row that is not empty.
var decoders = map[Type]func(dst []float32, src []byte){
	F32:     half.DecodeF32,
	F16:     half.DecodeF16,
	BF16:    half.DecodeBF16,
	F64:     half.DecodeF64,
	Q4_0:    decodeQ4_0,
	Q4_1:    decodeQ4_1,
	Q5_0:    decodeQ5_0,
	Q5_1:    decodeQ5_1,
	Q8_0:    decodeQ8_0,
	Q2_K:    decodeQ2_K,
	Q3_K:    decodeQ3_K,
	Q4_K:    decodeQ4_K,
	Q5_K:    decodeQ5_K,
	Q6_K:    decodeQ6_K,
	IQ4_NL:  decodeIQ4_NL,
	IQ4_XS:  decodeIQ4_XS,
	IQ3_S:   decodeIQ3_S,
	IQ2_K:   decodeIQ2_K,
	IQ3_K:   decodeIQ3_K,
	IQ4_K:   decodeIQ4_K,
	IQ5_K:   decodeIQ5_K,
	IQ6_K:   decodeIQ6_K,
	Q6_0:    decodeQ6_0,
	IQ2_KL:  decodeIQ2_KL,
	IQ1_KT:  decodeIQ1_KT,
	IQ2_KT:  decodeIQ2_KT,
	IQ3_KT:  decodeIQ3_KT,
	IQ4_KT:  decodeIQ4_KT,
	IQ4_KS:  decodeIQ4_KS,
	IQ2_KS:  decodeIQ2_KS,
	IQ4_KSS: decodeIQ4_KSS,
	IQ5_KS:  decodeIQ5_KS,
	IQ3_KS:  decodeIQ3_KS,
}

// CanDequantize reports whether Dequantize decodes the type.
func (t Type) CanDequantize() bool { return decoders[t] != nil }

// Dequantize decodes src, one row of type t, into dst, or several where rows of the type have no
// head. dst must have as many elements as the blocks hold, and src no byte more. The result equals
// the gguf Python package's bit for bit, that of ik_llama.cpp's types its own code's. A type that
// is known but not decoded is formats.ErrUnsupported.
func Dequantize(dst []float32, src []byte, t Type) error {
	decode := decoders[t]
	if decode == nil {
		if !t.Known() {
			return t.unknown()
		}
		return formats.Unsupported("", "", "element type %s cannot be decoded", t).
			WithHint("quantize the model again to a type such as Q4_K or Q8_0")
	}
	want, err := t.RowBytes(len(dst))
	if err != nil {
		return err
	}
	if len(src) != want {
		return formats.Malformed("", "", "%d elements of type %s take %d bytes, found %d", len(dst), t, want, len(src))
	}
	if len(dst) > 0 {
		decode(dst, src)
	}
	return nil
}

// DequantizeRows decodes src, rows of cols elements of type t, into dst: as Dequantize does, for
// types whose rows have a head too.
func DequantizeRows(dst []float32, src []byte, cols int, t Type) error {
	if len(dst) == 0 || !t.CanDequantize() {
		return Dequantize(dst, src, t)
	}
	size, err := t.RowBytes(cols)
	if err != nil {
		return err
	}
	if cols == 0 || len(dst)%cols != 0 {
		return formats.Malformed("", "", "%d elements are no rows of %d", len(dst), cols)
	}
	if t.RowHead() == 0 {
		return Dequantize(dst, src, t)
	}
	if rows := len(dst) / cols; len(src)%size != 0 || len(src)/size != rows {
		return formats.Malformed("", "", "%d rows of %d elements of type %s take %d bytes each, found %d in all", rows, cols, t, size, len(src))
	}
	for ; len(dst) > 0; dst, src = dst[cols:], src[size:] {
		decoders[t](dst[:cols], src[:size])
	}
	return nil
}

// f16 reads a half-precision number.
func f16(b []byte) float32 { return half.F16ToF32(binary.LittleEndian.Uint16(b)) }

// decodeQ4_0: 32 elements in 18 bytes: scale f16; 16 bytes, low nibbles elements 0–15, high
// nibbles 16–31. Value d·(q − 8).
func decodeQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		y, b := (*[32]float32)(dst), (*[18]byte)(src)
		d := f16(b[:])
		for j := range 16 {
			q := b[2+j]
			y[j] = d * float32(int32(q&15)-8)
			y[j+16] = d * float32(int32(q>>4)-8)
		}
	}
}

// decodeQ4_1: 32 elements in 20 bytes: scale and minimum f16; nibbles as in Q4_0.
// Value d·q + m.
func decodeQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		y, b := (*[32]float32)(dst), (*[20]byte)(src)
		d, m := f16(b[:]), f16(b[2:])
		for j := range 16 {
			q := b[4+j]
			y[j] = float32(d*float32(int32(q&15))) + m
			y[j+16] = float32(d*float32(int32(q>>4))) + m
		}
	}
}

// decodeQ5_0: 32 elements in 22 bytes: scale f16; 32 fifth bits, element 0 lowest; nibbles as
// in Q4_0. Value d·(q − 16).
func decodeQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		y, b := (*[32]float32)(dst), (*[22]byte)(src)
		d, high := f16(b[:]), binary.LittleEndian.Uint32(b[2:])
		for j := range 16 {
			q := b[6+j]
			y[j] = d * float32(int32(q&15)|int32(high<<4&16)-16)
			y[j+16] = d * float32(int32(q>>4)|int32(high>>12&16)-16)
			high >>= 1
		}
	}
}

// decodeQ5_1: 32 elements in 24 bytes: scale and minimum f16; fifth bits and nibbles as in
// Q5_0. Value d·q + m.
func decodeQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		y, b := (*[32]float32)(dst), (*[24]byte)(src)
		d, m, high := f16(b[:]), f16(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for j := range 16 {
			q := b[8+j]
			y[j] = float32(d*float32(int32(q&15)|int32(high<<4&16))) + m
			y[j+16] = float32(d*float32(int32(q>>4)|int32(high>>12&16))) + m
			high >>= 1
		}
	}
}

// decodeQ8_0: 32 elements in 34 bytes: scale f16; 32 signed bytes. Value d·q.
func decodeQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		y, b := (*[32]float32)(dst), (*[34]byte)(src)
		d := f16(b[:])
		for j := range y {
			y[j] = d * float32(int8(b[2+j]))
		}
	}
}

// codebookIQ4 holds the sixteen levels of IQ4_NL and IQ4_XS.
var codebookIQ4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// decodeIQ4_NL: 32 elements in 18 bytes, stored as in Q4_0. Value d·level[q].
func decodeIQ4_NL(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		y, b := (*[32]float32)(dst), (*[18]byte)(src)
		d := f16(b[:])
		for j := range 16 {
			q := b[2+j]
			y[j] = d * codebookIQ4[q&15]
			y[j+16] = d * codebookIQ4[q>>4]
		}
	}
}
