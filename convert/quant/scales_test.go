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
)

// rowErrors are the squared errors of each row's output.
func rowErrors(m packed.Matrix, w, h []float32) []float64 {
	back, codes := make([]float32, m.Cols), packed.NewCodes(m.Scheme, m.Cols)
	out := make([]float64, m.Rows)
	for r := range out {
		m.DequantizeRow(back, r, codes)
		for i := range back {
			for j := range back {
				out[r] += (float64(back[i]) - float64(w[r*m.Cols+i])) * float64(h[i*m.Cols+j]) * (float64(back[j]) - float64(w[r*m.Cols+j]))
			}
		}
	}
	return out
}

// TestScalesByOutput: no row's output is further off than with scales by the importance of channels, and on the whole much is gained; plain
// scales, where they are asked for, stay.
func TestScalesByOutput(t *testing.T) {
	r := rand.New(rand.NewPCG(45, 46))
	for _, set := range kernel.Available() {
		solve := solver(t, set)
		for _, name := range allSchemes {
			var before, after float64
			for _, shape := range [][2]int{{7, 33}, {20, 172}, {9, 300}} {
				rows, cols := shape[0], shape[1]
				w, h := normal(rows*cols, r, 0.05), correlated(t, solve, cols, r)
				in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
				require.NoError(t, err)
				importance, err := quant.NewImportance(in.Importance)
				require.NoError(t, err)
				o := quant.MatrixOptions{Scheme: scheme(t, name), Rule: quant.Search, Method: quant.RTN}
				weighted, err := quant.Matrix(solve, w, rows, cols, importance, o)
				require.NoError(t, err)
				got, err := quant.Matrix(solve, w, rows, cols, in, o)
				require.NoError(t, err)
				now := rowErrors(got.Matrix, w, h)
				for row, e := range rowErrors(weighted.Matrix, w, h) {
					require.LessOrEqual(t, now[row], e*(1+1e-4), "%s %s %v row %d", set.Name, name, shape, row)
					before, after = before+e, after+now[row]
				}
				o.Rule = quant.AbsMax
				weighted, err = quant.Matrix(solve, w, rows, cols, importance, o)
				require.NoError(t, err)
				got, err = quant.Matrix(solve, w, rows, cols, in, o)
				require.NoError(t, err)
				require.Equal(t, weighted.Matrix, got.Matrix)
			}
			t.Logf("%s %-9s %.3f of the error by importance", set.Name, name, after/before)
			require.Less(t, after, 0.85*before, name)
		}
	}
}

// TestScalesAgainstAllOfThem: of rows of one group, the error is near the least over all half-precision scales, which scales.py has found.
func TestScalesAgainstAllOfThem(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "scales.json"))
	require.NoError(t, err)
	var g struct {
		Rows, Cols     int
		W, H           []byte
		Best, Weighted []float64
	}
	require.NoError(t, json.Unmarshal(text, &g))
	w, h := make([]float32, g.Rows*g.Cols), make([]float32, g.Cols*g.Cols)
	half.DecodeF32(w, g.W)
	half.DecodeF32(h, g.H)
	solve := solver(t, kernel.Generic())
	in, err := quant.NewInputs(solve, h, g.Cols, quant.InputOptions{})
	require.NoError(t, err)
	got, err := quant.Matrix(solve, w, g.Rows, g.Cols, in, quant.MatrixOptions{Scheme: scheme(t, "w4g32"), Rule: quant.Search, Method: quant.RTN})
	require.NoError(t, err)
	var best, weighted, found float64
	codes := packed.NewCodes(got.Matrix.Scheme, g.Cols)
	for r, e := range rowErrors(got.Matrix, w, h) {
		require.GreaterOrEqual(t, e, g.Best[r]*(1-1e-4), "row %d: less than there is", r)
		best, weighted, found = best+g.Best[r], weighted+g.Weighted[r], found+e
		got.Matrix.UnpackRow(r, codes)
		scale := float64(half.F16ToF32(codes.Scales[0]))
		for i, c := range codes.Codes {
			require.InDelta(t, min(max(float64(w[r*g.Cols+i])/scale, -8), 7), float64(c)-8, 0.5+1e-4, "row %d: nearest", r)
		}
	}
	t.Logf("%.4f found, %.4f there is, %.4f by importance", found, best, weighted)
	require.False(t, math.IsNaN(found))
	require.Less(t, found-best, 0.5*(weighted-best))
}
