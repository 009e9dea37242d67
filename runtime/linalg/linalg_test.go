package linalg_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

// gram returns X Xᵀ of random vectors with a few directions of large variance, as activations have, and X.
func gram(n, m int, damping float32, r *rand.Rand, s *linalg.Solver) (h, x []float32) {
	x = make([]float32, n*m)
	for p := range m {
		common := r.NormFloat64() * 3
		for i := range n {
			x[i*m+p] = float32(r.NormFloat64() + common*float64(i%5))
		}
	}
	h = make([]float32, n*n)
	s.AddGram(h, n, x, m)
	s.Mirror(h, n)
	for i := range n {
		h[i*n+i] += damping
	}
	return h, x
}

func TestGram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := pool.New(2)
	defer p.Close()
	s := linalg.New(kernel.Available()[len(kernel.Available())-1], p)
	for _, n := range []int{1, 5, 64, 65, 130} {
		for _, m := range []int{1, 7, 512, 700} {
			h, x := gram(n, m, 0, r, s)
			for i := range n {
				for j := range n {
					var want, size float64
					for q := range m {
						v := float64(x[q*n+i]) * float64(x[q*n+j])
						want, size = want+v, size+math.Abs(v)
					}
					require.InDelta(t, want, h[i*n+j], 1e-5*size+1e-9)
				}
			}
		}
	}
}

// TestInverseFactor multiplies back: U H Uᵀ, with H⁻¹ = Uᵀ U, is the identity.
func TestInverseFactor(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, threads := range []int{1, 2} {
		p := pool.New(threads)
		s := linalg.New(kernel.Available()[len(kernel.Available())-1], p)
		for _, n := range []int{1, 2, 63, 64, 65, 172, 300} {
			h, _ := gram(n, 2*n, float32(n)/10, r, s)
			kept := append([]float32(nil), h...)
			ut, err := s.InverseFactor(h, n)
			require.NoError(t, err)
			require.Equal(t, kept, h)
			for b := range n {
				require.Positive(t, ut[b*n+b])
				for a := b + 1; a < n; a++ {
					require.Zero(t, ut[b*n+a])
				}
			}
			for a := range n {
				for b := range n {
					var sum float64 // (U H Uᵀ)[a][b] = Σ U[a][i] H[i][j] U[b][j]
					for i := a; i < n; i++ {
						for j := b; j < n; j++ {
							sum += float64(ut[i*n+a]) * float64(h[i*n+j]) * float64(ut[j*n+b])
						}
					}
					want := 0.0
					if a == b {
						want = 1
					}
					require.InDelta(t, want, sum, 2e-3, "n %d, element %d, %d", n, a, b)
				}
				if n > 100 && a > 20 {
					break
				}
			}
		}
		p.Close()
	}
}

func TestInverseFactorRefuses(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	s := linalg.New(kernel.Generic(), p)
	_, err := s.InverseFactor([]float32{1, 2, 2, 1}, 2)
	require.ErrorIs(t, err, linalg.ErrNotPositiveDefinite)
	_, err = s.InverseFactor(make([]float32, 100*100), 100)
	require.ErrorIs(t, err, linalg.ErrNotPositiveDefinite)
	_, err = s.InverseFactor([]float32{float32(math.NaN())}, 1)
	require.ErrorIs(t, err, linalg.ErrNotPositiveDefinite)
}

// TestThreadsDoNotMatter compares the bits.
func TestThreadsDoNotMatter(t *testing.T) {
	var all [][]float32
	for _, threads := range []int{1, 2, 3} {
		p := pool.New(threads)
		s := linalg.New(kernel.Available()[len(kernel.Available())-1], p)
		h, _ := gram(201, 900, 10, rand.New(rand.NewPCG(5, 6)), s)
		ut, err := s.InverseFactor(h, 201)
		require.NoError(t, err)
		all = append(all, append(h, ut...))
		p.Close()
	}
	require.Equal(t, all[0], all[1])
	require.Equal(t, all[0], all[2])
}

func BenchmarkInverseFactor(b *testing.B) {
	p := pool.New(0)
	defer p.Close()
	s := linalg.New(kernel.Available()[len(kernel.Available())-1], p)
	const n = 1024
	h, _ := gram(n, n, 100, rand.New(rand.NewPCG(7, 8)), s)
	for b.Loop() {
		_, err := s.InverseFactor(h, n)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(n)*n*n/3*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
}
