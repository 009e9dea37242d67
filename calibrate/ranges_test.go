package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
)

// TestRanges: a normal distribution with a few values far out. Two rules cut these, and none cuts into the bulk.
func TestRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h := calibrate.NewHistogram()
	x := make([]float32, 100_000)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	x[7], x[8] = 60, -60
	h.Add(x)
	require.EqualValues(t, len(x), h.Count)
	require.EqualValues(t, 60, h.Range(calibrate.MinMax))
	for _, rule := range []calibrate.RangeRule{calibrate.Percentile, calibrate.Entropy} {
		got := h.Range(rule)
		require.Greater(t, got, float32(2.5), rule)
		require.Less(t, got, float32(12), rule)
	}
	// By the mean squared error of the very values, no range does much better than the one of that rule.
	loss := func(limit float32) (sum float64) {
		step := float64(limit) / 127
		for _, v := range x {
			q := math.RoundToEven(min(max(float64(v), -float64(limit)), float64(limit))/step) * step
			sum += (q - float64(v)) * (q - float64(v))
		}
		return sum
	}
	best := math.Inf(1)
	for limit := float32(2); limit < 60; limit *= 1.02 {
		best = min(best, loss(limit))
	}
	require.Less(t, loss(h.Range(calibrate.MSE)), 1.03*best)
}

func TestRangeOfNothing(t *testing.T) {
	h := calibrate.NewHistogram()
	h.Add(make([]float32, 10))
	for _, rule := range []calibrate.RangeRule{calibrate.MinMax, calibrate.Percentile, calibrate.MSE, calibrate.Entropy} {
		require.Zero(t, h.Range(rule))
	}
	_, err := calibrate.ParseRangeRule("most")
	require.Error(t, err)
}
