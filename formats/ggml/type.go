// Package ggml reads and writes the tensor element types of ggml, the library below llama.cpp:
// plain numbers and blocks of codes that share scales. Layouts and numbering are those of
// ggml's headers (ggml.h, ggml-common.h) and of the gguf Python package; values are decoded
// bit for bit as the latter does. The types of ik_llama.cpp, a fork of llama.cpp, are read as its
// own sources lay them out.
package ggml

import (
	"fmt"
	"strings"

	"qtool/formats"
)

// Type is ggml's number of an element type, as GGUF files store it.
type Type uint32

// Element types by ggml's numbering. Numbers 4, 5, 31–33 and 36–38 were used by types that
// ggml has removed since.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
)

// Element types that ik_llama.cpp adds to ggml's, by the numbering of its ggml.h.
const (
	Q6_0    Type = 133
	IQ2_K   Type = 137
	IQ3_K   Type = 138
	IQ4_K   Type = 139
	IQ5_K   Type = 140
	IQ6_K   Type = 141
	IQ4_KS  Type = 144
	IQ2_KS  Type = 145
	IQ4_KSS Type = 146
	IQ5_KS  Type = 152
	IQ2_KT  Type = 153
	IQ3_KT  Type = 154
	IQ4_KT  Type = 155
	IQ3_KS  Type = 156
	IQ2_KL  Type = 157
	IQ1_KT  Type = 158
)

// ik_llama.cpp's types between these numbers interleave several rows (Q4_0_R8 … Q8_K_R8).
const (
	firstRepacked = 202
	lastRepacked  = 399
)

// traits describes the storage of one type.
type traits struct {
	name  string
	block int // elements of one block
	bytes int // bytes of one block
	head  int // bytes before the blocks of each row: a scale of the whole row
}

// known holds the types in use; removed the names of those that files may still carry.
var (
	known = map[Type]traits{
		F32:     {"F32", 1, 4, 0},
		F16:     {"F16", 1, 2, 0},
		BF16:    {"BF16", 1, 2, 0},
		F64:     {"F64", 1, 8, 0},
		I8:      {"I8", 1, 1, 0},
		I16:     {"I16", 1, 2, 0},
		I32:     {"I32", 1, 4, 0},
		I64:     {"I64", 1, 8, 0},
		Q4_0:    {"Q4_0", 32, 18, 0},
		Q4_1:    {"Q4_1", 32, 20, 0},
		Q5_0:    {"Q5_0", 32, 22, 0},
		Q5_1:    {"Q5_1", 32, 24, 0},
		Q8_0:    {"Q8_0", 32, 34, 0},
		Q8_1:    {"Q8_1", 32, 40, 0},
		Q2_K:    {"Q2_K", 256, 84, 0},
		Q3_K:    {"Q3_K", 256, 110, 0},
		Q4_K:    {"Q4_K", 256, 144, 0},
		Q5_K:    {"Q5_K", 256, 176, 0},
		Q6_K:    {"Q6_K", 256, 210, 0},
		Q8_K:    {"Q8_K", 256, 292, 0},
		IQ2_XXS: {"IQ2_XXS", 256, 66, 0},
		IQ2_XS:  {"IQ2_XS", 256, 74, 0},
		IQ3_XXS: {"IQ3_XXS", 256, 98, 0},
		IQ1_S:   {"IQ1_S", 256, 50, 0},
		IQ4_NL:  {"IQ4_NL", 32, 18, 0},
		IQ3_S:   {"IQ3_S", 256, 110, 0},
		IQ2_S:   {"IQ2_S", 256, 82, 0},
		IQ4_XS:  {"IQ4_XS", 256, 136, 0},
		IQ1_M:   {"IQ1_M", 256, 56, 0},
		TQ1_0:   {"TQ1_0", 256, 54, 0},
		TQ2_0:   {"TQ2_0", 256, 66, 0},
		MXFP4:   {"MXFP4", 32, 17, 0},
		NVFP4:   {"NVFP4", 64, 36, 0},
		Q1_0:    {"Q1_0", 128, 18, 0},
		Q6_0:    {"Q6_0", 32, 26, 0},
		IQ2_K:   {"IQ2_K", 256, 76, 0},
		IQ3_K:   {"IQ3_K", 256, 110, 0},
		IQ4_K:   {"IQ4_K", 256, 144, 0},
		IQ5_K:   {"IQ5_K", 256, 176, 0},
		IQ6_K:   {"IQ6_K", 256, 212, 0},
		IQ4_KS:  {"IQ4_KS", 256, 136, 4},
		IQ2_KS:  {"IQ2_KS", 256, 70, 2},
		IQ4_KSS: {"IQ4_KSS", 256, 128, 4},
		IQ5_KS:  {"IQ5_KS", 256, 168, 4},
		IQ3_KS:  {"IQ3_KS", 256, 102, 2},
		IQ2_KL:  {"IQ2_KL", 256, 86, 2},
		IQ1_KT:  {"IQ1_KT", 256, 56, 4},
		IQ2_KT:  {"IQ2_KT", 256, 68, 4},
		IQ3_KT:  {"IQ3_KT", 256, 100, 4},
		IQ4_KT:  {"IQ4_KT", 256, 128, 4},
	}
	removed = map[Type]string{
		4: "Q4_2", 5: "Q4_3",
		31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
		36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
	}
)

