package llama

import (
	"fmt"
	"math"
	"sync/atomic"

	"qtool/runtime/kernel"
)

// batch is the most tokens that go through the layers together.
const batch = 128

// Session is one running sequence: the tokens so far, and their keys and values.
type Session struct {
	engine  *Engine
	context int
	tokens  []int32
	cache   cache
	long    bool // keys are rotated by longrope's second set of frequencies
	taken   bool // by the step that is being checked

	tap Tap // nil but in a Blocks

	// Of the batch in work.
	rows   []row
	turns  []rotation // by kind of layer: see rotate
	plans  []plan     // by window
	layer  int
	job    job // the products in work
	norm   norm
	steps  steps
	failed failure

	codes  kernel.Activations // of the input of the products at hand
	rest   kernel.Activations // what they leave, where activations are to have 16 bits
	fine   kernel.Fine        // the same, for products with weights of 8 bits
	parts  []float32          // the input of plain matrices: see partRow
	x      []float32          // [batch][hidden], the residual stream
	normed []float32          // [batch][hidden]
	qkv    []float32          // [batch][q + 2·kv]
	mixed  []float32          // [batch][q], what attention gives
	ffn    []float32          // [batch][2·intermediate], gate and up
	gated  []float32          // [batch][intermediate]
	added  []float32          // [batch][hidden], what a block adds
	logits []float32          // [positions][vocab]
}

// steps are the session's parallel loops: made once, since a function made for the pool is an allocation.
type steps struct {
	quantize, arrange, arrangeFine, part, turn, place, join, activate, normalize, add func(worker, i int)
	multiply, attend                                                                  func(worker, part, i int)
}

// NewSession starts a sequence of at most context tokens. Memory for keys and values is taken as
// the sequence grows.
func (e *Engine) NewSession(context int) *Session {
	return e.newSession(context, e.newCache(e.config.Layers))
}

func (e *Engine) newSession(context int, c cache) *Session {
	s := &Session{engine: e, context: context, cache: c}
	s.steps = steps{
		quantize: s.quantizeRow, arrange: s.arrangeTile, arrangeFine: s.arrangeFineTile, part: s.partRow,
		turn: s.turnHeads, place: s.placeKeys, join: s.join, activate: s.activateRow, normalize: s.normalizeRow, add: s.addRow,
		multiply: s.multiplyUnit, attend: s.attend,
	}
	return s
}

// Reset forgets every token.
func (s *Session) Reset() { s.tokens, s.long = s.tokens[:0], false }

// Truncate forgets the tokens from the n-th on.
func (s *Session) Truncate(n int) { s.tokens = s.tokens[:min(max(n, 0), len(s.tokens))] }

// Fork starts another sequence with the same tokens, without computing them again.
func (s *Session) Fork() *Session {
	f := s.engine.newSession(s.context, s.cache.clone())
	f.tokens, f.long = append(f.tokens, s.tokens...), s.long
	return f
}

// Close gives the memory of the session's keys and values back for others of the engine. It must not be used afterwards.
func (s *Session) Close() { s.cache.release() }

// Len is the number of tokens so far.
func (s *Session) Len() int { return len(s.tokens) }

// Room is the number of tokens that still fit.
func (s *Session) Room() int { return s.context - len(s.tokens) }

// Forward appends tokens and calls visit in order for each index i ≥ from of tokens with the logits
// that follow it, [Vocab]; the slice is valid during the call only. Errors: ErrContextFull and
// ErrToken before anything has changed, visit's own, and a *mapped.FaultError where the file of the
// weights was cut short.
func (s *Session) Forward(tokens []int32, from int, visit func(i int, logits []float32) error) error {
	if err := s.check(tokens); err != nil {
		return err
	}
	return s.engine.run(work{session: s, tokens: tokens, from: from, visit: visit})
}

// check looks whether tokens can be appended.
func (s *Session) check(tokens []int32) error {
	if len(tokens) > s.Room() {
		return fmt.Errorf("%w: %d tokens more than the %d that were asked for", ErrContextFull, len(tokens)-s.Room(), s.context)
	}
	limit := s.engine.embedding.Rows()
	for i, t := range tokens {
		if t < 0 || int(t) >= limit {
			return fmt.Errorf("%w: token %d at position %d, the model has %d embeddings", ErrToken, t, len(s.tokens)+i, limit)
		}
	}
	return nil
}

func (s *Session) forward(tokens []int32, from int, visit func(i int, logits []float32) error) error {
	if err := s.prepare(len(s.tokens) + len(tokens)); err != nil {
		return err
	}
	return s.batches(tokens, from, visit)
}

