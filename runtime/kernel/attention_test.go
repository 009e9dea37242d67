package kernel_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/half"
	"qtool/runtime/kernel"
)

// randomElements gives n elements of a type and what they stand for.
func randomElements[T float32 | uint16 | int8](n int, r *rand.Rand) (stored []T, wide []float32) {
	stored, wide = make([]T, n), make([]float32, n)
	for i := range stored {
		switch s := any(stored).(type) {
		case []float32:
			s[i] = float32(r.NormFloat64())
			wide[i] = s[i]
		case []uint16:
			s[i] = half.F32ToF16(float32(r.NormFloat64()) * float32(math.Exp2(float64(r.IntN(8)-20*r.IntN(2)))))
			wide[i] = half.F16ToF32(s[i])
		case []int8:
			s[i] = int8(r.IntN(256) - 128)
			wide[i] = float32(s[i])
		}
	}
	return stored, wide
}

// TestVectors compares the loops of attention with sums in float64, for every number of keys up to 300, and with
// themselves for other numbers of queries.
func TestVectors(t *testing.T) {
	for _, set := range kernel.Available() {
		t.Run(set.Name+"/F32", func(t *testing.T) { testVectors(t, &set.F32) })
		t.Run(set.Name+"/F16", func(t *testing.T) { testVectors(t, &set.F16) })
		t.Run(set.Name+"/I8", func(t *testing.T) { testVectors(t, &set.I8) })
	}
}

func testVectors[T float32 | uint16 | int8](t *testing.T, loops *kernel.Vectors[T]) {
	r := rand.New(rand.NewPCG(31, 32))
	for n := 1; n <= 300; n++ {
		dim := 8 * (1 + n%19)
		if n == 300 {
			dim = 520
		}
		room := (n + 3) &^ 3
		keys, wide := randomElements[T](room*dim, r)
		for _, queries := range []int{1, 4, 8} {
			q, stride := randomVector(queries*dim, r), room+5
			out := make([]float32, queries*stride)
			loops.Scores(out, stride, q, queries, dim, keys, nil, n)
			p, factors := randomVector(queries*stride, r), randomVector(queries, r)
			mixed := randomVector(queries*dim, r)
			before := append([]float32(nil), mixed...)
			loops.Mix(mixed, factors, p, stride, queries, dim, keys, nil, n)
			for j := range queries {
				for i := range n {
					var want, size float64
					for k := range dim {
						x := float64(q[j*dim+k]) * float64(wide[i*dim+k])
						want, size = want+x, size+math.Abs(x)
					}
					if d := math.Abs(want - float64(out[j*stride+i])); d > 2e-6*size {
						require.Failf(t, "scores", "%d keys of %d, key %d, query %d: %g, off by %g", n, dim, i, j, want, d)
					}
				}
				require.Equal(t, make([]float32, 5), out[j*stride+room:j*stride+room+5], "beyond the keys")
				for k := range dim {
					want := float64(factors[j]) * float64(before[j*dim+k])
					size := math.Abs(want)
					for i := range n {
						x := float64(p[j*stride+i]) * float64(wide[i*dim+k])
						want, size = want+x, size+math.Abs(x)
					}
					if d := math.Abs(want - float64(mixed[j*dim+k])); d > 4e-6*size {
						require.Failf(t, "mix", "%d values of %d, element %d, query %d: %g, off by %g", n, dim, k, j, want, d)
					}
				}
				// The same sums for each alone.
				one, sum := make([]float32, room), before[j*dim:(j+1)*dim]
				loops.Scores(one, room, q[j*dim:], 1, dim, keys, nil, n)
				require.Equal(t, one[:n], out[j*stride:j*stride+n])
				loops.Mix(sum, factors[j:], p[j*stride:], stride, 1, dim, keys, nil, n)
				require.Equal(t, sum, mixed[j*dim:(j+1)*dim])
			}
		}
	}
}

// TestAttentionLoopsAgree compares what must be the same in every set bit for bit.
func TestAttentionLoopsAgree(t *testing.T) {
	generic := kernel.Generic()
	for _, set := range kernel.Available()[1:] {
		r := rand.New(rand.NewPCG(33, 34))
		for n := 1; n <= 300; n++ {
			x, y := randomVector(n, r), randomVector(n, r)
			require.Equal(t, generic.Greatest(x), set.Greatest(x))
			x[n-1] = 1e9
			require.Equal(t, float32(1e9), set.Greatest(x))
			a, b := append([]float32(nil), x...), append([]float32(nil), x...)
			generic.Multiply(a, y)
			set.Multiply(b, y)
			require.Equal(t, a, b)
			for i := range x {
				x[i] *= float32(math.Exp2(float64(r.IntN(40) - 30)))
			}
			u, v := make([]uint16, n), make([]uint16, n)
			generic.EncodeF16(u, x)
			set.EncodeF16(v, x)
			require.Equal(t, u, v)
		}
	}
}

func BenchmarkVectors(b *testing.B) {
	for _, set := range kernel.Available() {
		b.Run(set.Name+"/F32", func(b *testing.B) { benchmarkVectors(b, &set.F32) })
		b.Run(set.Name+"/F16", func(b *testing.B) { benchmarkVectors(b, &set.F16) })
		b.Run(set.Name+"/I8", func(b *testing.B) { benchmarkVectors(b, &set.I8) })
	}
}

func benchmarkVectors[T float32 | uint16 | int8](b *testing.B, loops *kernel.Vectors[T]) {
	const dim, n = 128, 64
	r := rand.New(rand.NewPCG(1, 2))
	keys, _ := randomElements[T](n*dim, r)
	for _, queries := range []int{1, 4, 32} {
		q, out, factors := randomVector(queries*dim, r), make([]float32, queries*n), randomVector(queries, r)
		rate := func(b *testing.B) {
			b.ReportMetric(float64(queries*n*dim)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
		}
		name := map[int]string{1: "Q=1", 4: "Q=4", 32: "Q=32"}[queries]
		b.Run("scores/"+name, func(b *testing.B) {
			for b.Loop() {
				loops.Scores(out, n, q, queries, dim, keys, nil, n)
			}
			rate(b)
		})
		clear(factors)
		b.Run("mix/"+name, func(b *testing.B) {
			for b.Loop() {
				loops.Mix(q, factors, out, n, queries, dim, keys, nil, n)
			}
			rate(b)
		})
	}
}
