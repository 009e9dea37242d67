package convert

import (
	"context"
	"errors"
	"fmt"
	"math"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/eval"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/llama"
	"qtool/runtime/pool"
)

// probe is the scheme that a tensor's sensitivity is measured with. What the others would do follows from their squared error: so far as
// errors are small, the divergence grows with it.
const probe = Choice("w4g32nlk")

// sampleElements bounds the hidden states that are kept for the measurement, of all blocks together.
const sampleElements = 64 << 20

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
}

// Mix measures how sensitive the predictions of a model are to each of its matrices, on some of the calibration text, and sets the
// schemes of the recipe's assignments so that the budget is kept. Tensors that an override decides keep what that says.
func Mix(ctx context.Context, m *checkpoint.Model, r *Recipe, o Options) (*Mixed, error) {
	if o.Calibration == nil || len(o.Calibration.Sequences) == 0 {
		return nil, fmt.Errorf("a budget needs calibration text: %w", calibrate.ErrNoData)
	}
	if err := r.Budget.Validate(); err != nil {
		return nil, err
	}
	fixed, err := NewPlan(m, *r)
	if err != nil {
		return nil, err
	}
	set, err := kernel.Best()
	if err != nil {
		return nil, err
	}
	engine, err := llama.New(fixed.Model, llama.Options{Threads: o.Threads, KV: llama.KVF32})
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	workers := pool.New(o.Threads)
	defer workers.Close()
	s := &sensitivities{blocks: engine.Blocks(), solver: linalg.New(set, workers), options: o, rule: r.Rule, embedding: engine.EmbeddingName()}
	if err := s.sample(ctx); err != nil {
		return nil, err
	}
	choices := r.Budget.Schemes
	if len(choices) == 0 {
		choices = DefaultSchemes()
	}
	limit := r.Budget.Bytes
	if r.Budget.BitsPerWeight > 0 {
		limit = int64(min(r.Budget.BitsPerWeight*float64(fixed.Weights())/8, 1<<60)) // more is no limit
	}
	total := limit
	out := &Mixed{Tokens: s.tokens()}
	var open []Decision
	var tensors [][]option
	for _, d := range fixed.Decisions {
		if !r.mixes(d) {
			limit -= d.Bytes
			continue
		}
		open = append(open, d)
	}
	for i, d := range open {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(int64(i), int64(len(open)), d.Tensor.Name)
		}
		measured, options, err := s.measure(d.Tensor, choices)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", d.Tensor.Name, err)
		}
		out.Sensitivities = append(out.Sensitivities, measured)
		tensors = append(tensors, options)
	}
	a, err := assign(tensors, limit, r.Budget.Divergence)
	var small *tooSmallError
	if errors.As(err, &small) {
		// In the terms of the budget, with the tensors that it does not decide over.
		least := small.least + total - limit
		return nil, fmt.Errorf("%w: %d bytes, %.3f bits per weight, are allowed; the smallest choice takes %d bytes, %.3f bits per weight, with the tensors that stay as they are",
			ErrBudget, total, 8*float64(total)/float64(fixed.Weights()), least, 8*float64(least)/float64(fixed.Weights()))
	}
	if err != nil {
		return nil, err
	}
	r.Assigned = make(map[string]Assigned, len(open))
	for i, d := range open {
		pick := tensors[i][a.picks[i]]
		r.Assigned[d.Tensor.Name] = Assigned{Choice: pick.choice, Divergence: round3(pick.divergence)}
	}
	out.Predicted, out.Bound = a.divergence, a.bound
	return out, nil
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

// sensitivities measures on a sample of the calibration text.
type sensitivities struct {
	blocks    *llama.Blocks
	solver    *linalg.Solver
	options   Options
	rule      quant.Rule
	embedding string

	sequences [][]int32
	states    [][][]float32 // [sequence][block]: what enters it; after the last block what leaves it
	logits    [][]float32   // [sequence][positions·vocab]
	layerOf   map[string]int
}

func (s *sensitivities) tokens() int {
	n := 0
	for _, q := range s.sequences {
		n += len(q)
	}
	return n
}

