package tokenizer_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// TestSharedVocabularies encodes llama.cpp's own test strings by the vocabularies of real models.
func TestSharedVocabularies(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(testdata.Shared(t, "tokenizers"), "*.gguf"))
	require.NoError(t, err)
	require.Len(t, paths, 8)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tok := encoder(t, fromGGUF(t, path))
			inputs, err := os.ReadFile(path + ".inp")
			require.NoError(t, err)
			outputs, err := os.ReadFile(path + ".out")
			require.NoError(t, err)
			texts := strings.Split(string(inputs), "\n__ggml_vocab_test__\n")
			lines := strings.Split(strings.TrimSuffix(string(outputs), "\n"), "\n")
			ids := 0
			for i, line := range lines {
				var want []int32
				for _, s := range strings.Fields(line) {
					n, err := strconv.Atoi(s)
					require.NoError(t, err)
					want = append(want, int32(n))
				}
				got := tok.Encode(texts[i], tokenizer.Options{})
				require.Equal(t, want, got, "text %d: %q", i, texts[i])
				ids += len(want)
			}
			t.Logf("%d texts, %d ids", len(lines), ids)
		})
	}
}
