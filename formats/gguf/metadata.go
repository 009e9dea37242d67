package gguf

import (
	"errors"
	"math"
	"slices"
	"strconv"

	"qtool/formats"
)

// ErrNoKey is what a getter's error matches where the key is absent.
var ErrNoKey = errors.New("no such key")

// Metadata holds the keys and values of a GGUF file in the file's order. The zero Metadata is
// empty and ready for use. Getters return errors that name the key, the type wanted and the
// type found.
type Metadata struct {
	file   string // named in errors; may be empty
	keys   []string
	values map[string]Value
}

// Len is the number of keys.
func (m *Metadata) Len() int { return len(m.keys) }

// Keys gives the keys in order. The slice is the caller's.
func (m *Metadata) Keys() []string { return slices.Clone(m.keys) }

// Get gives the value of key, and false where it is absent.
func (m *Metadata) Get(key string) (Value, bool) {
	v, ok := m.values[key]
	return v, ok
}

// Has reports whether key is present.
func (m *Metadata) Has(key string) bool {
	_, ok := m.values[key]
	return ok
}

// Set gives key a value: in its place where it is present, else after all others.
func (m *Metadata) Set(key string, v Value) {
	if m.values == nil {
		m.values = make(map[string]Value)
	}
	if _, ok := m.values[key]; !ok {
		m.keys = append(m.keys, key)
	}
	m.values[key] = v
}

// Remove takes key away, if it is present.
func (m *Metadata) Remove(key string) {
	if _, ok := m.values[key]; !ok {
		return
	}
	delete(m.values, key)
	m.keys = slices.DeleteFunc(m.keys, func(k string) bool { return k == key })
}

// Clone gives a copy whose changes do not reach m.
func (m *Metadata) Clone() *Metadata {
	c := &Metadata{file: m.file}
	for _, k := range m.keys {
		c.Set(k, m.values[k])
	}
	return c
}

// Equal reports whether both hold the same keys with the same values in the same order.
func (m *Metadata) Equal(o *Metadata) bool {
	return slices.EqualFunc(m.keys, o.keys, func(a, b string) bool {
		return a == b && m.values[a].Equal(o.values[b])
	})
}

// lookup gives the value of key or an error that matches ErrNoKey.
func (m *Metadata) lookup(key string) (Value, error) {
	v, ok := m.values[key]
	if !ok {
		err := formats.Malformed(m.file, key, "the metadata lacks this key")
		err.Err = ErrNoKey
		return Value{}, err
	}
	return v, nil
}

// mismatch is the error for a value that is not what was wanted.
func (m *Metadata) mismatch(key, wanted string, v Value) error {
	return formats.Malformed(m.file, key, "expected %s, found %s", wanted, v.describe())
}

// get looks key up and reads it, turning both failures into errors.
func get[T any](m *Metadata, key, wanted string, read func(Value) (T, bool)) (T, error) {
	var zero T
	v, err := m.lookup(key)
	if err != nil {
		return zero, err
	}
	out, ok := read(v)
	if !ok {
		return zero, m.mismatch(key, wanted, v)
	}
	return out, nil
}

// Str gives a string.
func (m *Metadata) Str(key string) (string, error) { return get(m, key, "a string", Value.Str) }

// Uint gives a non-negative integer of any width.
func (m *Metadata) Uint(key string) (uint64, error) {
	return get(m, key, "a non-negative integer", Value.Uint)
}

// Int gives an integer of any width.
func (m *Metadata) Int(key string) (int64, error) { return get(m, key, "an integer", Value.Int) }

// Float gives an f32 or f64.
func (m *Metadata) Float(key string) (float64, error) {
	return get(m, key, "a floating-point number", Value.Float)
}

// Bool gives a boolean.
func (m *Metadata) Bool(key string) (bool, error) { return get(m, key, "a boolean", Value.Bool) }

// Strings gives an array of strings.
func (m *Metadata) Strings(key string) ([]string, error) {
	return get(m, key, "an array of strings", Value.Strings)
}

// Float32s gives an array of f32.
func (m *Metadata) Float32s(key string) ([]float32, error) {
	return get(m, key, "an array of f32", Value.Float32s)
}

// Bools gives an array of booleans.
func (m *Metadata) Bools(key string) ([]bool, error) {
	return get(m, key, "an array of booleans", Value.Bools)
}

// Ints gives an array of integers of any width.
func (m *Metadata) Ints(key string) ([]int64, error) {
	return get(m, key, "an array of integers", Value.Ints)
}

// Int32s gives an array of integers of any width whose values fit an int32.
func (m *Metadata) Int32s(key string) ([]int32, error) {
	return get(m, key, "an array of integers of 32 bits", func(v Value) ([]int32, bool) {
		wide, ok := v.Ints()
		out := make([]int32, len(wide))
		for i, n := range wide {
			if n < math.MinInt32 || n > math.MaxInt32 {
				return nil, false
			}
			out[i] = int32(n)
		}
		return out, ok
	})
}

// describe names a value's type, with the value itself where it is a number, for errors.
func (v Value) describe() string {
	if i, ok := v.Int(); ok {
		return v.TypeName() + " " + strconv.FormatInt(i, 10)
	}
	return v.TypeName()
}
