//go:build amd64 && !noasm

package kernel_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"qtool/formats"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// atPageEnd copies data to memory that ends where none may be read.
func atPageEnd[T any](t *testing.T, data []T) []T {
	t.Helper()
	var zero T
	size := len(data) * int(unsafe.Sizeof(zero))
	page := os.Getpagesize()
	pages := (size + page - 1) / page
	m, err := unix.Mmap(-1, 0, (pages+1)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[pages*page:], unix.PROT_NONE))
	if len(data) == 0 {
		return nil
	}
	out := unsafe.Slice((*T)(unsafe.Pointer(&m[pages*page-size])), len(data))
	copy(out, data)
	return out
}

// TestLoopsStayWithinTheirBuffers lets every buffer end at a page that must not be touched, for all sizes up
// to 300, and checks the exact products of the largest codes.
func TestLoopsStayWithinTheirBuffers(t *testing.T) {
	for _, set := range kernel.Available() {
		// Each level gives its memory back: for all of them the system would not have enough mappings.
		t.Run(set.Name, func(t *testing.T) { testLoopsStayWithinTheirBuffers(t, set) })
	}
}

func testLoopsStayWithinTheirBuffers(t *testing.T, set *kernel.Set) {
	t.Helper()
	r := rand.New(rand.NewPCG(21, 22))
	for cols := 1; cols <= 300; cols += 1 + cols/40 {
		for _, s := range []packed.Scheme{{Bits: 4, Group: 64}, {Bits: 8, Group: 32, Asym: true}, {Bits: 8, Group: 128}, {Bits: 4, Group: 32, Asym: true},
			{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 3, Group: 32, TwoLevel: true}} {
			const rows = 19
			tokens := []int{6, 13}[cols%2]
			m := randomMatrix(t, s, rows, cols, r, true)
			// The padding at the end of a matrix may be read: cut it off.
			n := m.PanelCount() * s.PanelBytes(cols)
			if s.Codebook {
				n += 64
			}
			m.Data = atPageEnd(t, m.Data[:n])
			var a kernel.Activations
			a.Resize(tokens, cols)
			a.Q, a.Scale, a.Sum = atPageEnd(t, a.Q), atPageEnd(t, a.Scale), atPageEnd(t, a.Sum)
			for i := range tokens {
				x := make([]float32, cols)
				for k := range x {
					x[k] = float32(2*r.IntN(2) - 1) // codes of ±127
				}
				set.Quantize(&a, i, atPageEnd(t, x))
			}
			halve(set, s, &a)
			a.Halves = atPageEnd(t, a.Halves)
			for i := range set.Tile(&a, set.Tiled(s)) {
				set.Arrange(&a, i)
			}
			out := atPageEnd(t, make([]float32, tokens*rows))
			set.MulPanels(out, rows, m, 0, m.PanelCount(), &a, 0, tokens)
			if s.Bits == 8 && set.FineScratch(1, 1) == 0 {
				var f kernel.Fine
				set.ResizeFine(&f, tokens, cols)
				f.Q, f.Scale, f.Sum = atPageEnd(t, f.Q), atPageEnd(t, f.Scale), atPageEnd(t, f.Sum)
				for i := range tokens {
					set.QuantizeFine(&f, i, atPageEnd(t, randomVector(cols, r)), nil)
				}
				for i := range set.TileFine(&f, set.TiledFine(s)) {
					set.ArrangeFine(&f, i)
				}
				set.MulPanelsFine(atPageEnd(t, make([]float32, tokens*rows)), rows, m, 0, m.PanelCount(), &f, 0, tokens, nil)
			}
			codes := packed.NewCodes(s, cols)
			w := make([]float32, cols)
			for row := range rows {
				m.DequantizeRow(w, row, codes)
				for i := range tokens {
					var want, size float64
					for k, v := range w {
						at := i*a.Blocks*packed.Block + k
						p := float64(v) * float64(a.Q[at]) * float64(a.Scale[at/packed.Block])
						want, size = want+p, size+max(p, -p)
					}
					require.InDelta(t, want, out[i*rows+row], 1e-5*size+1e-9, "%s %s %d columns, token %d, row %d", set.Name, s, cols, i, row)
				}
			}
		}
		x, y := atPageEnd(t, randomVector(3*cols, r)), atPageEnd(t, randomVector(7*cols, r))
		out := atPageEnd(t, make([]float32, 3*7))
		sliver := atPageEnd(t, make([]float32, cols*kernel.SliverWidth))
		set.PackSliver(sliver, y, cols, 7, cols)
		set.MulSliver(out, 7, x, cols, 3, sliver, 7, cols, false)
		rows := atPageEnd(t, randomVector(kernel.SliverWidth*cols, r))
		set.PackSliver(sliver, rows, cols, kernel.SliverWidth, cols)
		set.MulSliver(atPageEnd(t, make([]float32, 3*kernel.SliverWidth)), kernel.SliverWidth, x, cols, 3, sliver, kernel.SliverWidth, cols, true)
		set.Axpy(0.5, x[2*cols:], y[6*cols:])
	}
}

