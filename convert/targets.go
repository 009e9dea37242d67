package convert

import (
	"context"
	"errors"
	"fmt"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/runtime/linalg"
	"qtool/runtime/llama"
)

// Targets says what the outputs of a quantized layer are to be close to.
type Targets string

const (
	// OwnOutputs are those that the layer's own weights give from the inputs at hand.
	OwnOutputs Targets = ""
	// SourceOutputs are those of the source model, whose inputs nothing has changed: see targets.
	SourceOutputs Targets = "source"
)

// ParseTargets reads the name of targets.
func ParseTargets(name string) (Targets, error) {
	switch name {
	case "own":
		return OwnOutputs, nil
	case string(SourceOutputs):
		return SourceOutputs, nil
	}
	return "", fmt.Errorf("targets %q are unknown: expected own or source", name)
}

// String names them as ParseTargets reads them.
func (t Targets) String() string {
	if t == OwnOutputs {
		return "own"
	}
	return string(t)
}

// targets runs the source beside the blocks that are being quantized, so that a layer's weights can make up for what the quantized ones before it
// have changed: its outputs on the inputs that it will see are to be those of the source, not those of its own weights. For layers that add to the
// hidden states, it is the states after them that are to be the source's. Li, Yin, Lee, Xiao and Panda, "GPTAQ: Efficient Finetuning-Free Quantization
// for Asymmetric Calibration", 2025, and Zhang, Chen, Cosson, Hubara, Alvarez and Saab, "Qronos: Correcting the Past by Shaping the Future", 2025, have
// the like; that the difference is shrunk by what halves of the text agree on is our own.
type targets struct {
	engine *llama.Engine
	blocks *llama.Blocks
	states *calibrate.States
	length int
	solver *linalg.Solver

	cross   *calibrate.Cross // of the inputs that were collected last
	outputs bool             // it is of the outputs, not of the inputs
	buffer  []float32
	whole   []float32 // inputs as they are without factors
}

// newTargets puts the source at its first block.
func (c *calibrated) newTargets(dir string) (*targets, error) {
	engine, err := llama.New(c.model, llama.Options{Threads: c.options.Threads, KV: llama.KVF32})
	if err != nil {
		return nil, err
	}
	t := &targets{engine: engine, blocks: engine.Blocks(), length: c.length, solver: c.solver}
	sequences := c.options.Calibration.Sequences
	if t.states, err = calibrate.NewStates(len(sequences), c.length*engine.Config().Hidden, c.stateMemory(), dir); err == nil {
		err = c.options.Calibration.embed(t.blocks, t.states)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *targets) close() error {
	t.engine.Close()
	if t.states == nil {
		return nil
	}
	return t.states.Close()
}

// meetsStates reports whether the last layer of a half block is to give the source's hidden states: where a norm comes between, they are not linear in
// its weights, and its inputs are compared, as those of other layers.
func (t *targets) meetsStates() bool { return !t.engine.Config().PostNorms }

// advance takes the source's hidden states through half a block.
func (t *targets) advance(ctx context.Context, layer int, half llama.Half, sequences int) error {
	for i := range sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := t.states.Get(i)
		if err != nil {
			return err
		}
		if err := t.blocks.RunHalf(layer, half, x, t.length, nil); err != nil {
			return err
		}
		if err := t.states.Put(i, x); err != nil {
			return err
		}
	}
	return nil
}

// begin makes ready for the inputs of a layer.
func (t *targets) begin(layer int, half llama.Half, name string, cols int) {
	t.outputs = t.meetsStates() && name == t.blocks.Linears(layer)[2*half+1][0]
	rows := cols
	if t.outputs {
		rows = t.engine.Config().Hidden
	}
	t.cross = calibrate.NewCross(t.solver, rows, cols)
}

// add compares a layer's inputs x, [length][cols], with what they are in the source. states are the hidden ones that the half block began with, and factors,
// if any, what the channels of x were divided by.
func (t *targets) add(sequence, layer int, half llama.Half, name string, states, x, factors []float32) error {
	source, err := t.states.Get(sequence)
	if err != nil {
		return err
	}
	if t.outputs { // source is past the half block
		t.buffer = append(t.buffer[:0], states...)
		whole := x
		if factors != nil { // the source's weights make up for none
			t.whole = append(t.whole[:0], x...)
			for i := range t.whole {
				t.whole[i] *= factors[i%len(factors)]
			}
			whole = t.whole
		}
		if err := t.blocks.Finish(layer, half, t.buffer, whole, t.length); err != nil {
			return err
		}
		for i, v := range source {
			t.buffer[i] = v - t.buffer[i]
		}
		return t.cross.Add(sequence, t.buffer, x, t.length)
	}
	err = t.blocks.RunHalf(layer, half, source, t.length, func(seen string, y []float32, _, _ int) error {
		if seen != name {
			return nil
		}
		t.buffer = append(t.buffer[:0], y...)
		return errSeen
	})
	if !errors.Is(err, errSeen) {
		if err == nil {
			err = fmt.Errorf("the inputs of %q were not seen", name)
		}
		return err
	}
	return t.addInputs(sequence, x, factors)
}

// beginHead makes ready for the inputs of the output projection.
func (t *targets) beginHead() {
	t.outputs = false
	t.cross = calibrate.NewCross(t.solver, t.engine.Config().Hidden, t.engine.Config().Hidden)
}

// addHead compares inputs x of the output projection with the source's.
func (t *targets) addHead(sequence int, x []float32) error {
	source, err := t.states.Get(sequence)
	if err != nil {
		return err
	}
	t.buffer = append(t.buffer[:0], source...)
	t.blocks.HeadInput(t.buffer, source, t.length)
	return t.addInputs(sequence, x, nil)
}

// addInputs compares inputs x with the source's, in buffer.
func (t *targets) addInputs(sequence int, x, factors []float32) error {
	cols := t.cross.Cols
	for i, v := range x {
		if factors != nil {
			t.buffer[i] /= factors[i%cols]
		}
		t.buffer[i] -= v
	}
	return t.cross.Add(sequence, t.buffer[:len(x)], x, t.length)
}

// target is what the weights of layers that share an input should be.
type target struct {
	solver *linalg.Solver
	change []float32 // [rows][cols] to be added, or
	inputs []float32 // [cols][cols], transposed: by which weights times inputs are changed
	cols   int
}

// of gives the target of the inputs that were collected last.
func (t *targets) of(in *quant.Inputs) *target {
	m := in.Regress(t.solver, t.cross.Means(), t.cross.Count, t.cross.Rows)
	out := &target{solver: t.solver, cols: t.cross.Cols}
	if t.outputs {
		out.change = m
	} else {
		n := out.cols
		for i := range n {
			for j := range i {
				m[i*n+j], m[j*n+i] = m[j*n+i], m[i*n+j]
			}
		}
		out.inputs = m
	}
	t.cross = nil
	return out
}

// apply makes w, [rows][cols], the weights that the quantized ones are to be close to.
func (t *target) apply(w []float32, rows int) {
	if t == nil {
		return
	}
	change := t.change
	if change == nil {
		change = make([]float32, len(w))
		const span = 64
		t.solver.Run((rows+span-1)/span, func(i int, s *linalg.Scratch) {
			n := min(span, rows-i*span)
			s.Mul(t.solver.Kernels(), change[i*span*t.cols:], t.cols, w[i*span*t.cols:], t.cols, n, t.inputs, t.cols, t.cols, t.cols)
		})
	}
	for i, v := range change {
		w[i] += v
	}
}
