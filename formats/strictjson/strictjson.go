// Package strictjson reads JSON (RFC 8259) into a tree and lets nothing pass that readers may take
// in two ways: a key given twice, bytes that are no UTF-8, half of a surrogate pair, NaN or
// Infinity, anything after the value. Depth is bounded, and memory is a small multiple of the
// text.
package strictjson

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"qtool/formats"
)

// Kind of a value.
type Kind uint8

// Kinds of values; the zero Value is null.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// String names the kind with its article, for messages.
func (k Kind) String() string {
	switch k {
	case Bool:
		return "true or false"
	case Number:
		return "a number"
	case String:
		return "a string"
	case Array:
		return "an array"
	case Object:
		return "an object"
	}
	return "null"
}

// Member is a key of an object with its value.
type Member struct {
	Key   string
	Value Value
}

// Value is one JSON value. Members and Elements are in the order of the text.
type Value struct {
	Kind     Kind
	Offset   int // of its first byte
	Members  []Member
	Elements []Value

	text string // of a number as written; a string's content; "true" or "false"
}

// Options of Parse.
type Options struct {
	File     string // named in errors
	MaxDepth int    // of arrays and objects within each other; 0 stands for 64
	Offset   int64  // of the text in File, added to offsets in errors
}

// Parse reads the one value that data holds. Errors match formats.ErrMalformed.
func Parse(data []byte, o Options) (Value, error) {
	if o.MaxDepth == 0 {
		o.MaxDepth = 64
	}
	p := &parser{data: data, options: o}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.at < len(data) {
		return Value{}, p.fail(p.at, "more text after the end of the JSON value")
	}
	return v, nil
}

type parser struct {
	data    []byte
	at      int
	options Options
}

func (p *parser) fail(at int, format string, args ...any) error {
	return formats.Malformed(p.options.File, "", "JSON: "+format, args...).At(p.options.Offset + int64(at))
}

// unexpected is the error for the byte at hand, or for the end.
func (p *parser) unexpected(wanted string) error {
	if p.at >= len(p.data) {
		return p.fail(p.at, "the text ends where %s was expected", wanted)
	}
	r, _ := utf8.DecodeRune(p.data[p.at:])
	return p.fail(p.at, "expected %s, found %q", wanted, r)
}

