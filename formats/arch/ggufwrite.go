package arch

import (
	"errors"
	"fmt"
	"slices"

	"qtool/formats/gguf"
)

// GGUFTensor is a small tensor that GGUF stores in place of a key.
type GGUFTensor struct {
	Name   string
	Values []float32
}

// SetGGUF sets the keys that llama.cpp reads a configuration from, and returns the tensors that go with
// them; FromGGUF of both gives a configuration that computes the same. Of several ids of a special token
// the first is set. It is an error where llama.cpp has no way to say something, but for two things that it
// ignores and FromGGUF reads: attention.scale where it is not the published models' (gemma), and YaRN's bounds.
func (c *Config) SetGGUF(m *gguf.Metadata) ([]GGUFTensor, error) {
	f, ok := familyOf(c.Architecture)
	if !ok {
		return nil, fmt.Errorf("architecture %q has no GGUF form", c.Architecture)
	}
	if f.activation != c.Activation {
		return nil, fmt.Errorf("a %s with activation %s has no GGUF form", f.name, c.Activation)
	}
	if f.permute && c.RotaryDim != c.HeadDim {
		return nil, fmt.Errorf("a %s that rotates a part of each head has no GGUF form", f.name)
	}
	if f.name == Gemma2 && (c.AttnSoftcap == 0 || c.FinalSoftcap == 0) {
		return nil, fmt.Errorf("a %s without soft caps has no GGUF form", f.name)
	}
	m.Set(keyArchitecture, gguf.String(f.gguf))
	u32 := func(key string, n int) { m.Set(f.gguf+"."+key, gguf.Uint32(uint32(n))) }
	f32 := func(key string, x float64) { m.Set(f.gguf+"."+key, gguf.Float32(float32(x))) }
	u32("block_count", c.Layers)
	u32("context_length", c.MaxPositions)
	u32("embedding_length", c.Hidden)
	u32("feed_forward_length", c.Intermediate)
	u32("attention.head_count", c.Heads)
	u32("attention.head_count_kv", c.KVHeads)
	u32("attention.key_length", c.HeadDim)
	u32("attention.value_length", c.HeadDim)
	f32("attention.layer_norm_rms_epsilon", c.NormEps)
	u32("vocab_size", c.Vocab)
	u32("rope.dimension_count", c.RotaryDim)
	f32("rope.freq_base", c.Rope.Theta)
	if err := c.setWindow(f, m); err != nil {
		return nil, err
	}
	if f.name == Gemma2 {
		f32("attn_logit_softcapping", c.AttnSoftcap)
	}
	if c.FinalSoftcap != 0 {
		f32("final_logit_softcapping", c.FinalSoftcap)
	}
	if c.AttnScale != f.ggufScale(c) {
		f32("attention.scale", c.AttnScale)
	}
	for i, list := range [][]int{c.BOS, c.EOS, c.PAD} {
		if len(list) > 0 && !m.Has(specialKeys[i]) {
			m.Set(specialKeys[i], gguf.Uint32(uint32(list[0])))
		}
	}
	return c.setRope(f, m)
}

// setWindow sets the keys of the attention window.
func (c *Config) setWindow(f family, m *gguf.Metadata) error {
	window, pattern := f.gguf+".attention.sliding_window", f.gguf+".attention.sliding_window_pattern"
	u32 := func(key string, n int) { m.Set(key, gguf.Uint32(uint32(n))) }
	if c.SlidingWindow == 0 {
		switch f.name {
		case Phi3:
			u32(window, 0) // older readers want the key
		case Gemma2:
			// Without the key a window of 4096 is assumed; one of the whole context changes nothing even
			// where the period is not read.
			u32(window, c.MaxPositions)
			u32(pattern, 1)
		}
		return nil
	}
	if f.name == Qwen2 || f.name == Qwen3 {
		return fmt.Errorf("a %s with an attention window has no GGUF form", f.name)
	}
	u32(window, c.SlidingWindow)
	if period := f.ggufPeriod(); !slices.Equal(c.LayerSliding, slidingByPeriod(c.Layers, period)) {
		period = slices.IndexFunc(c.LayerSliding, func(s bool) bool { return !s }) + 1
		if period == 0 {
			period = c.Layers + 1
		}
		if !f.gemma || !slices.Equal(c.LayerSliding, slidingByPeriod(c.Layers, period)) {
			return fmt.Errorf("a %s whose layers have an attention window without a period has no GGUF form", f.name)
		}
		u32(pattern, period)
	}
	return nil
}

// setRope sets the keys of the rotary parameters and returns the divisors that are tensors.
func (c *Config) setRope(f family, m *gguf.Metadata) ([]GGUFTensor, error) {
	r, prefix := c.Rope, f.gguf+".rope."
	f32 := func(key string, x float64) { m.Set(prefix+key, gguf.Float32(float32(x))) }
	if c.LocalRope != nil {
		if c.LocalRope.Kind != RopeDefault {
			return nil, fmt.Errorf("rotary parameters of kind %s for sliding layers have no GGUF form", c.LocalRope.Kind)
		}
		f32("freq_base_swa", c.LocalRope.Theta)
	}
	divisors := r.Kind == RopeLlama3 || r.fixedDivisors()
	switch {
	case divisors && f.gguf == "llama":
		return []GGUFTensor{{ropeFreqsName, singles(r.divisorsOf(c.RotaryDim))}}, nil
	case r.Kind == RopeLlama3 || r.Kind == RopeLongrope && f.gguf != "llama" && f.name != Phi3:
		return nil, fmt.Errorf("rotary parameters of kind %s for a %s have no GGUF form", r.Kind, f.name)
	}
	switch r.Kind {
	case RopeLinear:
		m.Set(prefix+"scaling.type", gguf.String("linear"))
		f32("scaling.factor", r.Factor)
	case RopeYarn:
		if !r.Truncate {
			return nil, errors.New("YaRN without rounded bounds has no GGUF form")
		}
		m.Set(prefix+"scaling.type", gguf.String("yarn"))
		f32("scaling.factor", r.Factor)
		m.Set(prefix+"scaling.original_context_length", gguf.Uint32(uint32(r.OriginalContext)))
		if r.BetaFast != 32 || r.BetaSlow != 1 {
			f32("scaling.yarn_beta_fast", r.BetaFast)
			f32("scaling.yarn_beta_slow", r.BetaSlow)
		}
		if x := r.attentionFactor() / yarnMagnitude(r.Factor, 1); x != 1 {
			f32("scaling.attn_factor", x)
		}
	case RopeLongrope:
		m.Set(prefix+"scaling.type", gguf.String("longrope"))
		m.Set(prefix+"scaling.original_context_length", gguf.Uint32(uint32(r.OriginalContext)))
		f32("scaling.attn_factor", r.attentionFactor())
		return []GGUFTensor{{ropeLongName, singles(r.LongFactors)}, {ropeShortName, singles(r.ShortFactors)}}, nil
	}
	return nil, nil
}

func singles(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
