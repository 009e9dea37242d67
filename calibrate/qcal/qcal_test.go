package qcal

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/formats"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
)

func small() (Header, *Statistics) {
	zero := packed.Digest{}.String()
	h := Header{
		Model: []Source{{"w", []int{5, 2}, zero}}, Inputs: []Input{{"w", []string{"w"}, 2}}, Tokenizer: zero, Data: zero, Context: 3, Sequences: 1, Tool: "t", Kernels: "generic",
	}
	hist := calibrate.NewHistogram()
	hist.Add([]float32{1, -2, 3, 0, 0.5, 1})
	return h, &Statistics{
		Count: 3, Squares: []float64{10.25, 5}, Min: []float32{0.5, -2}, Max: []float32{3, 1}, Percentiles: [][]float32{{3, 2}, {3, 2}, {3, 2}},
		Hessian: []float32{10.25, -1.5, 5}, Histogram: hist,
	}
}

// file writes statistics with digests that fit, whatever the numbers are.
func file(t testing.TB, h Header, s *Statistics) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.qcal")
	digests := make(map[string]packed.Digest)
	for i, name := range h.Inputs[0].Parts() {
		var b buffer
		require.NoError(t, s.Encode(&b, i))
		digests[name] = packed.Sum(b)
	}
	l, err := h.Layout(digests)
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(path, l, func(i int, w io.Writer) error { return s.Encode(w, i) }))
	return path
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

func readAll(path string) (*Statistics, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	var s *Statistics
	for _, in := range f.Header().Inputs {
		if s, err = f.Read(in); err != nil {
			break
		}
	}
	return s, errors.Join(err, f.Close())
}

func TestRoundTripAndRefusals(t *testing.T) {
	h, s := small()
	got, err := readAll(file(t, h, s))
	require.NoError(t, err)
	require.Equal(t, s, got)
	for name, change := range map[string]func(h *Header, s *Statistics){
		"negative count":    func(_ *Header, s *Statistics) { s.Count = -3 },
		"other count":       func(_ *Header, s *Statistics) { s.Count = 4 },
		"NaN sum":           func(_ *Header, s *Statistics) { s.Squares[1] = math.NaN() },
		"negative sum":      func(_ *Header, s *Statistics) { s.Squares[0] = -1 },
		"infinite Hessian":  func(_ *Header, s *Statistics) { s.Hessian[1] = float32(math.Inf(1)) },
		"negative diagonal": func(_ *Header, s *Statistics) { s.Hessian[2] = -1 },
		"range":             func(_ *Header, s *Statistics) { s.Min[0] = 4 },
		"NaN range":         func(_ *Header, s *Statistics) { s.Max[0] = float32(math.NaN()) },
		"percentile":        func(_ *Header, s *Statistics) { s.Percentiles[1][1] = 2.5 },
		"negative bin":      func(_ *Header, s *Statistics) { s.Histogram.Counts()[7] = -1 },
		"context":           func(h *Header, _ *Statistics) { h.Context = 0 },
		"digest":            func(h *Header, _ *Statistics) { h.Data = "0" },
		"layer":             func(h *Header, _ *Statistics) { h.Inputs[0].Layers = []string{"w", "v"} },
		"shape":             func(h *Header, _ *Statistics) { h.Model[0].Shape = []int{5, 3} },
	} {
		h, s := small()
		change(&h, s)
		path := file(t, h, s)
		_, err := readAll(path)
		require.ErrorIs(t, err, formats.ErrMalformed, name)
		require.ErrorContains(t, err, path, name)
	}
	path := file(t, h, s)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)-1] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = readAll(path)
	require.ErrorContains(t, err, "damaged")
}

// TestVerify: all parts are compared with their digests, and the one that differs is named.
func TestVerify(t *testing.T) {
	verify := func(path string) (parts int, last, total int64, err error) {
		f, err := Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		err = f.Verify(func(done, all int64) error {
			parts, last, total = parts+1, done, all
			return nil
		})
		return parts, last, total, err
	}
	h, s := small()
	path := file(t, h, s)
	parts, last, total, err := verify(path)
	require.NoError(t, err)
	require.Equal(t, len(h.Inputs)*len(h.Inputs[0].Parts()), parts)
	require.Equal(t, total, last)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	places := f.Tensors()
	require.NoError(t, f.Close())
	for _, x := range places {
		data := append([]byte(nil), whole...)
		data[x.Offset+x.Size-1] ^= 1
		require.NoError(t, os.WriteFile(path, data, 0o600))
		_, _, _, err := verify(path)
		require.ErrorIs(t, err, formats.ErrMalformed)
		require.ErrorContains(t, err, x.Name)
		require.ErrorContains(t, err, "damaged")
	}
}

// TestCount reads the number of inputs alone: damage elsewhere does not matter, there it does.
func TestCount(t *testing.T) {
	count := func(path string) (int64, error) {
		f, err := Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		return f.Count(f.Header().Inputs[0])
	}
	h, s := small()
	path := file(t, h, s)
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	x, ok := f.Tensor("w" + partCount)
	require.True(t, ok)
	hessian, ok := f.Tensor("w" + partHessian)
	require.True(t, ok)
	require.NoError(t, f.Close())
	flip := func(at int64) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		data[at] ^= 1
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	flip(hessian.Offset)
	n, err := count(path)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	flip(x.Offset)
	_, err = count(path)
	require.ErrorIs(t, err, formats.ErrMalformed)
	require.ErrorContains(t, err, "damaged")
	s.Count = -1
	_, err = count(file(t, h, s))
	require.ErrorIs(t, err, formats.ErrMalformed)
}

// FuzzOpen: no input makes it panic, and errors say that the file is at fault.
func FuzzOpen(f *testing.F) {
	h, s := small()
	data, err := os.ReadFile(file(f, h, s))
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "x.qcal")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		if _, err := readAll(path); err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
		}
	})
}
