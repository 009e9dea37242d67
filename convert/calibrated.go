package convert

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/zeebo/xxh3"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/llama"
	"qtool/runtime/pool"
)

// Calibration is the text that a model is run on while it is quantized, block by block: each block sees what the quantized ones
// before it make of the text.
type Calibration struct {
	Sequences [][]int32 // of equal length
	MaxMemory int64     // for hidden states, in bytes, before they go to disk; 0: no limit
}

// check says what is wrong with the data for a model.
func (c *Calibration) check(m *checkpoint.Model) error {
	if c == nil {
		return nil
	}
	if len(c.Sequences) == 0 || len(c.Sequences[0]) == 0 {
		return fmt.Errorf("calibration: %w", calibrate.ErrNoData)
	}
	for i, s := range c.Sequences {
		if len(s) != len(c.Sequences[0]) {
			return fmt.Errorf("calibration: sequence %d has %d tokens, the first %d", i, len(s), len(c.Sequences[0]))
		}
		for _, t := range s {
			if t < 0 || int(t) >= m.Config().Vocab {
				return fmt.Errorf("calibration: sequence %d has token %d, the model embeds %d", i, t, m.Config().Vocab)
			}
		}
	}
	return nil
}

// embed puts into states what the sequences enter the first block with.
func (c *Calibration) embed(b *llama.Blocks, states *calibrate.States) error {
	x := make([]float32, len(c.Sequences[0])*b.Config().Hidden)
	for i, tokens := range c.Sequences {
		if err := b.Embed(x, tokens); err != nil {
			return fmt.Errorf("calibration sequence %d: %w", i, err)
		}
		if err := states.Put(i, x); err != nil {
			return err
		}
	}
	return nil
}

// tooLong says that sequences are longer than what the model was made for, if they are.
func (c *Calibration) tooLong(m *checkpoint.Model) string {
	most := m.Config().MaxPositions
	if c == nil || most <= 0 || len(c.Sequences[0]) <= most {
		return ""
	}
	return fmt.Sprintf("calibration sequences of %d tokens are longer than the %d that the model was made for: give --calib-context %d", len(c.Sequences[0]), most, most)
}

// single says that one sequence cannot tell what the source's outputs have in it by chance, where these are the targets.
func (c *Calibration) single(r Recipe) string {
	if c == nil || len(c.Sequences) > 1 || r.Targets != SourceOutputs {
		return ""
	}
	return "one calibration sequence cannot tell chance from what layers have to make up for: they meet the outputs of their own weights; give more text"
}

// errSeen ends a block once the inputs of the layers at hand have been seen.
var errSeen = errors.New("inputs seen")

// calibrated quantizes the linear layers of the blocks one after another, on the text.
type calibrated struct {
	*quantization
	engine *llama.Engine
	blocks *llama.Blocks
	pool   *pool.Pool
	solver *linalg.Solver
	states *calibrate.States
	// source runs beside, where the quantized layers are to meet its outputs; else nil.
	source *targets
	length int // tokens of a sequence
	seen   int // inputs that the statistics at hand are of
	// kept holds the inputs of the last layer of the half block at hand, by sequence, once these were collected: so that nothing before them
	// is computed again. It is empty where they would not fit into the memory that is allowed.
	kept      [][]float32
	decisions map[string]Decision
	// factors are what the columns of a matrix are multiplied by, since its input was divided by them.
	factors map[string][]float32
	// divided is what rows of a matrix are divided by, since the layer that takes them in makes up for it.
	divided map[string]division
	done    int64 // weights
	total   int64
}

// calibrate quantizes what needs the text, and leaves the rest to tensors.
func (q *quantization) calibrate(ctx context.Context) (err error) {
	set, err := kernel.Best()
	if err != nil {
		return err
	}
	cal := q.options.Calibration
	c := &calibrated{quantization: q, decisions: make(map[string]Decision), factors: make(map[string][]float32), divided: make(map[string]division)}
	if cal != nil {
		c.length = len(cal.Sequences[0])
		c.seen = len(cal.Sequences) * c.length
	}
	if c.engine, err = llama.New(q.model, llama.Options{Threads: q.options.Threads, KV: llama.KVF32}); err != nil {
		return err
	}
	defer c.engine.Close()
	c.pool = pool.New(q.options.Threads)
	defer c.pool.Close()
	c.solver, c.blocks = linalg.New(set, c.pool), c.engine.Blocks()
	for _, d := range q.plan.Decisions {
		c.decisions[d.Tensor.Name] = d
		c.total += int64(d.Tensor.Elements())
		if _, ok := q.work.done[d.Tensor.Name]; ok {
			c.done += int64(d.Tensor.Elements())
		}
	}
	if q.options.Statistics != nil {
		return c.byStatistics(ctx)
	}
	return blame(ctx, q.model, c.run(ctx))
}

