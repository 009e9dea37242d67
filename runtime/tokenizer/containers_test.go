package tokenizer_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/gguf"
	"qtool/formats/vocab"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// randomTexts are those of the goldens; many more where $QTOOL_TOKENIZER_GOLDENS is set.
func randomTexts(t *testing.T) []string {
	if dir := os.Getenv("QTOOL_TOKENIZER_GOLDENS"); dir != "" {
		return readGolden(t, dir).Texts
	}
	return readGolden(t, "testdata").Texts
}

// fromGGUF reads the tokenizer of a GGUF file.
func fromGGUF(t *testing.T, path string) *vocab.Definition {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	d, err := vocab.FromGGUF(f.Metadata())
	require.NoError(t, err)
	return d
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
	byGGUF := encoder(t, fromGGUF(t, testdata.Shared(t, "models", "stories260k-f32.gguf")))
	story, err := os.ReadFile(testdata.Shared(t, "data", "tinystories", "valid.txt"))
	require.NoError(t, err)
	texts := append(randomTexts(t), string(story))
	ids := 0
	for _, text := range texts {
		for _, parse := range []bool{false, true} {
			o := tokenizer.Options{AddSpecial: true, ParseSpecial: parse}
			want := byJSON.Encode(text, o)
			require.Equal(t, want, byModel.Encode(text, o), "%.80q", text)
			require.Equal(t, want, byGGUF.Encode(text, o), "%.80q", text)
			require.Equal(t, byJSON.Decode(want, true), byModel.Decode(want, true), "%.80q", text)
			require.Equal(t, byJSON.Decode(want, true), byGGUF.Decode(want, true), "%.80q", text)
			ids += len(want)
		}
	}
	t.Logf("%d texts, %d ids", len(texts), ids)
}

// TestThroughContainers writes each vocabulary as GGUF keys and as tokenizer.json, and reads it back. Where
// $QTOOL_TOKENIZERS_WRITTEN names a folder, it leaves there what testdata/generate.py --check compares.
func TestThroughContainers(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "*", "tokenizer.json"))
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, path := range dirs {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) { throughContainers(t, fromDir(t, dir)) })
	}
	t.Run("models", func(t *testing.T) {
		for _, name := range []string{"stories260k", "tinystories656k"} {
			t.Run(name, func(t *testing.T) { throughContainers(t, fromDir(t, testdata.Shared(t, "models", name))) })
		}
	})
	t.Run("gguf", func(t *testing.T) {
		paths, err := filepath.Glob(filepath.Join(testdata.Shared(t, "tokenizers"), "*.gguf"))
		require.NoError(t, err)
		for _, path := range paths {
			t.Run(filepath.Base(path), func(t *testing.T) { throughContainers(t, fromGGUF(t, path)) })
		}
	})
	// A name of each preset of llama.cpp's.
	for _, pre := range []string{"gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "falcon", "starcoder", "default"} {
		t.Run("pre-"+pre, func(t *testing.T) {
			m := &gguf.Metadata{}
			require.NoError(t, fromDir(t, filepath.Join("testdata", "gpt2")).SetGGUF(m))
			m.Set("tokenizer.ggml.pre", gguf.String(pre))
			d, err := vocab.FromGGUF(m)
			require.NoError(t, err)
			throughContainers(t, d)
		})
	}
}

func throughContainers(t *testing.T, d *vocab.Definition) {
	first := encoder(t, d)
	text, config, err := d.TokenizerJSON()
	require.NoError(t, err)
	again, err := vocab.FromFiles(func(name string) ([]byte, error) {
		content, ok := map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": config}[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return content, nil
	}, "written")
	require.NoError(t, err)
	second := encoder(t, again)
	var third *tokenizer.Tokenizer
	m := &gguf.Metadata{}
	if err := d.SetGGUF(m); err == nil {
		d, err := vocab.FromGGUF(m)
		require.NoError(t, err)
		third = encoder(t, d)
	} else {
		require.True(t, errors.Is(err, formats.ErrUnsupported), "%v", err)
		require.True(t, strings.HasSuffix(t.Name(), "/bert-accents") || strings.HasSuffix(t.Name(), "/gpt2-prefix"), "%v", err)
	}
	ids := make(map[string][]int32)
	differ := 0
	for _, s := range randomTexts(t) {
		o := tokenizer.Options{AddSpecial: true, ParseSpecial: true}
		want := first.Encode(s, o)
		require.Equal(t, want, second.Encode(s, o), "%q", s)
		if utf8.ValidString(s) {
			ids[s] = append([]int32{}, want...)
		}
		o.ParseSpecial = false
		want = first.Encode(s, o)
		require.Equal(t, want, second.Encode(s, o), "%q", s)
		require.Equal(t, first.Decode(want, true), second.Decode(want, true), "%q", s)
		switch {
		case third == nil:
		case d.ExactGGUF():
			require.Equal(t, want, third.Encode(s, o), "%q", s)
			require.Equal(t, first.Decode(want, true), third.Decode(want, true), "%q", s)
		case !slices.Equal(want, third.Encode(s, o)):
			differ++
		}
	}
	t.Logf("%s; as GGUF: %t, exact: %t, %d texts differ", d, third != nil, third != nil && d.ExactGGUF(), differ)
	if dir := os.Getenv("QTOOL_TOKENIZERS_WRITTEN"); dir != "" {
		dir = filepath.Join(dir, filepath.Base(t.Name()))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o644))
		data, err := json.Marshal(ids)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ids.json"), data, 0o644))
	}
}
