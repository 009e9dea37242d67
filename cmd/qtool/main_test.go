package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMessage: an interrupted job says whether the same command goes on.
func TestMessage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := fmt.Errorf("write x.qpk: %w", context.Canceled)
	require.Equal(t, err, resumable(ctx, err), "not interrupted")
	require.Equal(t, "write x.qpk: context canceled", message(ctx, err))
	cancel()
	require.Equal(t, "interrupted", message(ctx, err))
	require.Equal(t, "interrupted; the same command goes on from here", message(ctx, resumable(ctx, err)))
	full := errors.New("write x.qpk: no space left on device")
	require.Equal(t, "write x.qpk: no space left on device; the same command goes on from here", message(ctx, resumable(ctx, full)))
	require.Equal(t, exitFailed, exitStatus(resumable(ctx, err)))
}

// TestPrintCalibrate counts blocks as a person does.
func TestPrintCalibrate(t *testing.T) {
	for n, want := range map[int]string{1: "  1 block was finished by an earlier run\n", 2: "  2 blocks were finished by an earlier run\n"} {
		var out bytes.Buffer
		printCalibrate(&out, &calibrateReport{Resumed: n})
		require.Contains(t, out.String(), want)
	}
}
