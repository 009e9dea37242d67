package calibrate_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
)

// TestStates: in memory and in a file they hold the same, to the bit, and the file has no name.
func TestStates(t *testing.T) {
	const n, size = 7, 33
	for _, c := range []struct {
		limit   int64
		spilled bool
	}{{0, false}, {4 * n * size, false}, {4*n*size - 1, true}, {1, true}} {
		dir := t.TempDir()
		s, err := calibrate.NewStates(n, size, c.limit, dir)
		require.NoError(t, err)
		require.Equal(t, c.spilled, s.Spilled(), "limit %d", c.limit)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		require.Equal(t, c.spilled, openIn(t, dir), "limit %d: a file of this process without a name", c.limit)
		x, err := s.Get(3)
		require.NoError(t, err)
		require.Equal(t, make([]float32, size), x, "zeros at first")
		want := make([][]float32, n)
		for _, i := range []int{3, 0, 6, 1, 2, 5, 4, 3} { // in any order, one of them twice
			want[i] = make([]float32, size)
			for k := range size {
				want[i][k] = math.Float32frombits(uint32(i*7919+k*104729+len(want[i])) * 2654435761)
			}
			require.NoError(t, s.Put(i, append(want[i], 1, 2, 3)), "of what is longer the beginning counts")
		}
		for round := range 2 {
			for i := range n {
				x, err := s.Get(i)
				require.NoError(t, err)
				require.Equal(t, bits(want[i]), bits(x), "sequence %d, round %d", i, round)
				clear(x) // to be changed at will
			}
		}
		for i := range n { // what a block does
			x, err := s.Get(i)
			require.NoError(t, err)
			x[i] = float32(i)
			require.NoError(t, s.Put(i, x))
			want[i][i] = float32(i)
		}
		for i := range n {
			x, err := s.Get(i)
			require.NoError(t, err)
			require.Equal(t, bits(want[i]), bits(x))
		}
		require.NoError(t, s.Close())
		require.False(t, openIn(t, dir), "the room is given back")
	}
}

func TestStatesRefuses(t *testing.T) {
	_, err := calibrate.NewStates(3, 10, 1, filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "hidden states")
	s, err := calibrate.NewStates(3, 10, 1, t.TempDir())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = s.Get(0)
	require.ErrorContains(t, err, "read hidden states")
	require.ErrorContains(t, s.Put(0, make([]float32, 10)), "write hidden states")
}

func bits(x []float32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = math.Float32bits(v)
	}
	return out
}

// openIn reports whether this process has a file of the folder open whose name is gone.
func openIn(t *testing.T, dir string) bool {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("open files cannot be listed: %v", err)
	}
	for _, f := range files {
		to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%s", f.Name()))
		if err == nil && strings.HasPrefix(to, dir+"/") {
			require.True(t, strings.HasSuffix(to, " (deleted)"), to)
			return true
		}
	}
	return false
}
