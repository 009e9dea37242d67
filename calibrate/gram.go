// Package calibrate runs a model on text and gathers what quantizers need to know of the inputs of its linear layers.
package calibrate

import (
	"errors"
	"fmt"
	"slices"

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

	solver *linalg.Solver
}

// NewGram returns an empty one.
func NewGram(s *linalg.Solver, cols int) *Gram {
	return &Gram{Cols: cols, Sum: make([]float32, cols*cols), Max: make([]float32, cols), solver: s}
}

// ErrNotFinite means that NaN or an infinity came up in what layers are multiplied with.
var ErrNotFinite = errors.New("not finite")

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
	if at := notFinite(g.solver, x, n, g.Cols); at >= 0 {
		return fmt.Errorf("input %d, channel %d: %g is %w", g.Count+at/g.Cols, at%g.Cols, x[at], ErrNotFinite)
	}
	const span = 64
	g.solver.Run((g.Cols+span-1)/span, func(i int, _ *linalg.Scratch) {
		most := g.Max[i*span : min((i+1)*span, g.Cols)]
		for k := range n {
			for c, v := range x[k*g.Cols+i*span:][:len(most)] {
				most[c] = max(most[c], v, -v)
			}
		}
	})
	g.solver.AddGram(g.Sum, g.Cols, x, n)
	g.Count += n
	return nil
}

// notFinite gives the index of the first element of x, [n][cols], that is no finite number, or −1.
func notFinite(s *linalg.Solver, x []float32, n, cols int) int {
	const infinity = 0x7f800000
	bad := make([]bool, n)
	s.Run(n, func(k int, _ *linalg.Scratch) { bad[k] = s.Kernels().Largest(x[k*cols:(k+1)*cols]) >= infinity })
	if k := slices.Index(bad, true); k >= 0 {
		for i, v := range x[k*cols : (k+1)*cols] {
			if v-v != 0 {
				return k*cols + i
			}
		}
	}
	return -1
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
