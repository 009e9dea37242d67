package arch

import "math"

// RopeKind names a way to stretch the rotary embedding past the context it was trained with,
// by the rope_type of Hugging Face's config.json.
type RopeKind string

const (
	RopeDefault  RopeKind = "default"
	RopeLinear   RopeKind = "linear"
	RopeLlama3   RopeKind = "llama3"
	RopeYarn     RopeKind = "yarn"
	RopeLongrope RopeKind = "longrope"
)

// Rope holds the parameters of a rotary position embedding. A pair of a head is rotated by
// position·frequency, and cos and sin are multiplied by an attention factor.
type Rope struct {
	Kind            RopeKind
	Theta           float64 // base of the geometric series of wavelengths
	Factor          float64 // context stretch (all kinds but default)
	OriginalContext int     // context before the stretch (llama3, yarn, longrope)

	LowFreqFactor, HighFreqFactor float64 // llama3

	BetaFast, BetaSlow   float64 // yarn: rotations that bound the ramp
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
func (r Rope) Frequencies(rotaryDim, length int) (frequencies []float64, attentionFactor float64) {
	frequencies = make([]float64, rotaryDim/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(r.Theta, -2*float64(i)/float64(rotaryDim))
	}
	return frequencies, 1
}
