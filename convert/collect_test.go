package convert_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate/qcal"
	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/testdata"
)

// collect writes statistics and gives their bytes.
func collect(t testing.TB, m *checkpoint.Model, o convert.CollectOptions) []byte {
	t.Helper()
	_, err := convert.Collect(t.Context(), m, o)
	require.NoError(t, err)
	require.NoDirExists(t, o.Output+".work")
	return content(t, o.Output)
}

// TestStatisticsByNumPy holds the statistics of the first input against testdata/inputs.py's.
func TestStatisticsByNumPy(t *testing.T) {
	var want struct {
		Sequences   [][]int32            `json:"sequences"`
		SumSquares  []float64            `json:"sum_squares"`
		Min         []float32            `json:"min"`
		Max         []float32            `json:"max"`
		Least99     []float64            `json:"least_99"`
		HessianRows map[string][]float64 `json:"hessian_rows"`
		Trace       float64              `json:"trace"`
		Sum         float64              `json:"sum"`
	}
	require.NoError(t, json.Unmarshal(content(t, filepath.Join("testdata", "inputs.json")), &want))
	m := open(t, testdata.Path("grammar-lm"))
	out := filepath.Join(t.TempDir(), "x.qcal")
	collect(t, m, convert.CollectOptions{Output: out, Threads: 2, Calibration: &convert.Calibration{Sequences: want.Sequences}})
	f, err := qcal.Open(out)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	in, ok := f.Header().Find("model.layers.0.self_attn.k_proj.weight")
	require.True(t, ok)
	require.Len(t, in.Layers, 3)
	s, err := f.Read(in)
	require.NoError(t, err)
	require.EqualValues(t, 120, s.Count)
	require.InEpsilonSlice(t, want.SumSquares, s.Squares, 1e-5)
	require.InDeltaSlice(t, want.Min, s.Min, 1e-4)
	require.InDeltaSlice(t, want.Max, s.Max, 1e-4)
	for c, least := range want.Least99 {
		require.GreaterOrEqual(t, float64(s.Percentiles[0][c]), least*(1-1e-5), "channel %d", c)
		require.LessOrEqual(t, float64(s.Percentiles[0][c]), least*(1+1.0/16+1e-5), "channel %d", c)
	}
	n := in.Channels
	start := func(row int) int { return row*n - row*(row-1)/2 }
	for text, row := range want.HessianRows {
		i, err := strconv.Atoi(text)
		require.NoError(t, err)
		require.InDeltaSlice(t, row, s.Hessian[start(i):start(i)+n-i], 1e-4*want.Trace/float64(n), "row %d", i)
	}
	var sum float64
	for _, v := range s.Hessian {
		sum += float64(v)
	}
	require.InDelta(t, want.Sum, sum, 1e-5*want.Trace)
}

// TestCollectResume: threads, hidden states in a file, and stops anywhere change no byte; other data discard what was done.
func TestCollectResume(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for _, source := range []string{"grammar-lm", "arch/gemma2", "arch/phi3"} {
		m := open(t, testdata.Path(strings.Split(source, "/")...))
		c := calibration(t, m, 4)
		calls := 0
		whole := collect(t, m, convert.CollectOptions{
			Output: filepath.Join(t.TempDir(), "a.qcal"), Threads: 1, Calibration: c, Progress: func(int64, int64, string) { calls++ },
		})
		spilled := &convert.Calibration{Sequences: c.Sequences, MaxMemory: 1}
		require.Equal(t, whole, collect(t, m, convert.CollectOptions{Output: filepath.Join(t.TempDir(), "b.qcal"), Threads: 2, Calibration: spilled}))
		resumed := 0
		for range 5 {
			out := filepath.Join(t.TempDir(), "c.qcal")
			stop := 1 + r.IntN(calls-2)
			ctx, cancel := context.WithCancel(t.Context())
			seen := 0
			_, err := convert.Collect(ctx, m, convert.CollectOptions{Output: out, Threads: 2, Calibration: c, Progress: func(int64, int64, string) {
				if seen++; seen == stop {
					cancel()
				}
			}})
			cancel()
			require.ErrorIs(t, err, context.Canceled)
			require.NoFileExists(t, out)
			result, err := convert.Collect(t.Context(), m, convert.CollectOptions{Output: out, Threads: 1, Calibration: spilled})
			require.NoError(t, err)
			require.False(t, result.Discarded)
			require.Equal(t, stop/8, result.Resumed, "stopped after %d steps of 8 a block", stop)
			resumed += result.Resumed
			require.Equal(t, whole, content(t, out))
			require.NoDirExists(t, out+".work")
		}
		require.Positive(t, resumed)

		out := filepath.Join(t.TempDir(), "d.qcal")
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		_, err := convert.Collect(ctx, m, convert.CollectOptions{Output: out, Threads: 2, Calibration: c, Progress: func(int64, int64, string) {
			if seen++; seen == calls-1 {
				cancel()
			}
		}})
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		result, err := convert.Collect(t.Context(), m, convert.CollectOptions{Output: out, Threads: 2, Calibration: &convert.Calibration{Sequences: c.Sequences[:3]}})
		require.NoError(t, err)
		require.True(t, result.Discarded)
		require.Zero(t, result.Resumed)
		require.NotEqual(t, whole, content(t, out))
	}
}

