package kernel

import "math"

// The loops of the quantizers give the same bits in every set, so that quantized files do not depend on the
// machine: sums are kept in eight lanes, element i in lane i mod 8, which are then added up, and after them
// what is left beyond a multiple of eight; products are rounded before they are added.

// Largest gives the bits of the largest magnitude in w, 0 for none. They order as magnitudes do, infinities and NaN
// above all numbers.
func (s *Set) Largest(w []float32) uint32 { return s.largest(w) }

func largestGeneric(w []float32) uint32 {
	const sign = 1 << 31
	var a, b, c, d uint32 // need not wait for each other
	for len(w) >= 4 {
		v := (*[4]float32)(w)
		a = max(a, math.Float32bits(v[0])&^sign)
		b = max(b, math.Float32bits(v[1])&^sign)
		c = max(c, math.Float32bits(v[2])&^sign)
		d = max(d, math.Float32bits(v[3])&^sign)
		w = w[4:]
	}
	for _, v := range w {
		a = max(a, math.Float32bits(v)&^sign)
	}
	return max(a, b, c, d)
}

// Encode sets codes to the integers nearest to w·inverse, ties to even, within least … most, plus offset. The
// products must stay within 16 bits.
func (s *Set) Encode(codes []int8, w []float32, inverse float32, least, most, offset int8) {
	s.encode(codes[:len(w)], w, inverse, least, most, offset)
}

func encodeGeneric(codes []int8, w []float32, inverse float32, least, most, offset int8) {
	codes = codes[:len(w)]
	for i, v := range w {
		codes[i] = int8(min(max(roundEven(v*inverse), int32(least)), int32(most)) + int32(offset))
	}
}

// Fit rounds the weights to codes c = (w − low)·inverse within least … most and returns Σ a·c, Σ a·c² and Σ a·c·w: what a
// line through (code, weight) with importances a is found from.
func (s *Set) Fit(w, a []float32, low, inverse, least, most float32) (c, cc, cw float32) {
	return s.fit(w, a[:len(w)], low, inverse, least, most)
}

func fitGeneric(w, a []float32, low, inverse, least, most float32) (c, cc, cw float32) {
	var l, ll, lw [8]float32
	whole := len(w) &^ 7
	for i, v := range w[:whole] {
		code := rounded(float32(v-low)*inverse, least, most)
		ac := a[i] * code
		l[i%8] += ac
		ll[i%8] += float32(ac * code)
		lw[i%8] += float32(ac * v)
	}
	return fitRest(w[whole:], a[whole:], low, inverse, least, most, total(&l), total(&ll), total(&lw))
}

// fitRest adds the last elements, fewer than eight, to sums.
func fitRest(w, a []float32, low, inverse, least, most, c, cc, cw float32) (float32, float32, float32) {
	for i, v := range w {
		code := rounded(float32(v-low)*inverse, least, most)
		ac := a[i] * code
		c += ac
		cc += float32(ac * code)
		cw += float32(ac * v)
	}
	return c, cc, cw
}

// TableSteps is how many steps of a LevelTable there are from one integer to the next, TableReach the integer that it ends at on both sides.
const (
	TableSteps = 4
	TableReach = 128
)

// LevelTable holds the level that is nearest to each step from −TableReach to TableReach.
type LevelTable [2*TableReach*TableSteps + 1]float32

// FitTable rounds the weights to levels l of w·inverse, cut to the table's reach and rounded to its steps, and returns Σ a·l·w and Σ a·l².
func (s *Set) FitTable(w, a []float32, inverse float32, t *LevelTable) (lw, ll float32) {
	return s.fitTable(w, a[:len(w)], inverse, t)
}

func fitTableGeneric(w, a []float32, inverse float32, t *LevelTable) (lw, ll float32) {
	var lws, lls [8]float32
	whole := len(w) &^ 7
	for i, v := range w[:whole] {
		l := t[TableIndex(v*inverse)]
		al := float32(a[i] * l)
		lws[i%8] += float32(al * v)
		lls[i%8] += float32(al * l)
	}
	return fitTableRest(w[whole:], a[whole:], inverse, t, total(&lws), total(&lls))
}

// fitTableRest adds the last elements, fewer than eight, to sums.
func fitTableRest(w, a []float32, inverse float32, t *LevelTable, lw, ll float32) (float32, float32) {
	for i, v := range w {
		l := t[TableIndex(v*inverse)]
		al := float32(a[i] * l)
		lw += float32(al * v)
		ll += float32(al * l)
	}
	return lw, ll
}

// TableIndex is where a LevelTable has x, cut to its reach: the lower end for what is no number.
func TableIndex(x float32) int32 {
	if !(x > -TableReach) {
		return 0
	}
	return roundEven(min(x, TableReach)*TableSteps) + TableReach*TableSteps
}

// Loss returns Σ a·(w − scale·(c − zero))² with codes c = w·inverse + zero within least … most.
func (s *Set) Loss(w, a []float32, inverse, zero, least, most, scale float32) float32 {
	return s.loss(w, a[:len(w)], inverse, zero, least, most, scale)
}

func lossGeneric(w, a []float32, inverse, zero, least, most, scale float32) float32 {
	var lanes [8]float32
	whole := len(w) &^ 7
	for i, v := range w[:whole] {
		lanes[i%8] += squared(v, a[i], inverse, zero, least, most, scale)
	}
	return lossRest(w[whole:], a[whole:], inverse, zero, least, most, scale, total(&lanes))
}

// lossRest adds the last elements, fewer than eight, to a sum.
func lossRest(w, a []float32, inverse, zero, least, most, scale, sum float32) float32 {
	for i, v := range w {
		sum += squared(v, a[i], inverse, zero, least, most, scale)
	}
	return sum
}

// squared is the weighted squared error of one weight.
func squared(w, a, inverse, zero, least, most, scale float32) float32 {
	d := w - float32(scale*(rounded(float32(w*inverse)+zero, least, most)-zero))
	return float32(a * float32(d*d))
}

// rounded is the integer nearest to x within least … most.
func rounded(x, least, most float32) float32 {
	return min(max(float32(roundEven(x)), least), most)
}

// total adds lanes up, in the order of pairs 4, 2 and 1 apart.
func total(l *[8]float32) float32 {
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}
