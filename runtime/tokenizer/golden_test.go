package tokenizer_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/unicode"

	"qtool/formats/vocab"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// golden is what the tokenizers library makes of strings: see testdata/generate.py.
type golden struct {
	Texts        []string
	Vocabularies map[string]vocabulary
}

type vocabulary struct {
	Prefix, Suffix []int32 // around every text
	IDs            [][]int32
	Decoded        map[int]string // without special tokens, where it is not the text
	Kept           map[int]string // with them, where it is not the same
	Drawn          [][]int32      // at random
	DrawnDecoded   []string
}

func readGolden(t *testing.T, dir string) golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	for i, s := range g.Texts {
		raw, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)
		g.Texts[i] = string(raw)
	}
	require.NotEmpty(t, g.Vocabularies)
	return g
}

func fromDir(t testing.TB, dir string) *vocab.Definition {
	t.Helper()
	d, err := vocab.FromFiles(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }, dir)
	require.NoError(t, err)
	return d
}

func encoder(t testing.TB, d *vocab.Definition) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.New(d)
	require.NoError(t, err)
	return tok
}

// compare holds every string of every vocabulary against the library's ids and its decodings.
func compare(t *testing.T, dir string) {
	g := readGolden(t, dir)
	for name, want := range g.Vocabularies {
		t.Run(name, func(t *testing.T) {
			tok := encoder(t, fromDir(t, filepath.Join(dir, name)))
			require.GreaterOrEqual(t, len(want.IDs), 120)
			ids := 0
			for i, plain := range want.IDs { // of the first texts
				text := g.Texts[i]
				assert.Equal(t, plain, some(tok.Encode(text, tokenizer.Options{ParseSpecial: true})), "text %d, %q", i, text)
				around := slices.Concat(want.Prefix, plain, want.Suffix)
				assert.Equal(t, some(around), some(tok.Encode(text, tokenizer.Options{ParseSpecial: true, AddSpecial: true})), "text %d, %q", i, text)
				decoded, ok := want.Decoded[i]
				if !ok {
					decoded = pythonText(text)
				}
				assert.Equal(t, decoded, tok.Decode(plain, true), "text %d, %q, %v", i, text, plain)
				if kept, ok := want.Kept[i]; ok {
					decoded = kept
				}
				assert.Equal(t, decoded, tok.Decode(plain, false), "text %d, %q, %v", i, text, plain)
				ids += len(plain)
			}
			for i, drawn := range want.Drawn {
				assert.Equal(t, want.DrawnDecoded[i], tok.Decode(drawn, false), "%v", drawn)
			}
			t.Logf("%d texts, %d ids, %d random sequences decoded", len(want.IDs), ids, len(want.Drawn))
		})
	}
}

// some makes nil an empty list.
func some(ids []int32) []int32 { return append([]int32{}, ids...) }

// pythonText is s.decode(errors="replace").
func pythonText(s string) string {
	text, _ := io.ReadAll(unicode.UTF8.NewDecoder().Reader(strings.NewReader(s)))
	return string(text)
}

func TestGoldens(t *testing.T) { compare(t, "testdata") }

// TestRealVocabularies compares 2,000 strings by the vocabularies of gpt-2, bert and llama, which are too
// large to check in: testdata/generate.py --full makes the folder.
func TestRealVocabularies(t *testing.T) {
	dir := os.Getenv("QTOOL_TOKENIZER_GOLDENS")
	if dir == "" {
		t.Skip("QTOOL_TOKENIZER_GOLDENS is not set")
	}
	compare(t, dir)
}

func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile(testdata.Path("grammar-lm", "eval.txt"))
	require.NoError(b, err)
	for _, name := range []string{"gpt2", "llama3", "qwen2", "starcoder", "deepseek", "spm", "spm-cut", "bert"} {
		tok := encoder(b, fromDir(b, filepath.Join("testdata", name)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(string(text), tokenizer.Options{})
			}
		})
	}
}
