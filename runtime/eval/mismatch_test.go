package eval

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/testdata"
)

// TestBaselineOfAnotherVocabulary: where the text's tokens mean other letters to the baseline, nothing can be compared; where it only cuts otherwise, that is said.
func TestBaselineOfAnotherVocabulary(t *testing.T) {
	source := testdata.Path("grammar-lm")
	altered := func(change func(model map[string]any)) string {
		dir := filepath.Join(t.TempDir(), "m")
		require.NoError(t, os.CopyFS(dir, os.DirFS(source)))
		path := filepath.Join(dir, "tokenizer.json")
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var root map[string]any
		require.NoError(t, json.Unmarshal(data, &root))
		change(root["model"].(map[string]any))
		data, err = json.Marshal(root)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return dir
	}
	run := func(baseline string) (*Report, error) {
		r, _, err := Run(t.Context(), Request{Model: source, Baseline: baseline, Rule: Rule{Kind: RuleLlamaCpp, Context: 32}, MaxTokens: 64, Threads: 1})
		return r, err
	}
	r, err := run(source)
	require.NoError(t, err)
	require.Empty(t, r.Mismatch)

	_, err = run(altered(func(model map[string]any) {
		v := model["vocab"].(map[string]any)
		v["e"], v["o"] = v["o"], v["e"]
		v["a"], v["r"] = v["r"], v["a"]
	}))
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorContains(t, err, "have different vocabularies")

	r, err = run(altered(func(model map[string]any) { model["merges"] = model["merges"].([]any)[:10] }))
	require.NoError(t, err)
	require.Contains(t, r.Mismatch, "cuts the text otherwise")
}
