package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"qtool/formats/gguf"
	"qtool/formats/vocab"
)

// byName is a byte-level tokenizer without merges and with llama.cpp's pre-tokenizer of that name.
func byName(t testing.TB, name string) *vocab.Definition {
	t.Helper()
	texts := make([]string, 256)
	for b := range texts {
		texts[b] = string(byteRunes[b])
	}
	m := &gguf.Metadata{}
	m.Set("tokenizer.ggml.model", gguf.String("gpt2"))
	m.Set("tokenizer.ggml.pre", gguf.String(name))
	m.Set("tokenizer.ggml.tokens", gguf.Strings(texts))
	m.Set("tokenizer.ggml.merges", gguf.Strings(nil))
	d, err := vocab.FromGGUF(m)
	require.NoError(t, err)
	return d
}

// TestSplits holds the pieces of random strings against those of the regex module: see testdata/splits.py.
// $QTOOL_SPLITS names a file with more of them.
func TestSplits(t *testing.T) {
	path := os.Getenv("QTOOL_SPLITS")
	if path == "" {
		path = filepath.Join("testdata", "splits.json")
	}
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var g struct {
		Texts   []string
		Lengths map[string][][]int // in bytes
	}
	require.NoError(t, json.Unmarshal(data, &g))
	require.NotEmpty(t, g.Lengths)
	for name, lengths := range g.Lengths {
		t.Run(name, func(t *testing.T) {
			d := byName(t, name)
			require.Len(t, lengths, len(g.Texts))
			count := 0
			for i, want := range lengths {
				raw, err := base64.StdEncoding.DecodeString(g.Texts[i])
				require.NoError(t, err)
				text := valid(string(raw))
				pieces, at := []string{}, 0
				for _, n := range want {
					pieces = append(pieces, text[at:at+n])
					at += n
				}
				require.Equal(t, len(text), at)
				got := []string{}
				(&encoder{}).split(text, d.Splits, func(s string) { got = append(got, s) })
				assert.Equal(t, pieces, got, "text %d: %q", i, text)
				count += len(want)
			}
			t.Logf("%d texts, %d pieces", len(lengths), count)
		})
	}
}
