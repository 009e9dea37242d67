package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/runtime/kernel"
)

// TestCross compares the means of e xᵀ of even and of odd sequences with double precision.
func TestCross(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const rows, cols = 9, 70
	for _, set := range kernel.Available() {
		for _, n := range []int{1, 5, 700} {
			c := calibrate.NewCross(solver(t, set, 2), rows, cols)
			var want, size [2][rows * cols]float64
			for sequence := range 5 {
				e, x := inputs(n, rows, r), inputs(n, cols, r)
				require.NoError(t, c.Add(sequence, e, x, n))
				half := sequence % 2
				count := float64(n * (3 - half))
				for i := range n {
					for a := range rows {
						for b := range cols {
							p := float64(e[i*rows+a]) * float64(x[i*cols+b]) / count
							want[half][a*cols+b] += p
							size[half][a*cols+b] += math.Abs(p)
						}
					}
				}
			}
			require.Equal(t, [2]int{3 * n, 2 * n}, c.Count)
			for half, mean := range c.Means() {
				for i, v := range mean {
					require.InDelta(t, want[half][i], v, 1e-5*size[half][i])
				}
			}
		}
	}
}

// TestCrossRefuses: a difference that is not finite.
func TestCrossRefuses(t *testing.T) {
	c := calibrate.NewCross(solver(t, kernel.Available()[0], 1), 2, 3)
	err := c.Add(1, []float32{1, 2, 3, float32(math.Inf(1))}, make([]float32, 6), 2)
	require.ErrorContains(t, err, "sequence 1, position 1, channel 1")
}
