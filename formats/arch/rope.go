package arch

import (
	"fmt"
	"math"
)

// RopeKind names a way to stretch the rotary embedding past the context it was trained with,
// by the rope_type of Hugging Face's config.json.
type RopeKind string

// Kinds of rotary embedding.
const (
	RopeDefault  RopeKind = "default"
	RopeLinear   RopeKind = "linear"
	RopeLlama3   RopeKind = "llama3"
	RopeYarn     RopeKind = "yarn"
	RopeLongrope RopeKind = "longrope"
)

// Rope holds the parameters of a rotary position embedding. A pair of a head is rotated by
// position·frequency, and cos and sin are multiplied by an attention factor. Fields that Kind
// does not use are zero.
type Rope struct {
	Kind            RopeKind
	Theta           float64 // base of the geometric series of wavelengths
	Factor          float64 // context stretch (all kinds but default)
	OriginalContext int     // context before the stretch (llama3, yarn, longrope)

	LowFreqFactor, HighFreqFactor float64 // llama3

	BetaFast, BetaSlow   float64 // yarn: rotations over OriginalContext that bound the ramp
	MScale, MScaleAllDim float64 // yarn: 0 when not given
	Truncate             bool    // yarn: bounds of the ramp rounded to whole dimensions

	ShortFactors, LongFactors []float64 // longrope: rotaryDim/2 divisors each

	// AttentionFactor multiplies cos and sin (yarn, longrope); 0 when it follows from Factor.
	AttentionFactor float64
}

// Frequencies returns the rotaryDim/2 angular frequencies (radians per position) and the factor
// on cos and sin. Pair i consists of elements i and i+rotaryDim/2 of a head (Hugging Face's
// half-rotated layout). length is the number of positions of the whole sequence: longrope has
// one set of frequencies up to its original context and another beyond; no other kind looks at
// it.
//
// The formulas are those of transformers' modeling_rope_utils: linear interpolation; Llama 3.1's
// blend by wavelength; YaRN (Peng et al. 2023, arXiv:2309.00071); LongRoPE (Ding et al. 2024,
// arXiv:2402.13753).
func (r Rope) Frequencies(rotaryDim, length int) (frequencies []float64, attentionFactor float64) {
	frequencies = make([]float64, rotaryDim/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(r.Theta, -2*float64(i)/float64(rotaryDim))
	}
	switch r.Kind {
	case RopeLinear:
		for i := range frequencies {
			frequencies[i] /= r.Factor
		}
	case RopeLlama3:
		for i := range frequencies {
			frequencies[i] /= r.llama3Divisor(frequencies[i])
		}
	case RopeYarn:
		r.applyYarn(frequencies, rotaryDim)
	case RopeLongrope:
		divisors := r.ShortFactors
		if r.Long(length) {
			divisors = r.LongFactors
		}
		for i := range frequencies {
			frequencies[i] /= divisors[i]
		}
	}
	return frequencies, r.attentionFactor()
}

// Long reports whether a sequence of length positions is rotated by longrope's second set of
// frequencies. A cache of keys rotated by the first set cannot be continued by the second.
func (r Rope) Long(length int) bool {
	return r.Kind == RopeLongrope && length > r.OriginalContext
}

// llama3Divisor returns what the given frequency is divided by: 1 for short wavelengths, Factor
// for long ones, and in between a blend that is linear in the number of turns that the pair
// makes over the original context.
func (r Rope) llama3Divisor(frequency float64) float64 {
	turns := float64(r.OriginalContext) * frequency / (2 * math.Pi)
	switch {
	case turns > r.HighFreqFactor:
		return 1
	case turns < r.LowFreqFactor:
		return r.Factor
	}
	keep := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
	return 1 / (keep + (1-keep)/r.Factor)
}

