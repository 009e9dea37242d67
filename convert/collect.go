package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"qtool/calibrate"
	"qtool/calibrate/qcal"
	"qtool/formats/atomicfile"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/llama"
	"qtool/runtime/pool"
)

// CollectOptions say what statistics are collected of.
type CollectOptions struct {
	Output      string
	Reads       []string // files besides the source that the output must not be
	Threads     int
	Version     string // of the program, kept in the file
	Calibration *Calibration
	Data        packed.Digest // of the calibration data
	// Progress, if set, is told how many halves of blocks have been run on a sequence, of all.
	Progress func(done, total int64, what string)
}

// Collected says how collecting went.
type Collected struct {
	Bytes     int64
	Inputs    int // distinct ones
	Tokens    int // that each was seen for
	Resumed   int // blocks that an earlier run had finished
	Discarded bool
	TooLong   string
}

// collection is one run of Collect.
type collection struct {
	model   *checkpoint.Model
	options CollectOptions
	engine  *llama.Engine
	blocks  *llama.Blocks
	solver  *linalg.Solver
	header  qcal.Header
	inputs  map[string]qcal.Input // by name
	places  map[string]safetensors.Tensor
	layout  *safetensors.Layout
	work    *work
	states  *calibrate.States
	length  int
	done    int64
	result  *Collected
}

// Collect runs the model on sequences block by block, gathers the statistics of the inputs of its linear layers, and writes them as a file. A run that was
// stopped is taken up after the last block that it finished, and ends in the same bytes.
func Collect(ctx context.Context, m *checkpoint.Model, o CollectOptions) (r *Collected, err error) {
	if o.Calibration == nil {
		return nil, fmt.Errorf("calibration: %w", calibrate.ErrNoData)
	}
	if err := CheckOutput(o.Output, m, o.Reads); err != nil {
		return nil, err
	}
	if err := o.Calibration.check(m); err != nil {
		return nil, err
	}
	if err := verify(ctx, m); err != nil {
		return nil, err
	}
	set, err := kernel.Best()
	if err != nil {
		return nil, err
	}
	c := &collection{model: m, options: o, length: len(o.Calibration.Sequences[0]), inputs: make(map[string]qcal.Input), result: &Collected{TooLong: o.Calibration.tooLong(m)}}
	if c.engine, err = llama.New(m, llama.Options{Threads: o.Threads, KV: llama.KVF32}); err != nil {
		return nil, err
	}
	defer c.engine.Close()
	p := pool.New(o.Threads)
	defer p.Close()
	c.solver, c.blocks = linalg.New(set, p), c.engine.Blocks()
	if err := c.describe(ctx, set.Name); err != nil {
		return nil, err
	}
	if err := blame(ctx, m, c.run(ctx)); err != nil {
		return nil, fmt.Errorf("write %s: %w", o.Output, err)
	}
	return c.result, nil
}

// describe makes the header of the file.
func (c *collection) describe(ctx context.Context, kernels string) error {
	tokenizer, err := tokenizerDigest(c.model)
	if err != nil {
		return err
	}
	sequences := c.options.Calibration.Sequences
	c.header = qcal.Header{
		Tokenizer: tokenizer.String(), Data: c.options.Data.String(), Context: c.length, Sequences: len(sequences), Tool: "qtool " + c.options.Version, Kernels: kernels,
	}
	for _, t := range c.model.Tensors() {
		d, err := valuesDigest(ctx, t)
		if err != nil {
			return err
		}
		c.header.Model = append(c.header.Model, qcal.Source{Name: t.Name, Shape: t.Shape, Digest: d.String()})
	}
	add := func(names []string) error {
		t, ok := c.model.Tensor(names[0])
		if !ok {
			return fmt.Errorf("the model has no tensor %q", names[0])
		}
		in := qcal.Input{Name: names[0], Layers: names, Channels: t.Cols()}
		c.header.Inputs, c.inputs[in.Name] = append(c.header.Inputs, in), in
		return nil
	}
	for layer := range c.blocks.Count() {
		for _, group := range c.blocks.Linears(layer) {
			if err := add(group); err != nil {
				return err
			}
		}
	}
	return add([]string{c.blocks.Head()})
}

// valuesDigest is the digest of a tensor's values as float32, little-endian, in Hugging Face's order: the same from any container.
func valuesDigest(ctx context.Context, t *checkpoint.Tensor) (packed.Digest, error) {
	h := xxh3.New()
	it := item{tensor: t, unit: 1, unitBytes: 4 * t.Cols()}
	rows := it.rowsPerChunk()
	values := make([]float32, min(rows, t.Rows())*t.Cols())
	raw := make([]byte, 4*len(values))
	var reader checkpoint.Reader
	for first := 0; first < t.Rows(); first += rows {
		if err := ctx.Err(); err != nil {
			return packed.Digest{}, err
		}
		n := min(rows, t.Rows()-first)
		if err := readGuarded(t, values[:n*t.Cols()], first, n, &reader); err != nil {
			return packed.Digest{}, err
		}
		writeLittleEndian(h, raw, values[:n*t.Cols()])
	}
	return packed.Digest(h.Sum128().Bytes()), nil
}

