package llama_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/runtime/eval"
	"qtool/runtime/llama"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// open loads a model with its tokenizer.
func open(t *testing.T, path string) (*llama.Engine, *tokenizer.Tokenizer) {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	e, err := llama.New(m, llama.Options{})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	d, err := m.Vocabulary()
	require.NoError(t, err)
	tok, err := tokenizer.New(d)
	require.NoError(t, err)
	return e, tok
}

// TestStories260kPerplexity: llama.cpp prints 7.0285 for the same model, text and rule.
func TestStories260kPerplexity(t *testing.T) {
	text, err := os.ReadFile(testdata.Shared(t, "data", "tinystories", "valid.txt"))
	require.NoError(t, err)
	for _, name := range []string{"stories260k", "stories260k-f32.gguf"} {
		e, tok := open(t, testdata.Shared(t, "models", name))
		ids := tok.Encode(string(text), tokenizer.Options{AddSpecial: true})
		f, err := eval.Measure(context.Background(), e.NewSession(512), nil, ids, eval.Options{
			Rule: eval.Rule{Kind: eval.RuleLlamaCpp, Context: 512}, BOS: tok.BOS(), Vocab: e.Vocab(),
		})
		require.NoError(t, err)
		require.Equal(t, 30, f.Windows)
		require.InDelta(t, 7.0285, f.Perplexity, 0.003)
		t.Logf("%s: %.4f ± %.4f", name, f.Perplexity, f.PerplexityErr)
	}
}
