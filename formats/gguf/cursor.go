package gguf

import (
	"encoding/binary"
	"unicode/utf8"

	"qtool/formats"
)

const (
	// maxDepth bounds how deep arrays may be nested; the specification sets no bound, and no
	// known model nests at all.
	maxDepth = 8
	// maxKey and maxName bound keys (by the specification) and tensor names (which it limits to
	// 64 bytes; files of other programs are a little freer).
	maxKey  = 65535
	maxName = 256
)

// cursor reads the header of a file from front to back. It trusts no length: each is held
// against the bytes that are left before anything is read or allocated.
type cursor struct {
	data  []byte
	at    int
	file  string
	field string // key or tensor being read, for errors
}

// fail is an error at offset at of the file.
func (c *cursor) fail(at int, format string, args ...any) *formats.FileError {
	return formats.Malformed(c.file, c.field, format, args...).At(int64(at))
}

// left is the number of bytes not yet read.
func (c *cursor) left() int { return len(c.data) - c.at }

// take gives the next n bytes.
func (c *cursor) take(n int, what string) ([]byte, error) {
	if n > c.left() {
		return nil, c.fail(c.at, "the file ends within %s: %d bytes expected, %d left", what, n, c.left()).
			WithHint("the file is truncated or damaged")
	}
	b := c.data[c.at : c.at+n : c.at+n]
	c.at += n
	return b, nil
}

func (c *cursor) u32(what string) (uint32, error) {
	b, err := c.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) u64(what string) (uint64, error) {
	b, err := c.take(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// count reads a number of items that take at least size bytes each.
func (c *cursor) count(size int, what string) (int, error) {
	at := c.at
	n, err := c.u64("the number of " + what)
	if err != nil {
		return 0, err
	}
	if n > uint64(c.left()/size) {
		return 0, c.fail(at, "%d %s cannot fit in the %d bytes that are left", n, what, c.left())
	}
	return int(n), nil
}

// text reads a string of any bytes.
func (c *cursor) text(what string) ([]byte, error) {
	at := c.at
	n, err := c.u64("the length of " + what)
	if err != nil {
		return nil, err
	}
	if n > uint64(c.left()) {
		return nil, c.fail(at, "%s of %d bytes exceeds the %d bytes that are left", what, n, c.left())
	}
	return c.take(int(n), what)
}

// name reads a key or a tensor name: valid UTF-8 without NUL, 1 to limit bytes.
func (c *cursor) name(what string, limit int) (string, error) {
	at := c.at
	b, err := c.text(what)
	if err != nil {
		return "", err
	}
	switch {
	case len(b) == 0:
		return "", c.fail(at, "%s is empty", what)
	case len(b) > limit:
		return "", c.fail(at, "%s of %d bytes is longer than the %d that are allowed", what, len(b), limit)
	}
	if bad := badName(b); bad != "" {
		return "", c.fail(at, "%s %q %s", what, b, bad)
	}
	return string(b), nil
}

// badName says what is wrong with the bytes of a name, if anything is.
func badName(b []byte) string {
	for _, x := range b {
		if x == 0 {
			return "contains a NUL byte"
		}
	}
	if !utf8.Valid(b) {
		return "is not valid UTF-8"
	}
	return ""
}

// value reads a value of the given type. Its bytes are those of c.data, not a copy.
func (c *cursor) value(t ValueType) (Value, error) {
	switch t {
	case TypeString:
		b, err := c.text("the string")
		return Value{Type: t, data: b}, err
	case TypeArray:
		return c.array(0)
	}
	at := c.at
	b, err := c.take(t.size(), "a "+t.String())
	if err != nil {
		return Value{}, err
	}
	v := Value{Type: t, bits: number(b, len(b))}
	if t == TypeBool && v.bits > 1 {
		return Value{}, c.fail(at, "a boolean must be 0 or 1, found %d", v.bits)
	}
	return v, nil
}

// valueType reads the number of a value type.
func (c *cursor) valueType(what string) (ValueType, error) {
	at := c.at
	n, err := c.u32(what)
	if err != nil {
		return 0, err
	}
	t := ValueType(n)
	if !t.known() {
		return 0, c.fail(at, "%s %d is unknown (the specification has 0 to %d)", what, n, len(valueTypes)-1)
	}
	return t, nil
}

// array reads an array that lies within depth others and checks every element.
func (c *cursor) array(depth int) (Value, error) {
	if depth >= maxDepth {
		return Value{}, c.fail(c.at, "arrays are nested more than %d deep", maxDepth)
	}
	elem, err := c.valueType("array element type")
	if err != nil {
		return Value{}, err
	}
	smallest := elem.size()
	switch elem {
	case TypeString:
		smallest = 8
	case TypeArray:
		smallest = 12
	}
	n, err := c.count(smallest, "elements of type "+elem.String())
	if err != nil {
		return Value{}, err
	}
	start := c.at
	switch elem {
	case TypeString:
		err = c.skipStrings(n)
	case TypeArray:
		for range n {
			if _, err = c.array(depth + 1); err != nil {
				break
			}
		}
	default:
		_, err = c.take(n*elem.size(), "an array")
	}
	if err != nil {
		return Value{}, err
	}
	v := Value{Type: TypeArray, Elem: elem, n: n, data: c.data[start:c.at:c.at]}
	if elem == TypeBool {
		for i, b := range v.data {
			if b > 1 {
				return Value{}, c.fail(start+i, "a boolean must be 0 or 1, found %d", b)
			}
		}
	}
	return v, nil
}

// skipStrings checks the lengths of n strings and passes over them.
func (c *cursor) skipStrings(n int) error {
	for i := range n {
		if c.left() < 8 {
			return c.fail(c.at, "the file ends within string %d of %d", i, n).WithHint("the file is truncated or damaged")
		}
		size := binary.LittleEndian.Uint64(c.data[c.at:])
		if size > uint64(c.left()-8) {
			return c.fail(c.at, "string %d of %d: its %d bytes exceed the %d that are left", i, n, size, c.left()-8)
		}
		c.at += 8 + int(size)
	}
	return nil
}
