package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// randomMatrix packs random codes. Extreme draws the largest codes alone, where sums may saturate.
func randomMatrix(t testing.TB, s packed.Scheme, rows, cols int, r *rand.Rand, extreme bool) packed.Matrix {
	t.Helper()
	least, most := s.Levels()
	data := make([]byte, s.Bytes(rows, cols))
	var book [16]int8
	for i := range book {
		book[i] = int8(r.IntN(255) - 127)
		if extreme {
			book[i] = int8(127 - 254*(i%2))
		}
	}
	panels := packed.PutPrelude(s, data, &book, 3.5)
	n := s.PanelBytes(cols)
	for p := 0; p*packed.Panel < rows; p++ {
		panel := make([]packed.Codes, min(packed.Panel, rows-p*packed.Panel))
		for i := range panel {
			c := packed.NewCodes(s, cols)
			for k := range c.Codes {
				c.Codes[k] = int8(least + r.IntN(most-least+1))
				if extreme {
					c.Codes[k] = int8([]int{least, most}[r.IntN(2)])
				}
			}
			for g := range c.Scales {
				c.Scales[g] = half.F32ToF16(float32(r.NormFloat64()) / 16)
				if s.Asym {
					c.Zeros[g] = uint8(r.IntN(256))
				}
			}
			for g := range c.Subs {
				c.Subs[g] = int8(r.IntN(64) - 32)
			}
			panel[i] = c
		}
		packed.PackPanel(s, panels[p*n:(p+1)*n], panel, cols)
	}
	m, err := packed.NewMatrix(s, rows, cols, data)
	require.NoError(t, err)
	return m
}

func randomVector(n int, r *rand.Rand) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// halve sets the sums of halves of blocks, where the set needs them for the scheme.
func halve(set *kernel.Set, s packed.Scheme, a *kernel.Activations) {
	if !set.Halved(s) {
		return
	}
	a.ResizeHalves()
	for i := range a.Tokens {
		set.Halve(a, i)
	}
}

var schemes = []packed.Scheme{
	{Bits: 4, Group: 32}, {Bits: 4, Group: 64}, {Bits: 4, Group: 128}, {Bits: 4, Group: 256}, {Bits: 4, Group: 32, Asym: true}, {Bits: 4, Group: 128, Asym: true},
	{Bits: 8, Group: 32}, {Bits: 8, Group: 128}, {Bits: 8, Group: 64, Asym: true},
	{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 128, Codebook: true, Static: true}, {Bits: 4, Group: 32, TwoLevel: true}, {Bits: 4, Group: 32, Codebook: true, TwoLevel: true},
	{Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 3, Group: 32}, {Bits: 3, Group: 64}, {Bits: 3, Group: 32, TwoLevel: true}, {Bits: 3, Group: 16, Codebook: true, TwoLevel: true},
	{Bits: 3, Group: 64, Codebook: true}, {Bits: 8, Group: 128, Static: true},
}

var sizes = [][2]int{{1, 1}, {7, 31}, {8, 32}, {9, 33}, {16, 172}, {17, 300}, {3, 257}, {24, 128}, {40, 640}}

// TestPanelAgainstFloat64 computes the products from dequantized weights and activations.
func TestPanelAgainstFloat64(t *testing.T) {
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(5, 6))
		for _, s := range schemes {
			for _, shape := range sizes {
				for _, tokens := range []int{1, 2, 3, 4, 5, 9} {
					rows, cols := shape[0], shape[1]
					m := randomMatrix(t, s, rows, cols, r, tokens == 3)
					var a kernel.Activations
					a.Resize(tokens+1, cols)
					for i := range tokens + 1 {
						set.Quantize(&a, i, randomVector(cols, r))
					}
					halve(set, s, &a)
					out := make([]float32, tokens*rows)
					for p := 0; p < m.PanelCount(); p += 3 {
						set.MulPanels(out[p*packed.Panel:], rows, m, p, min(3, m.PanelCount()-p), &a, 1, tokens)
					}
					w, scratch := make([]float32, cols), packed.NewCodes(s, cols)
					for row := range rows {
						m.DequantizeRow(w, row, scratch)
						for i := range tokens {
							var want, size float64
							for k, v := range w {
								at := (i+1)*a.Blocks*packed.Block + k
								x := float64(a.Q[at]) * float64(a.Scale[at/packed.Block])
								want += float64(v) * x
								size += math.Abs(float64(v) * x)
							}
							require.InDelta(t, want, out[i*rows+row], 1e-5*size+1e-9, "%s %s %v token %d row %d", set.Name, s, shape, i, row)
						}
					}
				}
			}
		}
	}
}

