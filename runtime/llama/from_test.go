package llama_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// TestFromWhereLogitsAreAsked: asking for the logits of some positions alone changes neither them nor what follows, although the last
// layer does no more than they need.
func TestFromWhereLogitsAreAsked(t *testing.T) {
	const n, more = 70, 3
	for _, name := range []string{"llama", "gemma2", "gemma3", "phi3-longrope", "qwen2-sliding", "../grammar-lm"} {
		for _, set := range kernel.Available() {
			t.Run(name+"/"+set.Name, func(t *testing.T) {
				t.Setenv(kernel.EnvLevel, set.Name)
				m, err := checkpoint.Open(testdata.Path("arch", name))
				require.NoError(t, err)
				defer func() { require.NoError(t, m.Close()) }()
				e, err := llama.New(m, llama.Options{Threads: 2})
				require.NoError(t, err)
				defer e.Close()
				ids := made(n+more, 3, e.Vocab())
				run := func(from int, ask bool) (logits [][]float32) {
					s := e.NewSession(len(ids))
					at := from
					visit := func(i int, l []float32) error {
						require.Equal(t, at, i)
						at++
						logits = append(logits, append([]float32(nil), l...))
						return nil
					}
					if ask {
						require.NoError(t, s.Forward(ids[:n], from, visit))
						require.Equal(t, n, at)
					} else {
						require.NoError(t, s.Forward(ids[:n], from, nil))
					}
					at = 0
					require.NoError(t, s.Forward(ids[n:], 0, visit))
					require.Equal(t, more, at)
					return logits
				}
				all := run(0, true)
				for _, from := range []int{1, 7, 33, n - 1, n} {
					require.Equal(t, all[from:], run(from, true), "from %d", from)
				}
				require.Equal(t, all[n:], run(0, false))
			})
		}
	}
}
