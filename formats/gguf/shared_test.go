package gguf_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/half"
	"qtool/testdata"
)

// TestSharedDigests decodes every tensor of llama.cpp's own files in fifteen types and compares
// with what the gguf Python package decoded.
func TestSharedDigests(t *testing.T) {
	path := testdata.Shared(t, "models", "gguf-types", "dequantized.json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var files map[string]map[string]struct {
		Type   string `json:"type"`
		Shape  []int  `json:"shape"`
		SHA256 string `json:"sha256_f32le"`
	}
	require.NoError(t, json.Unmarshal(data, &files))
	require.Len(t, files, 15)
	tensors := 0
	for name, want := range files {
		t.Run(name, func(t *testing.T) {
			f, err := gguf.Open(filepath.Join(filepath.Dir(path), name))
			require.NoError(t, err)
			defer func() { require.NoError(t, f.Close()) }()
			require.Len(t, f.Tensors(), len(want))
			for _, tensor := range f.Tensors() {
				w := want[tensor.Name]
				require.Equal(t, w.Type, tensor.Type.String(), tensor.Name)
				require.Equal(t, w.Shape, tensor.Shape, tensor.Name)
				values := make([]float32, tensor.Rows()*tensor.Cols())
				require.NoError(t, ggml.DequantizeRows(values, f.Data(tensor), tensor.Cols(), tensor.Type))
				raw := make([]byte, 4*len(values))
				half.EncodeF32(raw, values)
				sum := sha256.Sum256(raw)
				require.Equal(t, w.SHA256, hex.EncodeToString(sum[:]), tensor.Name)
				tensors++
			}
		})
	}
	t.Logf("%d tensors of %d files", tensors, len(files))
}

func TestSharedVocabularies(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(testdata.Shared(t, "tokenizers"), "*.gguf"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		f, err := gguf.Open(path)
		require.NoError(t, err)
		words, err := f.Metadata().Strings("tokenizer.ggml.tokens")
		require.NoError(t, err)
		require.NotEmpty(t, words)
		require.NoError(t, f.Close())
	}
}