// blame names the tensor of a model whose values are not finite, where an error says that the inputs of a layer, or what came of them, are not: these may have
// come from any tensor before it.
func blame(ctx context.Context, m *checkpoint.Model, err error) error {
	if !errors.Is(err, calibrate.ErrNotFinite) && !errors.Is(err, llama.ErrNotFinite) {
		return err
	}
	if found := findNotFinite(ctx, m); found != nil {
		return fmt.Errorf("%w; it was seen in this: %w", found, err)
	}
	return err
}

// findNotFinite looks for a value of a model that is not finite.
func findNotFinite(ctx context.Context, m *checkpoint.Model) error {
	var reader checkpoint.Reader
	var values []float32
	for _, t := range m.Tensors() {
		rows := max(1, (1<<16)/max(t.Cols(), 1))
		for first := 0; first < t.Rows(); first += rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(rows, t.Rows()-first)
			values = append(values[:0], make([]float32, n*t.Cols())...)
			err := readGuarded(t, values, first, n, &reader)
			if err == nil {
				err = checkFinite(t, first, values)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *calibrated) run(ctx context.Context) (err error) {
	hidden, sequences := c.engine.Config().Hidden, c.options.Calibration.Sequences
	c.states, err = calibrate.NewStates(len(sequences), c.length*hidden, c.stateMemory(), filepath.Dir(c.options.Output))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.states.Close()) }()
	if c.plan.Recipe.Targets == SourceOutputs {
		if c.source, err = c.newTargets(filepath.Dir(c.options.Output)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.source.close()) }()
	}
	// The embedding comes first: what it is stored as is what the blocks see.
	if err := c.embedding(ctx); err != nil {
		return err
	}
	if err := c.options.Calibration.embed(c.blocks, c.states); err != nil {
		return err
	}
	for layer := range c.blocks.Count() {
		groups := c.blocks.Linears(layer)
		for _, half := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
			c.kept = c.kept[:0]
			if err := c.scale(ctx, layer, half); err != nil {
				return err
			}
			if err := c.group(ctx, layer, half, groups[2*half]); err != nil {
				return err
			}
			if c.source != nil && c.source.meetsStates() {
				if err := c.source.advance(ctx, layer, half, len(sequences)); err != nil {
					return err
				}
			}
			if err := c.group(ctx, layer, half, groups[2*half+1]); err != nil {
				return err
			}
			if c.source != nil && !c.source.meetsStates() {
				if err := c.source.advance(ctx, layer, half, len(sequences)); err != nil {
					return err
				}
			}
			if err := c.advance(ctx, layer, half); err != nil {
				return err
			}
		}
	}
	return c.head(ctx)
}

// plainly quantizes one tensor without inputs, and lets it stand in the engine.
func (c *calibrated) plainly(ctx context.Context, name string) error {
	d := c.decisions[name]
	if _, ok := c.work.done[name]; !ok {
		if err := c.streamed(ctx, []Decision{d}); err != nil {
			return err
		}
	}
	return c.recall(d)
}

// recall lets a finished tensor stand in the engine.
func (c *calibrated) recall(d Decision) error {
	if d.Scheme == nil || c.options.Statistics != nil {
		return nil
	}
	place := c.places[d.Tensor.Name]
	data := make([]byte, place.Size)
	if _, err := c.work.data.ReadAt(data, place.Offset); err != nil {
		return err
	}
	m, err := packed.NewMatrix(*d.Scheme, d.Tensor.Rows(), d.Tensor.Cols(), data)
	if err != nil {
		return err
	}
	return c.blocks.Replace(d.Tensor.Name, m)
}

// advance takes the hidden states through half a block.
func (c *calibrated) advance(ctx context.Context, layer int, half llama.Half) error {
	for i := range c.options.Calibration.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := c.states.Get(i)
		if err != nil {
			return err
		}
		if len(c.kept) > 0 {
			err = c.blocks.Finish(layer, half, x, c.kept[i], c.length)
		} else {
			err = c.blocks.RunHalf(layer, half, x, c.length, nil)
		}
		if err != nil {
			return err
		}
		if err := c.states.Put(i, x); err != nil {
			return err
		}
	}
	return nil
}

