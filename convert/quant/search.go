package quant

import (
	"math"

	"qtool/formats/half"
)

// trials is how many scales on each side of the plain one are tried, steps trialStep of a code apart.
const (
	trials    = 12
	trialStep = 0.1
)

// search returns the half-precision scale of least weighted squared error. For trial inverse scales
// around the plain one it rounds the weights to codes c, for which s = Σ a·w·c / Σ a·c² is the best
// scale and Σ a·w² − (Σ a·w·c)² / Σ a·c² its error (ordinary least squares); the best of all trials
// is rounded to half precision and held against the plain scale with codes rounded anew.
func (q *Quantizer) search(w, a []float32, most, least, high float32, plain uint16) uint16 {
	anchor := least // the code that the largest weight goes to
	if q.scheme.Bits == 8 {
		anchor = 127
	}
	best, bestGain := float32(0), float32(-1)
	side := float32(1)
	for range 2 {
		for t := -trials; t <= trials; t++ {
			inverse := side * (anchor + float32(t)*trialStep) / most
			_, cc, wc := q.kernels.Fit(w, a, 0, inverse, least, high)
			if cc == 0 {
				continue
			}
			if gain := wc * wc / cc; gain > bestGain {
				best, bestGain = wc/cc, gain
			}
		}
		if q.scheme.Bits == 8 {
			break // the range is symmetric: the other sign gives the mirrored codes
		}
		side = -1
	}
	scale := half.F32ToF16(best)
	if bestGain < 0 || scale&0x7fff >= 0x7c00 || q.loss(w, a, scale, least, high) >= q.loss(w, a, plain, least, high) {
		return plain
	}
	return scale
}

// loss is the weighted squared error of a group under a scale.
func (q *Quantizer) loss(w, a []float32, scale uint16, least, high float32) float32 {
	s := half.F16ToF32(scale)
	return q.kernels.Loss(w, a, reciprocal(s), 0, least, high, s)
}

// asymmetric sets the codes of a group and returns its scale and zero point.
func (q *Quantizer) asymmetric(codes []int8, w, importance []float32) (uint16, uint8) {
	low, top := w[0], w[0]
	for _, v := range w {
		low, top = min(low, v), max(top, v)
	}
	// Zero must be within reach of the zero point, whose range ends at 0 and 15.9 steps (4 bits)
	// or 255 (8 bits): a group whose weights are all of one sign is widened to 0.
	low, top = min(low, 0), max(top, 0)
	steps := int32(1)<<q.scheme.Bits - 1
	plain := half.F32ToF16((top - low) / float32(steps))
	if plain == 0 && top > low {
		plain = 1 // the smallest scale there is
	}
	zero := q.zeroFor(plain, low)
	if q.rule == Search && top > low && plain&0x7fff < 0x7c00 {
		plain, zero = q.searchAsym(w, importance, low, top, plain, zero)
	}
	q.encodeAsym(codes, w, plain, zero)
	return plain, zero
}

// zeroFor is the stored zero point that puts low on the lowest code.
func (q *Quantizer) zeroFor(scale uint16, low float32) uint8 {
	s := half.F16ToF32(scale)
	if s == 0 || math.IsInf(float64(s), 0) {
		return 0
	}
	z := -low / s
	if q.scheme.Bits == 4 {
		z *= 16
	}
	return uint8(min(max(nearest(z), 0), 255))
}

// levelZero is the zero point in steps above the lowest code.
func (q *Quantizer) levelZero(stored uint8) float32 {
	if q.scheme.Bits == 4 {
		return float32(stored) / 16
	}
	return float32(stored)
}

// encodeAsym rounds w/scale + zero to levels 0 … 2^bits − 1, stored from the lowest code on.
func (q *Quantizer) encodeAsym(codes []int8, w []float32, scale uint16, stored uint8) {
	inverse, zero := reciprocal(half.F16ToF32(scale)), q.levelZero(stored)
	least, _ := q.scheme.Levels()
	steps := int32(1)<<q.scheme.Bits - 1
	codes = codes[:len(w)]
	for i, v := range w {
		codes[i] = int8(min(max(nearest(v*inverse+zero), 0), steps) + int32(least))
	}
}

// searchAsym tries narrower ranges. For the codes of each trial the best scale and offset are those
// of a weighted line through (code, weight); they are rounded to what can be stored, and the error
// is that of the stored values.
func (q *Quantizer) searchAsym(w, a []float32, low, top float32, plain uint16, zero uint8) (uint16, uint8) {
	steps := int32(1)<<q.scheme.Bits - 1
	best := q.lossAsym(w, a, plain, zero)
	consider := func(scale uint16, stored uint8) {
		if scale == 0 || scale&0x7fff >= 0x7c00 || scale&0x8000 != 0 {
			return
		}
		if l := q.lossAsym(w, a, scale, stored); l < best {
			best, plain, zero = l, scale, stored
		}
	}
	var n, w1 float32
	for i, v := range w {
		n += a[i]
		w1 += float32(a[i] * v)
	}
	for t := range 2*trials + 1 {
		inverse := (float32(steps) + float32(t-trials/2)*trialStep) / (top - low)
		c1, c2, wc := q.kernels.Fit(w, a, low, inverse, 0, float32(steps))
		det := n*c2 - c1*c1
		if det <= 0 {
			continue
		}
		s, offset := (n*wc-c1*w1)/det, (c2*w1-c1*wc)/det
		if s <= 0 {
			continue
		}
		scale := half.F32ToF16(s)
		consider(scale, q.zeroFor(scale, min(offset, 0)))
	}
	return plain, zero
}

// lossAsym is the weighted squared error of a group under a scale and zero point.
func (q *Quantizer) lossAsym(w, a []float32, scale uint16, stored uint8) float32 {
	s := half.F16ToF32(scale)
	return q.kernels.Loss(w, a, reciprocal(s), q.levelZero(stored), 0, float32(int32(1)<<q.scheme.Bits-1), s)
}