// prepare makes the cache ready for a sequence of total tokens.
func (s *Session) prepare(total int) error {
	s.cache.reserve(total)
	if s.engine.config.Rope.Long(total) != s.long {
		// The keys in the cache were rotated by the other set of frequencies: begin anew.
		known := append([]int32(nil), s.tokens...)
		s.tokens, s.long = s.tokens[:0], !s.long
		return s.batches(known, len(known), nil)
	}
	return nil
}

// batches feeds tokens part by part.
func (s *Session) batches(tokens []int32, from int, visit func(i int, logits []float32) error) error {
	for at := 0; at < len(tokens); at += batch {
		part := tokens[at:min(at+batch, len(tokens))]
		s.rows = s.rows[:0]
		for i := range part {
			s.rows = append(s.rows, row{s, len(s.tokens) + i})
		}
		first := min(max(from-at, 0), len(part))
		if visit == nil {
			first = len(part)
		}
		if err := s.layers(part, first); err != nil {
			return err
		}
		s.tokens = append(s.tokens, part...)
		if first == len(part) {
			continue
		}
		if err := s.predict(len(part)-first, 0, func(i int, logits []float32) error { return visit(at+first+i, logits) }); err != nil {
			return err
		}
	}
	return nil
}

// layers runs the layers on the tokens of s.rows, which leaves in s.x the hidden states of those from the first on: of the others
// the last layer gives keys and values alone.
func (s *Session) layers(tokens []int32, first int) error {
	e, c := s.engine, s.engine.config
	n := len(tokens)
	s.x = room(s.x, n*c.Hidden)
	if err := e.embed(s.x, tokens); err != nil {
		return err
	}
	s.rotate()
	s.planAttention()
	for i := range e.layers {
		from := 0
		if i == len(e.layers)-1 {
			from = first
		}
		if err := s.attention(i, n, from); err != nil {
			return err
		}
		if err := s.feedForward(&e.layers[i], n-from); err != nil {
			return err
		}
	}
	return nil
}

// embed writes the embeddings of tokens, scaled as the architecture has it.
func (e *Engine) embed(dst []float32, tokens []int32) error {
	c := e.config
	for t, id := range tokens {
		row := dst[t*c.Hidden : (t+1)*c.Hidden]
		if m := e.packedEmbedding; m != nil {
			m.DequantizeRow(row, int(id), e.codes)
		} else if err := e.embedding.ReadRows(row, int(id), 1, &e.rows); err != nil {
			return err
		}
		if c.EmbedScale != 1 {
			for i := range row {
				row[i] *= float32(c.EmbedScale)
			}
		}
	}
	return nil
}

// attention adds the attention block of layer i to the residual stream, which goes on with the tokens from the given one on.
func (s *Session) attention(i, n, from int) error {
	e, c, l := s.engine, s.engine.config, &s.engine.layers[i]
	s.normed = s.normalize(s.normed, s.x, l.attnNorm, n)
	q, kv := c.QDim(), c.KVDim()
	stride := q + 2*kv
	s.qkv = room(s.qkv, n*stride)
	var err error
	if c.FusedQKV {
		err = s.multiply(s.normed, n, stride, product{&l.q, s.qkv})
	} else {
		err = s.multiply(s.normed, n, stride, product{&l.q, s.qkv}, product{&l.k, s.qkv[q:]}, product{&l.v, s.qkv[q+kv:]})
	}
	if err != nil {
		return err
	}
	s.mixed = room(s.mixed, n*q)
	s.layer = i
	e.pool.Run(n, s.steps.turn)
	e.pool.Run(n, s.steps.place)
	if err := s.failed.take(); err != nil {
		return err
	}
	p := s.planOf(i)
	e.pool.RunParts(p.counts, s.steps.attend)
	e.pool.Run(len(p.joins), s.steps.join)
	if from > 0 {
		copy(s.x, s.x[from*c.Hidden:n*c.Hidden])
		n -= from
	}
	if n == 0 {
		return nil
	}
	s.added = room(s.added, n*c.Hidden)
	if err := s.multiply(s.mixed[from*q:], n, c.Hidden, product{&l.o, s.added}); err != nil {
		return err
	}
	s.add(l.postAttnNorm, n)
	return nil
}

