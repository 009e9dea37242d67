package convert

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLockIsOne: however folders come and go, nobody has one while another has; a lock on a file that was removed is none.
func TestLockIsOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out.work")
	var inside, taken atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 500 {
				lock, err := lockFolder(dir)
				if err != nil {
					if !strings.HasSuffix(err.Error(), "another qtool is at work on this output") {
						t.Error(err)
					}
					continue
				}
				taken.Add(1)
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d have the folder", n)
				}
				w := &work{dir: dir, lock: lock}
				if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o600); err != nil {
					t.Error(err)
				}
				inside.Add(-1)
				w.remove()
				if err := w.close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Greater(t, taken.Load(), int32(8))
	require.NoDirExists(t, dir)
}
