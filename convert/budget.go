package convert

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"qtool/formats/packed"
)

// ErrBudget means that no choice of schemes keeps a budget.
var ErrBudget = errors.New("budget cannot be kept")

// Budget is what mixed precision is to stay within. One of the limits is set.
type Budget struct {
	BitsPerWeight float64 `json:"bits_per_weight,omitempty"` // of all tensors together
	Bytes         int64   `json:"bytes,omitempty"`           // of all tensors together
	// Divergence is a limit to the sum of what the tensors' own quantization does to the predictions, in nats.
	Divergence float64 `json:"divergence,omitempty"`
	// Schemes that a tensor may get; empty: DefaultSchemes.
	Schemes []Choice `json:"schemes,omitempty"`
}

// Set reports whether there is a limit.
func (b Budget) Set() bool { return b.BitsPerWeight > 0 || b.Bytes > 0 || b.Divergence > 0 }

// DefaultSchemes are what a budget chooses from.
func DefaultSchemes() []Choice {
	return []Choice{"w3g32nlk", "w3g16nlk", "w4g32nlk", "w4g16nlk", "w4g32nl", "w8"}
}

// Validate says what is wrong with the budget.
func (b Budget) Validate() error {
	limits := 0
	for _, set := range []bool{b.BitsPerWeight != 0, b.Bytes != 0, b.Divergence != 0} {
		if set {
			limits++
		}
	}
	if limits > 1 {
		return fmt.Errorf("a budget has one limit: bits per weight, bytes, or divergence")
	}
	for _, limit := range []float64{b.BitsPerWeight, float64(b.Bytes), b.Divergence} {
		if !(limit >= 0) || math.IsInf(limit, 0) {
			return fmt.Errorf("the limit of a budget must be a positive number, found %g", limit)
		}
	}
	for _, c := range b.Schemes {
		if _, err := packed.ParseScheme(string(c)); err != nil {
			return err
		}
	}
	return nil
}

// option is one scheme for one tensor: what it takes, and what its own quantization does to the predictions.
type option struct {
	choice     Choice
	bytes      int64
	divergence float64
}

// assignment is a choice for each tensor.
type assignment struct {
	picks      []int // index into the tensor's options
	bytes      int64
	divergence float64
	// bound is what no choice within the limit can be below: divergence under a limit to bytes, bytes under a limit to divergence.
	bound float64
}

// assign picks an option for each tensor so that the sum of divergences is least with bytes within limit, or, where divergence is
// limited, the other way round. It walks along the lower convex hull of every tensor's options in the order of what a byte gains (the
// solution of the relaxed problem, whose value is the bound), and then spends what is left on single steps that still fit.
func assign(tensors [][]option, bytes int64, divergence float64) (*assignment, error) {
	a := &assignment{picks: make([]int, len(tensors))}
	type step struct {
		tensor, from, to int
		bytes            int64
		gain             float64
	}
	var steps []step
	for t, options := range tensors {
		hull := lowerHull(options)
		a.picks[t] = hull[0]
		a.bytes += options[hull[0]].bytes
		a.divergence += options[hull[0]].divergence
		for i := 1; i < len(hull); i++ {
			from, to := options[hull[i-1]], options[hull[i]]
			steps = append(steps, step{t, hull[i-1], hull[i], to.bytes - from.bytes, from.divergence - to.divergence})
		}
	}
	// By gain for a byte; those of one tensor are in order by the shape of a hull.
	slices.SortStableFunc(steps, func(x, y step) int {
		return cmp.Compare(y.gain*float64(x.bytes), x.gain*float64(y.bytes))
	})
	fits := func(s step) bool { return a.bytes+s.bytes <= bytes }
	if divergence > 0 {
		a.bound = float64(a.bytes) // where the smallest choices will do
		fits = func(step) bool { return a.divergence > divergence }
	} else if a.bytes > bytes {
		return nil, fmt.Errorf("%w: the smallest choice takes %d bytes, %d are allowed", ErrBudget, a.bytes, bytes)
	}
	bounded := false
	for _, s := range steps {
		if a.picks[s.tensor] != s.from {
			continue // an earlier step of the tensor did not fit
		}
		if !fits(s) {
			if !bounded && divergence == 0 {
				a.bound = a.divergence - s.gain*float64(bytes-a.bytes)/float64(s.bytes)
				bounded = true
			}
			continue
		}
		if divergence > 0 {
			a.bound = float64(a.bytes) + float64(s.bytes)*min(1, (a.divergence-divergence)/s.gain)
		}
		a.picks[s.tensor] = s.to
		a.bytes += s.bytes
		a.divergence -= s.gain
	}
	if !bounded && divergence == 0 {
		a.bound = a.divergence
	}
	if divergence > 0 && a.divergence > divergence {
		return nil, fmt.Errorf("%w: the finest choice has a divergence of %.3g, %.3g is allowed", ErrBudget, a.divergence, divergence)
	}
	return a, nil
}

// lowerHull gives the options on the lower convex hull of divergence over bytes, from the smallest on.
func lowerHull(options []option) []int {
	order := make([]int, len(options))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(options[x].bytes, options[y].bytes), cmp.Compare(options[x].divergence, options[y].divergence))
	})
	var hull []int
	for _, i := range order {
		o := options[i]
		if len(hull) > 0 && o.divergence >= options[hull[len(hull)-1]].divergence {
			continue // larger and no better
		}
		for len(hull) >= 2 {
			p, q := options[hull[len(hull)-2]], options[hull[len(hull)-1]]
			if (p.divergence-q.divergence)*float64(o.bytes-q.bytes) > (q.divergence-o.divergence)*float64(q.bytes-p.bytes) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, i)
	}
	return hull
}
