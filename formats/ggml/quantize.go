package ggml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"qtool/formats"
	"qtool/formats/half"
)

// Causes of a ValueError.
var (
	// ErrNotFinite: NaN or an infinity has no place in a type whose elements share a scale.
	ErrNotFinite = errors.New("not a finite number")
	// ErrOverflow: the value, or the scale that it asks for, exceeds the range of the type.
	ErrOverflow = errors.New("out of the type's range")
)

// ValueError says which element cannot be stored. It matches Err with errors.Is.
type ValueError struct {
	Index int // of the element in the source
	Value float32
	Type  Type
	Err   error // ErrNotFinite or ErrOverflow
}

// Error gives "element 7 is NaN: not a finite number, cannot be Q8_0".
func (e *ValueError) Error() string {
	return fmt.Sprintf("element %d is %g: %v, cannot be stored as %s", e.Index, e.Value, e.Err, e.Type)
}

// Unwrap gives the cause.
func (e *ValueError) Unwrap() error { return e.Err }

// encoders encode whole blocks: dst has exactly the bytes of the blocks that src fills.
var encoders = map[Type]func(dst []byte, src []float32) error{
	F32:  encodeF32,
	F16:  encodeF16,
	BF16: encodeBF16,
	Q4_0: encodeQ4_0,
	Q8_0: encodeQ8_0,
}

// CanQuantize reports whether Quantize encodes the type.
func (t Type) CanQuantize() bool { return encoders[t] != nil }

// Quantize encodes src, one or more rows, into dst as type t: F32, F16, BF16, Q8_0 or Q4_0,
// any other is formats.ErrUnsupported. len(src) must be a multiple of the block size and dst
// have the bytes of these blocks. F16 and BF16 round to nearest even; Q8_0 and Q4_0 round as
// the reference in ggml-quants.c and the gguf Python package do, bit for bit. NaN and
// infinities pass into F32, F16 and BF16; in a block type they are a ValueError, as is a finite
// value (F16, BF16) or a scale (Q8_0, Q4_0) that would become infinite.
func Quantize(dst []byte, src []float32, t Type) error {
	encode := encoders[t]
	if encode == nil {
		if !t.Known() {
			return t.unknown()
		}
		return formats.Unsupported("", "", "element type %s cannot be written", t).
			WithHint("F32, F16, BF16, Q8_0 and Q4_0 can")
	}
	want, err := t.RowBytes(len(src))
	if err != nil {
		return err
	}
	if len(dst) != want {
		return fmt.Errorf("%d elements of type %s take %d bytes, the destination has %d", len(src), t, want, len(dst))
	}
	return encode(dst, src)
}

func encodeF32(dst []byte, src []float32) error {
	half.EncodeF32(dst, src)
	return nil
}

func encodeF16(dst []byte, src []float32) error {
	if half.EncodeF16(dst, src) == 0 {
		return nil
	}
	return overflowed(src, F16, func(v float32) bool { return half.F32ToF16(v)&0x7fff == 0x7c00 })
}

func encodeBF16(dst []byte, src []float32) error {
	if half.EncodeBF16(dst, src) == 0 {
		return nil
	}
	return overflowed(src, BF16, func(v float32) bool { return half.F32ToBF16(v)&0x7fff == 0x7f80 })
}

// overflowed finds the first finite element that became infinite.
func overflowed(src []float32, t Type, infinite func(float32) bool) error {
	for i, v := range src {
		if magnitude(v) < infinity && infinite(v) {
			return &ValueError{Index: i, Value: v, Type: t, Err: ErrOverflow}
		}
	}
	return nil
}

// infinity is the bit pattern of +Inf: magnitudes from it on are not finite.
const infinity = 0x7f800000

// magnitude gives the bits of |v|, which order as the magnitudes themselves do.
func magnitude(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }

// largest gives the first element of largest magnitude of a block that starts at element at of
// the source, or an error where an element is not finite.
func largest(x *[32]float32, at int, t Type) (float32, error) {
	most, value := uint32(0), float32(0)
	for _, v := range x {
		if m := magnitude(v); m > most {
			most, value = m, v
		}
	}
	if most < infinity {
		return value, nil
	}
	for i, v := range x {
		if magnitude(v) >= infinity {
			return 0, &ValueError{Index: at + i, Value: v, Type: t, Err: ErrNotFinite}
		}
	}
	return value, nil
}

// scaled stores the scale d of a block, of largest element value, and gives 1/d, or 0 where the
// block is so small that 1/d is infinite; the stored d is then 0 and codes do not matter.
func scaled(b []byte, d, value float32, at int, t Type) (float32, error) {
	h := half.F32ToF16(d)
	if h&0x7fff >= 0x7c00 {
		return 0, &ValueError{Index: at, Value: value, Type: t, Err: ErrOverflow}
	}
	binary.LittleEndian.PutUint16(b, h)
	inverse := 1 / d
	if d == 0 || magnitude(inverse) >= infinity {
		return 0, nil
	}
	return inverse, nil
}

// oneHalf is the bit pattern of 0.5.
const oneHalf = 0x3fe0000000000000

// encodeQ8_0 is the inverse of decodeQ8_0: d = max|x|/127, codes x/d rounded half away from
// zero.
func encodeQ8_0(dst []byte, src []float32) error {
	for at := 0; at < len(src); at += 32 {
		x, b := (*[32]float32)(src[at:]), (*[34]byte)(dst[at/32*34:])
		value, err := largest(x, at, Q8_0)
		if err != nil {
			return err
		}
		inverse, err := scaled(b[:], math.Float32frombits(magnitude(value))/127, value, at, Q8_0)
		if err != nil {
			return err
		}
		for i, v := range x {
			v *= inverse
			// A half with the sign of v, added in doubles, where the sum is exact, and cut to an integer.
			away := math.Float64frombits(uint64(math.Float32bits(v)>>31)<<63 | oneHalf)
			b[2+i] = byte(int32(float64(v) + away))
		}
	}
	return nil
}

// encodeQ4_0 is the inverse of decodeQ4_0: the element of largest magnitude becomes code 0 and
// d = it/−8; codes are x/d + 8.5 cut to an integer, at most 15.
func encodeQ4_0(dst []byte, src []float32) error {
	for at := 0; at < len(src); at += 32 {
		x, b := (*[32]float32)(src[at:]), (*[18]byte)(dst[at/32*18:])
		value, err := largest(x, at, Q4_0)
		if err != nil {
			return err
		}
		inverse, err := scaled(b[:], value/-8, value, at, Q4_0)
		if err != nil {
			return err
		}
		for j := range 16 {
			low := min(int32(float32(x[j]*inverse)+8.5), 15)
			high := min(int32(float32(x[16+j]*inverse)+8.5), 15)
			b[2+j] = byte(low | high<<4)
		}
	}
	return nil
}
