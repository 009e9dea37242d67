package convert

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/zeebo/xxh3"

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

// What is measured on: sequences at most, and numbers that are kept of them, the hidden states between all blocks and the logits. A long sequence of a
// large model is cut to fit. Both decide over the result, and are the same whatever the memory.
const (
	sampleSequences = 16
	sampleElements  = 128 << 20
)

// sensitivities measures on a sample of the calibration text.
type sensitivities struct {
	model   *checkpoint.Model
	options Options
	rule    quant.Rule
	choices []Choice
	kept    *measured

	sequences [][]int32 // of equal length

	blocks    *llama.Blocks
	solver    *linalg.Solver
	embedding string
	states    *calibrate.States // by sequence and block: what enters it; after the last block what leaves it
	logits    *calibrate.States // by sequence and position
	layerOf   map[string]int
	closers   []func() error
}

func (s *sensitivities) tokens() int { return len(s.sequences) * len(s.sequences[0]) }

// perToken is how many numbers are kept of a token.
func perToken(c *arch.Config) int { return c.Hidden*(c.Layers+1) + c.Vocab }

// sampleSize gives the number and the length of the sequences to measure on, of so many of that length.
func sampleSize(c *arch.Config, sequences, length int) (n, tokens int) {
	tokens = min(length, sampleElements/perToken(c))
	if tokens < 2 {
		return 0, tokens
	}
	return min(sequences, sampleSequences, sampleElements/(tokens*perToken(c))), tokens
}

// pick chooses the sequences, from all over the text.
func (s *sensitivities) pick() error {
	all := s.options.Calibration.Sequences
	n, tokens := sampleSize(s.model.Config(), len(all), len(all[0]))
	if n == 0 {
		return fmt.Errorf("the sensitivity of so large a model cannot be measured: the hidden states of a token are %d numbers, %d are kept", perToken(s.model.Config()), sampleElements)
	}
	for i := range n {
		s.sequences = append(s.sequences, all[i*len(all)/n][:tokens])
	}
	return nil
}

// key tells what is measured from anything else: all that decides over it, with size and time of change of the source's files in the place of their
// content.
func (s *sensitivities) key(r Recipe) (string, error) {
	set, err := kernel.Best()
	if err != nil {
		return "", err
	}
	h := xxh3.New()
	_, err = fmt.Fprintln(h, "sensitivities", s.options.Version, set.Name, probe, s.rule, r.Rotation, r.RotationSeed, s.choices)
	if err != nil {
		return "", err
	}
	for _, q := range s.sequences {
		_ = binary.Write(h, binary.LittleEndian, q) // a hash takes everything
	}
	files, _, err := Files(s.model)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		_, _ = h.Write(f.Data)
	}
	if err := hashSource(h, s.model); err != nil {
		return "", err
	}
	return packed.Digest(h.Sum128().Bytes()).String(), nil
}

// all gives, for each of the tensors, what each of the choices is expected to cost, and notes it in the result.
func (s *sensitivities) all(ctx context.Context, tensors []Decision, mixed *Mixed) (costs [][]float64, err error) {
	defer func() { err = errors.Join(err, s.stop()) }()
	for i, d := range tensors {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, ok := s.kept.done[d.Tensor.Name]
		if ok && len(found.Costs) == len(s.choices) {
			mixed.Resumed++
		} else {
			if s.options.Progress != nil {
				s.options.Progress(int64(i), int64(len(tensors)), d.Tensor.Name)
			}
			if found, err = s.measure(ctx, d.Tensor); err != nil {
				return nil, fmt.Errorf("tensor %q: %w", d.Tensor.Name, err)
			}
			if err := s.kept.note(found); err != nil {
				return nil, err
			}
		}
		mixed.Sensitivities = append(mixed.Sensitivities, found.Sensitivity)
		costs = append(costs, found.Costs)
	}
	return costs, nil
}

// start runs the source on the sample, once there is something to measure.
func (s *sensitivities) start(ctx context.Context) error {
	if s.blocks != nil {
		return nil
	}
	set, err := kernel.Best()
	if err != nil {
		return err
	}
	engine, err := llama.New(s.model, llama.Options{Threads: s.options.Threads, KV: llama.KVF32})
	if err != nil {
		return err
	}
	workers := pool.New(s.options.Threads)
	s.blocks, s.solver, s.embedding = engine.Blocks(), linalg.New(set, workers), engine.EmbeddingName()
	s.closers = append(s.closers, func() error { workers.Close(); engine.Close(); return nil })
	return s.sample(ctx)
}

