package calibrate

import (
	"fmt"

	"qtool/runtime/linalg"
)

// Cross gathers Σ e xᵀ of what a linear layer is to give besides, e, and its inputs x: apart for even and odd sequences, so that what both
// halves agree on can be told from chance.
type Cross struct {
	Rows, Cols int
	Count      [2]int       // inputs so far
	Sums       [2][]float32 // [Rows][Cols]

	solver *linalg.Solver
}

// NewCross returns an empty one.
func NewCross(s *linalg.Solver, rows, cols int) *Cross {
	return &Cross{Rows: rows, Cols: cols, Sums: [2][]float32{make([]float32, rows*cols), make([]float32, rows*cols)}, solver: s}
}

// Add takes in e[n][Rows] and x[n][Cols] of a sequence. Values that are not finite are an error.
func (c *Cross) Add(sequence int, e, x []float32, n int) error {
	half := sequence & 1
	for at := 0; at < n; at += gramTokens {
		m := min(gramTokens, n-at)
		part := e[at*c.Rows : (at+m)*c.Rows]
		if i := notFinite(c.solver, part, m, c.Rows); i >= 0 {
			return fmt.Errorf("sequence %d, position %d, channel %d: a difference of %g is %w", sequence, at+i/c.Rows, i%c.Rows, part[i], ErrNotFinite)
		}
		c.solver.AddProduct(c.Sums[half], part, c.Rows, x[at*c.Cols:(at+m)*c.Cols], c.Cols, m)
	}
	c.Count[half] += n
	return nil
}

// Means divides the sums by the numbers of inputs, and returns them; the sums must not be used afterwards.
func (c *Cross) Means() [2][]float32 {
	for half, sum := range c.Sums {
		f := float32(1 / float64(max(c.Count[half], 1)))
		c.solver.Run(c.Rows, func(r int, _ *linalg.Scratch) {
			row := sum[r*c.Cols : (r+1)*c.Cols]
			for i := range row {
				row[i] *= f
			}
		})
	}
	return c.Sums
}
