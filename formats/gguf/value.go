package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// ValueType is GGUF's number of the type of a metadata value.
type ValueType uint32

// Value types by the numbering of the GGUF specification.
const (
	TypeU8     ValueType = 0
	TypeI8     ValueType = 1
	TypeU16    ValueType = 2
	TypeI16    ValueType = 3
	TypeU32    ValueType = 4
	TypeI32    ValueType = 5
	TypeF32    ValueType = 6
	TypeBool   ValueType = 7
	TypeString ValueType = 8
	TypeArray  ValueType = 9
	TypeU64    ValueType = 10
	TypeI64    ValueType = 11
	TypeF64    ValueType = 12
)

// valueTypes names each type and gives the bytes of one value, 0 where they vary.
var valueTypes = [...]struct {
	name string
	size int
}{
	TypeU8: {"u8", 1}, TypeI8: {"i8", 1}, TypeU16: {"u16", 2}, TypeI16: {"i16", 2},
	TypeU32: {"u32", 4}, TypeI32: {"i32", 4}, TypeF32: {"f32", 4}, TypeBool: {"bool", 1},
	TypeString: {"string", 0}, TypeArray: {"array", 0},
	TypeU64: {"u64", 8}, TypeI64: {"i64", 8}, TypeF64: {"f64", 8},
}

// String gives the type's short name: u8 … f64, bool, string, array.
func (t ValueType) String() string {
	if int64(t) < int64(len(valueTypes)) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("value type %d", uint32(t))
}

func (t ValueType) known() bool { return int64(t) < int64(len(valueTypes)) }

// size is the number of bytes of a value of fixed size, 0 for strings and arrays.
func (t ValueType) size() int {
	if !t.known() {
		return 0
	}
	return valueTypes[t].size
}

func (t ValueType) integer() bool {
	switch t {
	case TypeU8, TypeI8, TypeU16, TypeI16, TypeU32, TypeI32, TypeU64, TypeI64:
		return true
	}
	return false
}

// Value is one metadata value. It is immutable; copies share their bytes. The zero Value is
// the u8 0.
//
// Numbers keep their bits; strings and arrays keep the bytes of the file, so that a vocabulary
// of a quarter of a million strings is two allocations and not as many as it has words.
type Value struct {
	Type ValueType // type of the value
	Elem ValueType // type of the elements where Type is TypeArray

	bits uint64 // a number, zero-extended
	n    int    // elements of an array
	data []byte // a string's bytes; an array's elements as GGUF stores them, little-endian
}

// Uint8 makes a u8 value.
func Uint8(v uint8) Value { return Value{Type: TypeU8, bits: uint64(v)} }

// Int8 makes an i8 value.
func Int8(v int8) Value { return Value{Type: TypeI8, bits: uint64(uint8(v))} }

// Uint16 makes a u16 value.
func Uint16(v uint16) Value { return Value{Type: TypeU16, bits: uint64(v)} }

// Int16 makes an i16 value.
func Int16(v int16) Value { return Value{Type: TypeI16, bits: uint64(uint16(v))} }

// Uint32 makes a u32 value.
func Uint32(v uint32) Value { return Value{Type: TypeU32, bits: uint64(v)} }

// Int32 makes an i32 value.
func Int32(v int32) Value { return Value{Type: TypeI32, bits: uint64(uint32(v))} }

// Uint64 makes a u64 value.
func Uint64(v uint64) Value { return Value{Type: TypeU64, bits: v} }

// Int64 makes an i64 value.
func Int64(v int64) Value { return Value{Type: TypeI64, bits: uint64(v)} }

// Float32 makes an f32 value.
func Float32(v float32) Value { return Value{Type: TypeF32, bits: uint64(math.Float32bits(v))} }

// Float64 makes an f64 value.
func Float64(v float64) Value { return Value{Type: TypeF64, bits: math.Float64bits(v)} }

// Bool makes a bool value.
func Bool(v bool) Value {
	if v {
		return Value{Type: TypeBool, bits: 1}
	}
	return Value{Type: TypeBool}
}

// String makes a string value.
func String(s string) Value { return Value{Type: TypeString, data: []byte(s)} }

// Strings makes an array of strings.
func Strings(v []string) Value {
	size := 0
	for _, s := range v {
		size += 8 + len(s)
	}
	data := make([]byte, 0, size)
	for _, s := range v {
		data = binary.LittleEndian.AppendUint64(data, uint64(len(s)))
		data = append(data, s...)
	}
	return Value{Type: TypeArray, Elem: TypeString, n: len(v), data: data}
}

// Number is what the elements of an array of numbers may be.
type Number interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64 | bool
}

// Array makes an array of numbers or booleans whose element type is that of v.
func Array[T Number](v []T) Value {
	var zero T
	var elem ValueType
	switch any(zero).(type) {
	case uint8:
		elem = TypeU8
	case int8:
		elem = TypeI8
	case uint16:
		elem = TypeU16
	case int16:
		elem = TypeI16
	case uint32:
		elem = TypeU32
	case int32:
		elem = TypeI32
	case uint64:
		elem = TypeU64
	case int64:
		elem = TypeI64
	case float32:
		elem = TypeF32
	case float64:
		elem = TypeF64
	case bool:
		elem = TypeBool
	}
	data, err := binary.Append(make([]byte, 0, len(v)*elem.size()), binary.LittleEndian, v)
	if err != nil {
		panic(err) // every T has a fixed size
	}
	return Value{Type: TypeArray, Elem: elem, n: len(v), data: data}
}

