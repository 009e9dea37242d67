package quant_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert/quant"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

// solver runs a set of loops on two threads.
func solver(t testing.TB, set *kernel.Set) *linalg.Solver {
	t.Helper()
	p := pool.New(2)
	t.Cleanup(p.Close)
	return linalg.New(set, p)
}

func scheme(t testing.TB, name string) packed.Scheme {
	t.Helper()
	s, err := packed.ParseScheme(name)
	require.NoError(t, err)
	return s
}

// outputError is the squared error of a layer's outputs by their square, in double precision, with the matrix as it is stored.
func outputError(m packed.Matrix, w, h []float32) float64 {
	scratch := packed.NewCodes(m.Scheme, m.Cols)
	back, diff, row := make([]float32, m.Cols), make([]float64, m.Cols), make([]float64, m.Cols)
	form := func(x []float64) (sum float64) {
		for i, a := range x {
			var product float64
			for j, b := range x {
				product += float64(h[i*m.Cols+j]) * b
			}
			sum += a * product
		}
		return sum
	}
	var loss, power float64
	for r := range m.Rows {
		m.DequantizeRow(back, r, scratch)
		for i, v := range w[r*m.Cols : (r+1)*m.Cols] {
			row[i], diff[i] = float64(v), float64(back[i])-float64(v)
		}
		loss, power = loss+form(diff), power+form(row)
	}
	return loss / power
}

// correlated gives the mean of x xᵀ of made inputs, [n][n]: a few directions and a few channels are much larger than the others.
func correlated(t testing.TB, s *linalg.Solver, n int, r *rand.Rand) []float32 {
	t.Helper()
	const count = 600
	x := make([]float32, n*count)
	for p := range count {
		common, other := r.NormFloat64(), r.NormFloat64()
		for i := range n {
			v := r.NormFloat64() + 2*common*float64(i%5)/4 + 2*other*float64(i%7)/6
			if i%29 == 3 {
				v *= 6
			}
			x[p*n+i] = float32(v)
		}
	}
	h := make([]float32, n*n)
	s.AddGram(h, n, x, count)
	s.Mirror(h, n)
	for i := range h {
		h[i] /= count
	}
	return h
}

func identity(n int) []float32 {
	h := make([]float32, n*n)
	for i := range n {
		h[i*n+i] = 1
	}
	return h
}

// goldenLayer is testdata/gptq.json, which generate.py writes.
type goldenLayer struct {
	Rows, Cols, Group int
	Damping           float64
	W, H, Scales      []byte
	ActOrder          goldenCodes `json:"act_order"`
	InOrder           goldenCodes `json:"in_order"`
	RTN               goldenCodes
}

type goldenCodes struct {
	Codes []byte
	Error float64
}

// layer decodes weights and the whole mean of x xᵀ.
func (g *goldenLayer) layer() (w, h []float32) {
	w = make([]float32, g.Rows*g.Cols)
	half.DecodeF32(w, g.W)
	upper := make([]float32, len(g.H)/4)
	half.DecodeF32(upper, g.H)
	h = make([]float32, g.Cols*g.Cols)
	for i := range g.Cols {
		for j := i; j < g.Cols; j++ {
			h[i*g.Cols+j], h[j*g.Cols+i] = upper[0], upper[0]
			upper = upper[1:]
		}
	}
	return w, h
}