// feedForward adds a feed-forward block to the residual stream.
func (s *Session) feedForward(l *layer, n int) error {
	if n == 0 {
		return nil
	}
	e, c := s.engine, s.engine.config
	s.normed = s.normalize(s.normed, s.x, l.ffnNorm, n)
	width := c.Intermediate
	s.ffn = room(s.ffn, n*2*width)
	var err error
	if c.FusedGateUp {
		err = s.multiply(s.normed, n, 2*width, product{&l.gate, s.ffn})
	} else {
		err = s.multiply(s.normed, n, 2*width, product{&l.gate, s.ffn}, product{&l.up, s.ffn[width:]})
	}
	if err != nil {
		return err
	}
	s.gated = room(s.gated, n*width)
	e.pool.Run(n, s.steps.activate)
	s.added = room(s.added, n*c.Hidden)
	if err := s.multiply(s.gated, n, c.Hidden, product{&l.down, s.added}); err != nil {
		return err
	}
	s.add(l.postFFNNorm, n)
	return nil
}

// activateRow applies the activation for a token.
func (s *Session) activateRow(_, t int) {
	e, width := s.engine, s.engine.config.Intermediate
	gate, up := s.ffn[t*2*width:t*2*width+width], s.ffn[t*2*width+width:(t+1)*2*width]
	activate(e.kernels, e.config.Activation, s.gated[t*width:(t+1)*width], gate, up)
}

// add adds what a block gave, normalized where the architecture does that, to the residual stream.
func (s *Session) add(norm []float32, n int) {
	if norm != nil {
		s.added = s.normalize(s.added, s.added, norm, n)
	}
	s.engine.pool.Run(n, s.steps.add)
}

// addRow does it for a token.
func (s *Session) addRow(_, t int) {
	hidden := s.engine.config.Hidden
	s.engine.kernels.Axpy(1, s.added[t*hidden:(t+1)*hidden], s.x[t*hidden:])
}

// predict gives the logits of the positions first … n-1 of the batch in s.x.
func (s *Session) predict(n, first int, visit func(i int, logits []float32) error) error {
	e, c := s.engine, s.engine.config
	s.normed = s.normalize(s.normed, s.x, e.norm, n)
	vocab := e.head.rows
	// Not to hold the logits of a whole batch of a large vocabulary.
	step := max(1, min(n-first, (4<<20)/vocab))
	s.logits = room(s.logits, step*vocab)
	for at := first; at < n; at += step {
		part := min(step, n-at)
		if err := s.multiply(s.normed[at*c.Hidden:(at+part)*c.Hidden], part, vocab, product{&e.head, s.logits}); err != nil {
			return err
		}
		for i := range part {
			out := s.logits[i*vocab : (i+1)*vocab]
			if !e.finite(out) {
				return fmt.Errorf("%w: the logits of position %d of a batch", ErrNotFinite, at+i)
			}
			softcap(out, float32(c.FinalSoftcap))
			if err := visit(at+i, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// normalize writes the RMS norm of n vectors of x to dst: each by the root of its mean square plus
// epsilon, times w. dst may be x.
func (s *Session) normalize(dst, x, w []float32, n int) []float32 {
	dst = room(dst, n*len(w))
	s.norm = norm{dst, x, w}
	s.engine.pool.Run(n, s.steps.normalize)
	return dst
}

// norm is a normalization in work.
type norm struct{ dst, x, w []float32 }

// normalizeRow does the normalization in work for a token.
func (s *Session) normalizeRow(_, t int) {
	n := len(s.norm.w)
	rmsNorm(s.norm.dst[t*n:(t+1)*n], s.norm.x[t*n:(t+1)*n], s.norm.w, s.engine.config.NormEps)
}

func rmsNorm(dst, x, w []float32, eps float64) {
	// Four sums, none of which has to wait for another.
	var sums [4]float64
	whole := len(x) &^ 3
	for i := 0; i < whole; i += 4 {
		v := (*[4]float32)(x[i:])
		sums[0] += float64(v[0]) * float64(v[0])
		sums[1] += float64(v[1]) * float64(v[1])
		sums[2] += float64(v[2]) * float64(v[2])
		sums[3] += float64(v[3]) * float64(v[3])
	}
	for _, v := range x[whole:] {
		sums[0] += float64(v) * float64(v)
	}
	sum := (sums[0] + sums[1]) + (sums[2] + sums[3])
	f := float32(1 / math.Sqrt(sum/float64(len(x))+eps))
	dst, w = dst[:len(x)], w[:len(x)]
	for i, v := range x {
		dst[i] = v * f * w[i]
	}
}

// room returns a slice of length n, reusing s where it is large enough.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// failure keeps the first error of several workers.
type failure struct{ first atomic.Pointer[error] }

func (f *failure) note(err error) {
	if err != nil {
		kept := err // so that no error needs no memory
		f.first.CompareAndSwap(nil, &kept)
	}
}

// take gives the error and forgets it.
func (f *failure) take() error {
	if p := f.first.Swap(nil); p != nil {
		return *p
	}
	return nil
}
