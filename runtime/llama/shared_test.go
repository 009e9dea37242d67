package llama_test

import (
	"context"
	"os"
	"strings"
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

// TestStories260kContainersAgree: the GGUF file has q and k in another order of rows; the logits are the
// same bits all the same.
func TestStories260kContainersAgree(t *testing.T) {
	var first []float32
	for _, name := range []string{"stories260k", "stories260k-f32.gguf"} {
		e, tok := open(t, testdata.Shared(t, "models", name))
		var all []float32
		ids := tok.Encode("Once upon a time, there was a little girl named Lily.", tokenizer.Options{AddSpecial: true})
		require.NoError(t, e.NewSession(64).Forward(ids, 0, func(_ int, l []float32) error {
			all = append(all, l...)
			return nil
		}))
		if first == nil {
			first = all
		}
		require.Equal(t, first, all)
	}
}

// TestStories260kGreedy: the text that was published with the model, and that llama.cpp prints.
func TestStories260kGreedy(t *testing.T) {
	readme, err := os.ReadFile(testdata.Shared(t, "README.md"))
	require.NoError(t, err)
	var want []string
	for line := range strings.Lines(string(readme)) {
		if text, ok := strings.CutPrefix(line, "> "); ok {
			want = append(want, strings.TrimSuffix(text, "\n"))
		}
	}
	story := strings.Join(want, "\n")
	require.True(t, strings.HasPrefix(story, "Once upon a time"))
	e, tok := open(t, testdata.Shared(t, "models", "stories260k"))
	const prompt = "Once upon a time"
	out, stream := prompt, tok.Stream(true)
	stream.Continue()
	_, err = llama.Generation{
		Session: e.NewSession(512), Prompt: tok.Encode(prompt, tokenizer.Options{AddSpecial: true}), Max: 400,
		Stop: func(int32) bool { return len(out) >= len(story) },
		Token: func(id int32) error {
			out += stream.Next(id)
			return nil
		},
	}.Generate(context.Background())
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out, story), out)
}

// TestTinystories656kUnknownText: the model declares byte fallback without having byte tokens.
func TestTinystories656kUnknownText(t *testing.T) {
	e, tok := open(t, testdata.Shared(t, "models", "tinystories656k"))
	ids := tok.Encode("日本 🙂 Ω", tokenizer.Options{AddSpecial: true})
	require.Contains(t, ids, int32(0), "<unk>")
	require.NoError(t, e.NewSession(64).Forward(ids, 0, func(int, []float32) error { return nil }))
}
