package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/half"
	"qtool/runtime/kernel"
)

// TestSlivers holds every set against sums in double precision, over odd shapes and strides, and checks that a sum depends neither on
// the number of rows nor on that of columns.
func TestSlivers(t *testing.T) {
	const width = kernel.SliverWidth
	for _, set := range kernel.Available() {
		t.Run(set.Name, func(t *testing.T) {
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
		})
	}
}

// TestTranspose checks every element, and that none beyond is written; and slivers of columns against those of rows.
func TestTranspose(t *testing.T) {
	for _, set := range kernel.Available() {
		t.Run(set.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(27, 28))
			for _, rows := range []int{0, 1, 7, 8, 9, 16, 17, 48} {
				for _, n := range []int{0, 1, 7, 8, 9, 16, 31, 100} {
					stride, toStride := n+r.IntN(3), rows+r.IntN(3)
					b, to := randomVector(rows*stride, r), make([]float32, n*toStride)
					set.Transpose(to, toStride, b, stride, rows, n)
					for k := range n {
						for j := range toStride {
							want := float32(0)
							if j < rows {
								want = b[j*stride+k]
							}
							require.Equal(t, want, to[k*toStride+j], "%s: %d by %d", set.Name, rows, n)
						}
					}
					const width = kernel.SliverWidth
					got := make([]float32, (rows+width-1)/width*n*width)
					for i := range got {
						got[i] = float32(math.NaN())
					}
					set.PackColumns(got, to, toStride, rows, n)
					for j := 0; j < rows; j += width {
						want := make([]float32, n*width)
						set.PackSliver(want, b[j*stride:], stride, min(width, rows-j), n)
						require.Equal(t, want, got[j*n:j*n+n*width], "%d columns of %d rows, from %d on", rows, n, j)
					}
				}
			}
		})
	}
}

// TestMulRows holds products with rows as they are stored against slivers of what they decode to, bit for bit.
func TestMulRows(t *testing.T) {
	const width = kernel.SliverWidth
	encode := map[formats.DType]func(values []float32) []byte{
		formats.F32: func(v []float32) []byte { b := make([]byte, 4*len(v)); half.EncodeF32(b, v); return b },
		formats.F16: func(v []float32) []byte { b := make([]byte, 2*len(v)); half.EncodeF16(b, v); return b },
		formats.BF16: func(v []float32) []byte {
			b := make([]byte, 2*len(v))
			half.EncodeBF16(b, v)
			half.DecodeBF16(v, b)
			return b
		},
	}
	for _, set := range kernel.Available() {
		t.Run(set.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(25, 26))
			for dtype, encode := range encode {
				for _, n := range []int{8, 16, 24, 40, 256, 512} {
					from := r.IntN(20)
					values := randomVector(width*(from+n), r)
					var rows [width][]byte
					for i := range rows {
						row := values[i*(from+n) : (i+1)*(from+n)]
						rows[i] = encode(row)
						switch dtype {
						case formats.F16:
							half.DecodeF16(row, rows[i])
						case formats.BF16:
							half.DecodeBF16(row, rows[i])
						}
					}
					sliver, x := make([]float32, n*width), randomVector(n, r)
					set.PackSliver(sliver, values[from:], from+n, width, n)
					for _, add := range []bool{false, true} {
						want := randomVector(width, r)
						got := append([]float32(nil), want...)
						set.MulSliver(want, width, x, n, 1, sliver, width, n, add)
						require.True(t, set.MulRows(got, dtype, &rows, from, x, add))
						require.Equal(t, want, got, "%s: %s, %d columns", set.Name, dtype, n)
					}
					require.False(t, set.MulRows(make([]float32, width), dtype, &rows, from, x[:n-1], false), "no multiple of eight")
					require.False(t, set.MulRows(make([]float32, width), formats.F64, &rows, from, x, false), "a type that has no loop")
				}
			}
		})
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

// TestMulSlivers: several slivers at once give the bits of one after the other, and nothing else is written.
func TestMulSlivers(t *testing.T) {
	const width = kernel.SliverWidth
	r := rand.New(rand.NewPCG(71, 72))
	for _, set := range kernel.Available() {
		for _, cols := range []int{1, width, width + 1, 2 * width, 2*width + 3, 5 * width} {
			for _, rows := range []int{0, 1, 2, 11, 12, 13, 24, 31} {
				for _, n := range []int{0, 1, 3, 4, 5, 17} {
					slivers, stride := (cols+width-1)/width, cols+2
					sliverStride := n*width + 5
					a, b := randomVector(rows*n, r), randomVector(slivers*sliverStride, r)
					for _, add := range []bool{false, true} {
						got := randomVector(rows*stride+1, r)
						want := slices.Clone(got)
						set.MulSlivers(got, stride, a, n, rows, b, sliverStride, cols, n, add)
						for j := 0; rows > 0 && j < cols; j += width {
							set.MulSliver(want[j:], stride, a, n, rows, b[j/width*sliverStride:], min(width, cols-j), n, add)
						}
						require.Equal(t, want, got, "%s: %d by %d by %d, add %v", set.Name, rows, cols, n, add)
					}
				}
			}
		}
	}
}
