package llama_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/runtime/llama"
	"qtool/runtime/numa"
	"qtool/testdata"
)

// placed gives options that bind threads, or skips the test where the system does not let a program see its CPUs.
func placed(t *testing.T) llama.Options {
	t.Helper()
	cpus, err := numa.Affinity()
	if err != nil {
		t.Skip(err)
	}
	return llama.Options{CPUs: cpus[:min(2, len(cpus))]}
}

// Where threads run changes no bit, and errors of visit and of a nested call come back from the pool's thread.
func TestPlacedThreads(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	tokens := made(40, 3, 64)
	var logits [2][]float32
	for i, o := range []llama.Options{{Threads: 2}, placed(t)} {
		e, err := llama.New(m, o)
		require.NoError(t, err)
		defer e.Close()
		s, other := e.NewSession(50), e.NewSession(50)
		require.NoError(t, s.Forward(tokens, 0, func(_ int, l []float32) error {
			logits[i] = append(logits[i], l...)
			return nil
		}))
		require.NoError(t, e.Step([]*llama.Session{s}, tokens[:1], func(_ int, l []float32) error {
			logits[i] = append(logits[i], l...)
			return nil
		}))
		stop := errors.New("enough")
		require.ErrorIs(t, s.Forward(tokens[:1], 0, func(int, []float32) error { return stop }), stop)
		nested := 0
		require.NoError(t, s.Forward(tokens[:3], 0, func(int, []float32) error {
			nested++
			return other.Forward(tokens[:1], 0, func(int, []float32) error { return nil })
		}))
		require.Equal(t, 3, nested)
		require.Equal(t, 3, other.Len())
		if i == 0 {
			require.Equal(t, "off", e.NUMA())
		} else {
			require.Regexp(t, `^\d nodes?, \d threads? pinned$|refused`, e.NUMA())
			require.Equal(t, len(o.CPUs), e.Threads())
		}
	}
	require.True(t, slices.Equal(logits[0], logits[1]))

	_, err = llama.New(m, llama.Options{CPUs: numa.Set{numa.MaxID}})
	require.ErrorContains(t, err, "not online")
}
