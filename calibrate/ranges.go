package calibrate

import (
	"fmt"
	"math"
)

// RangeRule says how the range of a layer's inputs is chosen that 8-bit codes are to cover; what lies beyond is cut to it.
type RangeRule string

// Rules for ranges.
const (
	// MinMax covers everything that was seen.
	MinMax RangeRule = "minmax"
	// Percentile covers 99.99 % of what was seen.
	Percentile RangeRule = "percentile"
	// MSE has the least mean squared error of rounding and cutting together.
	MSE RangeRule = "mse"
	// Entropy has the least KL divergence of the rounded values' distribution from that of the values: Migacz, "8-bit Inference with
	// TensorRT", 2017.
	Entropy RangeRule = "entropy"
)

// ParseRangeRule reads the name of a rule.
func ParseRangeRule(name string) (RangeRule, error) {
	switch r := RangeRule(name); r {
	case MinMax, Percentile, MSE, Entropy:
		return r, nil
	}
	return "", fmt.Errorf("range rule %q is unknown: expected %q, %q, %q or %q", name, MinMax, Percentile, MSE, Entropy)
}

// percentile is the share that Percentile covers.
const percentile = 0.9999

// levels is how many steps an 8-bit code has on each side of zero.
const levels = 127

// Histogram counts magnitudes by the upper half of their bits: sign apart, the exponent and seven bits of the fraction, so that a bin is
// at most 1/128 wide beside its place.
type Histogram struct {
	Count int64
	Max   float32
	bins  []int64
}

// binBits are the bits below those that make a bin.
const binBits = 16

// NewHistogram returns an empty one.
func NewHistogram() *Histogram { return &Histogram{bins: make([]int64, HistogramBins)} }

// Add takes in values, which must be finite.
func (h *Histogram) Add(x []float32) {
	for _, v := range x {
		bits := math.Float32bits(v) &^ (1 << 31)
		h.bins[bits>>binBits]++
		h.Max = max(h.Max, math.Float32frombits(bits))
	}
	h.Count += int64(len(x))
}

// middle is the value that stands for a bin.
func middle(bin int) float64 {
	return float64(math.Float32frombits(uint32(bin)<<binBits | 1<<(binBits-1)))
}

// edge is the upper end of a bin.
func edge(bin int) float32 { return math.Float32frombits(uint32(bin+1) << binBits) }

// Range gives the magnitude that is to stand for the largest code, 0 where all values were zero.
func (h *Histogram) Range(r RangeRule) float32 {
	if h.Max == 0 {
		return 0
	}
	switch r {
	case Percentile:
		var seen int64
		for bin, n := range h.bins {
			if seen += n; float64(seen) >= percentile*float64(h.Count) {
				return min(edge(bin), h.Max)
			}
		}
	case MSE:
		return h.least(h.squaredError)
	case Entropy:
		return h.entropy()
	}
	return h.Max
}

// candidates is how many ranges are tried, from the largest value down in even ratios to a thirtieth of it.
const candidates = 128

// least tries ranges and gives the one of least loss, the largest of equals.
func (h *Histogram) least(loss func(r float64) float64) float32 {
	best, at := math.Inf(1), h.Max
	for i := range candidates {
		r := float64(h.Max) * math.Pow(30, -float64(i)/candidates)
		if l := loss(r); l < best {
			best, at = l, float32(r)
		}
	}
	return at
}

// squaredError is the squared error under a range: that of rounding, a twelfth of a step's square but no more than the value's own, and
// that of cutting.
func (h *Histogram) squaredError(r float64) float64 {
	step := r / levels
	var sum float64
	for bin, n := range h.bins {
		if n == 0 {
			continue
		}
		x := middle(bin)
		e := min(step*step/12, x*x)
		if x > r {
			e = (x - r) * (x - r)
		}
		sum += float64(n) * e
	}
	return sum
}

// parts is how many even parts of the whole range the distributions of divergence are compared in.
const parts = 2048

// entropy gives the range of least KL(p ‖ q). Of the first n of the parts, p has what was counted, and in the last one all that is beyond;
// q spreads what was counted within each of the 128 steps evenly over those of its parts that have values.
func (h *Histogram) entropy() float32 {
	var counts [parts]float64
	var total float64
	for bin, n := range h.bins {
		if n > 0 {
			counts[min(int(middle(bin)/float64(h.Max)*parts), parts-1)] += float64(n)
			total += float64(n)
		}
	}
	const steps = levels + 1
	best, at := math.Inf(1), parts
	inside := 0.0
	for n := 1; n <= parts; n++ {
		inside += counts[n-1]
		if n < steps || n%8 != 0 {
			continue
		}
		if kl := cutDivergence(counts[:n], total-inside); kl <= best {
			best, at = kl, n
		}
	}
	return h.Max * float32(at) / parts
}

// cutDivergence is KL(p ‖ q) for the parts within a range, and what is beyond it.
func cutDivergence(counts []float64, beyond float64) float64 {
	const steps = levels + 1
	n := len(counts)
	var inside float64
	for _, c := range counts {
		inside += c
	}
	if inside == 0 {
		return math.Inf(1)
	}
	var kl float64
	for s := range steps {
		from, to := s*n/steps, (s+1)*n/steps
		var sum float64
		used := 0
		for i := from; i < to; i++ {
			sum += counts[i]
			if counts[i] > 0 || i == n-1 && beyond > 0 {
				used++
			}
		}
		for i := from; i < to; i++ {
			p := counts[i]
			if i == n-1 {
				p += beyond
			}
			if p > 0 {
				p /= inside + beyond
				q := max(sum/float64(used)/inside, 1e-12)
				kl += p * math.Log(p/q)
			}
		}
	}
	return kl
}
