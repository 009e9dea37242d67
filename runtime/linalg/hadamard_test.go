package linalg

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// matrix gives Q in full.
func matrix(h *Hadamard) [][]float32 {
	q, scratch := make([][]float32, h.Order()), make([]float32, h.Scratch(1))
	for i := range q {
		q[i] = make([]float32, h.Order())
		q[i][i] = 1
		h.MulRows(q[i], 1, scratch)
	}
	return q
}

// TestHadamardOrthogonal: rows are orthonormal and entries flat, for widths of real models and odd ones; the blocks are as large as they can be.
func TestHadamardOrthogonal(t *testing.T) {
	for n, block := range map[int]int{
		1: 1, 2: 2, 3: 1, 8: 8, 10: 2, 12: 12, 14: 2, 24: 24, 28: 28, 36: 36, 48: 48, 56: 56, 64: 64, 92: 4, 100: 20, 104: 104, 128: 128, 172: 4,
		256: 256, 288: 288, 576: 576,
	} {
		h, err := NewHadamard(n, 1)
		require.NoError(t, err)
		require.Equal(t, block, h.Block(), n)
		q := matrix(h)
		worst := 0.0
		for i := range q {
			for j := range i + 1 {
				var sum float64
				for k := range q[i] {
					sum += float64(q[i][k]) * float64(q[j][k])
				}
				want := 0.0
				if i == j {
					want = 1
				}
				worst = max(worst, math.Abs(sum-want))
			}
			for k, v := range q[i] {
				flat := 0.0
				if i/block == k/block {
					flat = 1 / math.Sqrt(float64(block))
				}
				worst = max(worst, math.Abs(math.Abs(float64(v))-flat))
			}
		}
		require.Less(t, worst, 1e-6, "order %d", n)
	}
	_, err := NewHadamard(0, 1)
	require.Error(t, err)
}

// TestHadamardOrders: the widths of the residual streams of common models have one block.
func TestHadamardOrders(t *testing.T) {
	for _, n := range []int{576, 896, 960, 1536, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 6656, 7168, 8192, 12288} {
		h, err := NewHadamard(n, 1)
		require.NoError(t, err)
		require.Equal(t, n, h.Block())
	}
}

// TestHadamardColumns: a matrix is multiplied column by column, to the bit; another seed is another matrix, the same one the same.
func TestHadamardColumns(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{10, 48, 56, 64, 96} {
		const width = 5
		h, err := NewHadamard(n, 7)
		require.NoError(t, err)
		x := make([]float32, n*width)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		got := append([]float32(nil), x...)
		h.MulRows(got, width, make([]float32, h.Scratch(width)))
		for c := range width {
			column := make([]float32, n)
			for i := range column {
				column[i] = x[i*width+c]
			}
			h.MulCols(column, make([]float32, h.Scratch(1)))
			for i, v := range column {
				require.Equal(t, v, got[i*width+c])
			}
		}
		same, err := NewHadamard(n, 7)
		require.NoError(t, err)
		require.Equal(t, h, same)
		other, err := NewHadamard(n, 8)
		require.NoError(t, err)
		require.NotEqual(t, matrix(h), matrix(other))
	}
	// The first outputs of splitmix64 with seed 1234567, as its authors' program prints them.
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423} {
		require.Equal(t, want, splitmix(1234567, uint64(i)))
	}
}

func BenchmarkHadamard(b *testing.B) {
	for _, n := range []int{2560, 4096} {
		b.Run(map[bool]string{true: "paley", false: "sylvester"}[n == 2560], func(b *testing.B) {
			h, err := NewHadamard(n, 1)
			require.NoError(b, err)
			x, scratch := make([]float32, n), make([]float32, h.Scratch(1))
			b.SetBytes(int64(4 * n))
			for b.Loop() {
				h.MulRows(x, 1, scratch)
			}
		})
	}
}