// TestSliversStayWithinTheirBuffers is the same for the loops of plain products, over odd numbers of rows and columns, with rows apart and not; what
// the portable loops give of other memory is what they must give.
func TestSliversStayWithinTheirBuffers(t *testing.T) {
	const width = kernel.SliverWidth
	generic := kernel.Generic()
	for _, set := range kernel.Available() {
		t.Run(set.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(29, 30))
			for _, rows := range []int{1, 7, 16, 17, 64} {
				for _, n := range []int{1, 8, 15, 17, 64} {
					apart := r.IntN(2) * 3
					stride, toStride := n+apart, rows+apart
					b := randomVector((rows-1)*stride+n, r)
					want := make([]float32, (n-1)*toStride+rows)
					generic.Transpose(want, toStride, b, stride, rows, n)
					got := atPageEnd(t, make([]float32, len(want)))
					set.Transpose(got, toStride, atPageEnd(t, b), stride, rows, n)
					require.Equal(t, want, got, "%s: %d by %d", set.Name, rows, n)

					// Columns of what was turned: as many as a sliver takes.
					cols := min(rows, width)
					turned := got[:(n-1)*toStride+cols]
					sliver, columns := make([]float32, n*width), atPageEnd(t, make([]float32, n*width))
					generic.PackColumns(sliver, turned, toStride, cols, n)
					set.PackColumns(columns, atPageEnd(t, turned), toStride, cols, n)
					require.Equal(t, sliver, columns, "%s: %d columns of %d", set.Name, cols, n)

					for _, add := range []bool{false, true} {
						outStride := cols + apart
						before := randomVector((rows-1)*outStride+cols, r)
						want, got := append([]float32(nil), before...), atPageEnd(t, before)
						generic.MulSliver(want, outStride, b, stride, rows, sliver, cols, n, add)
						set.MulSliver(got, outStride, atPageEnd(t, b), stride, rows, columns, cols, n, add)
						require.InDeltaSlice(t, want, got, 1e-4, "%s: %d rows of %d, %d columns", set.Name, rows, n, cols)
					}
				}
			}
		})
	}
}

// TestStoredRowsStayWithinTheirBuffers is the same for rows as they are stored, each of which ends at a page of its own.
func TestStoredRowsStayWithinTheirBuffers(t *testing.T) {
	const width = kernel.SliverWidth
	generic := kernel.Generic()
	for _, set := range kernel.Available() {
		t.Run(set.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(31, 32))
			for dtype, size := range map[formats.DType]int{formats.F32: 4, formats.F16: 2, formats.BF16: 2} {
				for _, n := range []int{8, 24, 64, 72} {
					for _, from := range []int{0, 17} {
						var rows [width][]byte
						for i := range rows {
							stored := make([]byte, size*(from+n))
							switch v := randomVector(from+n, r); dtype {
							case formats.F32:
								half.EncodeF32(stored, v)
							case formats.F16:
								half.EncodeF16(stored, v)
							default:
								half.EncodeBF16(stored, v)
							}
							rows[i] = atPageEnd(t, stored)
						}
						x := atPageEnd(t, randomVector(n, r))
						for _, add := range []bool{false, true} {
							before := randomVector(width, r)
							want, got := append([]float32(nil), before...), atPageEnd(t, before)
							require.True(t, generic.MulRows(want, dtype, &rows, from, x, add))
							require.True(t, set.MulRows(got, dtype, &rows, from, x, add))
							require.InDeltaSlice(t, want, got, 1e-4, "%s: %s, %d columns from %d on", set.Name, dtype, n, from)
						}
					}
				}
			}
		})
	}
}

