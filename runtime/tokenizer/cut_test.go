package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"qtool/formats/vocab"
)

// everyTokenizer gives those of testdata, and of each pre-tokenizer that GGUF files name.
func everyTokenizer(t *testing.T) map[string]*Tokenizer {
	t.Helper()
	all := make(map[string]*Tokenizer)
	entries, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			tok, err := New(readDir(t, filepath.Join("testdata", e.Name())))
			require.NoError(t, err)
			all[e.Name()] = tok
		}
	}
	for _, pre := range []string{"gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "falcon", "starcoder", "default"} {
		tok, err := New(byName(t, pre))
		require.NoError(t, err)
		all[pre] = tok
	}
	return all
}

// borderTexts are texts at random of what the goldens have and what stands around borders.
func borderTexts(t *testing.T, n int) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden.json"))
	require.NoError(t, err)
	var g struct{ Texts []string }
	require.NoError(t, json.Unmarshal(data, &g))
	parts := []string{
		"a b", " the mill", "'s re", "'r", "12 x", "3x y", "<s>", "</s> x", " x<mask> y", "\n", "\r\n\r\n a", "  ", "…", "é n", "İ b", "▁", "a▁b", "\xff", "\xe2\x96", "中文 a b 中",
		"'ll I'LL be", "bell, rope and map", "\t", "don't go", "ſ's t",
	}
	for _, s := range g.Texts {
		raw, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)
		parts = append(parts, string(raw))
	}
	r := rand.New(rand.NewPCG(7, 8))
	texts := make([]string, n)
	for i := range texts {
		for range 1 + r.IntN(8) {
			texts[i] += parts[r.IntN(len(parts))]
		}
	}
	return texts
}

// TestBorders: what stands before a border has the tokens that the whole begins with, and parts that go on after each other those of the whole.
func TestBorders(t *testing.T) {
	texts := borderTexts(t, 300)
	with := 0
	for name, tok := range everyTokenizer(t) {
		require.True(t, tok.cuts || !tok.parts, name)
		compared := 0
		for _, text := range texts {
			for _, o := range []Options{{}, {AddSpecial: true, ParseSpecial: true}} {
				tok.partBytes = 1 << 30
				whole := tok.Encode(text, o)
				for size := 3; tok.parts && size < 40; size += 9 {
					tok.partBytes = size
					require.Equal(t, whole, tok.Encode(text, o), "%s, parts of %d: %q", name, size, text)
				}
				tok.partBytes = 1 << 30
				suffix := 0
				if o.AddSpecial {
					suffix = len(tok.d.Suffix)
				}
				for end := tok.cut(text); end > 0; end = tok.cut(text[:end]) {
					ids := tok.Encode(text[:end], o)
					ids = ids[:len(ids)-suffix]
					require.GreaterOrEqual(t, len(whole), len(ids), "%s: %q | %q", name, text[:end], text[end:])
					require.Equal(t, whole[:len(ids)], ids, "%s: %q | %q", name, text[:end], text[end:])
					compared++
				}
			}
		}
		require.Equal(t, tok.cuts, compared > 100, "%s: %d", name, compared)
		if tok.cuts {
			with++
		} else {
			t.Log("as a whole:", name)
		}
	}
	require.Greater(t, with, 20)
}

// TestBordersRefused: definitions that look beyond a border, each of which would fail TestBorders.
func TestBordersRefused(t *testing.T) {
	for name, change := range map[string]func(d *vocab.Definition){
		"a token over a border":     func(d *vocab.Definition) { d.Added = append(d.Added, vocab.Added{ID: 5, Text: "the mill"}) },
		"a token that takes spaces": func(d *vocab.Definition) { d.Added = append(d.Added, vocab.Added{ID: 5, Text: "END", RStrip: true}) },
		"a word that is a space":    func(d *vocab.Definition) { d.Added = append(d.Added, vocab.Added{ID: 5, Text: " ", SingleWord: true}) },
		"a step that replaces": func(d *vocab.Definition) {
			d.Normalizers = append(d.Normalizers, vocab.Normalizer{Op: vocab.Replace, Pattern: "l ", Content: "L"})
		},
		"a step that removes spaces": func(d *vocab.Definition) {
			d.Normalizers = append(d.Normalizers, vocab.Normalizer{Op: vocab.Replace, Pattern: " "})
		},
		"no step that cuts at spaces": func(d *vocab.Definition) { d.Splits = nil },
	} {
		d := readDir(t, filepath.Join("testdata", "gpt2"))
		tok, err := New(d)
		require.NoError(t, err)
		require.True(t, tok.cuts)
		change(d)
		tok, err = New(d)
		require.NoError(t, err)
		require.False(t, tok.cuts || tok.parts, name)
	}
}

