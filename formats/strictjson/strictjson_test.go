package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// plain gives a value in the form that encoding/json decodes to.
func plain(t testing.TB, v strictjson.Value) any {
	switch v.Kind {
	case strictjson.Bool:
		b, err := v.BoolValue()
		require.NoError(t, err)
		return b
	case strictjson.Number:
		f, err := v.Float()
		require.NoError(t, err)
		return f
	case strictjson.String:
		s, err := v.Str()
		require.NoError(t, err)
		return s
	case strictjson.Array:
		list := make([]any, len(v.Elements))
		for i, e := range v.Elements {
			list[i] = plain(t, e)
		}
		return list
	case strictjson.Object:
		m := make(map[string]any, len(v.Members))
		for _, e := range v.Members {
			m[e.Key] = plain(t, e.Value)
		}
		return m
	}
	return nil
}

var valid = []string{
	`null`, ` true `, `[]`, `{}`, `0`, `-0`, `-12.5e+3`, `1E-2`, `"a\"\\\/\b\f\n\r\té😀é😀"`,
	`{"a":[1,2,{"b":null}],"":{}, "c d": "x"}`, "\t[\r\n1 , 2 ]\n", `" "`, `"\u0000"`,
	`{` + manyKeys(40) + `}`,
}

func manyKeys(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = `"k` + strings.Repeat("x", i) + `":` + "1"
	}
	return strings.Join(keys, ",")
}

func TestValid(t *testing.T) {
	for _, text := range valid {
		v, err := strictjson.Parse([]byte(text), strictjson.Options{})
		require.NoError(t, err, text)
		var want any
		require.NoError(t, json.Unmarshal([]byte(text), &want), text)
		require.Equal(t, want, plain(t, v), text)
	}
}

var invalid = map[string]string{
	``: "ends", `{`: "ends", `[1,]`: "expected a value", `{"a":1,}`: "key in quotes", `{"a" 1}`: "colon", `{a:1}`: "key in quotes",
	`[1 2]`: "comma or ]", `{"a":1 "b":2}`: "comma or }", `01`: "leading zero", `-`: "digit", `1.`: "digit", `1e`: "digit", `.5`: "expected a value",
	`+1`: "expected a value", `NaN`: "expected a value", `Infinity`: "expected a value", `nul`: "expected a value", `truex`: "more text", `1 2`: "more text",
	`"abc`: "without end", "\"a\nb\"": "control character", `"\x"`: "unknown escape", `"\u12"`: "no character", `"\ud800"`: "no character",
	`"\ud800\u0041"`: "no character", `"\udc00"`: "no character", `"\u+123"`: "no character", "\"\xff\"": "not UTF-8", "\"\xc0\x80\"": "not UTF-8",
	"{\"\xed\xa0\x80\":1}": "not UTF-8", `{"a":1,"a":2}`: "given twice", `{"\u0061":1,"a":2}`: "given twice",
	`{` + manyKeys(40) + `,"k":1}`: "given twice", strings.Repeat("[", 65): "deep", strings.Repeat(`{"a":`, 65): "deep",
	strings.Repeat("[", 10_000_000): "deep", "\ufeff{}": "expected a value", `'a'`: "expected a value", `//`: "expected a value",
}

func TestInvalid(t *testing.T) {
	for text, want := range invalid {
		_, err := strictjson.Parse([]byte(text), strictjson.Options{File: "f.json", Offset: 8})
		require.ErrorIs(t, err, formats.ErrMalformed, "%.40q", text)
		require.ErrorContains(t, err, want, "%.40q", text)
		require.ErrorContains(t, err, "f.json", "%.40q", text)
	}
}

func TestGetters(t *testing.T) {
	v, err := strictjson.Parse([]byte(`{"i":7,"f":1.5,"e":1e3,"big":9223372036854775808,"s":"x","b":false,"n":null,"l":["a"],"m":["a",1],"huge":1e999}`), strictjson.Options{})
	require.NoError(t, err)
	get := func(key string) strictjson.Value {
		x, ok := v.Get(key)
		require.True(t, ok)
		return x
	}
	i, err := get("i").Int()
	require.NoError(t, err)
	require.Equal(t, int64(7), i)
	for _, key := range []string{"f", "e", "big", "s", "b", "n", "l"} {
		_, err := get(key).Int()
		require.Error(t, err, key)
	}
	for _, key := range []string{"s", "n", "huge"} {
		_, err := get(key).Float()
		require.Error(t, err, key)
	}
	l, err := get("l").Strings()
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, l)
	_, err = get("m").Strings()
	require.ErrorContains(t, err, "element 1")
	_, err = get("n").Str()
	require.Error(t, err)
	_, err = get("i").BoolValue()
	require.Error(t, err)
	_, ok := v.Get("absent")
	require.False(t, ok)
}

// FuzzParse: whatever is accepted, encoding/json accepts too and reads the same.
func FuzzParse(f *testing.F) {
	for _, text := range valid {
		f.Add([]byte(text))
	}
	for text := range invalid {
		if len(text) < 1000 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := strictjson.Parse(data, strictjson.Options{})
		if err != nil {
			require.ErrorIs(t, err, formats.ErrMalformed)
			return
		}
		var want any
		if err := json.Unmarshal(data, &want); err != nil {
			require.ErrorContains(t, err, "cannot unmarshal number") // beyond float64
			return
		}
		require.Equal(t, want, plain(t, v))
	})
}
