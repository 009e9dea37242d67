package bench_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/bench"
	"qtool/runtime/llama"
	"qtool/testdata"
)

func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the memory's bandwidth, half a gigabyte at a time")
	}
	var said []string
	r, err := bench.Measure(t.Context(), bench.Options{
		Model: testdata.Path("grammar-lm"), Threads: []int{1, 2}, Prefill: 40, Decode: 5, Depth: []int{7, 70}, Batch: []int{1, 3}, Repeat: 2, KV: llama.KVF16,
		Progress: func(what string) { said = append(said, what) },
	})
	require.NoError(t, err)
	require.Len(t, r.Runs, 10)
	require.Equal(t, []string{"bandwidth, 1 threads", "prefill, 1 threads", "a context of 7, 1 threads", "decode after 7, 1 at a time, 1 threads"}, said[:4])
	require.Equal(t, "f16", r.KV)
	for i, run := range r.Runs {
		require.Equal(t, []string{"prefill", "decode", "decode", "decode", "decode"}[i%5], run.Kind)
		require.Equal(t, []int{40, 5, 5, 5, 5}[i%5], run.Tokens)
		require.Equal(t, []int{0, 7, 7, 70, 70}[i%5], run.Context)
		require.Equal(t, []int{1, 1, 3, 1, 3}[i%5], run.Batch)
		require.Equal(t, 1+i/5, run.Threads)
		require.Equal(t, "off", run.NUMA)
		require.Positive(t, run.PerSec)
		require.GreaterOrEqual(t, run.StdDev, 0.0)
		if run.Kind == "decode" {
			require.Positive(t, run.BusShare)
		}
	}
	require.Positive(t, r.Bandwidth["1"])
	require.Equal(t, []int{1, 2}, r.Threads)
	require.Equal(t, "off", r.NUMA)
	require.Equal(t, int64(825408), r.SizeBytes)

	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = bench.Measure(stopped, bench.Options{Model: testdata.Path("grammar-lm"), Prefill: 4, Repeat: 1})
	require.ErrorIs(t, err, context.Canceled)
	_, err = bench.Measure(t.Context(), bench.Options{Model: "absent"})
	require.Error(t, err)
}
