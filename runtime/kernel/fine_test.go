package kernel_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

var fineSchemes = []packed.Scheme{{Bits: 8, Group: 32}, {Bits: 8, Group: 128}, {Bits: 8, Group: 64, Asym: true}, {Bits: 8, Group: 256}}

// mulFine multiplies all of m with the tokens after the first of x.
func mulFine(set *kernel.Set, m packed.Matrix, x [][]float32, step int) []float32 {
	var f kernel.Fine
	set.ResizeFine(&f, len(x), m.Cols)
	for i := range x {
		set.QuantizeFine(&f, i, x[i], make([]float32, m.Cols))
	}
	for i := range set.TileFine(&f, set.TiledFine(m.Scheme)) {
		set.ArrangeFine(&f, i)
	}
	tokens := len(x) - 1
	out := make([]float32, tokens*m.Rows)
	for p := 0; p < m.PanelCount(); p += step {
		n := min(step, m.PanelCount()-p)
		set.MulPanelsFine(out[p*packed.Panel:], m.Rows, m, p, n, &f, 1, tokens, make([]float32, set.FineScratch(n, tokens)))
	}
	return out
}

// TestFineAgainstFloat64: products with codes of 12 bits come near those with the activations themselves, and do not
// depend on how many tokens are multiplied together.
func TestFineAgainstFloat64(t *testing.T) {
	for _, set := range kernel.Available() {
		r := rand.New(rand.NewPCG(41, 42))
		for _, s := range fineSchemes {
			for _, shape := range sizes {
				for _, tokens := range []int{1, 2, 3, 4, 5, 9} {
					rows, cols := shape[0], shape[1]
					m := randomMatrix(t, s, rows, cols, r, tokens == 3)
					x := make([][]float32, tokens+1)
					for i := range x {
						x[i] = randomVector(cols, r)
					}
					out := mulFine(set, m, x, 3)
					for i := range tokens {
						require.Equal(t, mulFine(set, m, x[i:i+2], 2), out[i*rows:(i+1)*rows], "%s %s %v: one token of %d", set.Name, s, shape, tokens)
					}
					w, scratch := make([]float32, cols), packed.NewCodes(s, cols)
					for row := range rows {
						m.DequantizeRow(w, row, scratch)
						for i := range tokens {
							var want, bound, size float64
							for k, v := range w {
								var most float64
								for _, u := range x[i+1][k&^31 : min(k&^31+32, cols)] {
									most = max(most, math.Abs(float64(u)))
								}
								want += float64(v) * float64(x[i+1][k])
								bound += math.Abs(float64(v)) * 0.5001 * most / 2047
								size += math.Abs(float64(v) * float64(x[i+1][k]))
							}
							require.InDelta(t, want, out[i*rows+row], bound+1e-5*size+1e-9, "%s %s %v token %d row %d", set.Name, s, shape, i, row)
						}
					}
				}
			}
		}
	}
}

// TestFineSetsAgree: the sets that keep int16 have the same codes and, of a block, the same products to the bit, those of the
// largest codes included.
func TestFineSetsAgree(t *testing.T) {
	generic := kernel.Generic()
	for _, set := range kernel.Available()[1:] {
		if set.FineScratch(1, 1) > 0 {
			continue // keeps planes of int8
		}
		r := rand.New(rand.NewPCG(43, 44))
		for cols := 1; cols <= 300; cols++ {
			x := randomVector(cols+1, r)[1:]
			switch cols % 4 {
			case 1:
				clear(x)
			case 2:
				x[cols/2] = 1e30
			case 3:
				x[0] = math.SmallestNonzeroFloat32
			}
			var a, b kernel.Fine
			generic.ResizeFine(&a, 1, cols)
			set.ResizeFine(&b, 1, cols)
			for i := range b.Q {
				a.Q[i], b.Q[i] = 99, 99
			}
			generic.QuantizeFine(&a, 0, x, nil)
			set.QuantizeFine(&b, 0, x, nil)
			require.Equal(t, a, b, "%s: %d columns", set.Name, cols)
			total := 0
			for _, q := range a.Q[:32] {
				total += int(q)
			}
			require.Equal(t, float32(total), a.Sum[0])
		}
		for cols := 1; cols <= 32; cols++ {
			for _, s := range fineSchemes {
				m := randomMatrix(t, s, 19, cols, r, true)
				x := make([][]float32, 17)
				for i := range x {
					x[i] = make([]float32, cols)
					for k := range x[i] {
						x[i][k] = []float32{-1, 1}[r.IntN(2)] // codes of ±2047
						if i == 1 {
							x[i][k] = -1
						}
					}
				}
				require.Equal(t, mulFine(generic, m, x, 3), mulFine(set, m, x, 3), "%s %s: %d columns", set.Name, s, cols)
			}
		}
	}
}

// TestFineIsExact: the integer sum of a block of the largest codes is that of int64.
func TestFineIsExact(t *testing.T) {
	s := packed.Scheme{Bits: 8, Group: 32, Asym: true}
	for _, set := range kernel.Available() {
		if set.FineScratch(1, 1) > 0 {
			continue
		}
		for _, code := range []int8{-128, 127} {
			for _, zero := range []uint8{0, 1, 255} {
				panel := make([]packed.Codes, packed.Panel)
				for i := range panel {
					panel[i] = packed.NewCodes(s, 32)
					for k := range panel[i].Codes {
						panel[i].Codes[k] = code
					}
					panel[i].Scales[0], panel[i].Zeros[0] = 0x3c00, zero // 1
				}
				data := make([]byte, s.Bytes(packed.Panel, 32))
				packed.PackPanel(s, data, panel, 32)
				m, err := packed.NewMatrix(s, packed.Panel, 32, data)
				require.NoError(t, err)
				x := make([]float32, 32)
				for k := range x {
					x[k] = -2047
				}
				want := float32(32 * -2047 * int64(int(code)+128-int(zero)))
				for _, tokens := range []int{1, 4, 16} {
					for _, got := range mulFine(set, m, slices.Repeat([][]float32{x}, tokens+1), 1) {
						require.Equal(t, want, got, "%s: code %d, zero %d", set.Name, code, zero)
					}
				}
			}
		}
	}
}

func BenchmarkFine(b *testing.B) {
	const rows, cols = 256, 2048
	for _, set := range kernel.Available() {
		for _, tokens := range []int{1, 16} {
			b.Run(set.Name+"/"+map[int]string{1: "T=1", 16: "T=16"}[tokens], func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				m := randomMatrix(b, packed.Scheme{Bits: 8, Group: 128}, rows, cols, r, false)
				var f kernel.Fine
				set.ResizeFine(&f, tokens, cols)
				scratch := make([]float32, max(cols, set.FineScratch(m.PanelCount(), tokens)))
				for i := range tokens {
					set.QuantizeFine(&f, i, randomVector(cols, r), scratch)
				}
				out := make([]float32, tokens*rows)
				b.ReportAllocs()
				for b.Loop() {
					set.MulPanelsFine(out, rows, m, 0, m.PanelCount(), &f, 0, tokens, scratch)
				}
				b.ReportMetric(float64(rows*cols*tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}