// TestAgainstThePaper compares codes with those of the method as its paper has it, in double precision, for the inputs of a real layer.
// Single precision may round a weight that is between two codes the other way, and what follows in its row with it.
func TestAgainstThePaper(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "gptq.json"))
	require.NoError(t, err)
	var g goldenLayer
	require.NoError(t, json.Unmarshal(text, &g))
	w, h := g.layer()
	s := packed.Scheme{Bits: 4, Group: g.Group}
	for _, set := range kernel.Available() {
		solve := solver(t, set)
		for _, c := range []struct {
			name    string
			inOrder bool
			method  quant.Method
			want    goldenCodes
		}{{"act-order", false, quant.GPTQ, g.ActOrder}, {"in order", true, quant.GPTQ, g.InOrder}, {"rtn", false, quant.RTN, g.RTN}} {
			t.Run(set.Name+"/"+c.name, func(t *testing.T) {
				in, err := quant.NewInputs(solve, h, g.Cols, quant.InputOptions{Damping: g.Damping, InOrder: c.inOrder})
				require.NoError(t, err)
				require.False(t, in.Raised)
				got, err := quant.Matrix(solve, w, g.Rows, g.Cols, in, quant.MatrixOptions{Scheme: s, Rule: quant.AbsMax, Method: c.method})
				require.NoError(t, err)
				require.Len(t, c.want.Codes, g.Rows*g.Cols)
				codes, scales := packed.NewCodes(s, g.Cols), g.Scales
				differ := 0
				for r := range g.Rows {
					got.Matrix.UnpackRow(r, codes)
					for _, scale := range codes.Scales {
						require.Equal(t, uint16(scales[0])|uint16(scales[1])<<8, scale, "row %d", r)
						scales = scales[2:]
					}
					for i, code := range codes.Codes {
						if code != int8(c.want.Codes[r*g.Cols+i]) {
							differ++
						}
					}
				}
				t.Logf("%d of %d codes differ; error %.6f, %.6f expected", differ, len(w), got.Error, c.want.Error)
				require.LessOrEqual(t, differ, len(w)/500)
				require.InEpsilon(t, c.want.Error, got.Error, 1e-3)
				require.InEpsilon(t, c.want.Error, outputError(got.Matrix, w, h), 1e-3)
			})
		}
	}
	require.Less(t, g.ActOrder.Error, 0.8*g.RTN.Error, "the golden layer has something to gain")
}

// allSchemes are those that the tests of matrices look at.
var allSchemes = []string{"w4g32", "w4g64", "w4g32a", "w4g128a", "w8", "w8g32a", "w4g32nl", "w4g32nlk", "w4g16nlk", "w3g32", "w3g32k", "w3g64nl"}

// TestUncorrelatedInputsGiveRTN: where channels have nothing to do with one another nothing can be made up for, and the bytes are those
// of rounding to nearest, with inputs and without.
func TestUncorrelatedInputsGiveRTN(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	solve := solver(t, kernel.Generic())
	for _, name := range allSchemes {
		for _, shape := range [][2]int{{7, 33}, {64, 172}, {100, 300}} {
			rows, cols := shape[0], shape[1]
			w := normal(rows*cols, r, 0.1)
			for _, rule := range []quant.Rule{quant.AbsMax, quant.Search} {
				o := quant.MatrixOptions{Scheme: scheme(t, name), Rule: rule, Method: quant.RTN}
				alone, err := quant.Matrix(solve, w, rows, cols, nil, o)
				require.NoError(t, err)
				require.Zero(t, alone.Error)
				in, err := quant.NewInputs(solve, identity(cols), cols, quant.InputOptions{})
				require.NoError(t, err)
				rtn, err := quant.Matrix(solve, w, rows, cols, in, o)
				require.NoError(t, err)
				require.Equal(t, alone.Matrix, rtn.Matrix, "%s %s %v: with inputs", name, rule, shape)
				o.Method = quant.GPTQ
				gptq, err := quant.Matrix(solve, w, rows, cols, in, o)
				require.NoError(t, err)
				require.Equal(t, rtn.Matrix, gptq.Matrix, "%s %s %v", name, rule, shape)
				require.Equal(t, rtn.Error, gptq.Error)
				require.Positive(t, gptq.Error)
			}
		}
	}
}

