package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimeLeft: what an earlier run had done says nothing of how fast this one is.
func TestTimeLeft(t *testing.T) {
	fresh := &progress{total: 100}
	require.Empty(t, fresh.left(0, time.Minute))
	require.Empty(t, fresh.left(50, time.Millisecond))
	require.Equal(t, "about 1m0s left", fresh.left(50, time.Minute))
	require.Empty(t, fresh.left(100, time.Minute))
	resumed := &progress{total: 100, base: 40}
	require.Empty(t, resumed.left(40, time.Minute))
	require.Equal(t, "about 5m0s left", resumed.left(50, time.Minute))

}
