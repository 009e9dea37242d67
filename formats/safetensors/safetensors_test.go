package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/testdata"
)

// file makes the bytes of a file with this header and so many bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// length makes a file whose header claims a length.
func length(n uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), "{}"...)
}

func one(name, entry string) string { return fmt.Sprintf("{%q:{%s}}", name, entry) }

const good = `"dtype":"F32","shape":[2,3],"data_offsets":[0,24]`

// bad lists files that must be refused, with a part of what the error must say.
var bad = []struct {
	name string
	data []byte
	want string
	kind error
}{
	{"empty", nil, "empty", formats.ErrMalformed},
	{"seven bytes", make([]byte, 7), "7 bytes", formats.ErrMalformed},
	{"length 0", length(0), "length of 0", formats.ErrMalformed},
	{"length 1", length(1), "length of 1", formats.ErrMalformed},
	{"length 2^63", length(1 << 63), "allows", formats.ErrMalformed},
	{"length 2^64-1", length(1<<64 - 1), "allows", formats.ErrMalformed},
	{"length beyond the bound", length(100_000_001), "allows", formats.ErrMalformed},
	{"length past the file", length(3), "ends after 2", formats.ErrMalformed},
	{"no object", file(`[1]`, 0), "starts with", formats.ErrMalformed},
	{"space first", file(` {}`, 0), "starts with", formats.ErrMalformed},
	{"not closed", file(`{"a":`, 0), "ends", formats.ErrMalformed},
	{"deep", file(`{"a":`+strings.Repeat("[", 1_000_000), 0), "deep", formats.ErrMalformed},
	{"tensor twice", file(`{"a":{`+good+`},"a":{`+good+`}}`, 24), "twice", formats.ErrMalformed},
	{"tensor twice by escape", file(`{"a":{`+good+`},"\u0061":{`+good+`}}`, 24), "twice", formats.ErrMalformed},
	{"key twice", file(one("a", good+`,"dtype":"F32"`), 24), "twice", formats.ErrMalformed},
	{"metadata key twice", file(`{"__metadata__":{"k":"1","k":"2"}}`, 0), "twice", formats.ErrMalformed},
	{"metadata no object", file(`{"__metadata__":["k"]}`, 0), "object of strings", formats.ErrMalformed},
	{"metadata null", file(`{"__metadata__":null}`, 0), "object of strings", formats.ErrMalformed},
	{"metadata no string", file(`{"__metadata__":{"k":1}}`, 0), "string", formats.ErrMalformed},
	{"unknown key", file(one("a", good+`,"strides":[1]`), 24), "strides", formats.ErrMalformed},
	{"other letter case", file(one("a", `"DType":"F32","shape":[2,3],"data_offsets":[0,24]`), 24), "DType", formats.ErrMalformed},
	{"no dtype", file(one("a", `"shape":[2,3],"data_offsets":[0,24]`), 24), "dtype", formats.ErrMalformed},
	{"dtype null", file(one("a", `"dtype":null,"shape":[2,3],"data_offsets":[0,24]`), 24), "dtype", formats.ErrMalformed},
	{"unknown dtype", file(one("a", `"dtype":"F128","shape":[2,3],"data_offsets":[0,24]`), 24), "F128", formats.ErrUnsupported},
	{"no shape", file(one("a", `"dtype":"F32","data_offsets":[0,24]`), 24), "shape", formats.ErrMalformed},
	{"shape a number", file(one("a", `"dtype":"F32","shape":6,"data_offsets":[0,24]`), 24), "shape", formats.ErrMalformed},
	{"negative dim", file(one("a", `"dtype":"F32","shape":[-2,-3],"data_offsets":[0,24]`), 24), "negative", formats.ErrMalformed},
	{"float dim", file(one("a", `"dtype":"F32","shape":[2.0,3],"data_offsets":[0,24]`), 24), "integer", formats.ErrMalformed},
	{"exponent dim", file(one("a", `"dtype":"F32","shape":[2e0,3],"data_offsets":[0,24]`), 24), "integer", formats.ErrMalformed},
	{"string dim", file(one("a", `"dtype":"F32","shape":["2",3],"data_offsets":[0,24]`), 24), "integer", formats.ErrMalformed},
	{"null dim", file(one("a", `"dtype":"F32","shape":[null,3],"data_offsets":[0,24]`), 24), "integer", formats.ErrMalformed},
	{"huge dim", file(one("a", `"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,24]`), 24), "64 bits", formats.ErrMalformed},
	{"product overflows", file(one("a", `"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]`), 24), "more than", formats.ErrMalformed},
	{"product overflows to 0", file(one("a", `"dtype":"U8","shape":[2147483648,2147483648,4],"data_offsets":[0,0]`), 0), "more than", formats.ErrMalformed},
	{"many dims", file(one("a", `"dtype":"U8","shape":[`+strings.Repeat("1,", 64)+`1],"data_offsets":[0,1]`), 1), "65 numbers", formats.ErrMalformed},
	{"shape against range", file(one("a", `"dtype":"F32","shape":[2,2],"data_offsets":[0,24]`), 24), "takes 16 bytes", formats.ErrMalformed},
	{"half a byte", file(one("a", `"dtype":"F4","shape":[3],"data_offsets":[0,1]`), 1), "whole number of bytes", formats.ErrMalformed},
	{"one offset", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[24]`), 24), "expected 2", formats.ErrMalformed},
	{"three offsets", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[0,24,24]`), 24), "at most 2", formats.ErrMalformed},
	{"reversed", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[24,0]`), 24), "not before", formats.ErrMalformed},
	{"negative offset", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[-24,0]`), 24), "not before", formats.ErrMalformed},
	{"float offset", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[0.0,24]`), 24), "integer", formats.ErrMalformed},
	{"past the end", file(one("a", good), 23), "truncated", formats.ErrMalformed},
	{"offset 2^62", file(one("a", `"dtype":"F32","shape":[2,3],"data_offsets":[4611686018427387880,4611686018427387904]`), 24), "past the end", formats.ErrMalformed},
	{"trailing data", file(one("a", good), 25), "the file has", formats.ErrMalformed},
	{"gap at the start", file(one("a", `"dtype":"U8","shape":[2],"data_offsets":[1,3]`), 3), "belong to no tensor", formats.ErrMalformed},
	{"gap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), "belong to no tensor", formats.ErrMalformed},
	{"overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "overlaps", formats.ErrMalformed},
	{"same range", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2), "overlaps", formats.ErrMalformed},
	{"empty name", file(one("", good), 24), "without a name", formats.ErrMalformed},
	{"NUL in a name", file(`{"a\u0000":{`+good+`}}`, 24), "NUL", formats.ErrMalformed},
	{"bad UTF-8 in a name", file("{\"a\xff\":{"+good+"}}", 24), "UTF-8", formats.ErrMalformed},
	{"long name", file(one(strings.Repeat("n", 5000), good), 24), "5000", formats.ErrMalformed},
	{"tensor null", file(`{"a":null}`, 0), "object", formats.ErrMalformed},
	{"Git LFS pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), "git lfs pull", formats.ErrMalformed},
	{"web page", []byte("<!DOCTYPE html>\n<html></html>"), "web page", formats.ErrMalformed},
	{"GGUF", []byte("GGUF\x03\x00\x00\x00abcdefgh"), "GGUF", formats.ErrMalformed},
	{"PyTorch", []byte("PK\x03\x04abcdefgh"), "PyTorch", formats.ErrMalformed},
}

func TestRefuses(t *testing.T) {
	for _, c := range bad {
		path := filepath.Join(t.TempDir(), "bad.safetensors")
		require.NoError(t, os.WriteFile(path, c.data, 0o600))
		_, err := Open(path)
		require.ErrorIs(t, err, c.kind, c.name)
		require.ErrorContains(t, err, c.want, c.name)
		require.ErrorContains(t, err, path, c.name)
	}
	_, err := Open(t.TempDir())
	require.ErrorContains(t, err, "a directory")
	_, err = Open(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// everyType has a tensor of each type, a scalar, and empty ones.
func everyType() []Tensor {
	tensors := []Tensor{{Name: "scalar", DType: formats.F32}, {Name: "none", DType: formats.F16, Shape: []int{0, 7}}, {Name: "é\"", DType: formats.I64, Shape: []int{3}}}
	for _, d := range []formats.DType{
		formats.F64, formats.F32, formats.F16, formats.BF16, formats.I64, formats.I32, formats.I16, formats.I8, formats.U64, formats.U32, formats.U16, formats.U8,
		formats.Bool, formats.C64, formats.F8E5M2, formats.F8E4M3, formats.F8E8M0, formats.F6E2M3, formats.F6E3M2, formats.F4, formats.F8E4FNUZ, formats.F8E5FNUZ,
	} {
		tensors = append(tensors, Tensor{Name: "t." + string(d), DType: d, Shape: []int{2, 4}})
	}
	return tensors
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	meta := []Pair{{"format", "pt"}, {"z", "<&\" \u2028"}, {"a", ""}}
	l, err := Plan(everyType(), LayoutOptions{Metadata: meta, Align: 64})
	require.NoError(t, err)
	require.NoError(t, Write(path, l, func(i int, w io.Writer) error {
		data := make([]byte, l.Tensors[i].Size)
		for k := range data {
			data[k] = byte(i + k)
		}
		_, err := w.Write(data)
		return err
	}))
	f, err := Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Equal(t, meta, f.Metadata())
	require.Zero(t, f.DataStart()%64)
	for i, want := range l.Tensors {
		got, ok := f.Tensor(want.Name)
		require.True(t, ok)
		if want.Shape == nil {
			want.Shape = []int{}
		}
		require.Equal(t, want, got)
		for k, b := range f.Data(got) {
			require.Equal(t, byte(i+k), b)
		}
	}
	// Every shorter file is refused.
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := range whole {
		_, err := parse(whole[:n], "short")
		require.Error(t, err, "%d bytes", n)
	}

	for _, tensors := range [][]Tensor{
		{{Name: "a", DType: formats.U8}, {Name: "a", DType: formats.U8}}, {{DType: formats.U8}}, {{Name: "__metadata__", DType: formats.U8}},
		{{Name: "a\xff", DType: formats.U8}}, {{Name: "a", DType: "Q4"}}, {{Name: "a", DType: formats.F4, Shape: []int{3}}}, {{Name: "a", DType: formats.U8, Shape: []int{-1}}},
	} {
		_, err := Plan(tensors, LayoutOptions{})
		require.Error(t, err)
	}
	err = Write(path, l, func(int, io.Writer) error { return nil })
	require.ErrorContains(t, err, "planned")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, whole, after, "a failed write leaves the old file")
}

func TestSharedModels(t *testing.T) {
	for _, name := range []string{"stories260k", "tinystories656k"} {
		f, err := Open(testdata.Shared(t, "models", name, "model.safetensors"))
		require.NoError(t, err)
		require.NotEmpty(t, f.Tensors())
		require.NoError(t, f.Close())
	}
}

// FuzzParse: no input makes it panic, and what it accepts lies within the file.
func FuzzParse(f *testing.F) {
	for _, c := range bad {
		if len(c.data) < 10_000 {
			f.Add(c.data)
		}
	}
	f.Add(file(one("a", good), 24))
	f.Add(file(`{"__metadata__":{"format":"pt"},"s":{"dtype":"F4","shape":[],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parse(data, "f")
		if err != nil {
			require.True(t, isFileError(err), "%v", err)
			return
		}
		end := h.dataStart
		for _, x := range h.tensors {
			require.Equal(t, end, x.Offset)
			end += x.Size
		}
		require.Equal(t, int64(len(data)), end)
	})
}

func isFileError(err error) bool {
	return errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported)
}
