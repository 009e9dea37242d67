package quant_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert/quant"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// TestChannels: channels that share a factor have one, by what they are together, and none has more than it may; and AWQ's factors cut the error of outputs
// where channels stand out.
func TestChannels(t *testing.T) {
	const rows, n = 32, 96
	r := rand.New(rand.NewPCG(61, 62))
	solve := solver(t, kernel.Generic())
	h := correlated(t, solve, n, r)
	c := quant.Channels{Shared: make([]int, n), Most: make([]float32, n)}
	w := normal(rows*n, r, 0)
	large := func(i int) bool { return i%24 == 5 }
	inputs := make([]float32, n)
	for i := range n {
		c.Shared[i], c.Most[i] = i/48*24+i%24, 1e9
		inputs[i] = float32(1 + i%7)
		for j := range n {
			if large(i) {
				h[i*n+j] *= 50
			}
			if large(j) {
				h[i*n+j] *= 50
			}
		}
		for row := range rows {
			if large(i) {
				w[row*n+i] /= 50
			}
		}
	}
	matrices := []quant.Weights{{W: w, Rows: rows, Scheme: scheme(t, "w4g32")}}
	factors, err := quant.AWQFactors(solve, h, n, c, quant.Search, matrices)
	require.NoError(t, err)
	smooth := quant.SmoothFactors(inputs, 0.5, c, matrices)
	for i := range n {
		for j := range n {
			if c.Shared[i] == c.Shared[j] {
				require.Equal(t, factors[i], factors[j])
				require.Equal(t, smooth[i], smooth[j])
			}
			if large(i) && !large(j) {
				require.Greater(t, factors[i], 2*factors[j])
			}
		}
	}
	largest := func(i int) (x, v float64) {
		for j := range n {
			if c.Shared[j] == c.Shared[i] {
				x = max(x, float64(inputs[j]))
				for row := range rows {
					v = max(v, math.Abs(float64(w[row*n+j])))
				}
			}
		}
		return x, v
	}
	x0, w0 := largest(0)
	for i := range n {
		x, v := largest(i)
		require.InEpsilon(t, math.Sqrt(x/v)/math.Sqrt(x0/w0), smooth[i]/smooth[0], 1e-4)
	}
	c.Most[5], c.Most[29] = 1, 1
	held, err := quant.AWQFactors(solve, h, n, c, quant.Search, matrices)
	require.NoError(t, err)
	require.EqualValues(t, 1, held[5])
	require.LessOrEqual(t, quant.SmoothFactors(inputs, 0.5, c, matrices)[5], float32(1))
}

// TestLeastScale: the scale that a row of some magnitude gets is about what was said.
func TestLeastScale(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 64))
	for _, name := range []string{"w3g32", "w4g32", "w4g32nl", "w4g16nlk", "w4g32k", "w3g32nlk", "w8"} {
		s := scheme(t, name)
		row := normal(packed.Super, r, 0)
		var most float32
		for _, v := range row {
			most = max(most, v, -v)
		}
		codes := packed.NewCodes(s, len(row))
		require.NoError(t, quant.New(kernel.Generic(), s, quant.Search).Row(codes, row, nil))
		var scale float32
		for _, d := range codes.Scales {
			scale = max(scale, half.F16ToF32(d), -half.F16ToF32(d))
		}
		require.InDelta(t, 1, float64(scale/quant.LeastScale(s, most)), 0.35, name)
	}
}
