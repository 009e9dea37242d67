package tokenizer_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/gguf"
	"qtool/formats/vocab"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// golden is what the tokenizers library makes of strings: see testdata/generate.py.
type golden struct {
	Texts        []string
	Vocabularies map[string]struct {
		Prefix  []int32 // of an empty text
		IDs     [][]int32
		Decoded []string
	}
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

// compare holds every string of every vocabulary against the library's ids and its decoding.
func compare(t *testing.T, dir string) {
	g := readGolden(t, dir)
	for name, want := range g.Vocabularies {
		t.Run(name, func(t *testing.T) {
			tok := encoder(t, fromDir(t, filepath.Join(dir, name)))
			wrong, ids := 0, 0
			for i, text := range g.Texts {
				got := tok.Encode(text, tokenizer.Options{ParseSpecial: true})
				if len(got) == 0 {
					got = []int32{}
				}
				if !assertEqual(want.IDs[i], got) {
					wrong++
					if wrong <= 3 {
						t.Errorf("text %d, %q:\nwant %v\ngot  %v", i, text, want.IDs[i], got)
					}
				}
				ids += len(got)
				require.Equal(t, want.Decoded[i], tok.Decode(want.IDs[i], true), "text %d, %q", i, text)
			}
			special := tok.Encode("", tokenizer.Options{AddSpecial: true})
			if len(want.Prefix) > 0 {
				require.Equal(t, want.Prefix, special)
			}
			t.Logf("%d of %d texts differ, %d ids", wrong, len(g.Texts), ids)
		})
	}
}

func assertEqual(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
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

// TestContainersAgree: one model's tokenizer.json, tokenizer.model and GGUF keys give the same ids.
func TestContainersAgree(t *testing.T) {
	dir := testdata.Shared(t, "models", "stories260k")
	byJSON := encoder(t, fromDir(t, dir))
	d, err := vocab.FromFiles(func(name string) ([]byte, error) {
		if name == "tokenizer.json" {
			return nil, os.ErrNotExist
		}
		return os.ReadFile(filepath.Join(dir, name))
	}, dir)
	require.NoError(t, err)
	byModel := encoder(t, d)
	f, err := gguf.Open(testdata.Shared(t, "models", "stories260k-f32.gguf"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	d, err = vocab.FromGGUF(f.Metadata())
	require.NoError(t, err)
	byGGUF := encoder(t, d)
	story, err := os.ReadFile(testdata.Shared(t, "data", "tinystories", "valid.txt"))
	require.NoError(t, err)
	for _, text := range append(readGolden(t, "testdata").Texts, string(story)) {
		o := tokenizer.Options{AddSpecial: true}
		want := byJSON.Encode(text, o)
		require.Equal(t, want, byModel.Encode(text, o), "%.80q", text)
		require.Equal(t, want, byGGUF.Encode(text, o), "%.80q", text)
	}
}

// TestThroughContainers writes each vocabulary as GGUF keys and as tokenizer.json, and reads it back.
func TestThroughContainers(t *testing.T) {
	g := readGolden(t, "testdata")
	for name := range g.Vocabularies {
		t.Run(name, func(t *testing.T) {
			d := fromDir(t, filepath.Join("testdata", name))
			first := encoder(t, d)
			text, config, err := d.TokenizerJSON()
			require.NoError(t, err)
			again, err := vocab.FromFiles(func(name string) ([]byte, error) {
				return map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": config}[name], nil
			}, name)
			require.NoError(t, err)
			second := encoder(t, again)
			var third *tokenizer.Tokenizer
			m := &gguf.Metadata{}
			if err := d.SetGGUF(m); err == nil {
				d, err := vocab.FromGGUF(m)
				require.NoError(t, err)
				third = encoder(t, d)
			} else {
				require.Contains(t, []string{"bert", "bert-cased", "gpt2-prefix"}, name, "%v", err)
			}
			for _, s := range g.Texts {
				want := first.Encode(s, tokenizer.Options{AddSpecial: true})
				require.Equal(t, want, second.Encode(s, tokenizer.Options{AddSpecial: true}), "%q", s)
				if third != nil && d.ExactGGUF() {
					require.Equal(t, want, third.Encode(s, tokenizer.Options{AddSpecial: true}), "%q", s)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile(testdata.Path("grammar-lm", "eval.txt"))
	require.NoError(b, err)
	for _, name := range []string{"gpt2", "llama3", "spm", "bert"} {
		tok := encoder(b, fromDir(b, filepath.Join("testdata", name)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(string(text), tokenizer.Options{})
			}
		})
	}
}
