package arch

import (
	"math"
	"slices"

	"qtool/formats"
)

// ropes reads the rotary parameters.
func (r *ggufReader) ropes(c *Config) {
	c.RotaryDim = r.size("rope.dimension_count", maxHeadDim, c.HeadDim)
	if r.family.permute && c.RotaryDim != c.HeadDim && r.err == nil {
		// The rows of a whole head are interleaved, which no rotation of a part of it undoes.
		r.err = formats.Unsupported(r.file, r.prefix+"rope.dimension_count", "is %d, this architecture rotates whole heads of %d elements", c.RotaryDim, c.HeadDim)
		return
	}
	base := 10000.0
	if r.family.name == Gemma3Text {
		base = 1e6
		c.LocalRope = &Rope{Kind: RopeDefault, Theta: r.number("rope.freq_base_swa", 10000)}
	}
	c.Rope = Rope{Kind: RopeDefault, Theta: r.number("rope.freq_base", base)}
	if r.err != nil {
		return
	}
	factor := r.number("rope.scaling.factor", 0)
	if factor == 0 {
		factor = r.number("rope.scale_linear", 0) // as files of 2023 call it
	}
	kind := "linear" // a factor without a type
	if key := r.prefix + "rope.scaling.type"; r.m.Has(key) {
		var err error
		if kind, err = r.m.Str(key); err != nil {
			r.err = err
			return
		}
	}
	context := r.size("rope.scaling.original_context_length", maxPositions, c.MaxPositions)
	switch kind {
	case "none":
	case "linear":
		if factor != 0 && factor != 1 {
			c.Rope.Kind, c.Rope.Factor = RopeLinear, factor
		}
	case "yarn":
		r.yarn(c, factor, context)
	case "longrope":
		if !r.tensors.Has(ropeLongName) {
			r.fail(ropeLongName, "the rotary scaling is longrope, and this tensor with its divisors is not there")
		}
	default:
		r.err = formats.Unsupported(r.file, r.prefix+"rope.scaling.type", "%q is not supported", kind)
	}
	r.divisors(c, context)
}

// yarn reads the parameters of YaRN. llama.cpp rounds the bounds of the ramp and has no key for not doing so.
func (r *ggufReader) yarn(c *Config, factor float64, context int) {
	c.Rope.Kind, c.Rope.Factor, c.Rope.OriginalContext, c.Rope.Truncate = RopeYarn, factor, context, true
	c.Rope.BetaFast = r.number("rope.scaling.yarn_beta_fast", 32)
	c.Rope.BetaSlow = r.number("rope.scaling.yarn_beta_slow", 1)
	// The key multiplies the factor that follows from the stretch.
	if x := r.number("rope.scaling.attn_factor", 1); x != 1 {
		c.Rope.AttentionFactor = rounded(x * yarnMagnitude(factor, 1))
	}
	for _, k := range []struct {
		key      string
		harmless float64
	}{{"yarn_ext_factor", 1}, {"yarn_attn_factor", 1}, {"yarn_log_multiplier", 0}} {
		if x := r.number("rope.scaling."+k.key, k.harmless); x != k.harmless && r.err == nil {
			r.err = formats.Unsupported(r.file, r.prefix+"rope.scaling."+k.key, "is %v, only %v is supported", x, k.harmless)
		}
	}
}

// rounded gives the number of six digits that x stands for but for the rounding of a product of singles.
func rounded(x float64) float64 {
	scale := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(x))))
	if y := math.Round(x*scale) / scale; math.Abs(y/x-1) < 3e-7 {
		return y
	}
	return x
}

