package linalg

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowsAtOnce(t *testing.T) {
	for cache, want := range map[int]int{-1: 48, 0: 48, 256 << 10: 48, 512 << 10: 96, 1 << 20: 144, 2 << 20: 144} {
		require.Equal(t, want, rowsAtOnce(cache), "%d bytes", cache)
	}
}
