package convert

import (
	"context"
	"errors"
	"fmt"
	"math"

	"qtool/calibrate"
	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// Sensitivity is what quantizing one tensor alone does.
type Sensitivity struct {
	Tensor     string  `json:"tensor"`
	Divergence float64 `json:"divergence"` // mean KL divergence of the predictions, in nats, with the probing scheme
	Error      float64 `json:"error"`      // squared error of its weights by their square, with that scheme
}

// Mixed is a plan by budget, and what it follows from.
type Mixed struct {
	Sensitivities []Sensitivity
	// Predicted is the sum of the tensors' own divergences under the plan, each as rounding to nearest would leave it; Bound is what no
	// choice within the budget could be below, in the same sense (bytes, where divergence is limited).
	Predicted, Bound float64
	Tokens           int
	Resumed          int  // tensors that an earlier run had measured
	Damaged          bool // a line of the journal of these was: what followed was measured again
	Discarded        bool // what an earlier run had measured was of another plan, source or text
}

// Mix measures how sensitive the predictions of a model are to each of its matrices, on some of the calibration text, and sets the
// schemes of the recipe's assignments so that the budget is kept. Tensors that an override decides keep what that says.
//
// What is measured is kept in the work folder of the output, if one is named: a run that was stopped goes on from there, and another budget
// over the same schemes measures nothing again.
func Mix(ctx context.Context, m *checkpoint.Model, r *Recipe, o Options) (mixed *Mixed, err error) {
	if o.Calibration == nil || len(o.Calibration.Sequences) == 0 {
		return nil, fmt.Errorf("a budget needs calibration text: %w", calibrate.ErrNoData)
	}
	if err := r.Budget.Validate(); err != nil {
		return nil, err
	}
	if err := o.Calibration.check(m); err != nil {
		return nil, err
	}
	if o.Output != "" {
		if err := CheckOutput(o.Output, m, o.Reads); err != nil {
			return nil, err
		}
	}
	if err := verify(ctx, m); err != nil {
		return nil, err
	}
	fixed, err := NewPlan(m, *r)
	if err != nil {
		return nil, err
	}
	choices := r.Budget.Schemes
	if len(choices) == 0 {
		choices = DefaultSchemes()
	}
	b, err := r.weigh(fixed, choices)
	if err != nil {
		return nil, err
	}
	s := &sensitivities{options: o, rule: r.Rule, choices: choices, model: fixed.Model}
	if err := s.pick(); err != nil {
		return nil, err
	}
	if s.kept, err = openMeasured(o.Output, b.least, func() (string, error) { return s.key(*r) }); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.kept.close()) }()
	mixed = &Mixed{Tokens: s.tokens(), Damaged: s.kept.damaged, Discarded: s.kept.discarded}
	costs, err := s.all(ctx, b.open, mixed)
	if err != nil {
		return nil, err
	}
	tensors := make([][]option, len(b.open))
	for i := range b.open {
		for k, c := range choices {
			tensors[i] = append(tensors[i], option{choice: c, bytes: b.bytes[i][k], divergence: costs[i][k]})
		}
	}
	a, err := assign(tensors, b.limit, r.Budget.Divergence)
	if err != nil {
		return nil, err
	}
	r.Assigned = make(map[string]Assigned, len(b.open))
	for i, d := range b.open {
		pick := tensors[i][a.picks[i]]
		r.Assigned[d.Tensor.Name] = Assigned{Choice: pick.choice, Divergence: round3(pick.divergence)}
	}
	mixed.Predicted, mixed.Bound = a.divergence, a.bound
	return mixed, nil
}

// weighed is what a budget means for a model before anything is measured.
type weighed struct {
	open  []Decision
	bytes [][]int64 // of each open tensor by each choice
	limit int64     // of bytes that the open tensors may take, where bytes are limited
	least int64     // bytes that all tensors take at least
}

// weigh finds the tensors that a budget decides over, and what they would take. A budget that even the smallest choice is beyond is an error here.
func (r Recipe) weigh(fixed *Plan, choices []Choice) (*weighed, error) {
	total := r.Budget.Bytes
	if r.Budget.BitsPerWeight > 0 {
		total = int64(min(r.Budget.BitsPerWeight*float64(fixed.Weights())/8, 1<<60)) // more is no limit
	}
	b := &weighed{limit: total}
	for _, d := range fixed.Decisions {
		if !r.mixes(d) {
			b.limit -= d.Bytes
			b.least += d.Bytes
			continue
		}
		var sizes []int64
		smallest := int64(math.MaxInt64)
		for _, c := range choices {
			scheme, err := packed.ParseScheme(string(c))
			if err != nil {
				return nil, err
			}
			n := int64(scheme.Bytes(d.Tensor.Rows(), d.Tensor.Cols()))
			sizes, smallest = append(sizes, n), min(smallest, n)
		}
		b.open, b.bytes = append(b.open, d), append(b.bytes, sizes)
		b.least += smallest
	}
	if r.Budget.Divergence == 0 && b.least > total {
		return nil, fmt.Errorf("%w: %d bytes, %.3f bits per weight, are allowed; the smallest choice takes %d bytes, %.3f bits per weight, with the tensors that stay as they are",
			ErrBudget, total, 8*float64(total)/float64(fixed.Weights()), b.least, 8*float64(b.least)/float64(fixed.Weights()))
	}
	return b, nil
}

// round3 keeps three digits, so that what is written down is short.
func round3(f float64) float64 {
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(f))))
	if f == 0 || math.IsInf(scale, 0) {
		return 0 // nothing, or next to it
	}
	return math.Round(f*scale) / scale
}

// mixes reports whether the budget decides over a tensor: matrices that are to be quantized, but for those that an override names.
func (r Recipe) mixes(d Decision) bool {
	if d.Scheme == nil || d.Tensor.Packed() {
		return false
	}
	switch d.Tensor.Role {
	case arch.Linear, arch.Embedding, arch.Head:
	default:
		return false
	}
	for _, o := range r.Overrides {
		if o.matches(d.Tensor.Name) {
			return false
		}
	}
	return true
}
