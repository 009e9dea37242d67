package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/atomicfile"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	require.NoError(t, atomicfile.Write(path, []byte("one"), 0o640))
	require.NoError(t, atomicfile.Write(path, []byte("two"), 0o644))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode().Perm())

	broken := errors.New("disk full")
	err = atomicfile.WriteFrom(path, 0o644, func(w io.Writer) error {
		_, err := w.Write([]byte("half"))
		require.NoError(t, err)
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, path)
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))

	require.Error(t, atomicfile.Write(filepath.Join(dir, "absent", "x"), nil, 0o644))
	// A directory in the way.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "d", "e"), 0o755))
	require.Error(t, atomicfile.Write(filepath.Join(dir, "d"), nil, 0o644))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "nothing unfinished is left")
}