// group quantizes the linear layers that share an input.
func (c *calibrated) group(ctx context.Context, layer int, half llama.Half, names []string) error {
	var open []Decision
	for _, name := range names {
		d := c.decisions[name]
		if _, ok := c.work.done[name]; ok {
			if err := c.recall(d); err != nil {
				return err
			}
			continue
		}
		if d.Scheme == nil || d.Tensor.Packed() {
			continue // the rest's
		}
		open = append(open, d)
	}
	if len(open) == 0 {
		return nil
	}
	if c.options.Statistics != nil {
		if err := c.known(ctx, open); err != nil {
			return err
		}
		for _, d := range open {
			name := d.Tensor.Name
			if _, divided := c.divided[name]; !c.finished(name) && (divided || c.factors[name] != nil) {
				return fmt.Errorf("tensor %q: %s has no statistics of its input, which is scaled", name, c.options.Statistics.path)
			}
		}
		return nil
	}
	gram, ranges, err := c.collect(ctx, layer, half, open[0].Tensor.Cols(), names[0], static(open))
	if err != nil {
		return err
	}
	in, err := c.prepare(gram.Mean(), gram.Cols)
	if err != nil {
		return fmt.Errorf("inputs of %q: %w", names[0], err)
	}
	var to *target
	if c.source != nil && in != nil {
		to = c.source.of(in)
	}
	return c.matrices(ctx, open, in, to, c.limit(ranges))
}

// prepare makes inputs of the mean of x xᵀ, [n][n]. They are nil where all were zero, as behind a layer that was pruned away: by these, any weights are as good,
// so that they are rounded to nearest for what other texts may show, which counts as a shortfall.
func (c *calibrated) prepare(h []float32, n int) (*quant.Inputs, error) {
	in, err := quant.NewInputs(c.solver, h, n, c.plan.Recipe.inputs())
	if errors.Is(err, quant.ErrZeroInputs) {
		return nil, nil
	}
	return in, err
}

