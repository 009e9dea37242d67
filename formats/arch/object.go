package arch

import (
	"errors"
	"fmt"
	"math"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// refused as the value for an absent or null key makes that case an error.
const refused = -1

// object reads typed keys of a JSON object. The first error is kept in err; after it, reads
// return zero values.
type object struct {
	file   string
	prefix string // path of a nested object, with a final dot
	value  strictjson.Value
	err    error
}

// kindName says what a value is, for messages.
func kindName(v strictjson.Value) string {
	switch v.Kind {
	case strictjson.Object:
		return "an object"
	case strictjson.Array:
		return "an array"
	case strictjson.String:
		return "a string"
	case strictjson.Number:
		return "a number"
	case strictjson.Bool:
		return "true or false"
	}
	return "null"
}

// get returns the value of a key, false when it is absent or an error was met before.
func (o *object) get(key string) (strictjson.Value, bool) {
	if o.err != nil {
		return strictjson.Value{}, false
	}
	return o.value.Get(key)
}

// fail records a malformed value.
func (o *object) fail(v strictjson.Value, key, format string, args ...any) {
	if o.err == nil {
		o.err = formats.Malformed(o.file, o.prefix+key, format, args...).At(int64(v.Offset))
	}
}

// refuse records a value that asks for something qtool does not compute.
func (o *object) refuse(v strictjson.Value, key, format string, args ...any) {
	if o.err == nil {
		o.err = formats.Unsupported(o.file, o.prefix+key, format, args...).At(int64(v.Offset))
	}
}

// missing records an absent key.
func (o *object) missing(key string) {
	if o.err == nil {
		o.err = formats.Malformed(o.file, o.prefix+key, "is missing")
	}
}

// size reads an integer from 1 to limit; absent and null are its values in those cases.
func (o *object) size(key string, limit, absent, null int) int {
	return o.integer(key, 1, limit, absent, null)
}

// count reads an integer from 0 to limit that may be absent.
func (o *object) count(key string, limit, absent int) int {
	return o.integer(key, 0, limit, absent, refused)
}

func (o *object) integer(key string, least, limit, absent, null int) int {
	v, ok := o.get(key)
	switch {
	case o.err != nil:
		return 0
	case !ok && absent == refused:
		o.missing(key)
		return 0
	case !ok:
		return absent
	case v.Kind == strictjson.Null && null != refused:
		return null
	}
	n, err := v.Int()
	switch {
	case v.Kind != strictjson.Number:
		o.fail(v, key, "expected an integer, found %s", kindName(v))
		return 0
	case err != nil:
		o.fail(v, key, "expected an integer of at most %d: %v", limit, reason(err))
		return 0
	case n < int64(least) || n > int64(limit):
		o.fail(v, key, "is %d, expected %d to %d", n, least, limit)
		return 0
	}
	return int(n)
}

// reason strips file and offset from an error of the JSON reader, which the caller gives itself.
func reason(err error) string {
	var f *formats.FileError
	if errors.As(err, &f) {
		return f.Reason
	}
	return err.Error()
}

// number reads a positive number; absent and null are its values in those cases.
func (o *object) number(key string, absent, null float64) float64 {
	v, ok := o.get(key)
	switch {
	case o.err != nil:
		return 0
	case !ok && absent == refused:
		o.missing(key)
		return 0
	case !ok:
		return absent
	case v.Kind == strictjson.Null && null != refused:
		return null
	}
	x, ok := o.float(v, key)
	if ok && !(x > 0) {
		o.fail(v, key, "is %v, expected a positive number", x)
		return 0
	}
	return x
}

// float reads any finite number.
func (o *object) float(v strictjson.Value, key string) (float64, bool) {
	if v.Kind != strictjson.Number {
		o.fail(v, key, "expected a number, found %s", kindName(v))
		return 0, false
	}
	x, err := v.Float()
	if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
		o.fail(v, key, "expected a finite number")
		return 0, false
	}
	return x, true
}

// numbers reads an array of numbers.
func (o *object) numbers(key string) []float64 {
	v, ok := o.get(key)
	if o.err != nil {
		return nil
	}
	if !ok {
		o.missing(key)
		return nil
	}
	if v.Kind != strictjson.Array {
		o.fail(v, key, "expected an array of numbers, found %s", kindName(v))
		return nil
	}
	list := make([]float64, len(v.Elements))
	for i, e := range v.Elements {
		list[i], ok = o.float(e, fmt.Sprintf("%s[%d]", key, i))
		if !ok {
			return nil
		}
	}
	return list
}

// flag reads true or false.
func (o *object) flag(key string, absent bool) bool {
	v, ok := o.get(key)
	if !ok {
		return absent
	}
	b, err := v.BoolValue()
	if err != nil {
		o.fail(v, key, "expected true or false, found %s", kindName(v))
	}
	return b
}

// text reads a string.
func (o *object) text(key, absent string) string {
	v, ok := o.get(key)
	if !ok {
		return absent
	}
	s, err := v.Str()
	if err != nil {
		o.fail(v, key, "expected a string, found %s", kindName(v))
	}
	return s
}
