package gguf

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// The typed form of metadata is JSON that keeps the order of keys, the type of each value and all its
// bits: an array of [key, type, value], where type is as TypeName gives it. Integers are numbers;
// floating-point values are their bits as an integer; strings that are not UTF-8 are {"base64": …};
// arrays of arrays hold [type, value] pairs.

// MarshalTyped gives the typed form, the same bytes for the same metadata.
func (m *Metadata) MarshalTyped() ([]byte, error) {
	var b strings.Builder
	b.WriteString("[")
	for i, key := range m.keys {
		if i > 0 {
			b.WriteString(",")
		}
		v := m.values[key]
		fmt.Fprintf(&b, "\n[%s,%q,", jsonString(key), v.TypeName())
		v.typed(&b)
		b.WriteString("]")
	}
	b.WriteString("\n]\n")
	return []byte(b.String()), nil
}

func jsonString(s string) string {
	if !utf8.ValidString(s) {
		return `{"base64":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}`
	}
	q, err := json.Marshal(s)
	if err != nil {
		panic(err) // a valid string always can be
	}
	return string(q)
}

// typed writes the value without its type.
func (v Value) typed(b *strings.Builder) {
	switch v.Type {
	case TypeString:
		b.WriteString(jsonString(string(v.data)))
	case TypeBool:
		b.WriteString(strconv.FormatBool(v.bits != 0))
	case TypeF32, TypeF64:
		b.WriteString(strconv.FormatUint(v.bits, 10))
	case TypeArray:
		b.WriteByte('[')
		v.elements(func(i int, e Value) {
			if i > 0 {
				b.WriteByte(',')
			}
			if v.Elem == TypeArray {
				fmt.Fprintf(b, "[%q,", e.TypeName())
				e.typed(b)
				b.WriteByte(']')
			} else {
				e.typed(b)
			}
		})
		b.WriteByte(']')
	default:
		if n, ok := v.Int(); ok {
			b.WriteString(strconv.FormatInt(n, 10))
		} else {
			b.WriteString(strconv.FormatUint(v.bits, 10)) // a u64 beyond int64
		}
	}
}

// elements calls f for each element of an array.
func (v Value) elements(f func(i int, e Value)) {
	switch v.Elem {
	case TypeString:
		list, _ := v.Strings()
		for i, s := range list {
			f(i, String(s))
		}
	case TypeArray:
		list, _ := v.Arrays()
		for i, e := range list {
			f(i, e)
		}
	default:
		for i := range v.n {
			e, _ := v.At(i)
			f(i, e)
		}
	}
}

// ParseTyped reads what MarshalTyped gives. file is named in errors, which match
// formats.ErrMalformed.
func ParseTyped(data []byte, file string) (*Metadata, error) {
	root, err := strictjson.Parse(data, strictjson.Options{File: file})
	if err != nil {
		return nil, err
	}
	if root.Kind != strictjson.Array {
		return nil, formats.Malformed(file, "", "expected an array of metadata, found %s", root.Kind)
	}
	m := &Metadata{file: file}
	for i, e := range root.Elements {
		if e.Kind != strictjson.Array || len(e.Elements) != 3 {
			return nil, formats.Malformed(file, "", "entry %d: expected a key, a type and a value", i).At(int64(e.Offset))
		}
		key, err := e.Elements[0].Str()
		if err != nil {
			return nil, formats.Malformed(file, "", "entry %d: %v", i, err).At(int64(e.Offset))
		}
		if err := checkName("key", key, maxKey); err != nil {
			return nil, formats.Malformed(file, "", "entry %d: %v", i, err).At(int64(e.Offset))
		}
		if m.Has(key) {
			return nil, formats.Malformed(file, key, "is given twice").At(int64(e.Offset))
		}
		v, err := parseTypedValue(e.Elements[1], e.Elements[2], 0)
		if err != nil {
			return nil, formats.Malformed(file, key, "%v", err).At(int64(e.Offset))
		}
		m.Set(key, v)
	}
	return m, nil
}

func parseTypedValue(typ, value strictjson.Value, depth int) (Value, error) {
	name, err := typ.Str()
	if err != nil {
		return Value{}, err
	}
	elem, isArray := strings.CutPrefix(name, "array of ")
	index := slices.IndexFunc(valueTypes[:], func(t struct {
		name string
		size int
	}) bool {
		return t.name == elem
	})
	if index < 0 {
		return Value{}, fmt.Errorf("type %q is not known", name)
	}
	t := ValueType(index)
	if !isArray {
		if t == TypeArray {
			return Value{}, fmt.Errorf("an array without the type of its elements")
		}
		return parseTypedScalar(t, value)
	}
	if value.Kind != strictjson.Array {
		return Value{}, fmt.Errorf("expected an array, found %s", value.Kind)
	}
	if depth >= maxDepth {
		return Value{}, fmt.Errorf("arrays nested more than %d deep", maxDepth)
	}
	out := Value{Type: TypeArray, Elem: t, n: len(value.Elements)}
	for i, e := range value.Elements {
		var v Value
		if t == TypeArray {
			if e.Kind != strictjson.Array || len(e.Elements) != 2 {
				return Value{}, fmt.Errorf("element %d: expected a type and a value", i)
			}
			v, err = parseTypedValue(e.Elements[0], e.Elements[1], depth+1)
			if err == nil && v.Type != TypeArray {
				err = fmt.Errorf("is no array")
			}
		} else {
			v, err = parseTypedScalar(t, e)
		}
		if err != nil {
			return Value{}, fmt.Errorf("element %d: %w", i, err)
		}
		out.data = v.appendPayload(out.data)
	}
	return out, nil
}

func parseTypedScalar(t ValueType, v strictjson.Value) (Value, error) {
	switch t {
	case TypeString:
		if coded, ok := v.Get("base64"); ok && len(v.Members) == 1 {
			text, err := coded.Str()
			if err != nil {
				return Value{}, err
			}
			raw, err := base64.StdEncoding.Strict().DecodeString(text)
			return String(string(raw)), err
		}
		s, err := v.Str()
		return String(s), err
	case TypeBool:
		b, err := v.BoolValue()
		return Bool(b), err
	case TypeU64, TypeF32, TypeF64:
		bits, err := v.Uint()
		if err == nil && t == TypeF32 && bits > math.MaxUint32 {
			err = fmt.Errorf("%d has more than 32 bits", bits)
		}
		return Value{Type: t, bits: bits}, err
	}
	n, err := v.Int()
	if err != nil {
		return Value{}, err
	}
	size := 8 * t.size()
	least, most := int64(0), int64(1)<<size-1
	if t == TypeI8 || t == TypeI16 || t == TypeI32 || t == TypeI64 {
		least, most = -1<<(size-1), 1<<(size-1)-1
	}
	if n < least || n > most {
		return Value{}, fmt.Errorf("%d is no %s", n, t)
	}
	return Value{Type: t, bits: uint64(n) & (1<<size - 1)}, nil
}
