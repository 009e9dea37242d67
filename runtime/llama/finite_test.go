package llama_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// TestNotFinite: NaN and infinities are an error, in logits, and before they are rounded to integers, which would hide them.
func TestNotFinite(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("arch", "llama"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	e, err := llama.New(m, llama.Options{Threads: 2})
	require.NoError(t, err)
	defer e.Close()
	b, name := e.Blocks(), "model.layers.1.self_attn.q_proj.weight"
	run := func() error {
		return e.NewSession(8).Forward([]int32{1, 2, 3}, 0, func(int, []float32) error { return nil })
	}
	require.NoError(t, run())
	norm := b.NormBefore(1, llama.AttentionHalf)
	factors := make([]float32, e.Config().Hidden)
	for i := range factors {
		factors[i] = 1
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		factors[5] = float32(bad)
		require.NoError(t, b.SetNorm(norm, factors))
		err = run()
		require.ErrorIs(t, err, llama.ErrNotFinite)
		require.ErrorContains(t, err, "logits")
	}
	for _, bits := range []int{4, 8} {
		s := packed.Scheme{Bits: bits, Group: 32}
		q, ok := m.Tensor(name)
		require.True(t, ok)
		x, err := packed.NewMatrix(s, q.Rows(), q.Cols(), make([]byte, s.Bytes(q.Rows(), q.Cols())))
		require.NoError(t, err)
		require.NoError(t, b.Replace(name, x))
		err = run()
		require.ErrorIs(t, err, llama.ErrNotFinite)
		require.ErrorContains(t, err, "inputs of "+name)
	}
}