// TestTablesStayWithinTheirBuffers is the same for the loop that looks levels up, with weights at both ends of the table and beyond.
func TestTablesStayWithinTheirBuffers(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	levels := make([]float32, len(kernel.LevelTable{}))
	for i := range levels {
		levels[i] = float32(i/40 - 12)
	}
	table := (*kernel.LevelTable)(atPageEnd(t, levels))
	for _, set := range kernel.Available() {
		for _, n := range []int{1, 7, 8, 9, 17, 64, 65} {
			w, a := randomVector(n, r), randomVector(n, r)
			w[0], w[n-1] = -1e6, 1e6
			w, a = atPageEnd(t, w), atPageEnd(t, a)
			for _, inverse := range []float32{3, -3, float32(math.Inf(1))} {
				l1, l2 := kernel.Generic().FitTable(w, a, inverse, table)
				m1, m2 := set.FitTable(w, a, inverse, table)
				require.Equal(t, [2]float32{l1, l2}, [2]float32{m1, m2}, "%s: %d", set.Name, n)
			}
		}
	}
}

// TestAttentionStaysWithinItsBuffers is the same for the loops of attention.
func TestAttentionStaysWithinItsBuffers(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, set := range kernel.Available() {
		for n := 1; n <= 300; n += 1 + n/20 {
			dim := 8 * (1 + n%13)
			edges(t, &set.F32, n, dim, r)
			edges(t, &set.F16, n, dim, r)
			edges(t, &set.I8, n, dim, r)
			x, y := atPageEnd(t, randomVector(n, r)), atPageEnd(t, randomVector(n, r))
			set.Multiply(x, y)
			set.SiLU(atPageEnd(t, make([]float32, n)), x, y)
			set.Greatest(x)
			set.EncodeF16(atPageEnd(t, make([]uint16, n)), x)
		}
	}
}

func edges[T float32 | uint16 | int8](t *testing.T, loops *kernel.Vectors[T], n, dim int, r *rand.Rand) {
	t.Helper()
	room := (n + 3) &^ 3
	keys, _ := randomElements[T](room*dim, r)
	keys = atPageEnd(t, keys)
	values := atPageEnd(t, keys[:n*dim])
	for _, queries := range []int{1, 8} {
		q, out := atPageEnd(t, randomVector(queries*dim, r)), atPageEnd(t, make([]float32, queries*room))
		loops.Scores(out, room, q, queries, dim, keys, keys[len(keys)-1:], n)
		p := atPageEnd(t, out[:(queries-1)*room+n])
		loops.Mix(q, atPageEnd(t, make([]float32, queries)), p, room, queries, dim, values, keys, n)
	}
}

// TestForeignLoopsStayWithinTheirBuffers is the same for matrices of other programs' types; scales are of 0.9.
func TestForeignLoopsStayWithinTheirBuffers(t *testing.T) {
	for _, l := range []kernel.Layout{kernel.Super4, kernel.Super5, kernel.Super6, kernel.Offset4, kernel.Offset5} {
		for _, rows := range []int{1, 8, 9, 19, 24} {
			for _, cols := range []int{32, 96, 256, 768} {
				if l.Super() && cols%256 != 0 {
					continue
				}
				data := make([]byte, (rows+7)/8*l.PanelBytes(cols))
				for i := range data {
					data[i] = 0x3b // halves of 0.9
				}
				m, err := kernel.NewForeign(l, rows, cols, atPageEnd(t, data))
				require.NoError(t, err)
				var want []float32
				for _, set := range kernel.Available() {
					const tokens = 6
					var a kernel.Activations
					a.Resize(tokens, cols)
					a.ResizeHalves()
					a.Q, a.Scale, a.Sum, a.Halves = atPageEnd(t, a.Q), atPageEnd(t, a.Scale), atPageEnd(t, a.Sum), atPageEnd(t, a.Halves)
					for i := range tokens {
						set.Quantize(&a, i, randomVector(cols, rand.New(rand.NewPCG(25, uint64(i)))))
						set.Halve(&a, i)
					}
					out := atPageEnd(t, make([]float32, tokens*rows))
					set.MulForeign(out, rows, m, 0, m.PanelCount(), &a, 0, tokens)
					if want == nil {
						want = out
					}
					for i := range out {
						require.InDelta(t, want[i], out[i], 0.01+1e-4*math.Abs(float64(want[i])), "%s, layout %d, %d × %d", set.Name, l, rows, cols)
					}
				}
			}
		}
	}
	for _, bad := range [][2]int{{32, 1}, {256, 1}} {
		_, err := kernel.NewForeign(kernel.Super4, 8, bad[0], make([]byte, bad[1]))
		require.Error(t, err)
	}
}
