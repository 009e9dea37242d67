package convert_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/half"
	"qtool/testdata"
)

// outliers copies the grammar's model with some channels of the inputs of down_proj, or of o_proj, made 64 times as large: what it computes stays the same.
func outliers(t *testing.T, rows, columns string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "grammar-lm")
	require.NoError(t, os.CopyFS(dir, os.DirFS(testdata.Path("grammar-lm"))))
	m := open(t, testdata.Path("grammar-lm"))
	weights := filepath.Join(dir, filepath.Base(m.Paths()[0]))
	data := content(t, weights)
	c := m.Config()
	const every = 13
	for _, x := range m.Tensors() {
		isRows := strings.HasSuffix(x.Name, rows)
		if !isRows && !strings.HasSuffix(x.Name, columns) {
			continue
		}
		dtype, ok := x.DType()
		require.True(t, ok)
		require.Equal(t, formats.BF16, dtype)
		values := make([]float32, x.Elements())
		require.NoError(t, x.ReadAll(values))
		for i := range values {
			row, column := i/x.Cols(), i%x.Cols()
			if columns == "o_proj.weight" { // the value that a head gathers
				column = column/c.HeadDim/(c.Heads/c.KVHeads)*c.HeadDim + column%c.HeadDim
			}
			switch {
			case isRows && row%every == 3:
				values[i] *= 64
			case !isRows && column%every == 3:
				values[i] /= 64
			}
		}
		at := bytes.Index(data, x.Raw())
		require.Positive(t, at)
		half.EncodeBF16(data[at:at+2*len(values)], values)
	}
	require.NoError(t, os.WriteFile(weights, data, 0o600))
	return dir
}

// scaled quantizes all but embedding and head by AWQ's factors, or without.
func scaled(scheme convert.Choice, s quant.Scaling) convert.Recipe {
	r := convert.DefaultRecipe(scheme)
	r.Method, r.Scaling, r.Embeddings, r.Head = quant.RTN, s, "keep", "keep"
	return r
}

// TestScalingOfOutliers: where channels of an input that comes from a linear layer stand out, AWQ undoes most of the loss; by a text, and by statistics, with
// any number of threads and after a stop.
func TestScalingOfOutliers(t *testing.T) {
	if testing.Short() {
		t.Skip("quantizes many times")
	}
	for rows, columns := range map[string]string{"up_proj.weight": "down_proj.weight", "v_proj.weight": "o_proj.weight"} {
		t.Run(columns, func(t *testing.T) {
			m := open(t, outliers(t, rows, columns))
			all := calibration(t, m, 24)
			c, other := &convert.Calibration{Sequences: all.Sequences[:16]}, all.Sequences[16:]
			source := predictions(t, m.Path(), other)
			require.InDelta(t, 0, divergence(predictions(t, testdata.Path("grammar-lm"), other), source), 1e-6)
			statistics := filepath.Join(t.TempDir(), "x.qcal")
			collect(t, m, convert.CollectOptions{Output: statistics, Threads: 2, Calibration: c})
			s, err := convert.OpenStatistics(statistics, convert.FromQcal)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			for name, o := range map[string]convert.Options{"text": {Calibration: c}, "statistics": {Statistics: s}} {
				var divergences []float64
				for _, scaling := range []quant.Scaling{quant.NoScaling, quant.AWQ} {
					o.Output, o.Threads, o.Progress = filepath.Join(t.TempDir(), "out.qpk"), 1, nil
					first := calibrated(t, m, scaled("w4g32", scaling), o)
					divergences = append(divergences, divergence(source, predictions(t, o.Output, other)))

					o.Output, o.Threads = filepath.Join(t.TempDir(), "again.qpk"), 2
					ctx, cancel := context.WithCancel(t.Context())
					o.Progress = func(_, _ int64, tensor string) {
						if strings.HasSuffix(tensor, "layers.1."+rows) || strings.HasSuffix(tensor, "layers.1.self_attn."+rows) || strings.HasSuffix(tensor, "layers.1.mlp."+rows) {
							cancel()
						}
					}
					_, err := convert.Quantize(ctx, m, plan(t, m, scaled("w4g32", scaling)), o)
					cancel()
					require.ErrorIs(t, err, context.Canceled)
					o.Progress = nil
					require.Equal(t, first, calibrated(t, m, scaled("w4g32", scaling), o), name)
				}
				require.Less(t, divergences[1], 0.5*divergences[0], name)
			}
		})
	}
}

