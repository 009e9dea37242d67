package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/kernel"
)

// TestSlivers holds every set against sums in double precision, over odd shapes and strides, and checks that a sum depends neither on
// the number of rows nor on that of columns.
func TestSlivers(t *testing.T) {
	const width = kernel.SliverWidth
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(21, 22))
		for _, rows := range []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 17, 64} {
			for _, cols := range []int{0, 1, 3, 7, 8, 9, 15, 16} {
				for _, n := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 100, 257} {
					aStride, bStride, stride := n+r.IntN(3), n+r.IntN(3), cols+r.IntN(3)
					a, b := randomVector(rows*aStride, r), randomVector(cols*bStride, r)
					sliver := make([]float32, n*width)
					for i := range sliver {
						sliver[i] = float32(math.NaN())
					}
					set.PackSliver(sliver, b, bStride, cols, n)
					for k := range n {
						for j := range width {
							want := float32(0)
							if j < cols {
								want = b[j*bStride+k]
							}
							require.Equal(t, want, sliver[k*width+j], "%s: %d rows of %d, column %d of row %d", set.Name, cols, n, k, j)
						}
					}
					for _, add := range []bool{false, true} {
						out := randomVector(rows*stride, r)
						before := append([]float32(nil), out...)
						set.MulSliver(out, stride, a, aStride, rows, sliver, cols, n, add)
						for i := range rows {
							one := append([]float32(nil), before[i*stride:(i+1)*stride]...)
							set.MulSliver(one, stride, a[i*aStride:], aStride, 1, sliver, cols, n, add)
							for j := range stride {
								at := i*stride + j
								if j >= cols {
									require.Equal(t, before[at], out[at], "%s: beyond the columns", set.Name)
									continue
								}
								want, size := 0.0, 0.0
								if add {
									want, size = float64(before[at]), math.Abs(float64(before[at]))
								}
								for k := range n {
									p := float64(a[i*aStride+k]) * float64(b[j*bStride+k])
									want, size = want+p, size+math.Abs(p)
								}
								require.InDelta(t, want, out[at], 2e-6*size+1e-12, "%s: %d by %d by %d", set.Name, rows, cols, n)
								require.Equal(t, one[j], out[at], "%s: alone", set.Name)
							}
						}
					}
				}
			}
		}
	}
}

// BenchmarkSliver multiplies 96 rows of 256 elements with a sliver.
func BenchmarkSliver(b *testing.B) {
	const rows, n = 96, 256
	r := rand.New(rand.NewPCG(23, 24))
	a, sliver, out := randomVector(rows*n, r), randomVector(n*kernel.SliverWidth, r), make([]float32, rows*kernel.SliverWidth)
	for _, set := range kernel.Available() {
		b.Run(fmt.Sprintf("%s/multiply", set.Name), func(b *testing.B) {
			for b.Loop() {
				set.MulSliver(out, kernel.SliverWidth, a, n, rows, sliver, kernel.SliverWidth, n, true)
			}
			b.ReportMetric(2*rows*n*kernel.SliverWidth*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(fmt.Sprintf("%s/pack", set.Name), func(b *testing.B) {
			for b.Loop() {
				set.PackSliver(sliver, a, n, kernel.SliverWidth, n)
			}
			b.ReportMetric(n*kernel.SliverWidth*float64(b.N)/b.Elapsed().Seconds()/1e9, "G/s")
		})
	}
}