// String gives ggml's name of the type, such as "Q4_K".
func (t Type) String() string {
	if tr, ok := known[t]; ok {
		return tr.name
	}
	if name, ok := removed[t]; ok {
		return name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Known reports whether the storage of the type is known: its sizes are, though perhaps not
// how to decode it.
func (t Type) Known() bool {
	_, ok := known[t]
	return ok
}

// Removed reports whether the number belonged to a type that ggml no longer has.
func (t Type) Removed() bool {
	_, ok := removed[t]
	return ok
}

// BlockSize is the number of elements of one block, 1 for plain numbers, 0 where the type is
// not known.
func (t Type) BlockSize() int { return known[t].block }

// BlockBytes is the size in bytes of one block, 0 where the type is not known.
func (t Type) BlockBytes() int { return known[t].bytes }

// RowHead is the size in bytes of what each row holds before its blocks, 0 for most types.
func (t Type) RowHead() int { return known[t].head }

// BitsPerWeight is the storage of one element in bits, scales of blocks included, those of whole
// rows not.
func (t Type) BitsPerWeight() float64 {
	tr, ok := known[t]
	if !ok {
		return 0
	}
	return float64(8*tr.bytes) / float64(tr.block)
}

// RowBytes is the size in bytes of a row of n elements, 0 where there are none. It is an error where the type is not
// known (formats.ErrUnsupported) or n is not a multiple of its block size
// (formats.ErrMalformed).
func (t Type) RowBytes(n int) (int, error) {
	tr, ok := known[t]
	if !ok {
		return 0, t.unknown()
	}
	if n < 0 || n > formats.MaxElements {
		return 0, formats.Malformed("", "", "a row of %d elements", n)
	}
	if n%tr.block != 0 {
		return 0, formats.Malformed("", "", "rows of %d elements cannot be %s, whose blocks hold %d", n, tr.name, tr.block)
	}
	if n == 0 {
		return 0, nil
	}
	return tr.head + n/tr.block*tr.bytes, nil
}

// unknown is the error for a type whose storage is not known.
func (t Type) unknown() error {
	if name, ok := removed[t]; ok {
		return formats.Unsupported("", "", "element type %s (number %d) was removed from ggml", name, uint32(t)).
			WithHint("convert the model again from its source")
	}
	err := formats.Unsupported("", "", "element type number %d is not known", uint32(t))
	if t >= firstRepacked && t <= lastRepacked {
		return err.WithHint("it may be one of ik_llama.cpp's whose rows are interleaved: quantize again without repacking")
	}
	return err
}

// DType gives the plain type that stores the same bytes, and false for block types.
func (t Type) DType() (formats.DType, bool) {
	switch t {
	case F32, F16, BF16, F64, I8, I16, I32, I64:
		return formats.DType(t.String()), true
	}
	return "", false
}

// FromDType gives the ggml type that stores the same bytes as a plain type, and false where
// ggml has none.
func FromDType(d formats.DType) (Type, bool) {
	switch d {
	case formats.F32:
		return F32, true
	case formats.F16:
		return F16, true
	case formats.BF16:
		return BF16, true
	case formats.F64:
		return F64, true
	case formats.I8:
		return I8, true
	case formats.I16:
		return I16, true
	case formats.I32:
		return I32, true
	case formats.I64:
		return I64, true
	}
	return 0, false
}

// ParseType finds a type by its name, in upper or lower case. An unknown name is
// formats.ErrUnsupported.
func ParseType(name string) (Type, error) {
	upper := strings.ToUpper(name)
	for t, tr := range known {
		if tr.name == upper {
			return t, nil
		}
	}
	return 0, formats.Unsupported("", "", "element type %q is not one of ggml's", name)
}