// divisors reads the tensors that rotary frequencies are divided by.
func (r *ggufReader) divisors(c *Config, context int) {
	read := func(name string) []float64 {
		if r.err != nil || !r.tensors.Has(name) {
			return nil
		}
		if n := r.tensors.Shape(name); len(n) != 1 || n[0] != c.RotaryDim/2 {
			r.fail(name, "has shape %v, expected half the rotated elements of a head, [%d]", n, c.RotaryDim/2)
			return nil
		}
		values, err := r.tensors.Float32s(name)
		if err != nil {
			r.err = err
			return nil
		}
		out := make([]float64, len(values))
		for i, v := range values {
			if !(v > 0 && v <= math.MaxFloat32) {
				r.fail(name, "element %d is %v, expected a positive number", i, v)
				return nil
			}
			out[i] = shortest(float64(v))
		}
		return out
	}
	short, long := read(ropeShortName), read(ropeLongName)
	if (short == nil) != (long == nil) {
		r.fail(ropeShortName, "the short and the long divisors must both be there")
	}
	fixed := read(ropeFreqsName)
	if r.err != nil || short == nil && fixed == nil {
		return
	}
	if c.Rope.Kind != RopeDefault {
		r.err = formats.Unsupported(r.file, r.prefix+"rope.scaling.type", "scaling of kind %s together with divisors of the frequencies", c.Rope.Kind)
		return
	}
	if short == nil {
		c.Rope.fromDivisors(fixed, c)
		return
	}
	c.Rope.Kind, c.Rope.ShortFactors, c.Rope.LongFactors = RopeLongrope, short, long
	c.Rope.OriginalContext, c.Rope.Factor = context, float64(c.MaxPositions)/float64(context)
	// What follows from the stretch is left to follow from it.
	derived := c.Rope.attentionFactor()
	if x := r.number("rope.scaling.attn_factor", derived); math.Abs(x/derived-1) > 1e-6 {
		c.Rope.AttentionFactor = x
	}
}

// fromDivisors makes a rope of fixed divisors: Llama 3.1's where its formula gives the same ones, else
// they stand as they are.
func (r *Rope) fromDivisors(d []float64, c *Config) {
	if !slices.ContainsFunc(d, func(v float64) bool { return v != 1 }) {
		return
	}
	// The published models have the first of these; the tiny ones of tests have others. The divisors tell the
	// stretch: the slowest pair has it.
	contexts := []int{8192, 4096, 2048, c.MaxPositions}
	for n := 2; n < c.MaxPositions; n *= 2 {
		contexts = append(contexts, n)
	}
	for _, context := range contexts {
		try := Rope{
			Kind: RopeLlama3, Theta: r.Theta, Factor: d[len(d)-1], OriginalContext: context, LowFreqFactor: 1, HighFreqFactor: 4,
		}
		if try.Factor > 1 && try.matches(d, c.RotaryDim) {
			*r = try
			return
		}
	}
	// With equal sets for short and long sequences LongRoPE is a set of fixed divisors.
	*r = Rope{
		Kind: RopeLongrope, Theta: r.Theta, Factor: 1, OriginalContext: max(c.MaxPositions, 2), AttentionFactor: 1,
		ShortFactors: d, LongFactors: d,
	}
}

// fixedDivisors reports whether the rope is nothing but one set of divisors.
func (r Rope) fixedDivisors() bool {
	return r.Kind == RopeLongrope && r.attentionFactor() == 1 && slices.Equal(r.ShortFactors, r.LongFactors)
}

// divisorsOf gives what the default frequencies are divided by.
func (r Rope) divisorsOf(rotaryDim int) []float64 {
	plain, _ := Rope{Kind: RopeDefault, Theta: r.Theta}.Frequencies(rotaryDim, 0)
	stretched, _ := r.Frequencies(rotaryDim, 0)
	for i := range plain {
		plain[i] /= stretched[i]
	}
	return plain
}

// matches reports whether the frequencies are the default ones by these divisors, as singles.
func (r Rope) matches(d []float64, rotaryDim int) bool {
	for i, own := range r.divisorsOf(rotaryDim) {
		if !(math.Abs(own/d[i]-1) <= 1e-5) {
			return false
		}
	}
	return true
}
