// Package llama runs decoder-only transformers of the LLaMA family, in float32 with the weights as
// they are stored: packed matrices by integer kernels, everything else decoded tile by tile.
package llama

import (
	"errors"
	"fmt"

	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/numa"
	"qtool/runtime/pool"
	"qtool/runtime/repack"
)

// Errors that a caller may want to tell apart.
var (
	// ErrContextFull means that a session has no room for the tokens.
	ErrContextFull = errors.New("context is full")
	// ErrToken means a token id that the model has no embedding for.
	ErrToken = errors.New("token outside the vocabulary")
	// ErrNotFinite means that NaN or an infinity came up: of weights, or of numbers beyond single precision. Codes of integers would hide it.
	ErrNotFinite = errors.New("not finite")
)

// Options of an engine.
type Options struct {
	Threads int            // 0: one a usable CPU, or a core where NUMA is not off
	CPUs    numa.Set       // bind a thread to each of these; empty: as NUMA says
	NUMA    numa.Selection // where threads run; the zero value leaves that to the system
	KV      KVType         // how sessions keep keys and values; empty: KVF32
	// Repack runs matrices in GGUF's block types by the integer kernels, with the same weights and rounded activations, as far
	// as there are panels for the type; others are rounded to half precision. Without it, and where there is no memory for them,
	// they are decoded to f32 for each product.
	Repack bool
	// Activations is how inputs of packed and repacked matrices are rounded; empty: ActivationsAuto. With ActivationsF32 none are,
	// and nothing is repacked.
	Activations Activations
}

// Engine holds a model ready to run. Several sessions may use it, one at a time.
type Engine struct {
	config      *arch.Config
	kernels     *kernel.Set
	pool        *pool.Pool
	kv          KVType
	activations Activations
	ropes       []rope // of the layers with full attention; of the sliding ones where they have their own

	embedding *checkpoint.Tensor
	// packedEmbedding, if set, is read in its place.
	packedEmbedding *packed.Matrix
	codes           packed.Codes // of a row of it
	layers          []layer
	norm            []float32
	head            linear

	memory  memory
	counts  []int // of units of a step, by part of the pool
	heads   []int // of keys and values: part i of the pool has those from heads[i] to heads[i+1]-1
	scratch []workerScratch
	work    work
	doWork  func()            // what the pool calls for it
	joint   *Session          // what works for those of a Step
	rows    checkpoint.Reader // of the embedding
}

// layer is the weights of one block. A fused projection stands in q or gate, and the others are
// empty.
type layer struct {
	attnNorm, postAttnNorm []float32
	ffnNorm, postFFNNorm   []float32
	qNorm, kNorm           []float32

	q, k, v, o     linear
	gate, up, down linear
}

// linear is a matrix that activations are multiplied with, and its bias.
type linear struct {
	tensor *checkpoint.Tensor
	matrix *packed.Matrix // what is multiplied with where it is packed; else nil
	form   *repack.Form   // what the shares were repacked to; nil where they were not
	half   bool           // the shares were rounded to half precision
	rows   int
	cols   int
	bias   []float32 // nil for none
	shares []share   // of each part of the pool
	own    *linear   // what it was before Replace
}

// workerScratch is what one worker of the pool needs for itself.
type workerScratch struct {
	tile      []float32 // decoded rows; results to be added
	sliver    []float32 // of them
	rows      [kernel.SliverWidth][]byte
	attention attentionScratch
	reader    checkpoint.Reader
	_         [128]byte // apart from the next worker's cache lines
}

// New prepares a model for running. On one node the engine reads the weights of m in place, but for what Options.Repack says; where
// threads are placed on several, it copies the matrices, a share of the rows of each to the memory of every node. m must stay open
// until Close.
func New(m *checkpoint.Model, o Options) (*Engine, error) { return newEngine(m, o, system()) }

func newEngine(m *checkpoint.Model, o Options, h host) (*Engine, error) {
	set, err := kernel.Best()
	if err != nil {
		return nil, err
	}
	if o.KV == "" {
		o.KV = KVF32
	}
	if _, err := ParseKVType(string(o.KV)); err != nil {
		return nil, err
	}
	if o.Activations == "" {
		o.Activations = ActivationsAuto
	}
	if _, err := ParseActivations(string(o.Activations)); err != nil {
		return nil, err
	}
	e := &Engine{config: m.Config(), kernels: set, kv: o.KV, activations: o.Activations, ropes: ropes(m.Config())}
	load := loader{model: m, decode: o.Activations == ActivationsF32, repack: o.Repack && o.Activations != ActivationsF32}
	c := e.config
	e.embedding = load.tensor(arch.EmbeddingName)
	e.layers = make([]layer, c.Layers)
	for i := range e.layers {
		load.layer(&e.layers[i], i, c)
	}
	e.norm = load.norm(arch.FinalNormName)
	e.head = load.head(c)
	if load.err != nil {
		return nil, load.err
	}
	if err := e.start(o, h); err != nil {
		return nil, err
	}
	return e, nil
}