// TestQuantizeBounds checks the codes of activations against their definition.
func TestQuantizeBounds(t *testing.T) {
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(7, 8))
		for cols := 1; cols <= 300; cols++ {
			x := randomVector(cols, r)
			switch cols % 4 {
			case 1:
				clear(x)
			case 2:
				x[cols/2] = 1e30
			case 3:
				x[0] = math.SmallestNonzeroFloat32
			}
			var a kernel.Activations
			a.Resize(1, cols)
			for i := range a.Q {
				a.Q[i] = 99
			}
			set.Quantize(&a, 0, x)
			for b := range a.Blocks {
				sum := 0
				for k := b * packed.Block; k < (b+1)*packed.Block; k++ {
					q := a.Q[k]
					sum += int(q)
					if k >= cols {
						require.Zero(t, q)
						continue
					}
					require.GreaterOrEqual(t, q, int8(-127))
					require.InDelta(t, x[k], float32(q)*a.Scale[b], 0.5001*float64(a.Scale[b])+1e-40)
				}
				require.Equal(t, float32(sum), a.Sum[b])
			}
		}
	}
}

// TestSetsAgree compares every set with the portable one bit for bit where it must be.
func TestSetsAgree(t *testing.T) {
	generic := kernel.Generic()
	for _, set := range kernel.Available()[1:] {
		r := rand.New(rand.NewPCG(9, 10))
		for cols := 1; cols <= 300; cols++ {
			x := randomVector(cols, r)
			var a, b kernel.Activations
			a.Resize(1, cols)
			b.Resize(1, cols)
			generic.Quantize(&a, 0, x)
			set.Quantize(&b, 0, x)
			require.Equal(t, a, b, "%s: %d columns", set.Name, cols)
		}
	}
}

func TestExpAndSoftmax(t *testing.T) {
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(13, 14))
		for n := 1; n <= 300; n++ {
			x := randomVector(n, r)
			for i := range x {
				x[i] *= 20
			}
			x[n/2] = 200
			want, sum := make([]float64, n), 0.0
			for i, v := range x {
				want[i] = math.Exp(float64(v) - 200)
				sum += want[i]
			}
			e := append([]float32(nil), x...)
			require.InEpsilon(t, sum, set.Exp(e, 200), 1e-6)
			for i, v := range e {
				if want[i] > 1e-37 {
					require.InEpsilon(t, want[i], v, 4e-7, "%s: exp(%g)", set.Name, x[i]-200)
				}
			}
			set.Softmax(x)
			for i, v := range x {
				require.InDelta(t, want[i]/sum, v, 1e-6)
			}
		}
	}
}

// TestSiLU: near the definition, also where the exponential is 0 or the greatest that there is, and nothing beyond is touched.
func TestSiLU(t *testing.T) {
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(17, 18))
		for n := 1; n <= 100; n++ {
			gate, up := randomVector(n, r), randomVector(n, r)
			for i := range gate {
				gate[i] *= []float32{1, 20, 400}[r.IntN(3)]
			}
			dst := make([]float32, n+1)
			dst[n] = 7
			set.SiLU(dst[:n], gate, up)
			for i, g := range gate {
				want := float64(g) / (1 + math.Exp(-float64(g))) * float64(up[i])
				require.InDelta(t, want, dst[i], 1e-6*math.Abs(want)+1e-30, "%s: %g", set.Name, g)
			}
			require.Equal(t, float32(7), dst[n])
		}
	}
}

// TestQuantizersGiveTheSameBits: files must not depend on the machine.
func TestQuantizersGiveTheSameBits(t *testing.T) {
	generic := kernel.Generic()
	for _, set := range kernel.Available()[1:] {
		r := rand.New(rand.NewPCG(15, 16))
		for n := 1; n <= 300; n++ {
			w, a := randomVector(n, r), randomVector(n, r)
			for i := range a {
				a[i] *= a[i]
			}
			require.Equal(t, generic.Largest(w), set.Largest(w))
			w[n/2] = float32(math.NaN())
			require.Equal(t, generic.Largest(w), set.Largest(w))
			w[n/2] = 9.5
			x, y := make([]int8, n), make([]int8, n)
			generic.Encode(x, w, 2.5, -8, 7, 8)
			set.Encode(y, w, 2.5, -8, 7, 8)
			require.Equal(t, x, y)
			generic.Encode(x, w, -31, -127, 127, 0)
			set.Encode(y, w, -31, -127, 127, 0)
			require.Equal(t, x, y)
			table := new(kernel.LevelTable)
			for i := range table {
				table[i] = float32(i/40 - 12)
			}
			for _, inverse := range []float32{3, 100, float32(math.Inf(1))} {
				w[0] = 0 // times infinity it is no number
				l1, l2 := generic.FitTable(w, a, inverse, table)
				m1, m2 := set.FitTable(w, a, inverse, table)
				require.Equal(t, [2]float32{l1, l2}, [2]float32{m1, m2}, "%s: %d", set.Name, n)
			}
			c1, c2, c3 := generic.Fit(w, a, -0.3, 2.1, 0, 15)
			d1, d2, d3 := set.Fit(w, a, -0.3, 2.1, 0, 15)
			require.Equal(t, []float32{c1, c2, c3}, []float32{d1, d2, d3}, "%d elements", n)
			require.Equal(t, generic.Loss(w, a, 2.1, 3.5, 0, 15, 0.47), set.Loss(w, a, 2.1, 3.5, 0, 15, 0.47), "%d elements", n)
		}
	}
}

