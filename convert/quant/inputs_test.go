package quant_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert/quant"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// TestDeadChannels: a channel that was always zero tells nothing of others and is rounded as it stands.
func TestDeadChannels(t *testing.T) {
	const rows, cols = 16, 80
	dead := []int{0, 31, 40, 79}
	r := rand.New(rand.NewPCG(21, 22))
	solve := solver(t, kernel.Generic())
	h := correlated(t, solve, cols, r)
	for _, d := range dead {
		for i := range cols {
			h[d*cols+i], h[i*cols+d] = 0, 0
		}
	}
	kept := append([]float32(nil), h...)
	in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
	require.NoError(t, err)
	require.Equal(t, kept, in.H)
	require.Equal(t, len(dead), in.Dead)
	require.False(t, in.Raised)
	require.Equal(t, quant.DefaultDamping, in.Damping)
	var mean float64
	for i := range cols {
		mean += float64(h[i*cols+i]) / cols
	}
	for i, v := range in.Importance {
		if d := h[i*cols+i]; d != 0 {
			require.Equal(t, d, v)
		} else {
			require.InEpsilon(t, 1e-6*mean, v, 1e-3)
		}
	}
	w := normal(rows*cols, r, 0)
	for _, name := range []string{"w4g32", "w4g32a", "w4g16nlk"} {
		s := scheme(t, name)
		o := quant.MatrixOptions{Scheme: s, Rule: quant.Search, Method: quant.RTN}
		rtn, err := quant.Matrix(solve, w, rows, cols, in, o)
		require.NoError(t, err)
		o.Method, o.Refine = quant.GPTQ, 3
		gptq, err := quant.Matrix(solve, w, rows, cols, in, o)
		require.NoError(t, err)
		require.NotEqual(t, rtn.Matrix.Data, gptq.Matrix.Data)
		o.Refine, o.Rule = 0, quant.AbsMax // scales that are the same for both methods
		plain, err := quant.Matrix(solve, w, rows, cols, in, o)
		require.NoError(t, err)
		o.Method = quant.RTN
		rounded, err := quant.Matrix(solve, w, rows, cols, in, o)
		require.NoError(t, err)
		require.NotEqual(t, rounded.Matrix.Data, plain.Matrix.Data)
		a, b := make([]float32, cols), make([]float32, cols)
		codes := packed.NewCodes(s, cols)
		for i := range rows {
			rounded.Matrix.DequantizeRow(a, i, codes)
			plain.Matrix.DequantizeRow(b, i, codes)
			for _, d := range dead {
				require.Equal(t, a[d], b[d], "%s row %d column %d", name, i, d)
			}
		}
		require.Less(t, gptq.Error, rtn.Error)
		require.Less(t, gptq.Error, 0.1)
	}
}

// TestSingularInputs: fewer inputs than channels. Damping makes up for it, and is raised and reported where that of the caller is too
// little.
func TestSingularInputs(t *testing.T) {
	const rows, cols, inputs = 8, 96, 5
	r := rand.New(rand.NewPCG(23, 24))
	solve := solver(t, kernel.Generic())
	x := normal(cols*inputs, r, 1)
	h := make([]float32, cols*cols)
	solve.AddGram(h, cols, x, inputs)
	solve.Mirror(h, cols)
	in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
	require.NoError(t, err)
	require.False(t, in.Raised)
	require.Equal(t, 0.01, in.Damping)
	in, err = quant.NewInputs(solve, h, cols, quant.InputOptions{Damping: 1e-9})
	require.NoError(t, err)
	require.True(t, in.Raised)
	raises := math.Log10(in.Damping / 1e-9)
	require.InDelta(t, math.Round(raises), raises, 1e-6, "tenfold")
	require.GreaterOrEqual(t, raises, 0.9)
	require.LessOrEqual(t, raises, 4.1)
	w := normal(rows*cols, r, 0)
	o := quant.MatrixOptions{Scheme: scheme(t, "w4g32"), Rule: quant.Search, Method: quant.GPTQ, Refine: 2}
	got, err := quant.Matrix(solve, w, rows, cols, in, o)
	require.NoError(t, err)
	require.False(t, math.IsNaN(got.Error))
	o.Method, o.Refine = quant.RTN, 0
	rtn, err := quant.Matrix(solve, w, rows, cols, in, o)
	require.NoError(t, err)
	require.Less(t, got.Error, 0.1*rtn.Error, "there are many ways to give the same outputs")
}

