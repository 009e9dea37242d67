package repack_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/ggml"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/repack"
)

// places of the half-precision numbers in a block of each type.
var places = map[ggml.Type][]int{
	ggml.Q4_0: {0}, ggml.IQ4_NL: {0}, ggml.IQ4_XS: {0}, ggml.Q3_K: {108}, ggml.Q8_0: {0}, ggml.Q4_1: {0, 2},
	ggml.Q5_0: {0}, ggml.Q5_1: {0, 2}, ggml.Q4_K: {0, 2}, ggml.Q5_K: {0, 2}, ggml.Q6_K: {208},
}

// kind is what a test draws.
type kind int

const (
	anything kind = iota
	integers      // scales of ±1, activations that are integers, most of them small
	largest       // the largest codes and activations, where sums may saturate
)

// blocks makes rows of random codes and scales; every bit pattern of codes occurs.
func blocks(t *testing.T, typ ggml.Type, rows, cols int, r *rand.Rand, k kind) []byte {
	t.Helper()
	size, err := typ.RowBytes(cols)
	require.NoError(t, err)
	data := make([]byte, rows*size)
	for i := range data {
		data[i] = byte(r.Uint32())
		if k == largest {
			data[i] = 0xff
		}
	}
	for at := 0; at < len(data); at += typ.BlockBytes() {
		for _, p := range places[typ] {
			v := float32(r.NormFloat64()) / 16
			if k != anything {
				v = float32(2*r.IntN(2) - 1)
			}
			binary.LittleEndian.PutUint16(data[at+p:], half.F32ToF16(v))
		}
	}
	return data
}

// begin takes memory for a matrix, in which nothing is zero.
func begin(t testing.TB, typ ggml.Type, rows, cols int) *repack.Matrix {
	t.Helper()
	f, ok := repack.Of(typ, cols)
	require.True(t, ok)
	data := make([]byte, f.Bytes(rows, cols))
	for i := range data {
		data[i] = 0xa5
	}
	m, err := repack.New(f, rows, cols, data)
	require.NoError(t, err)
	return m
}

// repacked packs all panels.
func repacked(t *testing.T, typ ggml.Type, rows, cols int, data []byte) *repack.Matrix {
	t.Helper()
	m := begin(t, typ, rows, cols)
	size := len(data) / rows
	var s repack.Scratch
	for i := range m.PanelCount() {
		require.True(t, m.Pack(i, func(r int) []byte { return data[r*size : (r+1)*size] }, &s))
	}
	return m
}

// multiply is the product of the whole matrix, panels by fives.
func multiply(t *testing.T, set *kernel.Set, m *repack.Matrix, rows int, a *kernel.Activations, tokens int) []float32 {
	t.Helper()
	out := make([]float32, tokens*rows)
	for p := 0; p < m.PanelCount(); p += 5 {
		n := min(5, m.PanelCount()-p)
		if m.Form.IsPacked() {
			w, err := m.Packed()
			require.NoError(t, err)
			set.MulPanels(out[p*packed.Panel:], rows, w, p, n, a, 0, tokens)
		} else {
			w, err := m.Foreign()
			require.NoError(t, err)
			set.MulForeign(out[p*packed.Panel:], rows, w, p, n, a, 0, tokens)
		}
	}
	return out
}

// TestProducts compares products with those of decoded weights: nearly for any scales, and exactly, in all sets, where scales are ±1 and activations
// integers, so that every sum is one.
func TestProducts(t *testing.T) {
	exact := make(map[ggml.Type]int)
	for typ := range places {
		for _, shape := range [][2]int{{1, 1}, {7, 2}, {8, 1}, {19, 3}, {40, 2}, {45, 1}} {
			for _, kind := range []kind{anything, integers, largest} {
				r := rand.New(rand.NewPCG(uint64(typ), uint64(shape[0])))
				rows, cols := shape[0], shape[1]*typ.BlockSize()
				if typ.BlockSize() == 32 && shape[0] > 8 {
					cols *= 3 // odd numbers of blocks
				}
				data := blocks(t, typ, rows, cols, r, kind)
				w := make([]float32, rows*cols)
				require.NoError(t, ggml.DequantizeRows(w, data, cols, typ))
				m := repacked(t, typ, rows, cols, data)
				for _, set := range kernel.Available() {
					for _, tokens := range []int{1, 3, 4, 5, 9} {
						var a kernel.Activations
						a.Resize(tokens, cols)
						a.ResizeHalves()
						for i := range tokens {
							x := make([]float32, cols)
							for k := range x {
								switch {
								case kind == anything:
									x[k] = float32(r.NormFloat64())
								case kind == largest || k%packed.Block == 0:
									x[k] = float32(254*r.IntN(2) - 127)
								default:
									x[k] = float32(r.IntN(5) - 2)
								}
								if kind == largest && k/16%2 == 0 {
									x[k] = 127
								}
							}
							set.Quantize(&a, i, x)
							set.Halve(&a, i)
						}
						out := multiply(t, set, m, rows, &a, tokens)
						for i := range tokens {
							for row := range rows {
								var want, size float64
								for k := range cols {
									at := i*a.Blocks*packed.Block + k
									p := float64(w[row*cols+k]) * float64(a.Q[at]) * float64(a.Scale[at/packed.Block])
									want, size = want+p, size+math.Abs(p)
								}
								got := float64(out[i*rows+row])
								// Terms of a block are as large as code and offset are apart.
								require.InDelta(t, want, got, 1e-5*size+1e-6, "%s %s %v token %d row %d", set.Name, typ, shape, i, row)
								if kind != anything && size < 1<<22 {
									exact[typ]++
									require.Equal(t, want, got, "%s %s %v token %d row %d", set.Name, typ, shape, i, row)
								}
							}
						}
					}
				}
			}
		}
		require.Positive(t, exact[typ], typ)
	}
}

