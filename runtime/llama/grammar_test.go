package llama_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/eval"
	"qtool/runtime/llama"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// TestGrammarModel compares the trained model of testdata with what the transformers library computes:
// token ids, logits, greedy text and perplexity.
func TestGrammarModel(t *testing.T) {
	text, err := os.ReadFile(testdata.Path("grammar-lm", "golden", "golden.json"))
	require.NoError(t, err)
	var g struct {
		Encodings []struct {
			Text string
			IDs  []int32
		}
		Logits     []float64
		Prompt     []int32
		Greedy     []int32
		Perplexity float64
		Context    int
	}
	require.NoError(t, json.Unmarshal(text, &g))
	e, tok := open(t, testdata.Path("grammar-lm"))
	for _, c := range g.Encodings {
		require.Equal(t, c.IDs, tok.Encode(c.Text, tokenizer.Options{AddSpecial: true, ParseSpecial: true}), "%q", c.Text)
	}
	story, err := os.ReadFile(testdata.Path("grammar-lm", "eval.txt"))
	require.NoError(t, err)
	ids := tok.Encode(string(story), tokenizer.Options{AddSpecial: true})

	s := e.NewSession(g.Context)
	require.NoError(t, s.Forward(ids[:64], 63, func(_ int, logits []float32) error {
		require.Len(t, logits, len(g.Logits))
		for i, v := range logits {
			require.InDelta(t, g.Logits[i], v, 2e-4, "token %d", i)
		}
		return nil
	}))

	s.Reset()
	var greedy []int32
	n, err := llama.Generation{
		Session: s, Prompt: g.Prompt, Max: len(g.Greedy), Token: func(id int32) error { greedy = append(greedy, id); return nil },
	}.Generate(context.Background())
	require.NoError(t, err)
	require.Equal(t, len(g.Greedy), n)
	require.Equal(t, g.Greedy, greedy)

	if testing.Short() {
		return
	}
	f, err := eval.Measure(context.Background(), s, nil, ids, eval.Options{
		Rule: eval.Rule{Kind: eval.RuleLlamaCpp, Context: g.Context}, BOS: tok.BOS(), Vocab: e.Vocab(),
	})
	require.NoError(t, err)
	require.InDelta(t, g.Perplexity, f.Perplexity, 1e-4*g.Perplexity)
}

// TestSession checks what a session promises: limits, errors before changes, the same result however the
// tokens are fed and with any number of threads.
func TestSession(t *testing.T) {
	e, _ := open(t, testdata.Path("grammar-lm"))
	ids := []int32{1, 5, 9, 30, 31, 8, 3, 44, 12, 13, 14}
	var want []float32
	s := e.NewSession(len(ids))
	keep := func(_ int, l []float32) error { want = append([]float32(nil), l...); return nil }
	require.NoError(t, s.Forward(ids, len(ids)-1, keep))
	require.Zero(t, s.Room())
	err := s.Forward([]int32{1}, 0, nil)
	require.ErrorIs(t, err, llama.ErrContextFull)
	s.Reset()
	require.ErrorIs(t, s.Forward([]int32{1, 512}, 0, nil), llama.ErrToken)
	require.ErrorIs(t, s.Forward([]int32{-1}, 0, nil), llama.ErrToken)
	require.Zero(t, s.Len(), "an error leaves the session as it was")
	for _, cut := range []int{1, 4, 10} {
		s.Reset()
		require.NoError(t, s.Forward(ids[:cut], cut, nil))
		require.NoError(t, s.Forward(ids[cut:], len(ids)-cut-1, func(_ int, l []float32) error {
			for i := range l {
				require.InDelta(t, want[i], l[i], 1e-5)
			}
			return nil
		}))
	}
}

func TestSampling(t *testing.T) {
	e, _ := open(t, testdata.Path("grammar-lm"))
	generate := func(s llama.Sampling) []int32 {
		var out []int32
		_, err := llama.Generation{
			Session: e.NewSession(60), Prompt: []int32{1, 5}, Max: 40, Sampling: s, Token: func(id int32) error { out = append(out, id); return nil },
		}.Generate(context.Background())
		require.NoError(t, err)
		return out
	}
	greedy := generate(llama.Sampling{})
	require.Equal(t, greedy, generate(llama.Sampling{Temperature: 1, TopP: 1e-9}), "the smallest share is the most probable token alone")
	a, b := generate(llama.Sampling{Temperature: 1, TopP: 0.9, Seed: 1}), generate(llama.Sampling{Temperature: 1, TopP: 0.9, Seed: 2})
	require.Equal(t, a, generate(llama.Sampling{Temperature: 1, TopP: 0.9, Seed: 1}))
	require.NotEqual(t, a, b)
	require.NotEqual(t, greedy, generate(llama.Sampling{Temperature: math.MaxFloat32, TopP: 1, Seed: 3}))
	_, err := llama.Generation{Session: e.NewSession(4), Token: func(int32) error { return nil }}.Generate(context.Background())
	require.Error(t, err)
}