// stop gives back what start took.
func (s *sensitivities) stop() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// sample runs the source on the sequences and keeps what passes between its blocks: in files where that is more than the memory allowed.
func (s *sensitivities) sample(ctx context.Context) (err error) {
	c, layers := s.blocks.Config(), s.blocks.Count()
	s.layerOf = make(map[string]int)
	for layer := range layers {
		for _, group := range s.blocks.Linears(layer) {
			for _, name := range group {
				s.layerOf[name] = layer
			}
		}
	}
	n, length, most := len(s.sequences), len(s.sequences[0]), s.options.Calibration.MaxMemory
	if most > 0 && 4*int64(n)*int64(length)*int64(perToken(c)) <= most {
		most = 0 // all fits
	}
	dir := filepath.Dir(s.options.Output)
	if s.states, err = calibrate.NewStates(n*(layers+1), length*c.Hidden, min(most, 1), dir); err != nil {
		return err
	}
	s.closers = append(s.closers, s.states.Close)
	if s.logits, err = calibrate.NewStates(n*length, c.Vocab, min(most, 1), dir); err != nil {
		return err
	}
	s.closers = append(s.closers, s.logits.Close)
	x := make([]float32, length*c.Hidden)
	for i, tokens := range s.sequences {
		if err := s.blocks.Embed(x, tokens); err != nil {
			return err
		}
		for layer := range layers + 1 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if layer > 0 {
				if err := s.blocks.Run(layer-1, x, length, nil); err != nil {
					return err
				}
			}
			if err := s.states.Put(i*(layers+1)+layer, x); err != nil {
				return err
			}
		}
		if err := s.blocks.Predict(x, length, 0, func(p int, l []float32) error { return s.logits.Put(i*length+p, l) }); err != nil {
			return err
		}
	}
	return nil
}

// measure quantizes a tensor alone and compares the predictions, and works out what each choice would cost.
func (s *sensitivities) measure(ctx context.Context, t *checkpoint.Tensor) (m measurement, err error) {
	if err := s.start(ctx); err != nil {
		return m, err
	}
	rows, cols := t.Rows(), t.Cols()
	w := make([]float32, rows*cols)
	if err := t.ReadAll(w); err != nil {
		return m, err
	}
	probed, matrix, err := s.quantize(w, rows, cols, probe)
	if err != nil {
		return m, err
	}
	if err := s.blocks.Replace(t.Name, matrix); err != nil {
		return m, err
	}
	divergence, err := s.divergence(ctx, t.Name)
	if err != nil {
		return m, err
	}
	if err := s.blocks.Restore(t.Name); err != nil {
		return m, err
	}
	m.Sensitivity = Sensitivity{Tensor: t.Name, Divergence: divergence, Error: probed}
	// Some rows are enough to tell how the schemes' errors compare.
	picked := quant.BookRows(rows)
	some := make([]float32, 0, len(picked)*cols)
	for _, r := range picked {
		some = append(some, w[r*cols:(r+1)*cols]...)
	}
	reference, _, err := s.quantize(some, len(picked), cols, probe)
	if err != nil {
		return m, err
	}
	for _, c := range s.choices {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		e := reference
		if c != probe {
			if e, _, err = s.quantize(some, len(picked), cols, c); err != nil {
				return m, err
			}
		}
		cost := 0.0
		if reference > 0 {
			cost = divergence * e / reference
		}
		m.Costs = append(m.Costs, cost)
	}
	return m, nil
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
func (s *sensitivities) divergence(ctx context.Context, name string) (float64, error) {
	layers, length := s.blocks.Count(), len(s.sequences[0])
	first, inBlock := s.layerOf[name]
	if !inBlock && name != s.embedding {
		first = layers // the head
	}
	var sum float64
	embedded := make([]float32, length*s.blocks.Config().Hidden)
	for i, tokens := range s.sequences {
		x := embedded
		var err error
		if name == s.embedding {
			err = s.blocks.Embed(x, tokens)
		} else {
			x, err = s.states.Get(i*(layers+1) + first)
		}
		if err != nil {
			return 0, err
		}
		for layer := first; layer < layers; layer++ {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			if err := s.blocks.Run(layer, x, length, nil); err != nil {
				return 0, err
			}
		}
		err = s.blocks.Predict(x, length, 0, func(p int, logits []float32) error {
			want, err := s.logits.Get(i*length + p)
			if err != nil {
				return err
			}
			d, err := eval.Divergence(want, logits)
			sum += d
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum / float64(s.tokens()), nil
}
