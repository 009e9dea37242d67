package numa

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRegion(t *testing.T) {
	for _, size := range []int{0, 1, 5000, hugePage - 1, hugePage, 3*hugePage + 77} {
		var bound []byte
		r, err := newRegion(size, 3, func(data []byte, p Policy, nodes Set) error {
			require.Equal(t, PolicyPreferred, p)
			require.Equal(t, Set{3}, nodes)
			bound = data
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, r.Refused)
		require.GreaterOrEqual(t, len(r.Data), size)
		require.Equal(t, len(r.Data), len(bound))
		require.Zero(t, len(r.Data)%os.Getpagesize())
		if size >= hugePage {
			require.Zero(t, uintptr(unsafe.Pointer(&r.Data[0]))%hugePage)
		}
		for i := 0; i < len(r.Data); i += 1000 {
			require.Zero(t, r.Data[i])
			r.Data[i] = 1
		}
		r.Data[len(r.Data)-1] = 1
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		require.Nil(t, r.Data)
	}
	r, err := NewRegion(100, 900)
	require.NoError(t, err, "a node that is not there is no reason to stop")
	var refused *Refused
	require.ErrorAs(t, r.Refused, &refused)
	r.Data[0] = 1
	require.NoError(t, r.Close())
	_, err = NewRegion(1<<55, 0)
	require.ErrorIs(t, err, unix.ENOMEM)
}
