package llama_test

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/half"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// golden is what the transformers library gives for a model.
type golden struct {
	Prompts []struct {
		IDs       []int32
		Positions []int
		Logits    string
	}
}

// TestArchitectures compares the logits of every family with those of the transformers library, past the
// rope's original length and past the attention window too.
func TestArchitectures(t *testing.T) {
	paths, err := filepath.Glob(testdata.Path("arch", "golden", "*.json"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(paths), 15)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var g golden
			require.NoError(t, json.Unmarshal(text, &g))
			m, err := checkpoint.Open(testdata.Path("arch", name))
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			requireLogits(t, m, g)
		})
	}
}

// requireLogits runs the prompts at once, and again token by token.
func requireLogits(t *testing.T, m *checkpoint.Model, g golden) {
	t.Helper()
	e, err := llama.New(m, llama.Options{Threads: 2})
	require.NoError(t, err)
	defer e.Close()
	s := e.NewSession(128)
	for _, p := range g.Prompts {
		raw, err := base64.StdEncoding.DecodeString(p.Logits)
		require.NoError(t, err)
		want := make([]float32, len(raw)/4)
		half.DecodeF32(want, raw)
		require.Len(t, want, len(p.Positions)*e.Vocab())
		var spread float64
		for _, v := range want {
			spread = max(spread, math.Abs(float64(v)))
		}
		worst := 0.0
		compare := func(i int, logits []float32) {
			for k, at := range p.Positions {
				if at != i {
					continue
				}
				for v, x := range logits {
					worst = max(worst, math.Abs(float64(x)-float64(want[k*e.Vocab()+v]))/spread)
				}
			}
		}
		s.Reset()
		require.NoError(t, s.Forward(p.IDs, 0, func(i int, logits []float32) error { compare(i, logits); return nil }))
		require.Less(t, worst, 1e-4, "%d tokens at once", len(p.IDs))
		if m.Config().Rope.Kind == "longrope" {
			continue // positions before the original length were computed with the other frequencies
		}
		s.Reset()
		worst = 0
		for i, id := range p.IDs {
			require.NoError(t, s.Forward([]int32{id}, 0, func(_ int, logits []float32) error { compare(i, logits); return nil }))
		}
		require.Less(t, worst, 1e-4, "%d tokens one by one", len(p.IDs))
	}
}
