package imatrix

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return data
}

func read(t testing.TB, data []byte) (*File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return Read(path)
}

// TestBothForms: the same matrix in either form.
func TestBothForms(t *testing.T) {
	for _, c := range []struct {
		name    string
		form    Form
		context int
	}{{"small.dat", Binary, 0}, {"small.gguf", GGUF, 512}} {
		f, err := Read(filepath.Join("testdata", c.name))
		require.NoError(t, err)
		require.Equal(t, []any{c.form, 8, c.context, []string{"made-up.txt"}}, []any{f.Form, f.Chunks, f.Context, f.Datasets})
		var names []string
		for _, e := range f.Entries {
			names = append(names, e.Name)
		}
		require.Equal(t, []string{"blk.0.attn_output.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.0.ffn_up.weight"}, names)
		require.Nil(t, f.Entries[2].Importance, "it saw no data")
		for k, number := range map[int]float32{0: 1, 1: 0, 3: 2} {
			require.Len(t, f.Entries[k].Importance, map[int]int{0: 256, 1: 96, 3: 96}[k])
			for i, v := range f.Entries[k].Importance {
				require.Equal(t, float32(i%7)+0.25+number, v)
			}
		}
		require.Equal(t, c.form == Binary, IsBinary(fixture(t, c.name)))
	}
	require.False(t, IsBinary([]byte("On Monday, Anna wrote")))
}

func TestRefuses(t *testing.T) {
	good := fixture(t, "small.dat")
	value := 4 + 4 + len("blk.0.attn_q.weight") + 8
	for name, change := range map[string]func(b []byte) []byte{
		"truncated": func(b []byte) []byte { return b[:200] },
		"longer":    func(b []byte) []byte { return append(b, 0) },
		"NaN": func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[value:], math.Float32bits(float32(math.NaN())))
			return b
		},
		"negative":       func(b []byte) []byte { binary.LittleEndian.PutUint32(b[value:], math.Float32bits(-1)); return b },
		"infinite":       func(b []byte) []byte { binary.LittleEndian.PutUint32(b[value:], 0x7f800000); return b },
		"negative calls": func(b []byte) []byte { binary.LittleEndian.PutUint32(b[value-8:], 0xffffffff); return b },
		"many values":    func(b []byte) []byte { binary.LittleEndian.PutUint32(b[value-4:], 0x7fffffff); return b },
		"many entries":   func(b []byte) []byte { binary.LittleEndian.PutUint32(b, 1000); return b },
		"no entries":     func([]byte) []byte { return make([]byte, 4) },
		"empty":          func([]byte) []byte { return nil },
	} {
		_, err := read(t, change(append([]byte(nil), good...)))
		require.ErrorIs(t, err, formats.ErrMalformed, name)
	}
	for n := range fixture(t, "small.gguf") {
		if n%97 == 0 {
			_, err := read(t, fixture(t, "small.gguf")[:n])
			require.Error(t, err)
		}
	}
}

// FuzzRead: no input makes it panic, and what it accepts is finite.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"small.dat", "small.gguf"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := read(t, data)
		if err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported) || len(data) == 0, "%v", err)
			return
		}
		for _, e := range got.Entries {
			for _, v := range e.Importance {
				require.False(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || v < 0)
			}
		}
	})
}
