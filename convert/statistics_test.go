package convert_test

import (
	"bytes"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/calibrate/qcal"
	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/testdata"
)

// TestImatrix: importance of either form gives the same weights, other than without; what it knows nothing of is counted; what needs more is refused.
func TestImatrix(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	recipe := convert.DefaultRecipe("w4g32")
	plainly := filepath.Join(t.TempDir(), "plain.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: plainly, Threads: 2})
	require.NoError(t, err)
	recipe.Method, recipe.Source = quant.RTN, convert.FromImatrix
	const q, down = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
	weights := func(path, name string) []byte {
		tensor, ok := open(t, path).Tensor(name)
		require.True(t, ok)
		return tensor.Raw()
	}
	var first []byte
	for _, name := range []string{"small.dat", "small.gguf"} {
		path := filepath.Join("..", "calibrate", "imatrix", "testdata", name)
		source, err := convert.DetectStatistics(path)
		require.NoError(t, err)
		require.Equal(t, convert.FromImatrix, source)
		s, err := convert.OpenStatistics(path, source)
		require.NoError(t, err)
		out := filepath.Join(t.TempDir(), "out.qpk")
		result, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: 2, Statistics: s})
		require.NoError(t, err)
		require.Len(t, result.Calibrated, 3)
		require.Contains(t, result.Unknown, down, "it saw no data")
		require.Len(t, result.Unknown, 19)
		require.Len(t, result.Shortfalls(), 1)
		require.Contains(t, result.Shortfalls()[0], " and 18 more: rounded to nearest")
		require.NotEqual(t, weights(plainly, q), weights(out, q))
		require.Equal(t, weights(plainly, down), weights(out, down))
		if first == nil {
			first = weights(out, q)
		}
		require.Equal(t, first, weights(out, q))

		for _, change := range []func(r *convert.Recipe){
			func(r *convert.Recipe) { r.Method = quant.GPTQ }, func(r *convert.Recipe) { r.Refine = 1 }, func(r *convert.Recipe) { r.Scaling = quant.AWQ },
		} {
			bad := recipe
			change(&bad)
			_, err := convert.NewPlan(m, bad)
			require.ErrorContains(t, err, "imatrix")
		}
		phi := open(t, testdata.Path("arch", "phi3"))
		_, err = convert.Quantize(t.Context(), phi, plan(t, phi, recipe), convert.Options{Output: out, Threads: 2, Statistics: s})
		require.ErrorIs(t, err, formats.ErrMalformed)
		require.NoError(t, s.Close())
	}
}

// without copies a file of statistics, leaving out the layers that a function names, or what they saw.
func without(t *testing.T, path string, gone func(layer string) bool, data bool) string {
	t.Helper()
	f, err := qcal.Open(path)
	require.NoError(t, err)
	h, left := *f.Header(), 0
	h.Inputs = nil
	var all []*qcal.Statistics
	digests := make(map[string]packed.Digest)
	for _, in := range f.Header().Inputs {
		s, err := f.Read(in)
		require.NoError(t, err)
		rest := slices.DeleteFunc(slices.Clone(in.Layers), gone)
		if left += len(in.Layers) - len(rest); len(rest) == len(in.Layers) || !data {
			if len(rest) == 0 {
				continue
			}
			in.Layers = rest
			in.Name = rest[0]
		} else {
			n := in.Channels
			s = &qcal.Statistics{Squares: make([]float64, n), Min: make([]float32, n), Max: make([]float32, n), Hessian: make([]float32, n*(n+1)/2), Histogram: calibrate.NewHistogram()}
			for range calibrate.Percentiles {
				s.Percentiles = append(s.Percentiles, make([]float32, n))
			}
		}
		h.Inputs, all = append(h.Inputs, in), append(all, s)
		for i, name := range in.Parts() {
			var b bytes.Buffer
			require.NoError(t, s.Encode(&b, i))
			digests[name] = packed.Sum(b.Bytes())
		}
	}
	require.Positive(t, left)
	l, err := h.Layout(digests)
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "less.qcal")
	parts := len(h.Inputs[0].Parts())
	require.NoError(t, safetensors.Write(out, l, func(i int, w io.Writer) error { return all[i/parts].Encode(w, i%parts) }))
	require.NoError(t, f.Close())
	return out
}

// TestScalingWithoutStatistics: what a file knows nothing of is rounded and counted, with scaling as without, and layers that it bears on are not scaled,
// which is counted too.
func TestScalingWithoutStatistics(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	whole := filepath.Join(t.TempDir(), "x.qcal")
	collect(t, m, convert.CollectOptions{Output: whole, Threads: 2, Calibration: calibration(t, m, 4)})
	const first, other = "model.layers.0.", "model.layers.1."
	attention := []string{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}
	of := func(block string, names ...string) (out []string) {
		for _, name := range names {
			out = append(out, block+name)
		}
		return out
	}
	down := of(other, "mlp.down_proj.weight")
	for _, c := range []struct {
		gone, unknown []string
		unscaled      map[convert.Unscaled][]string
	}{
		{of(first, attention...), of(first, attention...), map[convert.Unscaled][]string{
			convert.InputUnknown: of(first, attention[0]), convert.MakerUnknown: of(first, "self_attn.o_proj.weight"),
		}},
		{of(first, attention[1]), of(first, attention[1]), map[convert.Unscaled][]string{
			convert.InputUnknown: of(first, attention[0]), convert.MakerUnknown: of(first, "self_attn.o_proj.weight"),
		}},
		{down, down, map[convert.Unscaled][]string{convert.InputUnknown: down}},
	} {
		for _, data := range []bool{false, true} {
			if data && len(c.gone) == 1 && c.gone[0] != down[0] {
				continue // what an input saw goes for all that share it
			}
			path := without(t, whole, func(layer string) bool { return slices.Contains(c.gone, layer) }, data)
			s, err := convert.OpenStatistics(path, convert.FromQcal)
			require.NoError(t, err)
			for _, scaling := range []quant.Scaling{quant.NoScaling, quant.AWQ} {
				r := scaled("w4g32", scaling)
				r.Source = convert.FromQcal
				result, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 2, Statistics: s})
				require.NoError(t, err)
				require.Equal(t, c.unknown, result.Unknown)
				if scaling == quant.NoScaling {
					require.Empty(t, result.Unscaled)
					continue
				}
				require.Equal(t, c.unscaled, result.Unscaled)
				lines := strings.Join(result.Shortfalls(), "\n")
				for _, layer := range slices.Concat(slices.Collect(maps.Values(c.unscaled))...) {
					require.Contains(t, lines, layer+": the input is not scaled, since the file has no statistics of ")
				}
			}
			require.NoError(t, s.Close())
		}
	}
}
