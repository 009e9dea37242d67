package mapped_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/mapped"
)

func write(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i % 251)
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestOpen(t *testing.T) {
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100000} {
		path := write(t, size)
		f, err := mapped.Open(path)
		require.NoError(t, err)
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, f.Bytes(), size)
		require.Equal(t, want, append([]byte{}, f.Bytes()...))
		require.NoError(t, f.Advise(0, int64(size), mapped.Sequential))
		require.NoError(t, f.Advise(5, int64(size)+100, mapped.DontNeed))
		require.Equal(t, want, append([]byte{}, f.Bytes()...))
		require.NoError(t, f.CheckSize())
		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
	}
	_, err := mapped.Open(t.TempDir())
	require.ErrorContains(t, err, "a directory")
	_, err = mapped.Open(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestTruncatedUnderUs cuts a file while it is mapped: the fault becomes an error that says where.
func TestTruncatedUnderUs(t *testing.T) {
	path := write(t, 1<<16)
	f, err := mapped.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, os.Truncate(path, 5000))
	require.Error(t, f.CheckSize())
	sum := 0
	err = mapped.Guard(func() error {
		for _, b := range f.Bytes() {
			sum += int(b)
		}
		return nil
	})
	var fault *mapped.FaultError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, path, fault.Path)
	require.Equal(t, int64(8192), fault.Offset)
}

func TestGuardPassesOn(t *testing.T) {
	sentinel := errors.New("mine")
	require.ErrorIs(t, mapped.Guard(func() error { return sentinel }), sentinel)
	require.PanicsWithValue(t, "other", func() { _ = mapped.Guard(func() error { panic("other") }) })
	var nothing *int
	require.Panics(t, func() { _ = mapped.Guard(func() error { *nothing = 1; return nil }) })
}