// applyYarn interpolates the slow pairs by Factor, keeps the fast ones, and blends along a ramp
// over the pair index between the pairs that turn BetaFast and BetaSlow times in OriginalContext.
func (r Rope) applyYarn(frequencies []float64, rotaryDim int) {
	pairOf := func(turns float64) float64 {
		return float64(rotaryDim) * math.Log(float64(r.OriginalContext)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := pairOf(r.BetaFast), pairOf(r.BetaSlow)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	// The upper bound is rotaryDim-1 although pairs end at rotaryDim/2-1: so it is in the
	// reference, and the slope of the ramp depends on it.
	low, high = max(low, 0), min(high, float64(rotaryDim-1))
	if low == high {
		high += 0.001
	}
	for i := range frequencies {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		frequencies[i] *= ramp/r.Factor + (1 - ramp)
	}
}

// attentionFactor is the explicit factor on cos and sin, else the one that the method's authors
// derive from the stretch.
func (r Rope) attentionFactor() float64 {
	if r.AttentionFactor != 0 {
		return r.AttentionFactor
	}
	switch r.Kind {
	case RopeYarn:
		if r.MScale != 0 && r.MScaleAllDim != 0 {
			return yarnMagnitude(r.Factor, r.MScale) / yarnMagnitude(r.Factor, r.MScaleAllDim)
		}
		return yarnMagnitude(r.Factor, 1)
	case RopeLongrope:
		if r.Factor > 1 {
			return math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.OriginalContext)))
		}
	}
	return 1
}

// yarnMagnitude is YaRN's correction of the attention's temperature for a stretch of factor.
func yarnMagnitude(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}

// check returns what is wrong with the parameters for a rotation of rotaryDim elements, nil when
// Frequencies will return finite positive numbers.
func (r Rope) check(rotaryDim int) error {
	if !(r.Theta > 1 && r.Theta <= 1e30) {
		return fmt.Errorf("rope_theta is %v, expected a number above 1", r.Theta)
	}
	if r.Kind == RopeDefault {
		return nil
	}
	if !(r.Factor > 0 && r.Factor <= 1e9) {
		return fmt.Errorf("factor is %v, expected a positive number", r.Factor)
	}
	if r.Kind == RopeLinear {
		return nil
	}
	// log(OriginalContext) divides in longrope's attention factor.
	if r.OriginalContext < 2 || r.OriginalContext > maxPositions {
		return fmt.Errorf("original_max_position_embeddings is %d, expected 2 to %d", r.OriginalContext, maxPositions)
	}
	if r.AttentionFactor != 0 && !(r.AttentionFactor > 0 && r.AttentionFactor <= 1e6) {
		return fmt.Errorf("attention_factor is %v, expected a positive number", r.AttentionFactor)
	}
	switch r.Kind {
	case RopeLlama3:
		if !(r.LowFreqFactor > 0 && r.HighFreqFactor > r.LowFreqFactor && r.HighFreqFactor <= 1e9) {
			return fmt.Errorf("low_freq_factor is %v and high_freq_factor %v, expected 0 < low < high", r.LowFreqFactor, r.HighFreqFactor)
		}
	case RopeYarn:
		if !(r.BetaSlow > 0 && r.BetaFast >= r.BetaSlow && r.BetaFast <= 1e9) {
			return fmt.Errorf("beta_fast is %v and beta_slow %v, expected 0 < slow ≤ fast", r.BetaFast, r.BetaSlow)
		}
		if !(r.MScale >= 0 && r.MScale <= 1e6 && r.MScaleAllDim >= 0 && r.MScaleAllDim <= 1e6) {
			return fmt.Errorf("mscale is %v and mscale_all_dim %v, expected numbers of at least 0", r.MScale, r.MScaleAllDim)
		}
	case RopeLongrope:
		if err := checkDivisors("short_factor", r.ShortFactors, rotaryDim/2); err != nil {
			return err
		}
		return checkDivisors("long_factor", r.LongFactors, rotaryDim/2)
	default:
		return fmt.Errorf("rope type %q is not known", r.Kind)
	}
	return nil
}

// checkDivisors returns what is wrong with the n divisors of a rotation's frequencies.
func checkDivisors(name string, divisors []float64, n int) error {
	if len(divisors) != n {
		return fmt.Errorf("%s has %d numbers, expected half the rotated elements of a head, %d", name, len(divisors), n)
	}
	for i, d := range divisors {
		if !(d > 0 && d <= 1e9) {
			return fmt.Errorf("%s[%d] is %v, expected a positive number", name, i, d)
		}
	}
	return nil
}
