package convert_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/convert"
	"qtool/formats/safetensors"
	"qtool/testdata"
)

// pruned copies a model and sets tensors to zero.
func pruned(t *testing.T, names ...string) string {
	t.Helper()
	dir := copyDir(t, testdata.Path("arch", "llama"))
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	data := content(t, path)
	for _, name := range names {
		x, ok := f.Tensor(name)
		require.True(t, ok)
		clear(data[x.Offset : x.Offset+x.Size])
	}
	require.NoError(t, f.Close())
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return dir
}

// TestZeroInputs: behind a layer that was pruned away all inputs are zero. What takes them in is rounded to nearest, which is counted, and all else is calibrated as ever.
func TestZeroInputs(t *testing.T) {
	const values, output, norm, head = "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.norm.weight", "lm_head.weight"
	m := open(t, pruned(t, values, norm))
	c := calibration(t, m, 3)
	file := filepath.Join(t.TempDir(), "x.qcal")
	collect(t, m, convert.CollectOptions{Output: file, Threads: 1, Calibration: c})
	recipes := calibratedRecipes()
	plain := recipes["gptq"]
	plain.Method, plain.Refine, plain.Targets = "", 0, convert.OwnOutputs
	rounded := filepath.Join(t.TempDir(), "plain.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, plain), convert.Options{Output: rounded, Threads: 1})
	require.NoError(t, err)
	for name, r := range recipes {
		for _, byFile := range []bool{false, true} {
			o := convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 1, Calibration: c}
			if byFile {
				s, err := convert.OpenStatistics(file, convert.FromQcal)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close()) })
				o.Calibration, o.Statistics, r.Source, r.Targets = nil, s, convert.FromQcal, convert.OwnOutputs
				r.Ranges = calibrate.MinMax
			}
			result, err := convert.Quantize(t.Context(), m, plan(t, m, r), o)
			require.NoError(t, err, name)
			require.Equal(t, []string{output, head}, result.ZeroInputs, name)
			require.Len(t, result.Calibrated, m.Config().Layers*7-1, name)
			require.NotContains(t, result.Calibrated, output)
			require.Contains(t, result.Shortfalls(), output+" and 1 more: rounded to nearest, all inputs were zero throughout the calibration data, as behind a layer that was pruned away")
			for _, v := range logits(t, o.Output) {
				require.Zero(t, v-v, name)
			}
			if name == "gptq" {
				for _, tensor := range []string{output, head} {
					require.Equal(t, stored(t, rounded, tensor), stored(t, o.Output, tensor), tensor)
				}
				const other = "model.layers.1.self_attn.o_proj.weight"
				require.NotEqual(t, stored(t, rounded, other), stored(t, o.Output, other))
			}
		}
	}
}

// stored gives the data of a tensor of a packed file.
func stored(t *testing.T, path, name string) []byte {
	t.Helper()
	x, ok := open(t, path).Tensor(name)
	require.True(t, ok)
	return append([]byte(nil), x.Raw()...)
}

// TestZeroInputsResume: that inputs were zero is remembered by a run that is taken up.
func TestZeroInputsResume(t *testing.T) {
	m := open(t, pruned(t, "model.layers.0.self_attn.v_proj.weight"))
	r := calibratedRecipes()["gptq"]
	o := convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 1, Calibration: calibration(t, m, 2)}
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(_, _ int64, tensor string) {
		if tensor == "model.layers.1.self_attn.q_proj.weight" {
			cancel()
		}
	}
	_, err := convert.Quantize(ctx, m, plan(t, m, r), o)
	require.ErrorIs(t, err, context.Canceled)
	o.Progress = nil
	result, err := convert.Quantize(t.Context(), m, plan(t, m, r), o)
	require.NoError(t, err)
	require.Positive(t, result.Resumed)
	require.Equal(t, []string{"model.layers.0.self_attn.o_proj.weight"}, result.ZeroInputs)
}
