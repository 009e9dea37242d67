package convert

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"qtool/formats/checkpoint"
	"qtool/testdata"
)

// TestHashSourceSeesAReplacedContent: a source of the same size whose time of modification was put back is another one.
func TestHashSourceSeesAReplacedContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	require.NoError(t, os.CopyFS(path, os.DirFS(testdata.Path("grammar-lm"))))
	key := func() any {
		m, err := checkpoint.Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close()) }()
		h := xxh3.New()
		require.NoError(t, hashSource(h, m))
		return h.Sum128()
	}
	before := key()
	require.Equal(t, before, key())

	time.Sleep(20 * time.Millisecond) // the clock of inodes has ticks
	weights := filepath.Join(path, "model.safetensors")
	info, err := os.Stat(weights)
	require.NoError(t, err)
	f, err := os.OpenFile(weights, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0, 0, 0, 0}, info.Size()-4)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(weights, time.Time{}, info.ModTime()))
	require.NotEqual(t, before, key())
}
