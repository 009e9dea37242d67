package llama

import (
	"math"

	"qtool/formats/arch"
	"qtool/runtime/kernel"
)

// rotation holds cos and sin of a batch's positions for one kind of layer, [tokens][RotaryDim/2].
type rotation struct{ cos, sin []float32 }

// rotations computes the rotary factors of n positions from first on: turns[0] of the layers with
// full attention, turns[1] of the sliding ones where these have frequencies of their own.
func (s *Session) rotations(first, n int) {
	c := s.engine.config
	ropes := []arch.Rope{c.Rope}
	if c.LocalRope != nil {
		ropes = append(ropes, *c.LocalRope)
	}
	s.turns = s.turns[:0]
	length := first + n
	if s.long {
		length = max(length, c.Rope.OriginalContext+1)
	}
	for _, rope := range ropes {
		frequencies, factor := rope.Frequencies(c.RotaryDim, length)
		pairs := len(frequencies)
		r := rotation{cos: make([]float32, n*pairs), sin: make([]float32, n*pairs)}
		for t := range n {
			for i, f := range frequencies {
				// The reference multiplies in single precision: a double would be nearer to the
				// mathematics, and further from what the weights were trained with.
				angle := float64(float32(first+t) * float32(f))
				sin, cos := math.Sincos(angle)
				r.cos[t*pairs+i], r.sin[t*pairs+i] = float32(cos*factor), float32(sin*factor)
			}
		}
		s.turns = append(s.turns, r)
	}
}

// turn rotates one head in place for token t of the batch.
func (s *Session) turn(layer, t int, head []float32) {
	c := s.engine.config
	r := s.turns[0]
	if c.LocalRope != nil && c.LayerSliding[layer] {
		r = s.turns[1]
	}
	pairs := c.RotaryDim / 2
	cos, sin := r.cos[t*pairs:(t+1)*pairs], r.sin[t*pairs:(t+1)*pairs]
	low, high := head[:pairs], head[pairs:2*pairs]
	for i, a := range low {
		b := high[i]
		low[i] = a*cos[i] - b*sin[i]
		high[i] = b*cos[i] + a*sin[i]
	}
}

// placeKeys normalizes and rotates the queries and keys of a batch, and puts keys and values into the
// cache.
func (s *Session) placeKeys(layer, n int) {
	e, c, l := s.engine, s.engine.config, &s.engine.layers[layer]
	q, kv, dim := c.QDim(), c.KVDim(), c.HeadDim
	stride, past := q+2*kv, len(s.tokens)
	cache := &s.cache[layer]
	e.pool.Run(n, func(_, t int) {
		row := s.qkv[t*stride : (t+1)*stride]
		for h := range c.Heads + c.KVHeads {
			head := row[h*dim : (h+1)*dim]
			switch {
			case l.qNorm != nil && h < c.Heads:
				rmsNorm(head, head, l.qNorm, c.NormEps)
			case l.kNorm != nil:
				rmsNorm(head, head, l.kNorm, c.NormEps)
			}
			s.turn(layer, t, head)
		}
		for h := range c.KVHeads {
			at := (h*s.rooms + past + t) * dim
			copy(cache.k[at:at+dim], row[q+h*dim:])
			copy(cache.v[at:at+dim], row[q+kv+h*dim:])
		}
	})
}

// attend computes what one head of one token of the batch gathers from the values.
func (s *Session) attend(layer, t, head int, w *workerScratch) {
	e, c := s.engine, s.engine.config
	dim := c.HeadDim
	last := len(s.tokens) + t
	first := 0
	if window := c.LayerWindow(layer); window > 0 {
		first = max(0, last-window+1)
	}
	w.scores = room(w.scores, last-first+1)
	scores := w.scores
	stride := c.QDim() + 2*c.KVDim()
	q := s.qkv[t*stride+head*dim : t*stride+(head+1)*dim]
	kv := head / (c.Heads / c.KVHeads) * s.rooms
	keys, values := s.cache[layer].k[kv*dim:], s.cache[layer].v[kv*dim:]

	scale := float32(c.AttnScale)
	for i := range scores {
		at := (first + i) * dim
		scores[i] = e.kernels.Dot(q, keys[at:at+dim]) * scale
	}
	softcap(scores, float32(c.AttnSoftcap))
	e.kernels.Softmax(scores)
	out := s.mixed[t*c.QDim()+head*dim : t*c.QDim()+(head+1)*dim]
	clear(out)
	for i, p := range scores {
		at := (first + i) * dim
		e.kernels.Axpy(p, values[at:at+dim], out)
	}
}

// softcap bends x to within ±limit: limit·tanh(x/limit). A limit of 0 leaves x alone.
func softcap(x []float32, limit float32) {
	if limit == 0 {
		return
	}
	for i, v := range x {
		x[i] = limit * float32(math.Tanh(float64(v/limit)))
	}
}

// activate writes the activation of gate times up.
func activate(set *kernel.Set, a arch.Activation, dst, gate, up []float32) {
	switch a {
	case arch.GELUTanh:
		const c = 0.7978845608028654 // √(2/π)
		for i, g := range gate {
			x := float64(g)
			dst[i] = float32(0.5*x*(1+math.Tanh(c*(x+0.044715*x*x*x)))) * up[i]
		}
	default:
		for i, g := range gate {
			dst[i] = -g
		}
		set.Exp(dst, 0)
		for i, g := range gate {
			dst[i] = g / (1 + dst[i]) * up[i]
		}
	}
}