func (p *parser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next reports whether the byte at hand is c, and steps over it if so.
func (p *parser) next(c byte) bool {
	if p.at < len(p.data) && p.data[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (Value, error) {
	v := Value{Offset: p.at}
	if p.at >= len(p.data) {
		return v, p.unexpected("a value")
	}
	var err error
	switch c := p.data[p.at]; {
	case c == '{':
		v.Kind = Object
		v.Members, err = p.object(depth + 1)
	case c == '[':
		v.Kind = Array
		v.Elements, err = p.array(depth + 1)
	case c == '"':
		v.Kind = String
		v.text, err = p.string()
	case c == '-' || c >= '0' && c <= '9':
		v.Kind = Number
		v.text, err = p.number()
	default:
		v.Kind, v.text, err = p.word()
	}
	return v, err
}

// word reads true, false or null.
func (p *parser) word() (Kind, string, error) {
	for _, w := range []struct {
		text string
		kind Kind
	}{{"true", Bool}, {"false", Bool}, {"null", Null}} {
		if end := p.at + len(w.text); end <= len(p.data) && string(p.data[p.at:end]) == w.text {
			p.at = end
			return w.kind, w.text, nil
		}
	}
	return Null, "", p.unexpected("a value")
}

func (p *parser) array(depth int) ([]Value, error) {
	if depth > p.options.MaxDepth {
		return nil, p.fail(p.at, "nested more than %d deep", p.options.MaxDepth)
	}
	p.at++
	p.space()
	if p.next(']') {
		return nil, nil
	}
	var list []Value
	for {
		p.space()
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		p.space()
		switch {
		case p.next(','):
		case p.next(']'):
			return list, nil
		default:
			return nil, p.unexpected("a comma or ]")
		}
	}
}

// linear is the number of keys up to which looking through all is as good as a map.
const linear = 16

func (p *parser) object(depth int) ([]Member, error) {
	if depth > p.options.MaxDepth {
		return nil, p.fail(p.at, "nested more than %d deep", p.options.MaxDepth)
	}
	p.at++
	p.space()
	if p.next('}') {
		return nil, nil
	}
	var list []Member
	var seen map[string]struct{}
	for {
		p.space()
		at := p.at
		if p.at >= len(p.data) || p.data[p.at] != '"' {
			return nil, p.unexpected("a key in quotes")
		}
		key, err := p.string()
		if err != nil {
			return nil, err
		}
		if duplicate(list, &seen, key) {
			return nil, p.fail(at, "key %q is given twice", key)
		}
		p.space()
		if !p.next(':') {
			return nil, p.unexpected("a colon")
		}
		p.space()
		v, err := p.value(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, Member{key, v})
		p.space()
		switch {
		case p.next(','):
		case p.next('}'):
			return list, nil
		default:
			return nil, p.unexpected("a comma or }")
		}
	}
}

// duplicate reports whether key is among the members read so far, and notes it.
func duplicate(list []Member, seen *map[string]struct{}, key string) bool {
	if len(list) < linear {
		for _, m := range list {
			if m.Key == key {
				return true
			}
		}
		return false
	}
	if *seen == nil {
		*seen = make(map[string]struct{}, 4*linear)
		for _, m := range list {
			(*seen)[m.Key] = struct{}{}
		}
	}
	if _, ok := (*seen)[key]; ok {
		return true
	}
	(*seen)[key] = struct{}{}
	return false
}

// number reads a number by JSON's grammar and gives it as written.
func (p *parser) number() (string, error) {
	start := p.at
	p.next('-')
	if !p.next('0') && p.digits() == 0 {
		return "", p.unexpected("a digit")
	}
	if p.next('.') && p.digits() == 0 {
		return "", p.unexpected("a digit")
	}
	if p.next('e') || p.next('E') {
		if !p.next('+') {
			p.next('-')
		}
		if p.digits() == 0 {
			return "", p.unexpected("a digit")
		}
	}
	if p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
		return "", p.fail(start, "a number with a leading zero")
	}
	return string(p.data[start:p.at]), nil
}

func (p *parser) digits() (n int) {
	for p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
		p.at++
		n++
	}
	return n
}

// string reads a string in quotes.
func (p *parser) string() (string, error) {
	start := p.at
	p.at++
	plain := p.at
	var out []byte // nil while nothing was escaped
	for p.at < len(p.data) {
		c := p.data[p.at]
		switch {
		case c == '"':
			p.at++
			if out == nil {
				return string(p.data[plain : p.at-1]), nil
			}
			return string(append(out, p.data[plain:p.at-1]...)), nil
		case c == '\\':
			if out == nil {
				out = make([]byte, 0, p.at-plain+16)
			}
			out = append(out, p.data[plain:p.at]...)
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
			plain = p.at
		case c < 0x20:
			return "", p.fail(p.at, "control character %#02x in a string", c)
		case c < utf8.RuneSelf:
			p.at++
		default:
			r, size := utf8.DecodeRune(p.data[p.at:])
			if r == utf8.RuneError && size == 1 {
				return "", p.fail(p.at, "byte %#02x is not UTF-8", c)
			}
			p.at += size
		}
	}
	return "", p.fail(start, "a string without end")
}

// escape reads an escape sequence and appends what it stands for.
func (p *parser) escape(out []byte) ([]byte, error) {
	start := p.at
	p.at++
	if p.at >= len(p.data) {
		return nil, p.unexpected("an escaped character")
	}
	c := p.data[p.at]
	p.at++
	switch c {
	case '"', '\\', '/':
		return append(out, c), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
		r, ok := p.hex()
		if ok && r >= 0xd800 && r < 0xdc00 && p.next('\\') && p.next('u') {
			var low rune
			low, ok = p.hex()
			ok = ok && low >= 0xdc00 && low < 0xe000
			r = (r-0xd800)<<10 + low - 0xdc00 + 0x10000
		}
		if !ok || !utf8.ValidRune(r) {
			return nil, p.fail(start, "a \\u escape that is no character")
		}
		return utf8.AppendRune(out, r), nil
	}
	return nil, p.fail(start, "unknown escape %q", p.data[start:p.at])
}

// hex reads four hexadecimal digits.
func (p *parser) hex() (rune, bool) {
	if p.at+4 > len(p.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.data[p.at:p.at+4]), 16, 16)
	p.at += 4
	return rune(n), err == nil && p.data[p.at-4] != '+' && p.data[p.at-4] != '-'
}

// Get gives the value of a key of an object, false where there is none or v is no object.
func (v Value) Get(key string) (Value, bool) {
	for i := range v.Members {
		if v.Members[i].Key == key {
			return v.Members[i].Value, true
		}
	}
	return Value{}, false
}

// mismatch is the error of a getter.
func (v Value) mismatch(wanted string) error {
	found := v.Kind.String()
	if v.Kind == Number {
		found = v.text
	}
	return fmt.Errorf("expected %s, found %s", wanted, found)
}

// Int gives an integer written without fraction and exponent that fits an int64.
func (v Value) Int() (int64, error) {
	if v.Kind != Number {
		return 0, v.mismatch("an integer")
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if err != nil {
		return 0, v.mismatch("an integer of 64 bits")
	}
	return n, nil
}

// Uint gives an integer from 0 on, written without fraction and exponent, that fits a uint64.
func (v Value) Uint() (uint64, error) {
	if v.Kind != Number {
		return 0, v.mismatch("an integer")
	}
	n, err := strconv.ParseUint(v.text, 10, 64)
	if err != nil {
		return 0, v.mismatch("an unsigned integer of 64 bits")
	}
	return n, nil
}

// Float gives a number; one beyond the range of float64 is an error.
func (v Value) Float() (float64, error) {
	if v.Kind != Number {
		return 0, v.mismatch("a number")
	}
	f, err := strconv.ParseFloat(v.text, 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, v.mismatch("a number of double precision")
	}
	return f, nil
}

// Str gives a string.
func (v Value) Str() (string, error) {
	if v.Kind != String {
		return "", v.mismatch("a string")
	}
	return v.text, nil
}

// BoolValue gives true or false.
func (v Value) BoolValue() (bool, error) {
	if v.Kind != Bool {
		return false, v.mismatch("true or false")
	}
	return v.text == "true", nil
}

// Strings gives the elements of an array of strings.
func (v Value) Strings() ([]string, error) {
	if v.Kind != Array {
		return nil, v.mismatch("an array of strings")
	}
	list := make([]string, len(v.Elements))
	for i, e := range v.Elements {
		s, err := e.Str()
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		list[i] = s
	}
	return list, nil
}
