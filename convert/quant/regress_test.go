package quant_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert/quant"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

// TestRegress compares with NumPy: testdata/regress.py.
func TestRegress(t *testing.T) {
	raw, err := os.ReadFile("testdata/regress.json")
	require.NoError(t, err)
	var g struct {
		Rows, Cols            int
		Counts                [2]int
		Damping               float64
		H, First, Second, Map []byte
	}
	require.NoError(t, json.Unmarshal(raw, &g))
	want := floats(g.Map)
	for _, set := range kernel.Available() {
		for _, inOrder := range []bool{false, true} {
			s := solver(t, set)
			in, err := quant.NewInputs(s, floats(g.H), g.Cols, quant.InputOptions{Damping: g.Damping, InOrder: inOrder})
			require.NoError(t, err)
			found := in.Regress(s, [2][]float32{floats(g.First), floats(g.Second)}, g.Counts, g.Rows)
			require.InDeltaSlice(t, want, found, 2e-5)
		}
	}
}

// TestRegressDoubts: what halves do not agree on, and what only one half knows of, is left alone; what both show is kept whole.
func TestRegressDoubts(t *testing.T) {
	const rows, cols, n = 5, 33, 4000
	r := rand.New(rand.NewPCG(61, 62))
	s := solver(t, kernel.Available()[0])
	means := func(noise float32) (h []float32, d [2][]float32) {
		h, d = make([]float32, cols*cols), [2][]float32{make([]float32, rows*cols), make([]float32, rows*cols)}
		x, e := make([]float32, cols), make([]float32, rows)
		for i := range 2 * n {
			for c := range x {
				x[c] = float32(r.NormFloat64())
			}
			for c := range e {
				e[c] = noise*float32(r.NormFloat64()) + (1-noise)*(x[c]-2*x[c+7])
			}
			for a, v := range x {
				for b, w := range x {
					h[a*cols+b] += v * w / (2 * n)
				}
				for c, y := range e {
					d[i/n][c*cols+a] += y * v / n
				}
			}
		}
		return h, d
	}
	fit := func(h []float32, d [2][]float32, counts [2]int) []float32 {
		in, err := quant.NewInputs(s, h, cols, quant.InputOptions{Damping: 1e-5})
		require.NoError(t, err)
		return in.Regress(s, d, counts, rows)
	}
	h, d := means(0)
	whole := fit(h, d, [2]int{n, n})
	for c := range rows {
		require.InDelta(t, 1, whole[c*cols+c], 0.02)
		require.InDelta(t, -2, whole[c*cols+c+7], 0.02)
	}
	for _, counts := range [][2]int{{n, 0}, {0, n}, {0, 0}} {
		for _, v := range fit(h, d, counts) {
			require.Zero(t, v)
		}
	}
	h, d = means(1)
	plain := 0.0 // of the map without any doubt
	for _, half := range d {
		for _, v := range half {
			plain += float64(v) * float64(v) / 4
		}
	}
	var power float64
	for _, v := range fit(h, d, [2]int{n, n}) {
		power += float64(v) * float64(v)
	}
	require.Less(t, power, 0.05*plain)
}

// TestRegressThreads compares the bits.
func TestRegressThreads(t *testing.T) {
	const rows, cols = 70, 131
	r := rand.New(rand.NewPCG(63, 64))
	h, d := make([]float32, cols*cols), [2][]float32{make([]float32, rows*cols), make([]float32, rows*cols)}
	for i := range cols {
		h[i*cols+i] = 1 + float32(r.Float64())
	}
	for _, half := range d {
		for i := range half {
			half[i] = float32(r.NormFloat64())
		}
	}
	var first []float32
	for _, threads := range []int{1, 2, 3} {
		s := onThreads(t, threads)
		in, err := quant.NewInputs(s, h, cols, quant.InputOptions{})
		require.NoError(t, err)
		found := in.Regress(s, d, [2]int{5, 4}, rows)
		if first == nil {
			first = found
		}
		require.Equal(t, first, found)
	}
}

// floats reads little-endian numbers.
func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func onThreads(t testing.TB, threads int) *linalg.Solver {
	t.Helper()
	p := pool.New(threads)
	t.Cleanup(p.Close)
	return linalg.New(kernel.Available()[len(kernel.Available())-1], p)
}
