package gguf_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
)

// everyKind is metadata with each type of value.
func everyKind(t testing.TB) *gguf.Metadata {
	t.Helper()
	m := &gguf.Metadata{}
	m.Set("u8", gguf.Uint8(255))
	m.Set("i8", gguf.Int8(-128))
	m.Set("u16", gguf.Uint16(65535))
	m.Set("i16", gguf.Int16(-2))
	m.Set("u32", gguf.Uint32(1<<32-1))
	m.Set("i32", gguf.Int32(-3))
	m.Set("u64", gguf.Uint64(math.MaxUint64))
	m.Set("i64", gguf.Int64(math.MinInt64))
	m.Set("f32", gguf.Float32(float32(math.Inf(-1))))
	m.Set("f64", gguf.Float64(math.Copysign(0, -1)))
	m.Set("bool", gguf.Bool(true))
	m.Set("text", gguf.String("a\"\u0000é"))
	m.Set("bytes", gguf.String("\xff\x00"))
	m.Set("strings", gguf.Strings([]string{"", "x", "\xfe"}))
	m.Set("floats", gguf.Array([]float32{1, float32(math.NaN())}))
	m.Set("flags", gguf.Array([]bool{true, false}))
	m.Set("none", gguf.Array([]int16{}))
	nested, err := gguf.Arrays([]gguf.Value{gguf.Array([]int32{1, -1}), gguf.Strings([]string{"y"})})
	require.NoError(t, err)
	m.Set("nested", nested)
	return m
}

// badTyped are texts that are not the typed form of metadata.
var badTyped = []string{
	`{}`, `[1]`, `[["a","u8"]]`, `[["a","u8",256]]`, `[["a","u8",-1]]`, `[["a","i8",128]]`, `[["a","f32",4294967296]]`, `[["a","f64",-1]]`,
	`[["a","what",1]]`, `[["a","array",[]]]`, `[["a","array of u8",1]]`, `[["a","bool",1]]`, `[["a","u8",1],["a","u8",1]]`, `[[1,"u8",1]]`,
	`[["a","array of array",[1]]]`, `[["a","array of array",[["u8",1]]]]`, `[["a","string",{"base64":"?"}]]`, `[["a","u32",1.0]]`,
	`[["a","string",{"base64":"AA==","x":1}]]`, `[["a","string",{}]]`, `[["","u8",1]]`, `[["a\u0000","u8",1]]`, `[["a","u8",1,2]]`, `[["a","string",{"base64":"AB=="}]]`,
}

func TestTypedRoundTrip(t *testing.T) {
	m := everyKind(t)
	text, err := m.MarshalTyped()
	require.NoError(t, err)
	back, err := gguf.ParseTyped(text, "metadata")
	require.NoError(t, err)
	require.True(t, m.Equal(back))
	for _, bad := range badTyped {
		_, err := gguf.ParseTyped([]byte(bad), "metadata")
		require.ErrorIs(t, err, formats.ErrMalformed, bad)
	}
}

func TestWriteAndRead(t *testing.T) {
	for _, align := range []int{0, 64} {
		m := everyKind(t)
		if align > 0 {
			m.Set("general.alignment", gguf.Uint32(uint32(align)))
		}
		infos := []gguf.TensorInfo{
			{Name: "a", Shape: []int{3, 32}, Type: ggml.Q4_0}, {Name: "b", Shape: []int{5}, Type: ggml.F32},
			{Name: "none", Shape: []int{0, 4}, Type: ggml.F16}, {Name: "c", Shape: []int{2, 3, 64}, Type: ggml.Q8_0},
			{Name: "d", Shape: []int{3, 512}, Type: ggml.IQ4_KS},
		}
		l, err := gguf.Plan(m, infos)
		require.NoError(t, err)
		require.EqualValues(t, 3*(4+2*136), l.Tensors[4].Size)
		data := make([]byte, l.Size)
		copy(data, l.Header)
		for _, x := range l.Tensors {
			for i := range x.Size {
				data[x.Offset+i] = byte(x.Offset + i*7)
			}
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		f, err := gguf.Open(path)
		require.NoError(t, err)
		require.True(t, m.Equal(f.Metadata()))
		require.Equal(t, l.Tensors, f.Tensors())
		require.NoError(t, f.Close())
	}
}

func TestPlanRefuses(t *testing.T) {
	large := make([]gguf.TensorInfo, 1<<14)
	for i := range large {
		large[i] = gguf.TensorInfo{Name: fmt.Sprint(i), Shape: []int{formats.MaxElements}, Type: ggml.F32}
	}
	for name, infos := range map[string][]gguf.TensorInfo{
		"no name":         {{Name: "", Shape: []int{1}}},
		"name of 64":      {{Name: strings.Repeat("n", 64), Shape: []int{1}}},
		"NUL":             {{Name: "a\x00", Shape: []int{1}}},
		"not UTF-8":       {{Name: "a\xff", Shape: []int{1}}},
		"twice":           {{Name: "x", Shape: []int{1}}, {Name: "x", Shape: []int{1}}},
		"no dimensions":   {{Name: "x"}},
		"five dimensions": {{Name: "x", Shape: []int{1, 1, 1, 1, 1}}},
		"half a block":    {{Name: "x", Shape: []int{33}, Type: ggml.Q4_0}},
		"negative":        {{Name: "x", Shape: []int{-1}}},
		"unknown type":    {{Name: "x", Shape: []int{1}, Type: 99}},
		"too large":       large,
	} {
		_, err := gguf.Plan(&gguf.Metadata{}, infos)
		require.Error(t, err, name)
	}
	for _, key := range []string{"", "a\x00", "a\xff", strings.Repeat("k", 65536)} {
		m := &gguf.Metadata{}
		m.Set(key, gguf.Bool(true))
		_, err := gguf.Plan(m, nil)
		require.Error(t, err)
	}
	for _, v := range []gguf.Value{gguf.Uint32(0), gguf.Uint32(13), gguf.Uint32(1 << 31), gguf.Uint64(32)} {
		m := &gguf.Metadata{}
		m.Set("general.alignment", v)
		_, err := gguf.Plan(m, nil)
		require.ErrorContains(t, err, "general.alignment")
	}
}

func TestPlanIsDeterministic(t *testing.T) {
	infos := []gguf.TensorInfo{{Name: "b", Shape: []int{5}, Type: ggml.BF16}, {Name: "a", Shape: []int{3}, Type: ggml.F32}}
	first, err := gguf.Plan(everyKind(t), infos)
	require.NoError(t, err)
	second, err := gguf.Plan(everyKind(t), infos)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, "b", first.Tensors[0].Name) // in the given order
	require.Zero(t, first.Size%32)
	require.Equal(t, int64(len(first.Header)), first.Tensors[0].Offset)
}

// FuzzTyped: no text makes the reader of the typed form panic, and what it accepts comes back the same.
func FuzzTyped(f *testing.F) {
	text, err := everyKind(f).MarshalTyped()
	require.NoError(f, err)
	f.Add(text)
	for _, bad := range badTyped {
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := gguf.ParseTyped(text, "metadata")
		if err != nil {
			require.ErrorIs(t, err, formats.ErrMalformed)
			return
		}
		again, err := m.MarshalTyped()
		require.NoError(t, err)
		back, err := gguf.ParseTyped(again, "metadata")
		require.NoError(t, err)
		require.True(t, m.Equal(back))
	})
}
