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

// TestLeftovers: what a process that was killed has left of a file or folder is gone once another one begins; what somebody works on stays, and so does what only
// looks like it.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".out.123.tmp", "deep"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".out.456.tmp"), []byte("half"), 0o600))
	others := []string{".out.4x6.tmp", ".out..tmp", ".outer.7.tmp", "out.8.tmp"}
	for _, name := range others {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}

	f, err := atomicfile.Create(path, 0o644)
	require.NoError(t, err)
	d, err := atomicfile.CreateDir(path, 0o755)
	require.NoError(t, err)
	require.ElementsMatch(t, append([]string{filepath.Base(f.Name()), filepath.Base(d.Name())}, others...), left(), "both at work")
	require.NoError(t, os.WriteFile(filepath.Join(d.Name(), "content"), []byte("x"), 0o644))
	f.Abort()
	require.NoError(t, d.Commit())
	got, err := os.ReadFile(filepath.Join(path, "content"))
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
	require.ElementsMatch(t, append([]string{"out"}, others...), left())

	d, err = atomicfile.CreateDir(path, 0o755)
	require.NoError(t, err)
	require.Error(t, d.Commit(), "a folder that is not empty is in the way")
	d, err = atomicfile.CreateDir(path, 0o755)
	require.NoError(t, err)
	d.Abort()
	require.ElementsMatch(t, append([]string{"out"}, others...), left())
}
