package quant

import (
	"errors"
	"fmt"
	"slices"

	"qtool/runtime/linalg"
)

// ErrInputs means that the statistics of a layer's inputs cannot be used.
var ErrInputs = errors.New("statistics of inputs cannot be used")

// ErrZeroInputs means that every channel of a layer's inputs was always zero: nothing follows for its weights. Such errors match ErrInputs too.
var ErrZeroInputs = fmt.Errorf("%w: all channels were zero", ErrInputs)

// Damping of the Hessian's diagonal, as a share of its mean: where factoring fails it is raised tenfold, at most so often.
const (
	DefaultDamping = 0.01
	dampingRaises  = 4
)

// InputOptions say how statistics are prepared.
type InputOptions struct {
	Damping float64 // share of the mean of the diagonal; 0: DefaultDamping
	// InOrder quantizes columns as they stand; else those of the largest inputs come first (the "act-order" of GPTQ's authors).
	InOrder bool
	// Unfactored leaves out the damped factor of the Hessian, which GPTQ and Regress need and nothing else: Damping and InOrder then say nothing.
	Unfactored bool
}

// Inputs is what is known of the inputs of a linear layer, prepared for quantizing its weights; layers that share inputs share it.
type Inputs struct {
	N int
	// H is the Hessian of the layer's squared error by its weights, up to a factor: the mean of x xᵀ over the inputs, [N][N], as it was
	// measured. Channels that were always zero have none. Nil where nothing but Importance is known.
	H []float32
	// Importance is the diagonal of H, with a small number where it is zero.
	Importance []float32

	Damping float64 // that was needed, as a share of the mean of the diagonal; 0 without a factor
	Raised  bool    // above what was asked for
	Dead    int     // channels that were always zero

	order  []int     // columns in the order in which they are quantized
	factor []float32 // Uᵀ of the damped and ordered H: see linalg.Solver.InverseFactor; nil where it was left out
}

// NewImportance makes inputs of the mean squares of channels alone, by which weights can be rounded only. Errors match ErrInputs.
func NewImportance(squares []float32) (*Inputs, error) {
	in := &Inputs{N: len(squares), Importance: make([]float32, len(squares))}
	var sum float64
	for i, v := range squares {
		if !(v >= 0) || v > 1e30 {
			return nil, fmt.Errorf("%w: channel %d of %d has a mean square of %g", ErrInputs, i, len(squares), v)
		}
		if v == 0 {
			in.Dead++
		}
		sum += float64(v)
	}
	if in.Dead == in.N {
		return nil, fmt.Errorf("%w, %d of %d", ErrZeroInputs, in.Dead, in.N)
	}
	for i, v := range squares {
		in.Importance[i] = max(v, float32(1e-6*sum/float64(in.N)))
	}
	return in, nil
}

// NewInputs prepares the mean of x xᵀ of a layer's inputs, [n][n], which it keeps and must not be changed afterwards. Errors match ErrInputs.
func NewInputs(s *linalg.Solver, h []float32, n int, o InputOptions) (*Inputs, error) {
	in := &Inputs{N: n, H: h, Importance: make([]float32, n)}
	var sum float64
	for i := range n {
		d := h[i*n+i]
		if !(d >= 0) || d > 1e30 {
			return nil, fmt.Errorf("%w: channel %d of %d has a mean square of %g", ErrInputs, i, n, d)
		}
		sum += float64(d)
		if d == 0 {
			in.Dead++
		}
	}
	if in.Dead == n {
		return nil, fmt.Errorf("%w, %d of %d", ErrZeroInputs, in.Dead, n)
	}
	mean := sum / float64(n)
	for i := range n {
		in.Importance[i] = max(h[i*n+i], float32(1e-6*mean))
	}
	if o.Unfactored {
		return in, nil
	}
	if err := in.factorize(s, mean, o); err != nil {
		return nil, err
	}
	return in, nil
}

// factorize makes the factor of the damped Hessian, whose diagonal has that mean.
func (in *Inputs) factorize(s *linalg.Solver, mean float64, o InputOptions) error {
	n, h := in.N, in.H
	if in.Damping = o.Damping; in.Damping == 0 {
		in.Damping = DefaultDamping
	}
	in.order = make([]int, n)
	for i := range n {
		in.order[i] = i
	}
	if !o.InOrder {
		slices.SortStableFunc(in.order, func(a, b int) int {
			switch da, db := h[a*n+a], h[b*n+b]; {
			case da > db:
				return -1
			case da < db:
				return 1
			}
			return 0
		})
	}
	damped := make([]float32, n*n)
	for range dampingRaises + 1 {
		add := float32(in.Damping * mean)
		s.Run(n, func(i int, _ *linalg.Scratch) {
			from, to := h[in.order[i]*n:in.order[i]*n+n], damped[i*n:(i+1)*n]
			for j, c := range in.order {
				to[j] = from[c]
			}
			to[i] += add
			if h[in.order[i]*n+in.order[i]] == 0 {
				to[i] = float32(mean) // nothing is known of it, and it tells nothing of others
			}
		})
		var err error
		if in.factor, err = s.InverseFactor(damped, n); err == nil {
			return nil
		}
		if !errors.Is(err, linalg.ErrNotPositiveDefinite) {
			return err
		}
		in.Damping *= 10
		in.Raised = true
	}
	return fmt.Errorf("%w: the Hessian of %d channels is not positive definite even with damping of %g of its mean diagonal", ErrInputs, n, in.Damping/10)
}