// tokenizerDigest is a digest of what the model's tokenizer does; zeros where it has none.
func tokenizerDigest(m *checkpoint.Model) (packed.Digest, error) {
	d, err := m.Vocabulary()
	if err != nil {
		return packed.Digest{}, nil // the data were tokens, or there would be none
	}
	text, err := json.Marshal(d)
	if err != nil {
		return packed.Digest{}, fmt.Errorf("tokenizer: %w", err)
	}
	return packed.Sum(text), nil
}

// key tells this job from any other.
func (c *collection) key() string {
	h := xxh3.New()
	_, _ = h.Write(c.layout.Header)
	for _, s := range c.options.Calibration.Sequences {
		_ = binary.Write(h, binary.LittleEndian, s) // a hash takes everything
	}
	return packed.Digest(h.Sum128().Bytes()).String()
}

func (c *collection) lay(digests map[string]packed.Digest) (err error) {
	if c.layout, err = c.header.Layout(digests); err != nil {
		return err
	}
	c.places = make(map[string]safetensors.Tensor, len(c.layout.Tensors))
	for _, t := range c.layout.Tensors {
		c.places[t.Name] = t
	}
	return nil
}

func (c *collection) run(ctx context.Context) (err error) {
	if err := c.lay(nil); err != nil {
		return err
	}
	c.work, err = openWork(c.options.Output, c.key(), c.layout.Size, func(name string) (int64, int64, bool) {
		t, ok := c.places[name]
		return t.Offset, t.Size, ok
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.work.close()) }()
	c.result.Discarded = c.work.discarded
	sequences, hidden := c.options.Calibration.Sequences, c.engine.Config().Hidden
	c.states, err = calibrate.NewStates(len(sequences), c.length*hidden, c.options.Calibration.MaxMemory, filepath.Dir(c.options.Output))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.states.Close()) }()
	first, err := c.takeUp()
	if err != nil {
		return err
	}
	c.result.Resumed = first
	c.done = int64(first) * 2 * int64(len(sequences))
	if first == 0 {
		if err := c.options.Calibration.embed(c.blocks, c.states); err != nil {
			return err
		}
	}
	for layer := first; layer < c.blocks.Count(); layer++ {
		for _, half := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
			if err := c.half(ctx, layer, half); err != nil {
				return err
			}
		}
		if err := c.keep(layer + 1); err != nil {
			return err
		}
	}
	if err := c.head(ctx); err != nil {
		return err
	}
	return c.finish()
}

// half runs half a block on all sequences and stores what its layers are multiplied with.
func (c *collection) half(ctx context.Context, layer int, half llama.Half) error {
	gathered := make(map[string]*calibrate.InputStatistics)
	groups := c.blocks.Linears(layer)[2*half : 2*half+2]
	for _, g := range groups {
		gathered[g[0]] = calibrate.NewInputStatistics(c.solver, c.inputs[g[0]].Channels)
	}
	tap := func(name string, x []float32, tokens, _ int) error {
		st := gathered[name]
		if st == nil {
			return fmt.Errorf("the inputs of %q were not expected here", name)
		}
		if err := st.Add(x, tokens); err != nil {
			return fmt.Errorf("inputs of %q: %w", name, err)
		}
		return nil
	}
	for i := range c.options.Calibration.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := c.states.Get(i)
		if err != nil {
			return err
		}
		if err := c.blocks.RunHalf(layer, half, x, c.length, tap); err != nil {
			return err
		}
		if err := c.states.Put(i, x); err != nil {
			return err
		}
		c.step(fmt.Sprintf("block %d of %d", layer+1, c.blocks.Count()))
	}
	for _, g := range groups {
		if err := c.store(g[0], gathered[g[0]]); err != nil {
			return err
		}
	}
	return nil
}

func (c *collection) step(what string) {
	c.done++
	if c.options.Progress != nil {
		total := int64(2*c.blocks.Count()+1) * int64(len(c.options.Calibration.Sequences))
		c.options.Progress(c.done, total, what)
	}
}