// TestDecodeEveryHalf widens each of the 65,536 numbers of both types.
func TestDecodeEveryHalf(t *testing.T) {
	src := make([]byte, 2<<16)
	for i := range 1 << 16 {
		src[2*i], src[2*i+1] = byte(i), byte(i>>8)
	}
	generic := kernel.Generic()
	for _, set := range kernel.Available()[1:] {
		for _, n := range []int{1 << 16, 1, 7, 8, 13} {
			x, y := make([]float32, n), make([]float32, n)
			generic.DecodeF16(x, src[:2*n])
			set.DecodeF16(y, src[:2*n])
			for i := range x {
				require.Equal(t, math.Float32bits(x[i]), math.Float32bits(y[i]), "%#x", i)
			}
			generic.DecodeBF16(x, src[:2*n])
			set.DecodeBF16(y, src[:2*n])
			for i := range x {
				require.Equal(t, math.Float32bits(x[i]), math.Float32bits(y[i]), "%#x", i)
			}
		}
	}
}

func TestBestObeysTheEnvironment(t *testing.T) {
	t.Setenv(kernel.EnvLevel, "generic")
	s, err := kernel.Best()
	require.NoError(t, err)
	require.Equal(t, "generic", s.Name)
	t.Setenv(kernel.EnvLevel, "sse9")
	_, err = kernel.Best()
	require.ErrorContains(t, err, "sse9")
	t.Setenv(kernel.EnvLevel, "")
	s, err = kernel.Best()
	require.NoError(t, err)
	require.Equal(t, kernel.Available()[len(kernel.Available())-1].Name, s.Name)
}

func BenchmarkPanel(b *testing.B) {
	const rows, cols = 512, 2048
	for _, set := range kernel.Available() {
		for _, s := range []packed.Scheme{{Bits: 4, Group: 32}, {Bits: 4, Group: 128}, {Bits: 8, Group: 128}, {Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 16, Codebook: true, TwoLevel: true}} {
			for _, tokens := range []int{1, 8, 16, 128} {
				b.Run(fmt.Sprintf("%s/%s/T=%d", set.Name, s, tokens), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 2))
					m := randomMatrix(b, s, rows, cols, r, false)
					var a kernel.Activations
					a.Resize(tokens, cols)
					for i := range tokens {
						set.Quantize(&a, i, randomVector(cols, r))
					}
					halve(set, s, &a)
					for i := range set.Tile(&a, set.Tiled(s)) {
						set.Arrange(&a, i)
					}
					out := make([]float32, tokens*rows)
					b.ReportAllocs()
					for b.Loop() {
						set.MulPanels(out, rows, m, 0, m.PanelCount(), &a, 0, tokens)
					}
					b.ReportMetric(float64(rows*cols*tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				})
			}
		}
	}
}

// TestQuantizeStatic: codes are the values by the range's 127th part, cut to it.
func TestQuantizeStatic(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for _, set := range kernel.Available() {
		for _, cols := range []int{1, 31, 32, 33, 100} {
			x := randomVector(cols, r)
			x[0] = 1e30
			x[cols-1] = -50
			var a kernel.Activations
			a.Resize(2, cols)
			for i := range a.Q {
				a.Q[i] = 99
			}
			const limit = 2.5
			set.QuantizeStatic(&a, 1, x, limit)
			for i := range a.Blocks * packed.Block {
				q := a.Q[a.Blocks*packed.Block+i]
				if i >= cols {
					require.Zero(t, q)
					continue
				}
				want := min(max(float64(x[i]), -limit), limit)
				require.InDelta(t, want, float64(q)*limit/127, 0.5001*limit/127)
			}
			for b := range a.Blocks {
				sum := 0
				for _, q := range a.Q[(a.Blocks+b)*packed.Block : (a.Blocks+b+1)*packed.Block] {
					sum += int(q)
				}
				require.EqualValues(t, sum, a.Sum[a.Blocks+b])
				require.InDelta(t, limit/127, a.Scale[a.Blocks+b], 1e-9)
			}
		}
	}
}
