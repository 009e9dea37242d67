// Package quant chooses the integer codes and scales that stand for the weights of a row. It looks
// at one row at a time and knows neither files nor models.
package quant

import (
	"errors"
	"fmt"
	"math"

	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// Rule says how the scale of a group is chosen.
type Rule string

const (
	// AbsMax lets the weight of largest magnitude (asymmetric: the whole range) just fit.
	AbsMax Rule = "absmax"
	// Search tries scales around that one and keeps the one of least weighted squared error, with
	// the scale set by least squares for the codes of each trial.
	Search Rule = "search"
)

// ParseRule reads the name of a rule.
func ParseRule(name string) (Rule, error) {
	switch r := Rule(name); r {
	case AbsMax, Search:
		return r, nil
	}
	return "", fmt.Errorf("scale rule %q is unknown: expected %q or %q", name, AbsMax, Search)
}

// Causes of a ValueError.
var (
	// ErrNotFinite: NaN or an infinity cannot be quantized.
	ErrNotFinite = errors.New("not a finite number")
	// ErrScaleRange: the scale that a group needs exceeds a half-precision number.
	ErrScaleRange = errors.New("its group needs a scale beyond half precision")
)

// ValueError says which weight of a row cannot be quantized. It matches Err with errors.Is.
type ValueError struct {
	Column int
	Value  float32
	Err    error
}

// Error gives "weight in column 7 is NaN: not a finite number".
func (e *ValueError) Error() string {
	return fmt.Sprintf("weight in column %d is %g: %v", e.Column, e.Value, e.Err)
}

// Unwrap gives the cause.
func (e *ValueError) Unwrap() error { return e.Err }

// Quantizer turns rows into codes by one scheme and rule. It keeps scratch space: one goroutine
// each.
type Quantizer struct {
	kernels *kernel.Set
	scheme  packed.Scheme
	rule    Rule
	grid    *grid
	equal   []float32 // ones: importances where nothing is known of a layer's inputs

	ideal, costs []float32 // of the scales of a span
}

// New returns a quantizer that runs the loops of a set. Every set gives the same codes.
func New(k *kernel.Set, s packed.Scheme, r Rule) *Quantizer {
	q := &Quantizer{kernels: k, scheme: s, rule: r, equal: make([]float32, s.Group)}
	q.grid = newGrid(s, nil)
	if s.Codebook {
		q.UseBook(initialBook(s.Bits))
	}
	for i := range q.equal {
		q.equal[i] = 1
	}
	return q
}

// UseBook sets the codebook of a scheme that has one.
func (q *Quantizer) UseBook(book *[16]int8) { q.grid = newGrid(q.scheme, book) }

// Row quantizes row, of which NewCodes(scheme, len(row)) made dst. importance has an element a
// column, or is nil where nothing is known of the inputs: then all errors count alike, as a plain squared
// error is, on average over inputs, the error of the layer's output. The error is a *ValueError.
func (q *Quantizer) Row(dst packed.Codes, row, importance []float32) error {
	if q.scheme.Codebook || q.scheme.TwoLevel {
		return q.tableRow(dst, row, importance)
	}
	group := q.scheme.Group
	for g, at := 0, 0; at < len(row); g, at = g+1, at+group {
		end := min(at+group, len(row))
		w := row[at:end]
		most, finite := q.span(w)
		if !finite {
			return notFinite(w, at)
		}
		part := q.equal[:len(w)]
		if importance != nil {
			part = importance[at:end]
		}
		codes := dst.Codes[at:end]
		var scale uint16
		switch {
		case q.scheme.Asym:
			scale, dst.Zeros[g] = q.asymmetric(codes, w, part)
		default:
			scale = q.symmetric(codes, w, part, most)
		}
		if scale&0x7fff >= 0x7c00 {
			return &ValueError{Column: at, Value: most, Err: ErrScaleRange}
		}
		dst.Scales[g] = scale
	}
	return nil
}

// span gives the weight of largest magnitude, the first of several, and false where one is not finite.
func (q *Quantizer) span(w []float32) (most float32, finite bool) {
	const sign, infinity = 1 << 31, 0x7f800000
	magnitude := q.kernels.Largest(w)
	for _, v := range w {
		if math.Float32bits(v)&^sign == magnitude {
			return v, magnitude < infinity
		}
	}
	return 0, true
}

// notFinite finds the first weight that is not finite.
func notFinite(w []float32, at int) error {
	for i, v := range w {
		if v-v != 0 {
			return &ValueError{Column: at + i, Value: v, Err: ErrNotFinite}
		}
	}
	return nil
}

// symmetric sets the codes of a group and returns its scale.
func (q *Quantizer) symmetric(codes []int8, w, importance []float32, most float32) uint16 {
	least, high, offset := int8(-127), int8(127), int8(0)
	divisor := float32(127)
	if q.scheme.Bits < 8 {
		// The range of the codes has one step more below than above: the weight of largest
		// magnitude goes there, by a scale of its sign.
		offset = int8(1) << (q.scheme.Bits - 1)
		least, high, divisor = -offset, offset-1, -float32(offset)
	}
	scale := half.F32ToF16(most / divisor)
	if q.rule == Search && most != 0 && scale&0x7fff < 0x7c00 {
		scale = q.search(w, importance, most, float32(least), float32(high), scale)
	}
	// Scales are such that no quotient is far beyond the codes.
	q.kernels.Encode(codes, w, reciprocal(half.F16ToF32(scale)), least, high, offset)
	return scale
}

// reciprocal is 1/scale, and 0 for a scale of 0, which makes all codes 0.
func reciprocal(scale float32) float32 {
	if scale == 0 {
		return 0
	}
	return 1 / scale
}

// nearest rounds a number of magnitude below 2^22 to an integer, ties to even: adding 1.5·2^23
// leaves no bits for a fraction.
func nearest(f float32) int32 {
	const magic = 3 << 22
	return int32(math.Float32bits(f+magic)) - int32(math.Float32bits(magic))
}
