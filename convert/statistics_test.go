package convert_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
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
