package convert_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// calibration cuts n sequences out of the grammar's text, or makes them for a model without a tokenizer.
func calibration(t testing.TB, m *checkpoint.Model, n int) *convert.Calibration {
	t.Helper()
	const length = 48
	var ids []int32
	if strings.Contains(m.Path(), "grammar") {
		d, err := m.Vocabulary()
		require.NoError(t, err)
		tok, err := tokenizer.New(d)
		require.NoError(t, err)
		ids = tok.Encode(string(content(t, testdata.Path("grammar-lm", "calib.txt"))[:20_000]), tokenizer.Options{AddSpecial: true})
	} else {
		r := rand.New(rand.NewPCG(41, 42))
		for range n * length {
			ids = append(ids, int32(r.IntN(m.Config().Vocab)))
		}
	}
	c := &convert.Calibration{}
	for i := range n {
		c.Sequences = append(c.Sequences, ids[i*length:(i+1)*length])
	}
	return c
}

// calibratedRecipes are recipes that take every way through calibration.
func calibratedRecipes() map[string]convert.Recipe {
	gptq := convert.DefaultRecipe("w4g32")
	gptq.Method, gptq.Refine, gptq.Targets = quant.GPTQ, 2, convert.SourceOutputs
	awq := convert.DefaultRecipe("w4g16nlk")
	awq.Method, awq.Scaling, awq.InOrder, awq.Embeddings = quant.GPTQ, quant.AWQ, true, "keep"
	static := convert.DefaultRecipe("w8-s8")
	static.Method, static.Scaling, static.Ranges, static.Head = quant.RTN, quant.SmoothQuant, calibrate.MSE, "w8-s8"
	awq.Targets = convert.SourceOutputs
	return map[string]convert.Recipe{"gptq": gptq, "awq": awq, "static": static}
}

// calibrated quantizes and gives the bytes of the file.
func calibrated(t testing.TB, m *checkpoint.Model, r convert.Recipe, o convert.Options) []byte {
	t.Helper()
	if o.Output == "" {
		o.Output = filepath.Join(t.TempDir(), "out.qpk")
	}
	_, err := convert.Quantize(t.Context(), m, plan(t, m, r), o)
	require.NoError(t, err)
	require.NoDirExists(t, o.Output+".work")
	return content(t, o.Output)
}

// TestCalibratedSameBytes: threads, the folder, and whether hidden states are in memory or in a file change no byte, in either container; and
// calibration changes the codes.
func TestCalibratedSameBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("quantizes many times")
	}
	asGGUF := filepath.Join(t.TempDir(), "grammar.gguf")
	export(t, testdata.Path("grammar-lm"), asGGUF, convert.ExportOptions{})
	sources := []string{testdata.Path("grammar-lm"), asGGUF}
	for _, name := range []string{"llama", "llama-bias", "gemma2", "gemma3", "phi3", "qwen3"} {
		sources = append(sources, testdata.Path("arch", name))
	}
	for _, source := range sources {
		for name, recipe := range calibratedRecipes() {
			t.Run(filepath.Base(source)+"/"+name, func(t *testing.T) {
				m := open(t, source)
				c := calibration(t, m, 4)
				first := calibrated(t, m, recipe, convert.Options{Threads: 1, Calibration: c})
				spilled := &convert.Calibration{Sequences: c.Sequences, MaxMemory: 1}
				require.Equal(t, first, calibrated(t, m, recipe, convert.Options{Threads: 2, Calibration: spilled}), "two threads, states in a file")
				moved := filepath.Join(t.TempDir(), "grammar"+filepath.Ext(source))
				if filepath.Ext(source) == ".gguf" {
					require.NoError(t, os.WriteFile(moved, content(t, source), 0o600))
				} else {
					require.NoError(t, os.CopyFS(moved, os.DirFS(source)))
				}
				require.Equal(t, first, calibrated(t, open(t, moved), recipe, convert.Options{Threads: 3, Calibration: c}), "in another folder")

				out := filepath.Join(t.TempDir(), "out.qpk")
				require.NoError(t, os.WriteFile(out, first, 0o600))
				p, err := packed.Open(out)
				require.NoError(t, err)
				require.NoError(t, p.Verify(nil))
				require.NoError(t, p.Close())
				other := &convert.Calibration{Sequences: c.Sequences[:2]}
				require.NotEqual(t, first, calibrated(t, m, recipe, convert.Options{Threads: 2, Calibration: other}), "other text, other codes")
				for _, l := range logits(t, out) {
					require.Zero(t, l-l)
				}
			})
		}
	}
}

