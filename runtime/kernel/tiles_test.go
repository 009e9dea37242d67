package kernel_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// TestTilesGiveTheBitsOfSingleTokens: whether a token is multiplied alone or with others, and how many columns are taken at once,
// changes nothing, and nothing but the rows of the tokens is written.
func TestTilesGiveTheBitsOfSingleTokens(t *testing.T) {
	const rows, stride, first = 19, 24, 1
	for _, set := range kernel.Available()[1:] {
		r := rand.New(rand.NewPCG(51, 52))
		for _, s := range []packed.Scheme{
			{Bits: 4, Group: 32}, {Bits: 4, Group: 256}, {Bits: 4, Group: 32, Asym: true}, {Bits: 4, Group: 128, Asym: true},
			{Bits: 8, Group: 32}, {Bits: 8, Group: 256}, {Bits: 8, Group: 64, Asym: true},
			{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 128, Codebook: true}, {Bits: 4, Group: 32, TwoLevel: true},
			{Bits: 4, Group: 32, Codebook: true, TwoLevel: true}, {Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 4, Group: 16, TwoLevel: true},
			{Bits: 3, Group: 32}, {Bits: 3, Group: 256, Codebook: true}, {Bits: 3, Group: 32, TwoLevel: true}, {Bits: 3, Group: 16, Codebook: true, TwoLevel: true},
		} {
			for _, cols := range []int{1, 32, 49, 65, 273, 992, 1024, 1056, 2049, 2340, 4200} {
				m := randomMatrix(t, s, rows, cols, r, cols%2 == 0)
				for _, tokens := range []int{5, 6, 7, 8, 9, 12, 13, 14, 16, 23, 24} {
					if cols > 1100 && tokens > 16 {
						continue
					}
					var a kernel.Activations
					var f kernel.Fine
					a.Resize(tokens+first, cols)
					set.ResizeFine(&f, tokens+first, cols)
					for i := range tokens + first {
						x := randomVector(cols, r)
						set.Quantize(&a, i, x)
						set.QuantizeFine(&f, i, x, make([]float32, cols))
					}
					halve(set, s, &a)
					n := set.Tile(&a, set.Tiled(s))
					if set.Tiled(s) != 0 {
						require.Equal(t, (tokens+first)/8, n)
					}
					for i := range n {
						set.Arrange(&a, i)
					}
					for i := range set.TileFine(&f, set.TiledFine(s)) {
						set.ArrangeFine(&f, i)
					}
					products := map[string]func(out []float32, from, n int){
						"panels": func(out []float32, from, n int) { set.MulPanels(out, stride, m, 0, m.PanelCount(), &a, from, n) },
					}
					if s.Bits == 8 {
						products["fine"] = func(out []float32, from, n int) {
							set.MulPanelsFine(out, stride, m, 0, m.PanelCount(), &f, from, n, make([]float32, set.FineScratch(m.PanelCount(), n)))
						}
					}
					for kind, multiply := range products {
						got, want := make([]float32, tokens*stride), make([]float32, tokens*stride)
						for i := range got {
							got[i], want[i] = -5, -5
						}
						multiply(got, first, tokens)
						for i := range tokens {
							multiply(want[i*stride:], first+i, 1)
						}
						require.Equal(t, want, got, "%s %s %s: %d columns, %d tokens", set.Name, kind, s, cols, tokens)
					}
				}
			}
		}
	}
}

// TestPanelsAreExact: the integer sums of a block are those of int64, also for the least codes that there are.
func TestPanelsAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 54))
	for _, set := range kernel.Available() {
		for _, s := range []packed.Scheme{
			{Bits: 4, Group: 32}, {Bits: 8, Group: 32}, {Bits: 8, Group: 32, Asym: true},
			{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 3, Group: 32, Codebook: true, TwoLevel: true},
		} {
			least, most := s.Levels()
			lowest, tokens, panels := -128, 15, 1 // lowest of activations
			switch {
			case s.Bits == 8:
				lowest = -127 // where weights have a sign, -128 has no opposite
			case s.Codebook && set.Name == "avx2":
				tokens, panels = 16, 2 // what is not a whole tile has none either
			case s.Codebook && set.Name != "generic":
				lowest = -127
			}
			var book [16]int8
			for i := range book {
				book[i] = []int8{-128, 127, -128, -127, -1, 0, 64}[(i+i/8)%7]
			}
			for round := range 40 {
				panel := make([]packed.Codes, packed.Panel)
				for i := range panel {
					panel[i] = packed.NewCodes(s, packed.Block)
					for k := range panel[i].Codes {
						panel[i].Codes[k] = int8([]int{least, most, least + r.IntN(most-least+1)}[(i+round+k*(round%2))%3])
					}
					panel[i].Scales[0] = 0x3c00 // 1
					if s.Asym {
						panel[i].Zeros[0] = 131
					}
					for g := range panel[i].Subs {
						panel[i].Subs[g] = 1
					}
				}
				data := make([]byte, s.Bytes(panels*packed.Panel, packed.Block))
				out := packed.PutPrelude(s, data, &book, 0)
				size := s.PanelBytes(packed.Block)
				for p := range panels {
					packed.PackPanel(s, out[p*size:(p+1)*size], panel, packed.Block)
				}
				m, err := packed.NewMatrix(s, panels*packed.Panel, packed.Block, data)
				require.NoError(t, err)
				var a kernel.Activations
				a.Resize(tokens, packed.Block)
				for i := range tokens {
					sum := 0
					for k := range packed.Block {
						q := []int{lowest, 127, r.IntN(128-lowest) + lowest}[(i+k*(i%2))%3]
						a.Q[i*packed.Block+k] = int8(q)
						sum += q
					}
					a.Scale[i], a.Sum[i] = 1, float32(sum)
				}
				halve(set, s, &a)
				for i := range set.Tile(&a, set.Tiled(s)) {
					set.Arrange(&a, i)
				}
				stride := panels * packed.Panel
				got := make([]float32, tokens*stride)
				set.MulPanels(got, stride, m, 0, panels, &a, 0, tokens)
				for i := range tokens {
					for row := range stride {
						var want int64
						for k, c := range panel[row%packed.Panel].Codes {
							w := int64(c) - int64(s.Zero(131))
							if s.Codebook {
								w = int64(book[c])
							}
							want += w * int64(a.Q[i*packed.Block+k])
						}
						require.Equal(t, float32(want), got[i*stride+row], "%s %s token %d row %d", set.Name, s, i, row)
					}
				}
			}
		}
	}
}
