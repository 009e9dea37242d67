package llama

import (
	"fmt"

	"qtool/formats/arch"
	"qtool/formats/mapped"
	"qtool/formats/packed"
)

// Tap sees the input of a linear layer before it is multiplied: x[tokens][cols]. Layers that share an input (query, key and
// value; gate and up) are seen once, by the name of the first. An error ends the block there.
type Tap func(name string, x []float32, tokens, cols int) error

// Blocks runs a model block by block over whole sequences, so that calibration needs the weights of one block at a time, and lets
// what has been quantized take the place of the source. One goroutine at a time.
type Blocks struct {
	engine  *Engine
	session *Session
}

// oneLayer is a cache that every layer shares: a block is done with it before the next begins.
type oneLayer struct{ cache }

func (c oneLayer) put(_, head, position int, key, value, origin []float32) error {
	return c.cache.put(0, head, position, key, value, origin)
}

func (c oneLayer) scores(out, shifts, q []float32, queries, _, head, first, n int) {
	c.cache.scores(out, shifts, q, queries, 0, head, first, n)
}

func (c oneLayer) mix(out, factors, p []float32, queries, _, head, first, n int) {
	c.cache.mix(out, factors, p, queries, 0, head, first, n)
}

// Blocks returns a runner on the engine's threads. What it replaces is replaced for every user of the engine.
func (e *Engine) Blocks() *Blocks {
	return &Blocks{engine: e, session: e.newSession(0, oneLayer{e.newCache(1)})}
}

// Count is the number of blocks.
func (b *Blocks) Count() int { return len(b.engine.layers) }

// Embed writes the hidden states that a sequence enters the first block with, [len(tokens)][Hidden].
func (b *Blocks) Embed(dst []float32, tokens []int32) error {
	limit := b.engine.embedding.Rows()
	for i, t := range tokens {
		if t < 0 || int(t) >= limit {
			return fmt.Errorf("%w: token %d at position %d, the model has %d embeddings", ErrToken, t, i, limit)
		}
	}
	return mapped.Guard(func() error { return b.engine.embed(dst, tokens) })
}

// Half is one of the two parts of a block, each of which adds to the hidden states.
type Half int

// Halves of a block, in their order.
const (
	AttentionHalf Half = iota
	FeedForwardHalf
)

// Run takes the hidden states of one sequence, x[n][Hidden], through a block, in place. tap, if not nil, sees the inputs of
// its linear layers in their order; where it returns an error x is what it was, and Run returns that error.
func (b *Blocks) Run(layer int, x []float32, n int, tap Tap) error {
	return b.run(layer, x, n, tap, AttentionHalf, FeedForwardHalf)
}

// RunHalf is Run for one half of a block.
func (b *Blocks) RunHalf(layer int, h Half, x []float32, n int, tap Tap) error {
	return b.run(layer, x, n, tap, h, h)
}