// sample runs the source on as much of the text as the states of all blocks can be kept of.
func (s *sensitivities) sample(ctx context.Context) error {
	all := s.options.Calibration.Sequences
	hidden, layers := s.blocks.Config().Hidden, s.blocks.Count()
	each := len(all[0]) * (hidden*(layers+1) + s.blocks.Config().Vocab)
	n := min(len(all), max(1, sampleElements/each), 16)
	s.layerOf = make(map[string]int)
	for layer := range layers {
		for _, group := range s.blocks.Linears(layer) {
			for _, name := range group {
				s.layerOf[name] = layer
			}
		}
	}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		tokens := all[i*len(all)/n]
		s.sequences = append(s.sequences, tokens)
		x := make([]float32, len(tokens)*hidden)
		if err := s.blocks.Embed(x, tokens); err != nil {
			return err
		}
		states := [][]float32{append([]float32(nil), x...)}
		for layer := range layers {
			if err := s.blocks.Run(layer, x, len(tokens), nil); err != nil {
				return err
			}
			states = append(states, append([]float32(nil), x...))
		}
		s.states = append(s.states, states)
		var logits []float32
		err := s.blocks.Predict(x, len(tokens), 0, func(_ int, l []float32) error {
			logits = append(logits, l...)
			return nil
		})
		if err != nil {
			return err
		}
		s.logits = append(s.logits, logits)
	}
	return nil
}

// measure quantizes a tensor alone and compares the predictions, and works out its options.
func (s *sensitivities) measure(t *checkpoint.Tensor, choices []Choice) (Sensitivity, []option, error) {
	rows, cols := t.Rows(), t.Cols()
	w := make([]float32, rows*cols)
	if err := t.ReadAll(w); err != nil {
		return Sensitivity{}, nil, err
	}
	probed, matrix, err := s.quantize(w, rows, cols, probe)
	if err != nil {
		return Sensitivity{}, nil, err
	}
	if err := s.blocks.Replace(t.Name, matrix); err != nil {
		return Sensitivity{}, nil, err
	}
	divergence, err := s.divergence(t.Name)
	if err != nil {
		return Sensitivity{}, nil, err
	}
	if err := s.blocks.Restore(t.Name); err != nil {
		return Sensitivity{}, nil, err
	}
	out := Sensitivity{Tensor: t.Name, Divergence: divergence, Error: probed}
	// Some rows are enough to tell how the schemes' errors compare.
	picked := quant.BookRows(rows)
	some := make([]float32, 0, len(picked)*cols)
	for _, r := range picked {
		some = append(some, w[r*cols:(r+1)*cols]...)
	}
	reference, _, err := s.quantize(some, len(picked), cols, probe)
	if err != nil {
		return Sensitivity{}, nil, err
	}
	var options []option
	for _, c := range choices {
		scheme, err := packed.ParseScheme(string(c))
		if err != nil {
			return out, nil, err
		}
		e := reference
		if c != probe {
			if e, _, err = s.quantize(some, len(picked), cols, c); err != nil {
				return out, nil, err
			}
		}
		o := option{choice: c, bytes: int64(scheme.Bytes(rows, cols))}
		if reference > 0 {
			o.divergence = divergence * e / reference
		}
		options = append(options, o)
	}
	return out, options, nil
}

// quantize gives the relative squared error of the weights, and the matrix.
func (s *sensitivities) quantize(w []float32, rows, cols int, c Choice) (float64, packed.Matrix, error) {
	scheme, err := packed.ParseScheme(string(c))
	if err != nil {
		return 0, packed.Matrix{}, err
	}
	q, err := quant.Matrix(s.solver, w, rows, cols, nil, quant.MatrixOptions{Scheme: scheme, Rule: s.rule, Method: quant.RTN})
	if err != nil {
		return 0, packed.Matrix{}, err
	}
	back, scratch := make([]float32, cols), packed.NewCodes(scheme, cols)
	var loss, power float64
	for r := range rows {
		q.Matrix.DequantizeRow(back, r, scratch)
		for i, v := range w[r*cols : (r+1)*cols] {
			d := float64(v) - float64(back[i])
			loss, power = loss+d*d, power+float64(v)*float64(v)
		}
	}
	if power > 0 {
		loss /= power
	}
	return loss, q.Matrix, nil
}

// divergence is the mean KL divergence of the predictions from the source's, with what stands in the engine now, from the block
// of the tensor on.
func (s *sensitivities) divergence(name string) (float64, error) {
	vocab := s.blocks.Config().Vocab
	var sum float64
	n := 0
	for i, tokens := range s.sequences {
		first, inBlock := s.layerOf[name]
		var x []float32
		switch {
		case name == s.embedding:
			first = 0
			x = make([]float32, len(s.states[i][0]))
			if err := s.blocks.Embed(x, tokens); err != nil {
				return 0, err
			}
		case inBlock:
			x = append(x, s.states[i][first]...)
		default: // the head
			first = s.blocks.Count()
			x = append(x, s.states[i][first]...)
		}
		for layer := first; layer < s.blocks.Count(); layer++ {
			if err := s.blocks.Run(layer, x, len(tokens), nil); err != nil {
				return 0, err
			}
		}
		err := s.blocks.Predict(x, len(tokens), 0, func(p int, logits []float32) error {
			d, err := eval.Divergence(s.logits[i][p*vocab:(p+1)*vocab], logits)
			sum, n = sum+d, n+1
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum / float64(max(n, 1)), nil
}
