// Package calibrate runs a model on text and gathers what quantizers need to know of the inputs of its linear layers.
package calibrate

import (
	"errors"
	"fmt"

	"qtool/runtime/linalg"
)

// ErrNoData means that there is nothing to calibrate on.
var ErrNoData = errors.New("no calibration data")

// Gram gathers X^T X of the inputs of a linear layer.
type Gram struct {
	Cols  int
	Count int       // inputs so far
	Sum   []float32 // [Cols][Cols], upper triangle until Mean
	Max   []float32 // [Cols], largest magnitudes

	solver     *linalg.Solver
	transposed []float32
}

// NewGram returns an empty one.
func NewGram(s *linalg.Solver, cols int) *Gram {
	return &Gram{Cols: cols, Sum: make([]float32, cols*cols), Max: make([]float32, cols), solver: s}
}

// gramTokens is how many inputs are summed up in one go: see linalg.Solver.AddGram on the precision.
const gramTokens = 512

// Add takes in inputs, x[n][Cols]. Values that are not finite are an error.
func (g *Gram) Add(x []float32, n int) error {
	for at := 0; at < n; at += gramTokens {
		m := min(gramTokens, n-at)
		if err := g.add(x[at*g.Cols:(at+m)*g.Cols], m); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gram) add(x []float32, n int) error {
	for i, v := range x {
		if v-v != 0 {
			return fmt.Errorf("input %d, channel %d: %g is not finite", g.Count+i/g.Cols, i%g.Cols, v)
		}
	}
	g.transposed = transpose(g.solver, g.transposed, x, n, g.Cols)
	t := g.transposed
	for c := range g.Cols {
		for _, v := range t[c*n : (c+1)*n] {
			g.Max[c] = max(g.Max[c], v, -v)
		}
	}
	g.solver.AddGram(g.Sum, g.Cols, t, n)
	g.Count += n
	return nil
}

// transpose returns x, [n][cols], as [cols][n], in the place of t where that is large enough.
func transpose(s *linalg.Solver, t, x []float32, n, cols int) []float32 {
	if cap(t) < n*cols {
		t = make([]float32, n*cols)
	}
	t = t[:n*cols]
	const span = 64
	s.Run((cols+span-1)/span, func(i int, _ *linalg.Scratch) {
		for k := range n {
			row := x[k*cols : (k+1)*cols]
			for c := i * span; c < min((i+1)*span, cols); c++ {
				t[c*n+k] = row[c]
			}
		}
	})
	return t
}

// Mean returns the mean of x xᵀ, [Cols][Cols], in the place of Sum, which must not be used afterwards.
func (g *Gram) Mean() []float32 {
	f := float32(1 / float64(max(g.Count, 1)))
	g.solver.Run(g.Cols, func(i int, _ *linalg.Scratch) {
		row := g.Sum[i*g.Cols : (i+1)*g.Cols]
		for j := i; j < g.Cols; j++ {
			row[j] *= f
		}
	})
	g.solver.Mirror(g.Sum, g.Cols)
	return g.Sum
}