// head gathers what the output projection is multiplied with.
func (c *collection) head(ctx context.Context) error {
	hidden := c.engine.Config().Hidden
	st := calibrate.NewInputStatistics(c.solver, hidden)
	input := make([]float32, c.length*hidden)
	for i := range c.options.Calibration.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := c.states.Get(i)
		if err != nil {
			return err
		}
		c.blocks.HeadInput(input, x, c.length)
		if err := st.Add(input, c.length); err != nil {
			return fmt.Errorf("inputs of %q: %w", c.blocks.Head(), err)
		}
		c.step("head")
	}
	return c.store(c.blocks.Head(), st)
}

// store writes the statistics of an input to their places.
func (c *collection) store(name string, st *calibrate.InputStatistics) error {
	s := qcal.New(st)
	for i, part := range c.inputs[name].Parts() {
		place := c.places[part]
		sum := xxh3.New()
		w := io.NewOffsetWriter(c.work.data, place.Offset)
		if err := s.Encode(io.MultiWriter(w, sum), i); err != nil {
			return fmt.Errorf("statistics of %q: %w", name, err)
		}
		if err := c.work.finish(part, outcome{digest: packed.Digest(sum.Sum128().Bytes())}); err != nil {
			return err
		}
	}
	return nil
}

// finish writes the header and puts the file in its place.
func (c *collection) finish() error {
	if err := c.model.CheckSize(); err != nil {
		return err
	}
	digests := make(map[string]packed.Digest)
	for name, o := range c.work.done {
		digests[name] = o.digest
	}
	planned := c.layout.Size
	if err := c.lay(digests); err != nil {
		return err
	}
	if c.layout.Size != planned {
		return fmt.Errorf("the header grew from %d to %d bytes", planned, c.layout.Size)
	}
	if _, err := c.work.data.WriteAt(c.layout.Header, 0); err != nil {
		return err
	}
	c.result.Bytes, c.result.Inputs, c.result.Tokens = c.layout.Size, len(c.header.Inputs), c.length*len(c.options.Calibration.Sequences)
	return c.work.commit(c.options.Output)
}

// statesPrefix begins the names of files of states in the work folder.
const statesPrefix = "states-"

// statesName is the file of the states that a block is to be run on, in the work folder.
func (c *collection) statesName(layer int) string {
	return filepath.Join(c.work.dir, fmt.Sprintf("%s%d", statesPrefix, layer))
}

// dropStates removes the files of states but that of one block.
func (c *collection) dropStates(but int) {
	for layer := range c.blocks.Count() + 1 {
		if layer != but {
			_ = os.Remove(c.statesName(layer)) // most are not there; what is left is not taken up without its statistics
		}
	}
}

// keep writes the states that a block is to be run on, behind their digest, and removes those of the one before once these and the statistics
// up to here are on the disk.
func (c *collection) keep(layer int) (err error) {
	name := c.statesName(layer)
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	sum := xxh3.New()
	size := len(packed.Digest{})
	_, err = c.states.WriteTo(io.MultiWriter(io.NewOffsetWriter(f, int64(size)), sum))
	if err == nil {
		b := sum.Sum128().Bytes()
		_, err = f.WriteAt(b[:], 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name+".new"))
	}
	if err := c.work.sync(); err != nil {
		return err
	}
	if err := atomicfile.Rename(name+".new", name); err != nil {
		return err
	}
	c.dropStates(layer)
	return nil
}

// takeUp finds the last block that an earlier run came to, with whole states and all statistics before it, and reads the states.
func (c *collection) takeUp() (int, error) {
	_ = os.Remove(c.statesName(0) + ".new")
	for layer := c.blocks.Count(); layer > 0; layer-- {
		_ = os.Remove(c.statesName(layer) + ".new") // torn
		if !c.stored(layer) {
			continue
		}
		whole, err := c.readStates(layer)
		if err != nil {
			return 0, err
		}
		if whole {
			c.dropStates(layer)
			return layer, nil
		}
	}
	c.dropStates(-1)
	return 0, nil
}

// stored reports whether the statistics of all blocks before one are finished.
func (c *collection) stored(layer int) bool {
	for before := range layer {
		for _, g := range c.blocks.Linears(before) {
			for _, part := range c.inputs[g[0]].Parts() {
				if _, ok := c.work.done[part]; !ok {
					return false
				}
			}
		}
	}
	return true
}

// readStates reads kept states; false where they are not there or not whole.
func (c *collection) readStates(layer int) (whole bool, err error) {
	f, err := os.Open(c.statesName(layer))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var want packed.Digest
	if _, err := io.ReadFull(f, want[:]); err != nil {
		return false, nil // torn
	}
	sum := xxh3.New()
	if _, err := c.states.ReadFrom(io.TeeReader(f, sum)); err != nil {
		return false, nil // torn
	}
	return packed.Digest(sum.Sum128().Bytes()) == want, nil
}
