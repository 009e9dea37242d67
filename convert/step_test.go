package convert_test

import (
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// TestPackedSteps generates from packed weights: for several sequences together the same bits as for each alone, and
// without taking memory.
func TestPackedSteps(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	for _, scheme := range []convert.Choice{"w4g32", "w8", "w4g128a", "w4g16nlk", "w4g32nl", "w3g32k"} {
		out := filepath.Join(t.TempDir(), "out.qpk")
		_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe(scheme)), convert.Options{Output: out, Threads: 2})
		require.NoError(t, err)
		for _, set := range kernel.Available() {
			t.Setenv(kernel.EnvLevel, set.Name)
			e, err := llama.New(open(t, out), llama.Options{Threads: 2, KV: llama.KVF16})
			require.NoError(t, err)
			var together []*llama.Session
			var tokens []int32
			var want [][]float32
			for i := range 7 {
				s := e.NewSession(300)
				prompt := make([]int32, 1+40*i)
				for k := range prompt {
					prompt[k] = int32((k*k + 3*i) % e.Vocab())
				}
				require.NoError(t, s.Forward(prompt, len(prompt), nil))
				together, tokens = append(together, s), append(tokens, int32(100+i))
				require.NoError(t, s.Fork().Forward(tokens[i:], 0, func(_ int, l []float32) error {
					want = append(want, append([]float32(nil), l...))
					return nil
				}))
			}
			require.NoError(t, e.Step(together, tokens, func(i int, l []float32) error {
				require.Equal(t, want[i], l, "%s with %s, session %d", scheme, set.Name, i)
				return nil
			}))
			ignore := func(int, []float32) error { return nil }
			again := func() {
				for _, s := range together {
					s.Truncate(s.Len() - 1)
				}
				if err := e.Step(together, tokens, ignore); err != nil {
					t.Fatal(err)
				}
			}
			if !raceDetector() { // which makes pools forget
				require.Zero(t, testing.AllocsPerRun(10, again), "%s with %s", scheme, set.Name)
			}
			e.Close()
		}
	}
}

// raceDetector reports whether the test was built with it.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