// TestPackedWeights: where a type becomes a packed matrix, its weights are the same bits.
func TestPackedWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := 0
	for typ := range places {
		const rows, cols = 11, 768
		data := blocks(t, typ, rows, cols, r, anything)
		m := repacked(t, typ, rows, cols, data)
		if !m.Form.IsPacked() {
			_, err := m.Packed()
			require.Error(t, err)
			continue
		}
		seen++
		w, err := m.Packed()
		require.NoError(t, err)
		want, got := make([]float32, rows*cols), make([]float32, cols)
		require.NoError(t, ggml.DequantizeRows(want, data, cols, typ))
		for i := range rows {
			w.DequantizeRow(got, i, packed.NewCodes(w.Scheme, cols))
			for k := range got {
				require.Equal(t, want[i*cols+k], got[k], "%s row %d column %d", typ, i, k)
			}
		}
	}
	require.Equal(t, 5, seen)
}

func TestWhatCannotBeRepacked(t *testing.T) {
	for _, typ := range []ggml.Type{ggml.F16, ggml.Q2_K, ggml.IQ3_S, ggml.IQ4_K} {
		_, ok := repack.Of(typ, 256)
		require.False(t, ok, typ)
	}
	for typ := range places {
		for _, cols := range []int{0, 1, 31, 33, typ.BlockSize() + 32, 2*typ.BlockSize() - 1} {
			if cols == 0 || cols%typ.BlockSize() != 0 {
				_, ok := repack.Of(typ, cols)
				require.False(t, ok, "%s %d", typ, cols)
			}
		}
		f, ok := repack.Of(typ, 256)
		require.True(t, ok)
		for _, shape := range [][2]int{{0, 256}, {8, 128 + 7}, {8, -256}} {
			_, err := repack.New(f, shape[0], shape[1], make([]byte, f.Bytes(8, 256)))
			require.Error(t, err, "%s %v", typ, shape)
		}
		_, err := repack.New(f, 9, 256, make([]byte, f.Bytes(8, 256)))
		require.ErrorContains(t, err, typ.String())
	}
	// 16 times the scale is no half-precision number.
	block := make([]byte, 22)
	m := begin(t, ggml.Q5_0, 1, 32)
	for scale, fits := range map[float32]bool{
		5000: false, 4094: true, -4094: true, 4096: false, 6e-8: true, 0: true,
		float32(math.Inf(1)): false, float32(math.Inf(-1)): false, float32(math.NaN()): false,
	} {
		binary.LittleEndian.PutUint16(block, half.F32ToF16(scale))
		require.Equal(t, fits, m.Pack(0, func(int) []byte { return block }, &repack.Scratch{}), scale)
	}
}

func BenchmarkProduct(b *testing.B) {
	const rows, cols = 512, 2048
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range []ggml.Type{ggml.Q4_0, ggml.Q4_K, ggml.Q5_K, ggml.Q6_K, ggml.Q8_0, ggml.Q3_K} {
		size, _ := typ.RowBytes(cols)
		data := make([]byte, rows*size)
		for i := range data {
			data[i] = byte(r.Uint32()) & 0x3f
		}
		m := begin(b, typ, rows, cols)
		var s repack.Scratch
		pack := func() {
			for i := range m.PanelCount() {
				m.Pack(i, func(r int) []byte { return data[r*size : (r+1)*size] }, &s)
			}
		}
		b.Run("pack/"+typ.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				pack()
			}
		})
		for _, set := range kernel.Available() {
			for _, tokens := range []int{1, 16} {
				b.Run(set.Name+"/"+typ.String()+map[int]string{1: "/T=1", 16: "/T=16"}[tokens], func(b *testing.B) {
					var a kernel.Activations
					a.Resize(tokens, cols)
					a.ResizeHalves()
					for i := range a.Q {
						a.Q[i] = int8(r.IntN(255) - 127)
					}
					out := make([]float32, tokens*rows)
					w, _ := m.Packed()
					f, _ := m.Foreign()
					b.ReportAllocs()
					for b.Loop() {
						if m.Form.IsPacked() {
							set.MulPanels(out, rows, w, 0, m.PanelCount(), &a, 0, tokens)
						} else {
							set.MulForeign(out, rows, f, 0, m.PanelCount(), &a, 0, tokens)
						}
					}
					b.ReportMetric(float64(rows*cols*tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				})
			}
		}
	}
}
