package eval

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
		require.Equal(t, &Text{Name: beside, Content: "Four maps"}, text)
	}
	for content, want := range map[string]string{"": "empty", " \n": "empty", "ab\x00c": "byte 2 is 0", "ab\xff": "byte 2 is not UTF-8"} {
		_, err := FindText(write(filepath.Join(other, "t.txt"), content), dir)
		require.ErrorContains(t, err, want)
	}
}