// collect runs the sequences through half a block up to the layer of that name, which shares its input with others, and gathers its inputs.
func (c *calibrated) collect(ctx context.Context, layer int, half llama.Half, cols int, first string, withRanges bool) (*calibrate.Gram, *calibrate.Histogram, error) {
	gram := calibrate.NewGram(c.solver, cols)
	var ranges *calibrate.Histogram
	if withRanges {
		ranges = calibrate.NewHistogram()
	}
	last := c.blocks.Linears(layer)[2*half+1][0]
	keep := first == last && c.fits(cols)
	c.kept = c.kept[:0]
	if c.source != nil {
		c.source.begin(layer, half, first, cols)
	}
	err := c.inputs(ctx, layer, half, first, func(sequence int, states []float32, name string, x []float32, tokens int) error {
		if name != first {
			return nil
		}
		if c.source != nil {
			if err := c.source.add(sequence, layer, half, first, states, x, c.factors[first]); err != nil {
				return err
			}
		}
		if err := gram.Add(x, tokens); err != nil {
			return err
		}
		if ranges != nil {
			ranges.Add(x)
		}
		if keep {
			c.keep(x)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return gram, ranges, nil
}

// inputs runs the sequences through half a block up to the layer of that name, and gives the inputs of layers on the way to a function, with the states that the
// half block began with.
func (c *calibrated) inputs(ctx context.Context, layer int, half llama.Half, last string, each func(sequence int, states []float32, name string, x []float32, tokens int) error) error {
	for i := range c.options.Calibration.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		states, err := c.states.Get(i)
		if err != nil {
			return err
		}
		err = c.blocks.RunHalf(layer, half, states, c.length, func(name string, x []float32, tokens, _ int) error {
			if err := each(i, states, name, x, tokens); err != nil {
				return fmt.Errorf("inputs of %q: %w", name, err)
			}
			if name == last {
				return errSeen
			}
			return nil
		})
		if err == nil {
			err = fmt.Errorf("the inputs of %q were not seen", last)
		}
		if !errors.Is(err, errSeen) {
			return err
		}
	}
	return nil
}

// fits reports whether the inputs of a layer of so many columns may be in memory beside the hidden states.
func (c *calibrated) fits(cols int) bool {
	inputs := int64(len(c.options.Calibration.Sequences)) * int64(c.length)
	most := c.options.Calibration.MaxMemory
	states := 1
	if c.source != nil {
		states = 2
	}
	return most == 0 || 4*inputs*int64(cols+states*c.engine.Config().Hidden) <= most
}

// stateMemory is what the hidden states may take: half of what is allowed, where those of the source are kept too.
func (c *calibrated) stateMemory() int64 {
	most := c.options.Calibration.MaxMemory
	if c.plan.Recipe.Targets == SourceOutputs && most > 0 {
		return max(most/2, 1)
	}
	return most
}

// keep takes down the inputs of one more sequence, in the place of older ones.
func (c *calibrated) keep(x []float32) {
	n := len(c.kept)
	if n < cap(c.kept) {
		c.kept = c.kept[:n+1]
		c.kept[n] = append(c.kept[n][:0], x...)
		return
	}
	c.kept = append(c.kept, append([]float32(nil), x...))
}

// static reports whether one of the tensors is to have a range of activations.
func static(tensors []Decision) bool {
	return slices.ContainsFunc(tensors, func(d Decision) bool { return d.Scheme.Static })
}

// limit is the range of activations by the recipe's rule.
func (c *calibrated) limit(h *calibrate.Histogram) float32 {
	if h == nil {
		return 0
	}
	return h.Range(c.plan.Recipe.Ranges)
}

// matrices quantizes tensors that share an input; in is nil where that was always zero.
func (c *calibrated) matrices(ctx context.Context, open []Decision, in *quant.Inputs, to *target, limit float32) error {
	for _, d := range open {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.matrix(ctx, d, in, to, limit); err != nil {
			return fmt.Errorf("tensor %q: %w", d.Tensor.Name, err)
		}
		c.done += int64(d.Tensor.Elements())
		if c.options.Progress != nil {
			c.options.Progress(c.done, c.total, d.Tensor.Name)
		}
	}
	return nil
}

func (c *calibrated) matrix(ctx context.Context, d Decision, in *quant.Inputs, to *target, limit float32) error {
	t := d.Tensor
	rows, cols := t.Rows(), t.Cols()
	w := make([]float32, rows*cols)
	if err := t.ReadAll(w); err != nil {
		return err
	}
	it := packing(c.solver.Kernels(), t, *d.Scheme, c.plan.Recipe.Rule)
	source, err := sourceDigest(&it, w)
	if err != nil {
		return err
	}
	if s := c.options.Statistics; s != nil {
		if err := s.verify(t.Name, sumFloats(w)); err != nil {
			return err
		}
	}
	if factors := c.factors[t.Name]; factors != nil {
		for i := range w {
			w[i] *= factors[i%cols]
		}
	}
	if d, ok := c.divided[t.Name]; ok {
		d.apply(w, cols)
	}
	to.apply(w, rows)
	options := c.plan.Recipe.matrix(*d.Scheme)
	options.Range, options.Stop = limit, ctx.Err
	figures := &CalibrationFigures{DeadInputs: cols, Inputs: c.seen, Channels: cols, Range: limit}
	if in == nil {
		options.Method, options.Refine = quant.RTN, 0
	}
	result, err := quant.Matrix(c.solver, w, rows, cols, in, options)
	if err != nil {
		return err
	}
	place := c.places[t.Name]
	if _, err := c.work.data.WriteAt(result.Matrix.Data, place.Offset); err != nil {
		return err
	}
	if in != nil {
		figures.Error, figures.RMSError = result.Error, math.Sqrt(result.Error)
		figures.Damping, figures.DampingRaised, figures.DeadInputs = in.Damping, in.Raised, in.Dead
	}
	o := outcome{digest: packed.Sum(result.Matrix.Data), source: source, calibration: figures}
	if err := c.work.finish(t.Name, o); err != nil {
		return err
	}
	if c.options.Statistics != nil {
		return nil // nothing is run
	}
	return c.blocks.Replace(t.Name, result.Matrix)
}

// sourceDigest is the digest of a tensor's values as a stream of it has: of what it is computed from, if it is.
func sourceDigest(it *item, values []float32) (packed.Digest, error) {
	if origin := it.tensor.Origin(); origin != it.tensor {
		values = make([]float32, len(values))
		if err := origin.ReadAll(values); err != nil {
			return packed.Digest{}, err
		}
	}
	sum := xxh3.New()
	cols := it.tensor.Cols()
	for first := 0; first < it.tensor.Rows(); first += it.rowsPerChunk() {
		n := min(it.rowsPerChunk(), it.tensor.Rows()-first)
		d := sumFloats(values[first*cols : (first+n)*cols])
		_, _ = sum.Write(d[:])
	}
	return packed.Digest(sum.Sum128().Bytes()), nil
}

// zeroInputs reports whether all inputs of a matrix were zero, so that it was rounded to nearest.
func (f *CalibrationFigures) zeroInputs() bool { return f.Channels > 0 && f.DeadInputs == f.Channels }

// CalibrationFigures say how quantizing a matrix by its inputs went.
type CalibrationFigures struct {
	Error         float64 `json:"error"`     // mean squared error of the outputs by their mean square: squared, a share
	RMSError      float64 `json:"rms_error"` // its root, as tables have it in percent
	Damping       float64 `json:"damping"`
	DampingRaised bool    `json:"damping_raised,omitempty"`
	DeadInputs    int     `json:"dead_inputs,omitempty"`
	Inputs        int     `json:"inputs"`          // that were seen
	Channels      int     `json:"channels"`        // of each
	Range         float32 `json:"range,omitempty"` // of activations, where it is static
}