// Close ends the engine's threads and gives its memory back. Sessions must not be used afterwards.
func (e *Engine) Close() {
	e.pool.Close()
	// Unmapping what was mapped does not fail.
	_ = e.memory.release()
}

// Config describes the model.
func (e *Engine) Config() *arch.Config { return e.config }

// EmbeddingName is the name of the embedding's tensor.
func (e *Engine) EmbeddingName() string { return e.embedding.Name }

// Vocab is the number of logits at a position.
func (e *Engine) Vocab() int { return e.head.rows }

// Threads is the number of threads that share the work.
func (e *Engine) Threads() int { return e.pool.Threads() }

// CPU names the kernels in use: generic, avx2 or avx512.
func (e *Engine) CPU() string { return e.kernels.Name }

// KV is the type that sessions keep keys and values in.
func (e *Engine) KV() KVType { return e.kv }

// loader collects tensors and keeps the first error.
type loader struct {
	model  *checkpoint.Model
	decode bool // packed matrices are decoded for each product
	repack bool // those in block types are repacked or rounded
	err    error
}

func (l *loader) tensor(name string) *checkpoint.Tensor {
	t, ok := l.model.Tensor(name)
	if !ok && l.err == nil {
		l.err = fmt.Errorf("%s: the model has no tensor %q", l.model.Path(), name)
	}
	if l.err == nil {
		l.err = t.CanRead() // before the others take time and memory
	}
	return t
}

// vector reads a whole one-dimensional tensor.
func (l *loader) vector(name string) []float32 {
	t := l.tensor(name)
	if l.err != nil {
		return nil
	}
	out := make([]float32, t.Rows()*t.Cols())
	if err := t.ReadAll(out); err != nil {
		l.err = err
	}
	return out
}

// norm reads the factors of an RMS norm, with gemma's 1 added.
func (l *loader) norm(name string) []float32 {
	w := l.vector(name)
	if l.err == nil && l.model.Config().NormPlusOne {
		for i := range w {
			w[i]++
		}
	}
	return w
}

func (l *loader) linear(prefix string, bias bool) linear {
	t := l.tensor(prefix + ".weight")
	if l.err != nil {
		return linear{}
	}
	out := l.newLinear(t)
	if bias {
		out.bias = l.vector(prefix + ".bias")
	}
	return out
}

func (l *loader) layer(out *layer, i int, c *arch.Config) {
	p := fmt.Sprintf("model.layers.%d.", i)
	out.attnNorm = l.norm(p + "input_layernorm.weight")
	if c.PostNorms {
		out.postAttnNorm = l.norm(p + "post_attention_layernorm.weight")
		out.ffnNorm = l.norm(p + "pre_feedforward_layernorm.weight")
		out.postFFNNorm = l.norm(p + "post_feedforward_layernorm.weight")
	} else {
		out.ffnNorm = l.norm(p + "post_attention_layernorm.weight")
	}
	if c.QKNorm {
		out.qNorm = l.norm(p + "self_attn.q_norm.weight")
		out.kNorm = l.norm(p + "self_attn.k_norm.weight")
	}
	if c.FusedQKV {
		out.q = l.linear(p+"self_attn.qkv_proj", c.AttentionBias)
	} else {
		out.q = l.linear(p+"self_attn.q_proj", c.AttentionBias)
		out.k = l.linear(p+"self_attn.k_proj", c.AttentionBias)
		out.v = l.linear(p+"self_attn.v_proj", c.AttentionBias)
	}
	out.o = l.linear(p+"self_attn.o_proj", c.OutputBias)
	if c.FusedGateUp {
		out.gate = l.linear(p+"mlp.gate_up_proj", c.MLPBias)
	} else {
		out.gate = l.linear(p+"mlp.gate_proj", c.MLPBias)
		out.up = l.linear(p+"mlp.up_proj", c.MLPBias)
	}
	out.down = l.linear(p+"mlp.down_proj", c.MLPBias)
}

// head is the output projection: its own tensor where the model has one, else the embedding.
func (l *loader) head(c *arch.Config) linear {
	name := arch.HeadName
	if c.TieEmbeddings {
		name = arch.EmbeddingName
	}
	t := l.tensor(name)
	if l.err != nil {
		return linear{}
	}
	return l.newLinear(t)
}

func (l *loader) newLinear(t *checkpoint.Tensor) linear {
	out := linear{tensor: t, rows: t.Rows(), cols: t.Cols()}
	if t.Packed() && !l.decode {
		m := t.Matrix()
		out.matrix = &m
	}
	if block, ok := t.Block(); ok && l.repack && out.rows > 0 && t.BlockRow(0) != nil {
		if f, ok := repack.Of(block, out.cols); ok {
			out.form = &f
		} else {
			out.half = true
		}
	}
	return out
}
