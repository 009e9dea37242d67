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
		} {
			for _, cols := range []int{1, 32, 65, 992, 1024, 1056, 2049, 2340, 4200} {
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
					n := set.Tile(&a)
					if set.Name == "avx2" {
						require.Equal(t, (tokens+first)/8, n)
					}
					for i := range n {
						set.Arrange(&a, i)
					}
					for i := range set.TileFine(&f) {
						set.ArrangeFine(&f, i)
					}
					multiply := func(out []float32, from, n int) {
						if s.Bits == 8 {
							set.MulPanelsFine(out, stride, m, 0, m.PanelCount(), &f, from, n, make([]float32, set.FineScratch(m.PanelCount(), n)))
						} else {
							set.MulPanels(out, stride, m, 0, m.PanelCount(), &a, from, n)
						}
					}
					got, want := make([]float32, tokens*stride), make([]float32, tokens*stride)
					for i := range got {
						got[i], want[i] = -5, -5
					}
					multiply(got, first, tokens)
					for i := range tokens {
						multiply(want[i*stride:], first+i, 1)
					}
					require.Equal(t, want, got, "%s %s: %d columns, %d tokens", set.Name, s, cols, tokens)
				}
			}
		}
	}
}

// TestPanelsAreExact: the integer sums of a block are those of int64, also for the least codes that there are.
func TestPanelsAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 54))
	for _, set := range kernel.Available() {
		for _, s := range []packed.Scheme{{Bits: 4, Group: 32}, {Bits: 8, Group: 32}, {Bits: 8, Group: 32, Asym: true}} {
			least, most := s.Levels()
			lowest := -128 // of activations
			if s.Bits == 8 {
				lowest = -127 // where weights have a sign, -128 has no opposite
			}
			for round := range 40 {
				const tokens = 15
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
				}
				data := make([]byte, s.Bytes(packed.Panel, packed.Block))
				packed.PackPanel(s, data, panel, packed.Block)
				m, err := packed.NewMatrix(s, packed.Panel, packed.Block, data)
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
				for i := range set.Tile(&a) {
					set.Arrange(&a, i)
				}
				out := make([]float32, tokens*packed.Panel)
				set.MulPanels(out, packed.Panel, m, 0, 1, &a, 0, tokens)
				for i := range tokens {
					for row := range panel {
						var want int64
						for k, c := range panel[row].Codes {
							want += (int64(c) - int64(s.Zero(131))) * int64(a.Q[i*packed.Block+k])
						}
						require.Equal(t, float32(want), out[i*packed.Panel+row], "%s %s token %d row %d", set.Name, s, i, row)
					}
				}
			}
		}
	}
}