func (b *Blocks) run(layer int, x []float32, n int, tap Tap, first, last Half) error {
	s, c := b.session, b.engine.config
	s.tap = tap
	s.x = room(s.x, n*c.Hidden)
	copy(s.x, x[:n*c.Hidden])
	err := mapped.Guard(func() error {
		if first == AttentionHalf {
			if err := b.attention(layer, n); err != nil {
				return err
			}
		}
		if last == FeedForwardHalf {
			return s.feedForward(&b.engine.layers[layer], n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	copy(x, s.x[:n*c.Hidden])
	return nil
}

// Finish does what RunHalf does beyond the input of the half's last layer, which a Tap has seen: it multiplies that input, [n][cols], and adds the
// result to the hidden states x. The result is that of RunHalf, to the bit.
func (b *Blocks) Finish(layer int, h Half, x, input []float32, n int) error {
	s, l := b.session, &b.engine.layers[layer]
	last, norm := &l.o, l.postAttnNorm
	if h == FeedForwardHalf {
		last, norm = &l.down, l.postFFNNorm
	}
	s.tap = nil
	size := n * b.engine.config.Hidden
	s.x, s.added = room(s.x, size), room(s.added, size)
	copy(s.x, x[:size])
	return mapped.Guard(func() error {
		if err := s.multiply(input[:n*last.cols], n, b.engine.config.Hidden, product{last, s.added}); err != nil {
			return err
		}
		s.add(norm, n)
		copy(x, s.x[:size])
		return nil
	})
}

// attention runs the attention of a block on the sequence in the session, from its first position on.
func (b *Blocks) attention(layer, n int) error {
	s := b.session
	s.cache.reserve(n)
	s.tokens, s.rows, s.long = s.tokens[:0], s.rows[:0], b.engine.config.Rope.Long(n)
	for i := range n {
		s.rows = append(s.rows, row{s, i})
	}
	s.rotate()
	s.planAttention()
	return s.attention(layer, n, 0)
}

// HeadInput writes what the head is multiplied with, [n][Hidden], for hidden states x[n][Hidden] that have passed all blocks.
func (b *Blocks) HeadInput(dst, x []float32, n int) {
	c := b.engine.config
	for t := range n {
		rmsNorm(dst[t*c.Hidden:(t+1)*c.Hidden], x[t*c.Hidden:(t+1)*c.Hidden], b.engine.norm, c.NormEps)
	}
}

// Predict calls visit for each position i ≥ from of hidden states that have passed all blocks, with its logits, as Session.Forward
// does.
func (b *Blocks) Predict(x []float32, n, from int, visit func(i int, logits []float32) error) error {
	s := b.session
	s.tap = nil
	s.x = room(s.x, n*b.engine.config.Hidden)
	copy(s.x, x[:n*b.engine.config.Hidden])
	return mapped.Guard(func() error { return s.predict(n, from, visit) })
}

// Linears names the linear layers of a block in the order in which their inputs become known, the first two groups in the half of
// attention, the others in that of the feed-forward layer; those that share an input stand together.
func (b *Blocks) Linears(layer int) [][]string {
	l := &b.engine.layers[layer]
	var out [][]string
	for _, group := range [][]*linear{{&l.q, &l.k, &l.v}, {&l.o}, {&l.gate, &l.up}, {&l.down}} {
		var names []string
		for _, w := range group {
			if w.tensor != nil {
				names = append(names, w.tensor.Name)
			}
		}
		out = append(out, names)
	}
	return out
}

// Head names the output projection: the embedding where the two are tied.
func (b *Blocks) Head() string { return b.engine.head.tensor.Name }

// Replace puts a packed matrix in the place of a linear layer's weights, or of the embedding's, or of both where they are tied.
func (b *Blocks) Replace(name string, m packed.Matrix) error {
	e := b.engine
	if t := e.embedding; t.Name == name {
		if m.Rows != t.Rows() || m.Cols != t.Cols() {
			return fmt.Errorf("replace %q of shape [%d %d]: found [%d %d]", name, t.Rows(), t.Cols(), m.Rows, m.Cols)
		}
		e.packedEmbedding, e.codes = &m, packed.NewCodes(m.Scheme, m.Cols)
		if e.head.tensor.Name != name {
			return nil
		}
	}
	w, err := b.find(name)
	if err != nil {
		return err
	}
	if m.Rows != w.rows || m.Cols != w.cols {
		return fmt.Errorf("replace %q of shape [%d %d]: found [%d %d]", name, w.rows, w.cols, m.Rows, m.Cols)
	}
	if w.own == nil {
		own := *w
		w.own = &own
	}
	w.matrix, w.form, w.half = &m, nil, false
	w.gather()
	return nil
}

// Restore takes back what Replace did.
func (b *Blocks) Restore(name string) error {
	if b.engine.embedding.Name == name {
		b.engine.packedEmbedding = nil
		if b.engine.head.tensor.Name != name {
			return nil
		}
	}
	w, err := b.find(name)
	if err == nil && w.own != nil {
		*w = *w.own
	}
	return err
}

// gather makes what has come in the place of a matrix one share: where it is, no node is its own.
func (l *linear) gather() {
	l.shares = make([]share, len(l.shares))
	l.shares[0] = share{rows: l.rows, unit: l.unitRows(), tensor: l.tensor, matrix: l.matrix}
}

// find finds a linear layer by the name of its weights.
func (b *Blocks) find(name string) (*linear, error) {
	e := b.engine
	for w := range e.linears() {
		if w.tensor.Name == name {
			return w, nil
		}
	}
	return nil, fmt.Errorf("the model has no linear layer %q", name)
}

// Config describes the model.
func (b *Blocks) Config() *arch.Config { return b.engine.config }
