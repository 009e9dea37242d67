package packed

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/safetensors"
)

func contents() Contents {
	w4, w8 := Scheme{Bits: 4, Group: 32}, Scheme{Bits: 8, Group: 128}
	return Contents{
		Entries: []Entry{
			{Name: "norm", Shape: []int{5}, DType: formats.BF16}, {Name: "a", Shape: []int{9, 40}, Scheme: &w4},
			{Name: "bias", Shape: []int{3}, DType: formats.F32}, {Name: "b", Shape: []int{8, 128}, Scheme: &w8}, {Name: "none", Shape: []int{0}, DType: formats.F32},
		},
		Files:      []SideFile{{"config.json", []byte(`{"x":1}`)}, {"empty.json", nil}},
		Provenance: json.RawMessage(`{"tool":"test"}`),
	}
}

// build gives the bytes of a file.
func build(t testing.TB, c Contents) []byte {
	t.Helper()
	l, err := c.Layout(nil)
	require.NoError(t, err)
	data := make([]byte, l.Size)
	digests := make(map[string]Digest)
	for i, x := range l.Tensors {
		part := data[x.Offset : x.Offset+x.Size]
		if name, ok := strings.CutPrefix(x.Name, FilePrefix); ok {
			for _, f := range c.Files {
				if f.Name == name {
					copy(part, f.Data)
				}
			}
		} else {
			for k := range part {
				part[k] = byte(7*i + k)
			}
		}
		digests[x.Name] = Sum(part)
	}
	final, err := c.Layout(digests)
	require.NoError(t, err)
	require.Len(t, final.Header, len(l.Header), "digests must not change the size of the header")
	copy(data, final.Header)
	return data
}

func openBytes(t testing.TB, data []byte) (*File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.qpk")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return Open(path)
}

func TestFileRoundTrip(t *testing.T) {
	data := build(t, contents())
	require.Equal(t, data, build(t, contents()), "the same bytes each time")
	p, err := openBytes(t, data)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	var names []string
	for _, x := range p.Tensors() {
		names = append(names, x.Name)
		if x.Scheme != nil {
			require.Zero(t, p.Offset(x)%Align)
			require.Zero(t, len(p.Data(x))%Align)
		}
	}
	require.Equal(t, []string{"a", "b", "bias", "none", "norm"}, names)
	require.Equal(t, []int{9, 40}, p.Tensors()[0].Shape)
	config, ok := p.File("config.json")
	require.True(t, ok)
	require.JSONEq(t, `{"x":1}`, string(config))
	require.ElementsMatch(t, []string{"config.json", "empty.json"}, p.Files())
	require.JSONEq(t, `{"tool":"test"}`, string(p.Provenance()))
	calls := 0
	require.NoError(t, p.Verify(func(done, total int64) error { calls++; require.LessOrEqual(t, done, total); return nil }))
	require.Positive(t, calls)
	stop := errors.New("stop")
	require.ErrorIs(t, p.Verify(func(int64, int64) error { return stop }), stop)

	for _, bad := range []Contents{
		{Entries: []Entry{{Name: "file/x", Shape: []int{1}, DType: formats.U8}}}, {Entries: []Entry{{Name: "v", Shape: []int{4}, Scheme: &Scheme{Bits: 4, Group: 32}}}},
		{Entries: []Entry{{Name: "v", Shape: []int{0, 4}, Scheme: &Scheme{Bits: 4, Group: 32}}}}, {Entries: []Entry{{Name: "v", Shape: []int{4}, DType: "X"}}},
	} {
		_, err := bad.Layout(nil)
		require.Error(t, err)
	}
}

// TestEveryAlteredByteIsFound flips each byte in turn: in the header Open finds it, in the data Verify.
func TestEveryAlteredByteIsFound(t *testing.T) {
	whole := build(t, contents())
	l, err := contents().Layout(nil)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "x.qpk")
	for i := 0; i < len(whole); i += 1 + i/200 {
		data := append([]byte(nil), whole...)
		data[i] ^= 0x10
		require.NoError(t, os.WriteFile(path, data, 0o600))
		p, err := Open(path)
		if i < len(l.Header) {
			require.Error(t, err, "byte %d of the header", i)
			continue
		}
		require.NoError(t, err)
		err = p.Verify(nil)
		require.ErrorIs(t, err, formats.ErrMalformed)
		named := false
		for _, x := range l.Tensors {
			named = named || int64(i) >= x.Offset && int64(i) < x.Offset+x.Size && strings.Contains(err.Error(), x.Name)
		}
		require.True(t, named, "byte %d: %v", i, err)
		require.NoError(t, p.Close())
	}
	for n := 0; n < len(whole); n += 1 + n/100 {
		_, err := openBytes(t, whole[:n])
		require.Error(t, err, "the first %d bytes", n)
	}
}

// header makes a file with any metadata and a correct digest of the header.
func header(t testing.TB, tensors []safetensors.Tensor, pairs ...safetensors.Pair) []byte {
	t.Helper()
	l, err := safetensors.Plan(tensors, safetensors.LayoutOptions{Align: Align, Metadata: pairs})
	require.NoError(t, err)
	data := make([]byte, l.Size)
	copy(data, l.Header)
	if at := digestAt(l.Header); at >= 0 {
		copy(data[at:], Sum(l.Header).String())
	}
	return data
}

