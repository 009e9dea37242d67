package llama

import (
	"math"

	"qtool/formats/arch"
)

// rope is the rotation of one kind of layer: its frequencies, and those of sequences past the original context, which
// are others with longrope.
type rope struct {
	short, long []float64
	factor      float64 // on cos and sin
}

// ropes computes the frequencies of the layers with full attention, and of the sliding ones where these have some of
// their own.
func ropes(c *arch.Config) []rope {
	kinds := []arch.Rope{c.Rope}
	if c.LocalRope != nil {
		kinds = append(kinds, *c.LocalRope)
	}
	out := make([]rope, len(kinds))
	for i, r := range kinds {
		out[i].short, out[i].factor = r.Frequencies(c.RotaryDim, 0)
		out[i].long, _ = r.Frequencies(c.RotaryDim, r.OriginalContext+1)
	}
	return out
}

// rotation holds cos and sin of a batch's positions for one kind of layer, [tokens][RotaryDim/2].
type rotation struct{ cos, sin []float32 }

// rotate computes the rotary factors of the batch's tokens, for each of the engine's ropes.
func (s *Session) rotate() {
	e, pairs := s.engine, s.engine.config.RotaryDim/2
	if s.turns == nil {
		s.turns = make([]rotation, len(e.ropes))
	}
	for i := range s.turns {
		r, rope := &s.turns[i], &e.ropes[i]
		r.cos, r.sin = room(r.cos, len(s.rows)*pairs), room(r.sin, len(s.rows)*pairs)
		for t, row := range s.rows {
			frequencies := rope.short
			if row.session.long {
				frequencies = rope.long
			}
			for k, f := range frequencies {
				// The reference multiplies in single precision: a double would be nearer to the
				// mathematics, and further from what the weights were trained with.
				angle := float64(float32(row.position) * float32(f))
				sin, cos := math.Sincos(angle)
				r.cos[t*pairs+k], r.sin[t*pairs+k] = float32(cos*rope.factor), float32(sin*rope.factor)
			}
		}
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
