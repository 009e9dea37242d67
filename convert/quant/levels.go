package quant

import (
	"qtool/formats/half"
	"qtool/formats/packed"
)

// The scales of groups whose codes stand for a codebook's entries, or whose scales have two levels.

// tableStep is the share of a scale that trials lie apart.
const tableStep = 0.035

// tableScale is the scale of a group, not rounded yet, of least weighted squared error among trials, each refined by least squares; gain is
// what it takes off Σ a·w², and cc is Σ a·level² of its codes: another scale costs cc times the squared difference.
func (q *Quantizer) tableScale(w, a []float32, most float32) (scale, cc float32) {
	if most == 0 {
		return 0, 0
	}
	var gain float32 = -1
	try := func(s float32) float32 {
		lw, ll := q.tableFit(w, a, s)
		if ll == 0 {
			return s
		}
		if g := lw * lw / ll; g > gain {
			gain, scale, cc = g, lw/ll, ll
		}
		return lw / ll
	}
	largest := q.grid.largest()
	trial := func(side, step float32) { try(side * most / (largest * (1 + step*tableStep))) }
	bestSide, bestStep, before := float32(1), float32(0), gain
	for _, side := range [2]float32{1, -1} {
		for step := float32(-6); step <= 3; step += 2 {
			if trial(side, step); gain > before {
				bestSide, bestStep, before = side, step, gain
			}
		}
	}
	trial(bestSide, bestStep-1)
	trial(bestSide, bestStep+1)
	for range 3 {
		before := scale
		if try(scale); scale == before {
			break
		}
	}
	return scale, cc
}

// largest is the largest level.
func (g *grid) largest() float32 {
	if g.book != nil {
		return 127
	}
	return float32(int(1) << (g.scheme.Bits - 1))
}

// tableFit rounds the weights under scale s and returns Σ a·level·w and Σ a·level².
func (q *Quantizer) tableFit(w, a []float32, s float32) (lw, ll float32) {
	inverse := reciprocal(s)
	if q.grid.book != nil {
		return q.kernels.FitTable(w, a, inverse, &q.grid.levels)
	}
	a = a[:len(w)]
	zero := q.scheme.Zero(0)
	for i, v := range w {
		l := q.grid.level(q.grid.code(v*inverse, zero), zero)
		al := float32(a[i] * l)
		lw += float32(al * v)
		ll += float32(al * l)
	}
	return lw, ll
}

// tableRow quantizes a row of a scheme with a codebook or scales of two levels.
func (q *Quantizer) tableRow(dst packed.Codes, row, importance []float32) error {
	span, group := q.scheme.Span(), q.scheme.Group
	for i, from := 0, 0; from < len(row); i, from = i+1, from+span {
		part := row[from:min(from+span, len(row))]
		q.ideal, q.costs = q.ideal[:0], q.costs[:0]
		for at := 0; at < len(part); at += group {
			w := part[at:min(at+group, len(part))]
			most, finite := q.span(w)
			if !finite {
				return notFinite(w, from+at)
			}
			a := q.equal[:len(w)]
			if importance != nil {
				a = importance[from+at : from+at+len(w)]
			}
			if q.rule == AbsMax {
				q.ideal, q.costs = append(q.ideal, most/-q.grid.largest()), append(q.costs, 1)
				continue
			}
			s, cc := q.tableScale(w, a, most)
			q.ideal, q.costs = append(q.ideal, s), append(q.costs, cc)
		}
		if err := q.storeScales(dst, i, from); err != nil {
			return err
		}
		for at := 0; at < len(part); at += group {
			q.encodeTable(dst.Codes[from+at:], part[at:min(at+group, len(part))], q.scheme.Scale(dst, (from+at)/group))
		}
	}
	return nil
}

// encodeTable sets the codes of a group under a scale.
func (q *Quantizer) encodeTable(codes []int8, w []float32, scale float32) {
	inverse, zero := reciprocal(scale), q.scheme.Zero(0)
	for k, v := range w {
		codes[k] = q.grid.code(v*inverse, zero)
	}
}

// storeScales rounds the scales in q.ideal to what span i, which begins at column from, can store.
func (q *Quantizer) storeScales(dst packed.Codes, i, from int) error {
	var most float32
	for _, s := range q.ideal {
		if abs(s) > abs(most) {
			most = s
		}
	}
	if !q.scheme.TwoLevel {
		dst.Scales[i] = half.F32ToF16(most)
		if dst.Scales[i]&0x7fff >= 0x7c00 {
			return &ValueError{Column: from, Value: most, Err: ErrScaleRange}
		}
		return nil
	}
	subs := dst.Subs[i*packed.Super/q.scheme.Group:]
	if most == 0 {
		dst.Scales[i] = 0
		clear(subs[:len(q.ideal)])
		return nil
	}
	// The integers reach one further below zero: the largest scale goes there. Slightly larger steps may suit the others better.
	best := float32(-1)
	var scale uint16
	for t := range 9 {
		d := half.F32ToF16(most / (-32 + 0.75*float32(t)))
		if d&0x7fff >= 0x7c00 {
			return &ValueError{Column: from, Value: most, Err: ErrScaleRange}
		}
		var loss float32
		for g, s := range q.ideal {
			e := s - half.F16ToF32(d)*subScale(s, d)
			loss += q.costs[g] * e * e
		}
		if best < 0 || loss < best {
			best, scale = loss, d
		}
	}
	dst.Scales[i] = scale
	for g, s := range q.ideal {
		subs[g] = int8(subScale(s, scale))
	}
	return nil
}

// subScale is the 6-bit scale nearest to s under d.
func subScale(s float32, d uint16) float32 {
	f := half.F16ToF32(d)
	if f == 0 {
		return 0
	}
	return min(max(roundedTo(s/f), -32), 31)
}