// TestBadInputs: each is an error that says where.
func TestBadInputs(t *testing.T) {
	const n = 70
	solve := solver(t, kernel.Generic())
	with := func(change func(h []float32)) []float32 {
		h := identity(n)
		change(h)
		return h
	}
	nan, infinite := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		h    []float32
		says string
	}{
		"all zero":              {make([]float32, n*n), "all channels were zero, 70 of 70"},
		"NaN on the diagonal":   {with(func(h []float32) { h[5*n+5] = nan }), "channel 5 of 70"},
		"infinite diagonal":     {with(func(h []float32) { h[69*n+69] = infinite }), "channel 69 of 70"},
		"negative diagonal":     {with(func(h []float32) { h[7*n+7] = -1 }), "channel 7 of 70 has a mean square of -1"},
		"NaN off the diagonal":  {with(func(h []float32) { h[5*n+9], h[9*n+5] = nan, nan }), "not positive definite"},
		"infinite off diagonal": {with(func(h []float32) { h[5*n+9], h[9*n+5] = infinite, infinite }), "not positive definite"},
		"no Gram matrix":        {with(func(h []float32) { h[5*n+9], h[9*n+5] = 500, 500 }), "not positive definite even with damping of 100 "},
	} {
		for _, inOrder := range []bool{false, true} {
			in, err := quant.NewInputs(solve, c.h, n, quant.InputOptions{InOrder: inOrder})
			require.ErrorIs(t, err, quant.ErrInputs, name)
			require.ErrorContains(t, err, c.says, name)
			require.Nil(t, in)
		}
	}
}

// TestUnfactored: rounding to nearest by the Hessian gives the same with and without its factor, even where there can be none; what needs the factor says so.
func TestUnfactored(t *testing.T) {
	const rows, cols = 16, 80
	r := rand.New(rand.NewPCG(25, 26))
	solve := solver(t, kernel.Generic())
	h := correlated(t, solve, cols, r)
	factored, err := quant.NewInputs(solve, h, cols, quant.InputOptions{})
	require.NoError(t, err)
	in, err := quant.NewInputs(solve, h, cols, quant.InputOptions{Unfactored: true})
	require.NoError(t, err)
	require.Equal(t, factored.Importance, in.Importance)
	require.Zero(t, in.Damping)
	w := normal(rows*cols, r, 0)
	o := quant.MatrixOptions{Scheme: scheme(t, "w4g16nlk"), Rule: quant.Search, Method: quant.RTN, Refine: 2}
	want, err := quant.Matrix(solve, w, rows, cols, factored, o)
	require.NoError(t, err)
	got, err := quant.Matrix(solve, w, rows, cols, in, o)
	require.NoError(t, err)
	require.Equal(t, want, got)
	o.Method = quant.GPTQ
	_, err = quant.Matrix(solve, w, rows, cols, in, o)
	require.ErrorIs(t, err, quant.ErrInputs)
	require.ErrorContains(t, err, "factor")

	h = identity(cols)
	h[5*cols+9], h[9*cols+5] = 500, 500 // no Gram matrix
	_, err = quant.NewInputs(solve, h, cols, quant.InputOptions{})
	require.ErrorContains(t, err, "not positive definite")
	_, err = quant.NewInputs(solve, h, cols, quant.InputOptions{Unfactored: true})
	require.NoError(t, err)
}