// badFiles are files that must be refused, with a part of the error.
func badFiles(t testing.TB) map[string][]byte {
	blob := []safetensors.Tensor{{Name: "a", DType: formats.U8, Shape: []int{192}}}
	zero := Digest{}.String()
	pairs := func(version, tensors, digests, provenance string) []safetensors.Pair {
		return []safetensors.Pair{
			{Key: keyFormat, Value: formatName}, {Key: keyVersion, Value: version}, {Key: keyDigest, Value: zero}, {Key: keyTensors, Value: tensors},
			{Key: keyDigests, Value: digests}, {Key: keyProvenance, Value: provenance},
		}
	}
	sums := `{"a":"` + zero + `"}`
	return map[string][]byte{
		"not a packed file":   header(t, blob),
		"reads 1":             header(t, blob, pairs("2", `{}`, sums, `{}`)...),
		"is missing":          header(t, blob, safetensors.Pair{Key: keyFormat, Value: formatName}, safetensors.Pair{Key: keyVersion, Value: "1"}),
		"expected an object":  header(t, blob, pairs("1", `[]`, sums, `{}`)...),
		"given twice":         header(t, blob, pairs("1", `{"a":{},"a":{}}`, sums, `{}`)...),
		"scheme: expected":    header(t, blob, pairs("1", `{"a":{"shape":[8,32]}}`, sums, `{}`)...),
		`scheme "w2" is not`:  header(t, blob, pairs("1", `{"a":{"scheme":"w2","shape":[8,32]}}`, sums, `{}`)...),
		"two dimensions":      header(t, blob, pairs("1", `{"a":{"scheme":"w4g32","shape":[8]}}`, sums, `{}`)...),
		"takes 320 bytes":     header(t, blob, pairs("1", `{"a":{"scheme":"w4g32","shape":[16,32]}}`, sums, `{}`)...),
		"negative dimension":  header(t, blob, pairs("1", `{"a":{"scheme":"w4g32","shape":[-8,32]}}`, sums, `{}`)...),
		"more than":           header(t, blob, pairs("1", `{"a":{"scheme":"w4g32","shape":[4611686018427387904,32]}}`, sums, `{}`)...),
		"expected a matrix":   header(t, blob, pairs("1", `{"a":{"scheme":"w4g32","shape":[0,32]}}`, sums, `{}`)...),
		"not in the file":     header(t, blob, pairs("1", `{"b":{"scheme":"w4g32","shape":[8,32]}}`, sums, `{}`)...),
		"lacks the digest":    header(t, blob, pairs("1", `{}`, `{}`, `{}`)...),
		"hexadecimal":         header(t, blob, pairs("1", `{}`, `{"a":"12"}`, `{}`)...),
		"expected a string":   header(t, blob, pairs("1", `{}`, `{"a":1}`, `{}`)...),
		"expected an object,": header(t, blob, pairs("1", `{}`, sums, `7`)...),
	}
}

func TestRefusesFiles(t *testing.T) {
	for want, data := range badFiles(t) {
		_, err := openBytes(t, data)
		require.ErrorContains(t, err, want)
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), want)
	}
}

// FuzzOpen: whatever the metadata say, with a digest that is right, opening does not panic.
func FuzzOpen(f *testing.F) {
	f.Add(`{"a":{"scheme":"w4g32","shape":[8,32]}}`, `{"a":"00000000000000000000000000000000"}`, 192)
	f.Add(`{"a":{"scheme":"w8","shape":[1,1]}}`, `{}`, 320)
	f.Add(`{"a":{"scheme":"w4g128a","shape":[99999999,99999999]}}`, `{"a":null}`, 0)
	f.Fuzz(func(t *testing.T, tensors, digests string, size int) {
		if size < 0 || size > 1<<16 {
			return
		}
		l, err := safetensors.Plan([]safetensors.Tensor{{Name: "a", DType: formats.U8, Shape: []int{size}}}, safetensors.LayoutOptions{Align: Align, Metadata: []safetensors.Pair{
			{Key: keyFormat, Value: formatName}, {Key: keyVersion, Value: "1"}, {Key: keyDigest, Value: Digest{}.String()},
			{Key: keyTensors, Value: tensors}, {Key: keyDigests, Value: digests}, {Key: keyProvenance, Value: "{}"},
		}})
		if err != nil {
			return
		}
		data := make([]byte, l.Size)
		copy(data, l.Header)
		copy(data[digestAt(l.Header):], Sum(l.Header).String())
		p, err := openBytes(t, data)
		if err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
			return
		}
		for _, x := range p.Tensors() {
			if x.Scheme != nil {
				_, err := NewMatrix(*x.Scheme, x.Shape[0], x.Shape[1], p.Data(x))
				require.NoError(t, err)
			}
		}
		require.NoError(t, p.Close())
	})
}