// TestTargetsOfScaledInputs: the source's outputs as targets are those of inputs that are not divided.
func TestTargetsOfScaledInputs(t *testing.T) {
	if testing.Short() {
		t.Skip("quantizes many times")
	}
	for rows, columns := range map[string]string{"up_proj.weight": "down_proj.weight", "v_proj.weight": "o_proj.weight"} {
		m := open(t, outliers(t, rows, columns))
		all := calibration(t, m, 110)
		c, other := &convert.Calibration{Sequences: all.Sequences[:80]}, all.Sequences[80:]
		source := predictions(t, m.Path(), other)
		var divergences []float64
		for _, targets := range []convert.Targets{convert.OwnOutputs, convert.SourceOutputs} {
			r := scaled("w3g32", quant.AWQ)
			r.Method, r.Targets = quant.GPTQ, targets
			out := filepath.Join(t.TempDir(), "out.qpk")
			calibrated(t, m, r, convert.Options{Output: out, Threads: 2, Calibration: c})
			divergences = append(divergences, divergence(source, predictions(t, out, other)))
		}
		require.Less(t, divergences[1], 0.9*divergences[0], columns)
	}
}

// TestUnscaled: a layer whose input cannot be scaled, since what makes it is not quantized, is counted and right; one that is not quantized itself asks for
// nothing.
func TestUnscaled(t *testing.T) {
	for _, name := range []string{"llama-bias", "phi3", "gemma2"} {
		m := open(t, testdata.Path("arch", name))
		c := calibration(t, m, 4)
		source := predictions(t, m.Path(), c.Sequences)
		v, up, gate, q := "self_attn.v_proj.weight", "mlp.up_proj.weight", "mlp.gate_proj.weight", "self_attn.q_proj.weight"
		if name == "phi3" {
			v, up, gate, q = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight", "mlp.gate_up_proj.weight", "self_attn.qkv_proj.weight"
		}
		r := scaled("w8", quant.AWQ)
		r.Overrides = []convert.Override{
			{Pattern: "model.layers.0." + v, Choice: convert.Keep}, {Pattern: "model.layers.1." + up, Choice: convert.Keep},
			{Pattern: "model.layers.0.mlp.down_proj.weight", Choice: convert.Keep},
		}
		var divergences []float64
		var files [][]byte
		for _, scaling := range []quant.Scaling{quant.NoScaling, quant.AWQ} {
			r.Scaling = scaling
			out := filepath.Join(t.TempDir(), "out.qpk")
			result, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: out, Threads: 2, Calibration: c})
			require.NoError(t, err)
			divergences = append(divergences, divergence(source, predictions(t, out, c.Sequences)))
			norm, ok := open(t, out).Tensor("model.layers.0.post_attention_layernorm.weight")
			if name == "gemma2" {
				norm, ok = open(t, out).Tensor("model.layers.0.pre_feedforward_layernorm.weight")
			}
			require.True(t, ok)
			files = append(files, bytes.Clone(norm.Raw()))
			if scaling == quant.AWQ {
				want := map[convert.Unscaled][]string{
					convert.MadeAsIs:   {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"},
					convert.SharedAsIs: {"model.layers.0." + q, "model.layers.1." + gate},
				}
				if name == "phi3" { // one matrix for all that share an input: kept on purpose, it asks for nothing
					delete(want, convert.SharedAsIs)
				}
				require.Equal(t, want, result.Unscaled, name)
			}
		}
		require.NotEqual(t, files[0], files[1], "%s: what can be scaled is", name)
		// Where the factors of a layer are not made up for, by the rows that make its input, the quotient is 7, 2.7 and 1.24 for these models.
		require.Less(t, divergences[1], 1.1*divergences[0], name)
	}
}

// TestUnscaledByBias: a bias beyond the type that it is to have cannot take up factors.
func TestUnscaledByBias(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wide")
	export(t, testdata.Path("arch", "llama-bias"), dir, convert.ExportOptions{Type: "f32"})
	const bias = "model.layers.0.self_attn.v_proj.bias"
	spoil(t, dir, bias, 3, 70_000)
	m := open(t, dir)
	r := scaled("w8", quant.AWQ)
	r.Overrides, r.Clamp = []convert.Override{{Pattern: bias, Choice: "f16"}}, true
	result, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 2, Calibration: calibration(t, m, 4)})
	require.NoError(t, err)
	require.Equal(t, map[convert.Unscaled][]string{convert.BiasBeyondType: {"model.layers.0.self_attn.o_proj.weight"}}, result.Unscaled)
	require.Equal(t, 1, result.Clamped)
}
