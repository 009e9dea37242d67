package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/vocab"
)

func readDir(t *testing.T, dir string) *vocab.Definition {
	t.Helper()
	d, err := vocab.FromFiles(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }, dir)
	require.NoError(t, err)
	return d
}

// TestSentencePieceModels holds tokenizer.model files against the sentencepiece library: see
// testdata/sentencepiece_model.py.
func TestSentencePieceModels(t *testing.T) {
	for name, words := range map[string]bool{"model-user": true, "model-squeeze": true, "model-plain": true, "model-across": false} {
		dir := filepath.Join("testdata", name)
		tok, err := New(readDir(t, dir))
		require.NoError(t, err)
		require.Equal(t, words, tok.words, name)
		data, err := os.ReadFile(filepath.Join(dir, "ids.json"))
		require.NoError(t, err)
		var golden [][2]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &golden))
		require.NotEmpty(t, golden)
		for _, g := range golden {
			var text []byte
			var encoded string
			require.NoError(t, json.Unmarshal(g[0], &encoded))
			text, err = base64.StdEncoding.DecodeString(encoded)
			require.NoError(t, err)
			want := []int32{}
			require.NoError(t, json.Unmarshal(g[1], &want))
			require.Equal(t, want, append([]int32{}, tok.Encode(string(text), Options{})...), "%s: %q", name, text)
		}
	}
}

// TestWords: a text encoded word by word gives what it gives as a whole.
func TestWords(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	require.NoError(t, err)
	var g struct{ Texts []string }
	require.NoError(t, json.Unmarshal(data, &g))
	compared := 0
	for _, name := range []string{"spm", "spm-first", "spm-unknown", "spm-unknowns", "model-user", "model-squeeze", "model-plain"} {
		d := readDir(t, filepath.Join("testdata", name))
		cut, err := New(d)
		require.NoError(t, err)
		require.True(t, cut.words, name)
		whole, err := New(d)
		require.NoError(t, err)
		whole.words = false
		for _, s := range append(g.Texts, strings.Join(g.Texts, "")) {
			raw, err := base64.StdEncoding.DecodeString(s)
			if err != nil { // of the one that joins all
				raw = []byte(s)
			}
			require.Equal(t, whole.Encode(string(raw), Options{}), cut.Encode(string(raw), Options{}), "%s: %q", name, raw)
			compared++
		}
	}
	require.Positive(t, compared)
}

// TestLongRuns: no text takes time that grows with the square of its length; these would take minutes.
func TestLongRuns(t *testing.T) {
	const n = 300_000
	for _, pre := range []string{"gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "falcon", "starcoder", "default"} {
		tok, err := New(byName(t, pre))
		require.NoError(t, err)
		for _, s := range []string{
			strings.Repeat(" ", n) + "你", strings.Repeat("\t", n) + "你", strings.Repeat("\u2003", n/3) + "你", strings.Repeat("x", n) + strings.Repeat(" ", n),
			strings.Repeat("'", n), strings.Repeat("\n ", n/2) + "你", strings.Repeat("1", n), strings.Repeat("\u0301", n/2),
		} {
			require.Len(t, tok.Encode(s, Options{}), len(s), pre)
		}
	}
}