// TestSame: a tokenizer is the same as one that was made of the same files, and as no other.
func TestSame(t *testing.T) {
	first, second := everyTokenizer(t), everyTokenizer(t)
	for a, x := range first {
		for b, y := range second {
			if a == b {
				require.True(t, x.Same(y), a)
			} else if x.Same(y) { // of two models
				for _, text := range borderTexts(t, 3) {
					require.Equal(t, x.Encode(text, Options{AddSpecial: true}), y.Encode(text, Options{AddSpecial: true}), "%s, %s", a, b)
				}
			}
		}
	}
	for name, x := range first {
		d := *x.d
		d.Tokens = slices.Clone(d.Tokens)
		d.Tokens[len(d.Tokens)-1].Text += "."
		require.False(t, x.Same(&Tokenizer{d: &d}), name)
		break
	}
}

// TestFirst reads no more than it takes, and gives the tokens of the whole.
func TestFirst(t *testing.T) {
	tokenizers := everyTokenizer(t)
	text := strings.Repeat("the mill is where Ada sold a bell, on 12 March. Don't go!\n", 20_000)
	for _, name := range []string{"gpt2", "spm", "llama3"} {
		tok := tokenizers[name]
		whole := tok.Encode(text, Options{AddSpecial: true})
		for _, n := range []int{1, 10, 5000, 100_000} {
			r := strings.NewReader(text)
			start, ids, err := First(Source{Reader: iotest.HalfReader(r), Most: 1 << 30}, n, tok, tokenizers["qwen2"])
			require.NoError(t, err)
			require.Equal(t, n == 100_000 && r.Len() == 0, start.Whole)
			require.True(t, strings.HasPrefix(text, start.Text))
			require.GreaterOrEqual(t, len(ids), n)
			require.Equal(t, whole[:n], ids[:n])
		}
		for _, n := range []int{0, len(whole), len(whole) + 1} {
			start, ids, err := First(Source{Reader: strings.NewReader(text), Most: int64(len(text)) + 1, Size: int64(len(text))}, n, tok)
			require.NoError(t, err)
			require.True(t, start.Whole || n == len(whole))
			require.Equal(t, whole[:n], ids[:n])
			_, _, err = First(Source{Reader: strings.NewReader(text), Most: int64(len(text))}, n, tok)
			require.True(t, errors.Is(err, ErrTooLarge) || n == len(whole))
		}
	}
	// One that needs to see all.
	text = text[:100_000]
	tok := tokenizers["model-across"]
	require.False(t, tok.cuts)
	start, ids, err := First(Source{Reader: strings.NewReader(text), Most: 1 << 30}, 10, tok)
	require.NoError(t, err)
	require.True(t, start.Whole)
	require.Equal(t, tok.Encode(text, Options{AddSpecial: true}), ids)
}

// TestFirstChecks shows what is encoded, cut at characters, and stops where that says so.
func TestFirstChecks(t *testing.T) {
	tok := everyTokenizer(t)["gpt2"]
	text := strings.Repeat("é", firstRead/2-1) + "x中 a b" + strings.Repeat("é", firstRead)
	var seen []int
	_, _, err := First(Source{Reader: strings.NewReader(text), Most: 1 << 30, Check: func(data []byte, whole bool) error {
		require.Equal(t, strings.ToValidUTF8(string(data), "?"), string(data))
		seen = append(seen, len(data))
		require.Equal(t, len(data) == len(text), whole)
		return nil
	}}, 100_000, tok)
	require.NoError(t, err)
	require.Equal(t, []int{firstRead - 1, 2 * firstRead}, seen)
	stop := errors.New("stop")
	_, _, err = First(Source{Reader: strings.NewReader(text), Most: 1 << 30, Check: func([]byte, bool) error { return stop }}, 5, tok)
	require.ErrorIs(t, err, stop)
	_, _, err = First(Source{Reader: iotest.ErrReader(stop), Most: 1 << 30}, 5, tok)
	require.ErrorIs(t, err, stop)
}
