package llama_test

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/runtime/eval"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
)

// engineOf opens a model and an engine.
func engineOf(t *testing.T, path string, o llama.Options) *llama.Engine {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	o.Threads, o.KV = 2, llama.KVF32
	e, err := llama.New(m, o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// logitsOf runs some tokens.
func logitsOf(t *testing.T, e *llama.Engine) [][]float32 {
	t.Helper()
	var all [][]float32
	require.NoError(t, e.NewSession(64).Forward(made(50, 3, e.Vocab()), 0, func(_ int, l []float32) error {
		all = append(all, slices.Clone(l))
		return nil
	}))
	return all
}

// TestRepacked: what is repacked predicts as what is decoded does, but for the rounding of activations.
func TestRepacked(t *testing.T) {
	for _, model := range []map[string]ggml.Type{llama.Types, llama.MoreTypes} {
		path := llama.Quantized(t, model)
		exact := engineOf(t, path, llama.Options{Repack: true, Activations: llama.ActivationsF32})
		require.Equal(t, "f32", llama.Roundings(exact.Weights()))
		want := logitsOf(t, exact)
		require.Equal(t, want, logitsOf(t, engineOf(t, path, llama.Options{})), "nothing is repacked unasked")
		for _, set := range kernel.Available() {
			t.Setenv(kernel.EnvLevel, set.Name)
			mean := make(map[llama.Activations]float64)
			for _, a := range []llama.Activations{llama.ActivationsAuto, llama.ActivationsInt8, llama.ActivationsInt16} {
				got := logitsOf(t, engineOf(t, path, llama.Options{Repack: true, Activations: a}))
				for i := range want {
					d, err := eval.Divergence(want[i], got[i])
					require.NoError(t, err)
					mean[a] += d / float64(len(want))
				}
			}
			t.Logf("%s: %v", set.Name, mean)
			require.Less(t, mean[llama.ActivationsInt8], 1e-5)
			require.Positive(t, mean[llama.ActivationsInt8])
			require.Less(t, mean[llama.ActivationsInt16], mean[llama.ActivationsInt8]/1000)
		}
	}
}

// TestWeightsSaysHowTheyRun: every matrix is counted, those that cannot be repacked by name.
func TestWeightsSaysHowTheyRun(t *testing.T) {
	e := engineOf(t, llama.Quantized(t, llama.Types), llama.Options{Repack: true})
	var lines []string
	for _, w := range e.Weights() {
		lines = append(lines, w.String())
		require.Equal(t, !strings.HasPrefix(w.Form, "decoded"), w.RepackedBytes > 0)
		require.Positive(t, w.Bytes)
	}
	fine := "int12"
	if e.CPU() == "avx512" {
		fine = "int16"
	}
	require.Equal(t, []string{
		"2 tensors Q4_K repacked, 4 bits, activations in int8", "3 tensors Q6_K repacked, 6 bits, activations in int8",
		"2 tensors Q8_0 repacked, 8 bits, activations in " + fine, "2 tensors Q5_K repacked, 5 bits, activations in int8",
		"2 tensors Q4_0 repacked, 4 bits, activations in int8", "2 tensors Q2_K rounded to f16, activations in f32",
		"2 tensors Q3_K repacked, 3 bits, activations in int8",
	}, lines)
	require.Equal(t, "f32 and "+fine+" and int8", llama.Roundings(e.Weights()))
	more := engineOf(t, llama.Quantized(t, llama.MoreTypes), llama.Options{Repack: true}).Weights()
	require.Contains(t, more, llama.Weights{Type: "F32", Tensors: 2, Form: "as stored", Activations: "f32", Bytes: 2 * 4 * 256 * 512})
	_, err := llama.New(nil, llama.Options{Activations: "int4"})
	require.ErrorContains(t, err, "int4")
}

// TestRepackedSteps generates for several sequences together the same bits as for each alone, without taking memory.
func TestRepackedSteps(t *testing.T) {
	for _, model := range []map[string]ggml.Type{llama.Types, llama.MoreTypes} {
		path := llama.Quantized(t, model)
		sets := kernel.Available()
		if testing.Short() {
			sets = sets[len(sets)-1:]
		}
		for _, set := range sets {
			t.Setenv(kernel.EnvLevel, set.Name)
			for _, a := range []llama.Activations{llama.ActivationsAuto, llama.ActivationsInt16} {
				e := engineOf(t, path, llama.Options{Repack: true, Activations: a})
				testStep(t, e)
				var together []*llama.Session
				tokens := []int32{1, 2, 3, 4, 5, 6, 7}
				for range tokens {
					together = append(together, e.NewSession(9))
				}
				again := func() {
					for _, s := range together {
						s.Reset()
					}
					if err := e.Step(together, tokens, func(int, []float32) error { return nil }); err != nil {
						t.Fatal(err)
					}
				}
				again()
				if info, ok := debug.ReadBuildInfo(); ok && !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
					require.Zero(t, testing.AllocsPerRun(10, again), "%s %s", set.Name, a)
				}
			}
		}
	}
}