// TestCalibratedResume stops runs at random points, some of them twice, and takes them up with another number of threads.
func TestCalibratedResume(t *testing.T) {
	if testing.Short() {
		t.Skip("quantizes many times")
	}
	r := rand.New(rand.NewPCG(43, 44))
	for _, source := range []string{"grammar-lm", "arch/gemma2", "arch/llama", "arch/llama-bias", "arch/phi3"} {
		for name, recipe := range calibratedRecipes() {
			t.Run(source+"/"+name, func(t *testing.T) {
				m := open(t, testdata.Path(strings.Split(source, "/")...))
				c := calibration(t, m, 3)
				calls := 0
				whole := calibrated(t, m, recipe, convert.Options{Threads: 2, Calibration: c, Progress: func(int64, int64, string) { calls++ }})
				require.Greater(t, calls, 6)
				for round := range 5 {
					out := filepath.Join(t.TempDir(), "out.qpk")
					resumed := 0
					for range 1 + round%2 {
						stop := 1 + r.IntN(max(1, calls-resumed-3))
						ctx, cancel := context.WithCancel(t.Context())
						seen := 0
						_, err := convert.Quantize(ctx, m, plan(t, m, recipe), convert.Options{Output: out, Threads: 2, Calibration: c, Progress: func(int64, int64, string) {
							if seen++; seen == stop {
								cancel()
							}
						}})
						cancel()
						require.ErrorIs(t, err, context.Canceled, "stopped at %d of %d", stop, calls)
						require.NoFileExists(t, out)
						resumed = strings.Count(string(content(t, filepath.Join(out+".work", "journal"))), "\n") - 1
					}
					result, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: 1, Calibration: c})
					require.NoError(t, err)
					require.False(t, result.Discarded)
					require.Equal(t, resumed, result.Resumed)
					require.Equal(t, whole, content(t, out), "%d tensors were finished", resumed)
				}
			})
		}
	}
}

// TestAnotherCalibrationStartsAnew: what a run on other text, or on none, left is not used. The text is told by its digest in the recipe.
func TestAnotherCalibrationStartsAnew(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	one, recipe := calibration(t, m, 3), calibratedRecipes()["gptq"]
	two := &convert.Calibration{Sequences: one.Sequences[1:]}
	with := func(digest string) *convert.Plan {
		r := recipe
		r.Calibration = digest
		return plan(t, m, r)
	}
	whole := filepath.Join(t.TempDir(), "whole.qpk")
	_, err := convert.Quantize(t.Context(), m, with("two"), convert.Options{Output: whole, Threads: 2, Calibration: two})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		digest string
		data   *convert.Calibration
	}{"other text": {"one", one}, "none": {"", nil}} {
		out := filepath.Join(t.TempDir(), "out.qpk")
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		_, err := convert.Quantize(ctx, m, with(c.digest), convert.Options{Output: out, Threads: 1, Calibration: c.data, Progress: func(int64, int64, string) {
			if seen++; seen == 9 {
				cancel()
			}
		}})
		cancel()
		require.ErrorIs(t, err, context.Canceled, name)
		require.DirExists(t, out+".work")
		result, err := convert.Quantize(t.Context(), m, with("two"), convert.Options{Output: out, Threads: 2, Calibration: two})
		require.NoError(t, err)
		require.True(t, result.Discarded, name)
		require.Zero(t, result.Resumed, name)
		require.Equal(t, content(t, whole), content(t, out), name)
	}
}

// TestCalibrationFigures: every linear layer has its figures, also those of an earlier run; a head of its own too.
func TestCalibrationFigures(t *testing.T) {
	m := open(t, testdata.Path("arch", "llama"))
	c, out := calibration(t, m, 3), filepath.Join(t.TempDir(), "out.qpk")
	var results []*convert.Result
	for _, stop := range []int{1 << 30, 8} {
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		o := convert.Options{Output: out, Threads: 1, Calibration: c, Progress: func(int64, int64, string) {
			if seen++; seen == stop {
				cancel()
			}
		}}
		result, err := convert.Quantize(ctx, m, plan(t, m, calibratedRecipes()["gptq"]), o)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			o.Progress = nil
			result, err = convert.Quantize(t.Context(), m, plan(t, m, calibratedRecipes()["gptq"]), o)
		}
		require.NoError(t, err)
		results = append(results, result)
	}
	require.Equal(t, results[0].Calibrated, results[1].Calibrated)
	require.Positive(t, results[1].Resumed)
	require.Empty(t, results[0].RoundedOnly)
	require.Len(t, results[0].Calibrated, m.Config().Layers*7+1)
	for name, f := range results[0].Calibrated {
		require.Positive(t, f.Error, name)
		require.InEpsilon(t, f.Error, f.RMSError*f.RMSError, 1e-12, name)
		limit := 0.02
		if name == "lm_head.weight" {
			limit = 1e-4 // 8 bits
		}
		require.Less(t, f.Error, limit, name)
		require.Equal(t, quant.DefaultDamping, f.Damping, name)
	}
}

// TestCalibrationRefuses: data that do not fit, before anything is written.
func TestCalibrationRefuses(t *testing.T) {
	m := open(t, testdata.Path("arch", "llama"))
	for want, c := range map[string]*convert.Calibration{
		calibrate.ErrNoData.Error():     {},
		"calibration":                   {Sequences: [][]int32{{}}},
		"sequence 1 has 2 tokens":       {Sequences: [][]int32{{1, 2, 3}, {1, 2}}},
		"sequence 0 has token 67":       {Sequences: [][]int32{{1, 67}}},
		fmt.Sprintf("has token %d", -1): {Sequences: [][]int32{{1, 2}, {1, -1}}},
	} {
		out := filepath.Join(t.TempDir(), "out.qpk")
		_, err := convert.Quantize(t.Context(), m, plan(t, m, calibratedRecipes()["gptq"]), convert.Options{Output: out, Threads: 1, Calibration: c})
		require.ErrorContains(t, err, want)
		require.NoDirExists(t, out+".work")
	}
}