// Arrays makes an array of arrays. It is an error where an element is no array or the result
// would be nested deeper than a reader accepts.
func Arrays(v []Value) (Value, error) {
	var data []byte
	for i, e := range v {
		if e.Type != TypeArray {
			return Value{}, fmt.Errorf("element %d is of type %s, not an array", i, e.Type)
		}
		if e.depth() >= maxDepth {
			return Value{}, fmt.Errorf("element %d: arrays nested more than %d deep", i, maxDepth)
		}
		data = e.appendPayload(data)
	}
	return Value{Type: TypeArray, Elem: TypeArray, n: len(v), data: data}, nil
}

// Len is the number of elements of an array, and 0 for any other value.
func (v Value) Len() int { return v.n }

// TypeName names the type with the element type of an array, such as "u32" or "array of string".
func (v Value) TypeName() string {
	if v.Type == TypeArray {
		return "array of " + v.Elem.String()
	}
	return v.Type.String()
}

// Str gives a string's bytes, and false for any other type. Files may hold strings that are
// not valid UTF-8.
func (v Value) Str() (string, bool) {
	if v.Type != TypeString {
		return "", false
	}
	return string(v.data), true
}

// Bool gives a boolean, and false for any other type.
func (v Value) Bool() (value, ok bool) { return v.bits != 0, v.Type == TypeBool }

// Uint gives an integer of any width, and false where it is negative or no integer.
func (v Value) Uint() (uint64, bool) {
	if v.Type == TypeU64 {
		return v.bits, true
	}
	i, ok := v.Int()
	return uint64(i), ok && i >= 0
}

// Int gives an integer of any width, and false where it exceeds an int64 or is no integer.
func (v Value) Int() (int64, bool) {
	switch v.Type {
	case TypeU8, TypeU16, TypeU32, TypeI64:
		return int64(v.bits), true
	case TypeU64:
		return int64(v.bits), v.bits <= math.MaxInt64
	case TypeI8:
		return int64(int8(v.bits)), true
	case TypeI16:
		return int64(int16(v.bits)), true
	case TypeI32:
		return int64(int32(v.bits)), true
	}
	return 0, false
}

// Float gives an f32 or f64, and false for any other type.
func (v Value) Float() (float64, bool) {
	switch v.Type {
	case TypeF32:
		return float64(math.Float32frombits(uint32(v.bits))), true
	case TypeF64:
		return math.Float64frombits(v.bits), true
	}
	return 0, false
}

// At gives element i of an array, 0 ≤ i < Len, whose elements have a fixed size; false for
// arrays of strings or arrays and for any other value.
func (v Value) At(i int) (Value, bool) {
	size := v.Elem.size()
	if v.Type != TypeArray || size == 0 || i < 0 || i >= v.n {
		return Value{}, false
	}
	return Value{Type: v.Elem, bits: number(v.data[i*size:], size)}, true
}

// Strings gives the elements of an array of strings, and false for any other value.
func (v Value) Strings() ([]string, bool) {
	if v.Type != TypeArray || v.Elem != TypeString {
		return nil, false
	}
	all, out := string(v.data), make([]string, v.n)
	at := 0
	for i := range out {
		at += 8
		end := at + int(binary.LittleEndian.Uint64(v.data[at-8:]))
		out[i] = all[at:end]
		at = end
	}
	return out, true
}

// Ints gives the elements of an array of integers of any width, and false for any other value
// or where an element exceeds an int64.
func (v Value) Ints() ([]int64, bool) {
	if v.Type != TypeArray || !v.Elem.integer() {
		return nil, false
	}
	out := make([]int64, v.n)
	for i := range out {
		e, _ := v.At(i)
		n, ok := e.Int()
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

// Float32s gives the elements of an array of f32, and false for any other value.
func (v Value) Float32s() ([]float32, bool) {
	if v.Type != TypeArray || v.Elem != TypeF32 {
		return nil, false
	}
	out := make([]float32, v.n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(v.data[4*i:]))
	}
	return out, true
}

// Bools gives the elements of an array of booleans, and false for any other value.
func (v Value) Bools() ([]bool, bool) {
	if v.Type != TypeArray || v.Elem != TypeBool {
		return nil, false
	}
	out := make([]bool, v.n)
	for i := range out {
		out[i] = v.data[i] != 0
	}
	return out, true
}

// Arrays gives the elements of an array of arrays, and false for any other value.
func (v Value) Arrays() ([]Value, bool) {
	if v.Type != TypeArray || v.Elem != TypeArray {
		return nil, false
	}
	c := cursor{data: v.data}
	out := make([]Value, v.n)
	for i := range out {
		e, err := c.array(0)
		if err != nil { // the bytes were checked when the value was made
			return nil, false
		}
		out[i] = e
	}
	return out, true
}

// Equal reports whether both values have the same type and the same bits.
func (v Value) Equal(o Value) bool {
	return v.Type == o.Type && v.Elem == o.Elem && v.bits == o.bits && v.n == o.n && bytes.Equal(v.data, o.data)
}

// depth is how deep arrays are nested: 0 for a plain value, 1 for an array of numbers.
func (v Value) depth() int {
	if v.Type != TypeArray {
		return 0
	}
	deepest := 0
	inner, _ := v.Arrays()
	for _, e := range inner {
		deepest = max(deepest, e.depth())
	}
	return deepest + 1
}

// appendPayload appends the value as GGUF stores it, without its type.
func (v Value) appendPayload(b []byte) []byte {
	switch v.Type {
	case TypeString:
		b = binary.LittleEndian.AppendUint64(b, uint64(len(v.data)))
		return append(b, v.data...)
	case TypeArray:
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Elem))
		b = binary.LittleEndian.AppendUint64(b, uint64(v.n))
		return append(b, v.data...)
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v.bits)
	return append(b, word[:v.Type.size()]...)
}

// number reads size little-endian bytes of b, zero-extended.
func number(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}