// TestCollectKeepsStatesUntilTheEnd: where the file cannot be put in its place, nothing is lost but that.
func TestCollectKeepsStatesUntilTheEnd(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	out := filepath.Join(t.TempDir(), "a.qcal")
	c := calibration(t, m, 4)
	_, err := convert.Collect(t.Context(), m, convert.CollectOptions{Output: out, Threads: 2, Calibration: c, Progress: func(int64, int64, string) {
		require.NoError(t, os.MkdirAll(filepath.Join(out, "in the way"), 0o777))
	}})
	require.Error(t, err)
	require.FileExists(t, filepath.Join(out+".work", fmt.Sprintf("states-%d", m.Config().Layers)))
	require.NoError(t, os.RemoveAll(out))
	result, err := convert.Collect(t.Context(), m, convert.CollectOptions{Output: out, Threads: 2, Calibration: c})
	require.NoError(t, err)
	require.Equal(t, m.Config().Layers, result.Resumed)
	require.NoDirExists(t, out+".work")
	require.Equal(t, collect(t, m, convert.CollectOptions{Output: filepath.Join(t.TempDir(), "b.qcal"), Threads: 1, Calibration: c}), content(t, out))
}

// TestStatisticsOfAnotherModel: a weight that differs is found when its matrix, or a norm, is read.
func TestStatisticsOfAnotherModel(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	dir := t.TempDir()
	out := filepath.Join(dir, "a.qcal")
	collect(t, m, convert.CollectOptions{Output: out, Threads: 2, Calibration: calibration(t, m, 4)})
	s, err := convert.OpenStatistics(out, convert.FromQcal)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	recipe := convert.DefaultRecipe("w4g32")
	recipe.Method, recipe.Source, recipe.Refine = quant.GPTQ, convert.FromQcal, 1
	for _, name := range []string{"model.layers.1.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight", ""} {
		other := filepath.Join(t.TempDir(), "other")
		require.NoError(t, os.CopyFS(other, os.DirFS(testdata.Path("grammar-lm"))))
		if name != "" {
			weights := filepath.Join(other, "model.safetensors")
			data := content(t, weights)
			tensor, ok := m.Tensor(name)
			require.True(t, ok)
			at := strings.Index(string(data), string(tensor.Raw()))
			require.Positive(t, at)
			data[at] ^= 1
			require.NoError(t, os.WriteFile(weights, data, 0o600))
		}
		om := open(t, other)
		_, err := convert.Quantize(t.Context(), om, plan(t, om, recipe), convert.Options{Output: filepath.Join(dir, "o.qpk"), Threads: 2, Statistics: s})
		if name == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, formats.ErrMalformed)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "digest")
	}
	phi := open(t, testdata.Path("arch", "phi3"))
	_, err = convert.Quantize(t.Context(), phi, plan(t, phi, recipe), convert.Options{Output: filepath.Join(dir, "p.qpk"), Threads: 2, Statistics: s})
	require.ErrorIs(t, err, formats.ErrMalformed)
}

// TestCollectNamesBadValues: where the inputs of a layer are not finite, the tensor of the model that has such a value is named.
func TestCollectNamesBadValues(t *testing.T) {
	for name, row := range map[string]int{"model.layers.0.mlp.up_proj.weight": 3, "model.layers.1.input_layernorm.weight": 0} {
		dir := copyDir(t, testdata.Path("arch", "llama"))
		spoil(t, dir, name, row*48+5, float32(math.NaN()))
		m := open(t, dir)
		out := filepath.Join(t.TempDir(), "x.qcal")
		_, err := convert.Collect(t.Context(), m, convert.CollectOptions{Output: out, Threads: 1, Calibration: calibration(t, m, 2)})
		require.ErrorIs(t, err, quant.ErrNotFinite)
		require.ErrorContains(t, err, fmt.Sprintf("%s: tensor %q, row %d: column 5: NaN is not a finite number; it was seen in this: inputs of ",
			filepath.Join(dir, "model.safetensors"), name, row))
		require.NoFileExists(t, out)
	}
}
