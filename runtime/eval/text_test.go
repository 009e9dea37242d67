package eval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/vocab"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// TestFindText: the text is the one that is named, else the first that came with a model, in its folder or beside its file, else the built-in one.
func TestFindText(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write := func(name, content string) string {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		return name
	}
	model := write(filepath.Join(dir, "m.gguf"), "")
	for _, models := range [][]string{nil, {dir}, {model}, {model, other}} {
		text, err := FindText("", models...)
		require.NoError(t, err)
		require.True(t, text.BuiltIn)
	}
	beside := write(filepath.Join(dir, "eval.txt"), "Four maps")
	for _, models := range [][]string{{dir}, {model}, {other, model}} {
		text, err := FindText("", models...)
		require.NoError(t, err)
		require.Equal(t, &Text{Name: beside}, text)
	}
	tok := grammar(t)
	for content, want := range map[string]string{"": "empty", " \n": "empty", "ab\x00c": "byte 2 is 0", "ab\xff": "byte 2 is not UTF-8"} {
		text, err := FindText(write(filepath.Join(other, "t.txt"), content), dir)
		require.NoError(t, err)
		for _, n := range []int{0, 8} {
			require.ErrorContains(t, text.Check(n), want)
			_, _, _, err = text.Tokens(n, tok)
			require.ErrorContains(t, err, want)
		}
	}
}

// grammar is the tokenizer of the model in testdata.
func grammar(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	dir := testdata.Path("grammar-lm")
	d, err := vocab.FromFiles(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }, dir)
	require.NoError(t, err)
	tok, err := tokenizer.New(d)
	require.NoError(t, err)
	return tok
}

// TestTokensOfALargeText: only what is needed is read, and gives what the whole gives.
func TestTokensOfALargeText(t *testing.T) {
	tok := grammar(t)
	content := strings.Repeat("Hugo wrote down: bell, rope and map. There was rain at the mill.\n", 40_000)
	path := filepath.Join(t.TempDir(), "t.txt")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	text, err := FindText(path)
	require.NoError(t, err)
	require.NoError(t, text.Check(0))
	whole, more, read, err := text.Tokens(0, tok)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, tok.Encode(content, tokenizer.Options{AddSpecial: true}), whole)
	require.Equal(t, content, read)
	ids, more, _, err := text.Tokens(len(whole), tok)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, whole, ids)
	require.NoError(t, os.Truncate(path, maxText+1)) // zeros that take no space
	require.NoError(t, text.Check(1000))
	ids, more, read, err = text.Tokens(1000, tok, tok)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, whole[:1000], ids)
	require.Less(t, len(read), len(content)/2)
	require.ErrorIs(t, text.Check(0), tokenizer.ErrTooLarge)
	_, _, _, err = text.Tokens(0, tok)
	require.ErrorIs(t, err, tokenizer.ErrTooLarge)
	// What Tokens reads at first is checked as far.
	content = content[:500_000] + "\xff" + content[500_000:]
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	require.ErrorContains(t, text.Check(1000), "byte 500000 is not UTF-8")
	_, _, _, err = text.Tokens(1000, tok)
	require.ErrorContains(t, err, "byte 500000 is not UTF-8")
}