// TestWhatIsGained: on correlated inputs GPTQ is better than rounding to nearest on the whole, and refining never makes a matrix worse, by
// what is reported and by what is stored; both make much of the error go away.
func TestWhatIsGained(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	sets := kernel.Available()
	solve := solver(t, sets[len(sets)-1])
	for _, name := range allSchemes {
		sums, refined := make(map[quant.Method]float64), make(map[quant.Method]float64)
		for _, shape := range [][2]int{{7, 33}, {64, 172}, {70, 300}} {
			rows, cols := shape[0], shape[1]
			w := normal(rows*cols, r, 0.05)
			h := correlated(t, solve, cols, r)
			in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
			require.NoError(t, err)
			for _, method := range []quant.Method{quant.RTN, quant.GPTQ} {
				before, stored := 0.0, 0.0
				for refine := range 4 {
					o := quant.MatrixOptions{Scheme: scheme(t, name), Rule: quant.Search, Method: method, Refine: refine}
					got, err := quant.Matrix(solve, w, rows, cols, in, o)
					require.NoError(t, err)
					now := outputError(got.Matrix, w, h)
					require.InEpsilon(t, now, got.Error, 1e-3, "%s %s %v, %d rounds: as reported and as stored", name, method, shape, refine)
					if refine == 0 {
						sums[method] += got.Error
					} else {
						require.LessOrEqual(t, got.Error, before*(1+1e-5), "%s %s %v, %d rounds", name, method, shape, refine)
						require.LessOrEqual(t, now, stored*(1+1e-5), "%s %s %v, %d rounds, as stored", name, method, shape, refine)
					}
					if refine == 1 {
						refined[method] += got.Error
					}
					before, stored = got.Error, now
				}
			}
		}
		t.Logf("%-9s rtn %.6f refined %.6f gptq %.6f", name, sums[quant.RTN], refined[quant.RTN], sums[quant.GPTQ])
		require.Less(t, refined[quant.RTN], 0.95*sums[quant.RTN], "%s: rounding has much to gain", name)
		require.Less(t, sums[quant.GPTQ], 0.9*sums[quant.RTN], name)
	}
}

// TestMatrixIsTheSame with any number of threads.
func TestMatrixIsTheSame(t *testing.T) {
	const rows, cols = 200, 172
	sets := kernel.Available()
	for _, o := range []quant.MatrixOptions{{Method: quant.GPTQ, Refine: 2}, {Method: quant.RTN}} {
		for _, name := range []string{"w4g32", "w4g16nlk", "w4g64a"} {
			o.Scheme, o.Rule = scheme(t, name), quant.Search
			var first *quant.Quantized
			for _, threads := range []int{1, 2, 5} {
				p := pool.New(threads)
				solve := linalg.New(sets[len(sets)-1], p)
				r := rand.New(rand.NewPCG(15, 16))
				w, h := normal(rows*cols, r, 0), correlated(t, solve, cols, r)
				in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
				require.NoError(t, err)
				got, err := quant.Matrix(solve, w, rows, cols, in, o)
				require.NoError(t, err)
				p.Close()
				if first == nil {
					first = got
				}
				require.Equal(t, first, got, "%s %s, %d threads", name, o.Method, threads)
			}
		}
	}
}

// TestMatrixRefuses: what cannot be quantized is named by row and column, and inputs must fit.
func TestMatrixRefuses(t *testing.T) {
	const rows, cols = 70, 64
	solve := solver(t, kernel.Generic())
	in, err := quant.NewInputs(solve, identity(cols), cols, quant.InputOptions{})
	require.NoError(t, err)
	for _, name := range allSchemes {
		for _, method := range []quant.Method{quant.RTN, quant.GPTQ} {
			o := quant.MatrixOptions{Scheme: scheme(t, name), Rule: quant.Search, Method: method}
			w := normal(rows*cols, rand.New(rand.NewPCG(17, 18)), 0)
			w[66*cols+41] = float32(math.Inf(1))
			_, err := quant.Matrix(solve, w, rows, cols, in, o)
			require.ErrorIs(t, err, quant.ErrNotFinite, name)
			var value *quant.ValueError
			require.ErrorAs(t, err, &value)
			require.Equal(t, 41, value.Column, name)
			var row *quant.RowError
			require.ErrorAs(t, err, &row, name)
			require.Equal(t, 66, row.Row, name)
		}
	}
	o := quant.MatrixOptions{Scheme: scheme(t, "w4g32"), Rule: quant.Search, Method: quant.GPTQ}
	_, err = quant.Matrix(solve, make([]float32, 2*33), 2, 33, in, o)
	require.ErrorIs(t, err, quant.ErrInputs)
	require.ErrorContains(t, err, "64")
	_, err = quant.Matrix(solve, make([]float32, 2*64), 2, 64, nil, o)
	require.ErrorIs(t, err, quant.ErrInputs)
	o.Method, o.Refine = quant.RTN, 1
	_, err = quant.Matrix(solve, make([]float32, 2*64), 2, 64, nil, o)
	require.ErrorIs(t, err, quant.ErrInputs)
	for _, method := range []quant.Method{quant.RTN, quant.GPTQ} {
		got, err := quant.ParseMethod(string(method))
		require.NoError(t, err)
		require.Equal(t, method, got)
	}
	_, err = quant.ParseMethod("obq")
	require.ErrorContains(t, err, "obq")
}
