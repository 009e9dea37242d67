package linalg_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

func normal(n int, r *rand.Rand) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// TestAddProduct compares with double precision, with every set of loops; threads change no bit.
func TestAddProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, set := range kernel.Available() {
		for _, shape := range [][3]int{{1, 1, 1}, {3, 70, 5}, {65, 64, 512}, {130, 7, 600}} {
			rows, cols, m := shape[0], shape[1], shape[2]
			x, y, start := normal(rows*m, r), normal(cols*m, r), normal(rows*cols, r)
			var first []float32
			for _, threads := range []int{1, 3} {
				p := pool.New(threads)
				h := append([]float32(nil), start...)
				linalg.New(set, p).AddProduct(h, x, rows, y, cols, m)
				p.Close()
				if first == nil {
					first = h
				}
				require.Equal(t, first, h)
			}
			for i := range rows {
				for j := range cols {
					want, size := float64(start[i*cols+j]), 1.0
					for q := range m {
						v := float64(x[q*rows+i]) * float64(y[q*cols+j])
						want, size = want+v, size+math.Abs(v)
					}
					require.InDelta(t, want, first[i*cols+j], 1e-6*size)
				}
			}
		}
	}
}

// TestMulTriangle compares with double precision. What lies above the diagonal is not read.
func TestMulTriangle(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for _, set := range kernel.Available() {
		for _, shape := range [][2]int{{0, 5}, {1, 1}, {5, 63}, {300, 65}, {17, 200}} {
			rows, n := shape[0], shape[1]
			x, l := normal(rows*n, r), normal(n*n, r)
			for i := range n {
				for j := i + 1; j < n; j++ {
					l[i*n+j] = float32(math.NaN())
				}
			}
			for _, transposed := range []bool{false, true} {
				var first []float32
				for _, threads := range []int{1, 3} {
					p := pool.New(threads)
					dst := make([]float32, rows*n)
					linalg.New(set, p).MulTriangle(dst, x, rows, l, n, transposed)
					p.Close()
					if first == nil {
						first = dst
					}
					require.Equal(t, first, dst)
				}
				for i := range rows {
					for j := range n {
						want, size := 0.0, 1.0
						for q := range n {
							a, b := q, j
							if transposed {
								a, b = j, q
							}
							if b > a {
								continue
							}
							v := float64(x[i*n+q]) * float64(l[a*n+b])
							want, size = want+v, size+math.Abs(v)
						}
						require.InDelta(t, want, first[i*n+j], 1e-6*size)
					}
				}
			}
		}
	}
}

// BenchmarkAddProduct multiplies 2048 × n by n × 1024: what OpenBLAS is held against.
func BenchmarkAddProduct(b *testing.B) {
	const rows, cols = 2048, 1024
	r := rand.New(rand.NewPCG(15, 16))
	for _, c := range []struct{ n, threads int }{{512, 1}, {512, 2}, {1024, 1}, {1024, 2}} {
		n, threads := c.n, c.threads
		x, y, h := normal(rows*n, r), normal(cols*n, r), make([]float32, rows*cols)
		b.Run(fmt.Sprintf("n=%d/threads=%d", n, threads), func(b *testing.B) {
			p := pool.New(threads)
			defer p.Close()
			set, err := kernel.Best()
			require.NoError(b, err)
			s := linalg.New(set, p)
			best := time.Hour // neighbours on the machine make others slower
			for b.Loop() {
				start := time.Now()
				s.AddProduct(h, x, rows, y, cols, n)
				best = min(best, time.Since(start))
			}
			work := 2 * rows * cols * float64(n) / 1e9
			b.ReportMetric(work*float64(b.N)/b.Elapsed().Seconds(), "GFLOP/s")
			b.ReportMetric(work/best.Seconds(), "GFLOP/s-best")
		})
	}
}
