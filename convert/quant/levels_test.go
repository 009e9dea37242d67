package quant

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

// bookSchemes are those with a codebook.
var bookSchemes = []packed.Scheme{
	{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 128, Codebook: true}, {Bits: 4, Group: 32, Codebook: true, TwoLevel: true},
	{Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 3, Group: 32, Codebook: true}, {Bits: 3, Group: 16, Codebook: true, TwoLevel: true},
}

// drawn are weights of several distributions.
func drawn(n int, kind string, r *rand.Rand) []float32 {
	w := make([]float32, n)
	for i := range w {
		switch kind {
		case "normal":
			w[i] = float32(r.NormFloat64())
		case "uniform":
			w[i] = r.Float32()*2 - 1
		case "one-sided":
			w[i] = float32(r.ExpFloat64())
		case "heavy":
			w[i] = float32(r.NormFloat64() / (0.1 + math.Abs(r.NormFloat64())))
		case "two values":
			w[i] = float32(1 - 2*r.IntN(2))
		case "sparse":
			if r.IntN(10) == 0 {
				w[i] = float32(r.NormFloat64())
			}
		}
		w[i] *= 0.02
	}
	return w
}

// bookError is the weighted squared error of a matrix under a codebook.
func bookError(t *testing.T, q *Quantizer, book *[16]int8, w []float32, rows, cols int, importance []float32) float64 {
	t.Helper()
	q.UseBook(book)
	c, back := packed.NewCodes(q.scheme, cols), make([]float32, cols)
	var sum float64
	for r := range rows {
		row := w[r*cols : (r+1)*cols]
		require.NoError(t, q.Row(c, row, importance))
		q.scheme.Dequantize(back, c, book)
		for i, v := range row {
			d, a := float64(v)-float64(back[i]), 1.0
			if importance != nil {
				a = float64(importance[i])
			}
			sum += a * d * d
		}
	}
	return sum
}

// TestFittedBookIsNeverWorse than the one that fitting starts from, and its entries are what the format and the kernels take.
func TestFittedBookIsNeverWorse(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for _, s := range bookSchemes {
		for _, kind := range []string{"normal", "uniform", "one-sided", "heavy", "two values", "sparse"} {
			var first, fitted float64
			for _, shape := range [][2]int{{1, 5}, {8, 33}, {40, 172}, {300, 64}} {
				rows, cols := shape[0], shape[1]
				w := drawn(rows*cols, kind, r)
				for _, weighted := range []bool{false, true} {
					var importance []float32
					if weighted {
						importance = make([]float32, cols)
						for i := range importance {
							importance[i] = float32(math.Exp(r.NormFloat64()))
						}
					}
					q := New(kernel.Generic(), s, Search)
					book, err := q.fitBook(w, rows, cols, importance, inTurn)
					require.NoError(t, err)
					n := 1 << s.Bits
					for i := range n {
						require.GreaterOrEqual(t, book[i], int8(-127))
						if i > 0 {
							require.GreaterOrEqual(t, book[i], book[i-1], "in order")
						}
					}
					require.Equal(t, 127, int(max(book[n-1], -book[0])))
					before, after := bookError(t, q, initialBook(s.Bits), w, rows, cols, importance), bookError(t, q, book, w, rows, cols, importance)
					require.LessOrEqual(t, after, before*(1+1e-6), "%s, %s, %v, weighted %v", s, kind, shape, weighted)
					first, fitted = first+before, fitted+after
				}
			}
			t.Logf("%-9s %-10s %.4f of the first error", s, kind, fitted/max(first, 1e-30))
		}
	}
}

