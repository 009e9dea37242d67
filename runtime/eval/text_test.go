package eval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/document"
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
	for content, want := range map[string]string{"": "empty", " \n": "empty", "ab\x00c": "t.txt: at byte 2: a byte of 0", "ab\xff": "t.txt: at byte 2: byte 0xff is not UTF-8",
		"\xff\xfea\x00": "t.txt: at byte 0: begins with the byte order mark of UTF-16, expected UTF-8 (save it as UTF-8)"} {
		text, err := FindText(write(filepath.Join(other, "t.txt"), content), dir)
		require.NoError(t, err)
		for _, n := range []int{0, 8} {
			require.ErrorContains(t, text.Check(n), want)
			_, err = text.Tokens(n, tok)
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
	all, err := text.Tokens(0, tok)
	require.NoError(t, err)
	require.False(t, all.More)
	whole := all.IDs
	require.Equal(t, tok.Encode(content, tokenizer.Options{AddSpecial: true}), whole)
	require.Equal(t, []string{content}, all.Texts)
	part, err := text.Tokens(len(whole), tok)
	require.NoError(t, err)
	require.False(t, part.More)
	require.Equal(t, whole, part.IDs)
	require.NoError(t, os.Truncate(path, maxText+1)) // zeros that take no space
	require.NoError(t, text.Check(1000))
	part, err = text.Tokens(1000, tok, tok)
	require.NoError(t, err)
	require.True(t, part.More)
	require.Equal(t, whole[:1000], part.IDs)
	require.Less(t, len(part.Texts[0]), len(content)/2)
	require.ErrorIs(t, text.Check(0), tokenizer.ErrTooLarge)
	_, err = text.Tokens(0, tok)
	require.ErrorIs(t, err, tokenizer.ErrTooLarge)
	// What Tokens reads at first is checked as far.
	content = content[:500_000] + "\xff" + content[500_000:]
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	require.ErrorContains(t, text.Check(1000), "at byte 500000: byte 0xff is not UTF-8")
	_, err = text.Tokens(1000, tok)
	require.ErrorContains(t, err, "at byte 500000: byte 0xff is not UTF-8")
}

// TestDocuments: JSON lines are read as calibration reads them, document by document.
func TestDocuments(t *testing.T) {
	tok := grammar(t)
	encode := func(texts ...string) (ids []int32) {
		for _, text := range texts {
			ids = append(ids, tok.Encode(text, tokenizer.Options{AddSpecial: true})...)
		}
		return ids
	}
	dir := t.TempDir()
	text := func(name, content string) *Text {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return &Text{Name: path}
	}
	const lines = "{\"text\": \"Four maps\", \"b\": \"rain\"}\n\n{\"text\": \"\", \"b\": \"bell\"}\n{\"text\": \"and a rope\", \"b\": \"mill\"}\n"
	d := text("a.jsonl", lines)
	require.NoError(t, d.Check(0))
	r, err := d.Tokens(0, tok)
	require.NoError(t, err)
	require.Equal(t, &Reading{IDs: encode("Four maps", "and a rope"), Kind: document.JSONLines, Texts: []string{"Four maps", "and a rope"}, Documents: 2}, r)
	d.Field = "b"
	r, err = d.Tokens(2, tok)
	require.NoError(t, err)
	require.Equal(t, encode("rain", "bell", "mill")[:2], r.IDs)
	require.True(t, r.More)
	d.Kind = document.Text
	r, err = d.Tokens(0, tok)
	require.NoError(t, err)
	require.Equal(t, encode(lines), r.IDs, "as it is")

	r, err = text("t.json", "[1, 2]\n[3]").Tokens(0, tok)
	require.NoError(t, err)
	require.Equal(t, &Reading{IDs: []int32{1, 2, 3}, Kind: document.Tokens, Documents: 2}, r)
	for content, want := range map[string]string{
		"prose":                  "bad.jsonl: at byte 0: line 1: ",
		"{\"text\": 1}":          "expected a text or an array of tokens, found a number",
		"{\"text\": \"\"}\n\n":   "text too short: it is empty",
		"\xff\xfe{\x00":          "byte order mark of UTF-16",
		"[1]\n{\"text\": \"a\"}": "line 2: expected an array of tokens",
	} {
		bad := text("bad.jsonl", content)
		require.ErrorContains(t, bad.Check(0), want, content)
		_, err := bad.Tokens(0, tok)
		require.ErrorContains(t, err, want, content)
	}
	_, err = text("bad.jsonl", "[99999]").Tokens(0, tok)
	require.ErrorContains(t, err, "token 0 has id 99999, the vocabulary has 0 to 511")
}
