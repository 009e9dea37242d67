package formats

import "fmt"

// DType names how the values of a tensor are stored. The names are those of the safetensors
// specification, and for the block types those of GGUF; packed schemes (w4g32 and so on) have
// their own type in formats/packed.
type DType string

// Types with one value after another, as in the safetensors specification.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U64  DType = "U64"
	U32  DType = "U32"
	U16  DType = "U16"
	U8   DType = "U8"
	Bool DType = "BOOL"
	C64  DType = "C64"

	F8E5M2   DType = "F8_E5M2"
	F8E4M3   DType = "F8_E4M3"
	F8E8M0   DType = "F8_E8M0"
	F6E2M3   DType = "F6_E2M3"
	F6E3M2   DType = "F6_E3M2"
	F4       DType = "F4"
	F8E4FNUZ DType = "F8_E4M3FNUZ"
	F8E5FNUZ DType = "F8_E5M2FNUZ"
)

// bits is the storage width of one element of each plain type.
var bits = map[DType]int{
	F64: 64, F32: 32, F16: 16, BF16: 16,
	I64: 64, I32: 32, I16: 16, I8: 8,
	U64: 64, U32: 32, U16: 16, U8: 8,
	Bool: 8, C64: 64,
	F8E5M2: 8, F8E4M3: 8, F8E8M0: 8, F8E4FNUZ: 8, F8E5FNUZ: 8,
	F6E2M3: 6, F6E3M2: 6, F4: 4,
}

// Bits returns the storage width of one element, and false for a type that is not stored one
// element after another (a block type, or an unknown name).
func (d DType) Bits() (int, bool) {
	b, ok := bits[d]
	return b, ok
}

// Float reports whether the type holds real numbers that can be read as float32.
func (d DType) Float() bool {
	switch d {
	case F64, F32, F16, BF16, F8E5M2, F8E4M3:
		return true
	}
	return false
}

// MaxElements bounds the number of elements of one tensor: larger products are refused as
// malformed before any size is computed from them.
const MaxElements = 1 << 46

// Elements returns the product of shape, 1 for a scalar (no dimensions). A negative dimension or
// a product over MaxElements is an error; a zero dimension is legal and gives 0.
func Elements(shape []int) (int, error) {
	n, zero := 1, false
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		case d == 0:
			zero = true
		case n > MaxElements/d:
			return 0, fmt.Errorf("shape %v has more than %d elements", shape, int64(MaxElements))
		default:
			n *= d
		}
	}
	if zero {
		return 0, nil
	}
	return n, nil
}