// TestBookIsRecovered: weights that are entries of a table times a scale a group are found again, where each entry is nearest to the one that
// fitting starts from. Of a table further off much is found, but, as with Lloyd's algorithm in general, maybe not the best.
func TestBookIsRecovered(t *testing.T) {
	near := map[int][]float64{
		4: {-127, -105, -80, -57, -46, -28, -19, -4, 8, 14, 33, 41, 63, 75, 104, 120},
		3: {-127, -84, -50, -22, 3, 31, 65, 108},
	}
	far := map[int][]float64{
		4: {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
		3: {-127, -110, -95, -70, -40, 0, 30, 90},
	}
	for _, s := range bookSchemes {
		left, _ := recovered(t, s, near[s.Bits])
		limit := 1e-6
		if s.TwoLevel {
			limit = 3e-4 // scales have 6 bits
		}
		require.Less(t, left, limit, "%s", s)
		left, first := recovered(t, s, far[s.Bits])
		require.Less(t, left, first/2, "%s", s)
	}
}

// recovered draws weights from a table and gives what is lost of them under the fitted codebook and the first one, as shares of their power.
func recovered(t *testing.T, s packed.Scheme, table []float64) (left, first float64) {
	t.Helper()
	const rows, cols = 64, 256
	r := rand.New(rand.NewPCG(33, 34))
	w := make([]float32, rows*cols)
	var power float64
	for at := 0; at < len(w); at += s.Group {
		scale := 0.01 * math.Exp(0.3*r.NormFloat64()) / 127
		for k := range s.Group {
			entry := table[0] // each group reaches the end of the table
			if k > 0 {
				entry = table[r.IntN(len(table))]
			}
			w[at+k] = float32(scale * entry)
			power += scale * entry * scale * entry
		}
	}
	q := New(kernel.Generic(), s, Search)
	book, err := q.fitBook(w, rows, cols, nil, inTurn)
	require.NoError(t, err)
	left, first = bookError(t, q, book, w, rows, cols, nil)/power, bookError(t, q, initialBook(s.Bits), w, rows, cols, nil)/power
	t.Logf("%-9s %.2e is lost, %.2e under the first codebook; %v", s, left, first, book[:len(table)])
	return left, first
}

// TestTwoLevelScales: what is measured while a matrix is quantized is what the packed matrix gives, with scales of either sign, groups of
// nothing, and rows that end within a group.
func TestTwoLevelScales(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 36))
	p := pool.New(2)
	defer p.Close()
	for _, set := range kernel.Available() {
		solve := linalg.New(set, p)
		for _, name := range []string{"w4g32k", "w4g16k", "w3g32k", "w3g16k", "w4g32nlk", "w4g16nlk"} {
			s, err := packed.ParseScheme(name)
			require.NoError(t, err)
			for _, cols := range []int{5, 33, 256, 300, 530} {
				const rows = 11
				w := drawn(rows*cols, "normal", r)
				for i := range w {
					switch g := i / s.Group % 7; g {
					case 2:
						w[i] = 0
					case 3:
						w[i] *= 5
					case 4:
						w[i] *= 1e-3
					}
				}
				x := drawn(cols*64, "normal", r)
				h := make([]float32, cols*cols)
				solve.AddGram(h, cols, x, 64)
				solve.Mirror(h, cols)
				in, err := NewInputs(solve, h, cols, InputOptions{})
				require.NoError(t, err)
				for _, rule := range []Rule{AbsMax, Search} {
					for _, refine := range []int{0, 2} {
						got, err := Matrix(solve, w, rows, cols, in, MatrixOptions{Scheme: s, Rule: rule, Method: GPTQ, Refine: refine})
						require.NoError(t, err)
						c, back := packed.NewCodes(s, cols), make([]float32, cols)
						var loss, power float64
						negative := 0
						for row := range rows {
							got.Matrix.DequantizeRow(back, row, c)
							for g, sub := range c.Subs {
								require.GreaterOrEqual(t, sub, int8(-32))
								require.LessOrEqual(t, sub, int8(31))
								if s.Scale(c, g) < 0 {
									negative++
								}
							}
							for i := range cols {
								for j := range cols {
									hij := float64(h[i*cols+j])
									wi, wj := float64(w[row*cols+i]), float64(w[row*cols+j])
									loss += (float64(back[i]) - wi) * hij * (float64(back[j]) - wj)
									power += wi * hij * wj
								}
							}
						}
						require.InEpsilon(t, loss/power, got.Error, 1e-3, "%s %s, %d columns, %d rounds", name, rule, cols, refine)
						require.Positive(t, negative, "%s %s, %d columns", name, rule, cols)
					}
				}
			}
		}
	}
}
