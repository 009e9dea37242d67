package quant

import (
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/linalg"
)

// Scales of codes that are rounded to nearest, chosen by the error of the layer's output.

const (
	// Scales up to outputTrials steps on each side of a group's first one are tried, outputCoarse apart at first and then closer around the best. A step is
	// outputStep of a code of largest magnitude.
	outputTrials = 12
	outputCoarse = 4
	outputStep   = 0.16
	// outputRounds is how often the best of them is set by least squares for its codes and these are rounded anew, while that helps.
	outputRounds = 3
	// reach is how many times the first scale another may be, or its part.
	reach = 4
)

// coupled says of each group of columns whether one of its channels has to do with another channel. Where none has, the error of the output
// is the squared error by importance, which the first choice of scales has searched.
func (m *matrixJob) coupled() []bool {
	out := make([]bool, m.options.Scheme.Groups(m.cols))
	m.solver.Run(len(out), func(g int, _ *linalg.Scratch) {
		for i := g * m.options.Scheme.Group; i < min((g+1)*m.options.Scheme.Group, m.cols); i++ {
			for j, v := range m.in.H[i*m.cols : (i+1)*m.cols] {
				if v != 0 && j != i {
					out[g] = true
					return
				}
			}
		}
	})
	return out
}

// rescaleNearest changes scales and zero points of groups, one group after another, to those of trials that make the error of the layer's output,
// (ŵ − w) H (ŵ − w)ᵀ for each row, least while the other groups stay as they are. All codes are the nearest to their weights. The error
// never rises: what would raise it is not done.
func (m *matrixJob) rescaleNearest(u *unitRows, scratch *linalg.Scratch) {
	s, cols, k := m.options.Scheme, m.cols, m.solver.Kernels()
	block := max(columnBlock, s.Group) // whole groups
	diff := make([]float32, u.n*cols)  // of all columns but those of the block
	near := make([]float32, u.n*block) // of the block
	far, pull := make([]float32, u.n*block), make([]float32, u.n*s.Group)
	for r := range u.n {
		values := u.values[r*cols : (r+1)*cols]
		s.Dequantize(values, u.codes[r], m.book)
		for i, w := range m.w[(u.first+r)*cols : (u.first+r+1)*cols] {
			diff[r*cols+i] = values[i] - w
		}
	}
	t := newScaleTrials(m)
	for at := 0; at < cols; at += block {
		n := min(block, cols-at)
		for r := range u.n {
			copy(near[r*block:r*block+n], diff[r*cols+at:])
			clear(diff[r*cols+at : r*cols+at+n])
		}
		scratch.Mul(k, far, block, diff, cols, u.n, m.in.H[at*cols:], cols, n, cols)
		for from := 0; from < n; from += s.Group {
			to := min(from+s.Group, n)
			if !m.coupling[(at+from)/s.Group] {
				continue
			}
			t.begin(at+from, to-from)
			for r := range u.n {
				copy(t.before[r*s.Group:], near[r*block+from:r*block+to])
				clear(near[r*block+from : r*block+to])
			}
			scratch.Mul(k, pull, s.Group, near, block, u.n, m.in.H[(at+from)*cols+at:], cols, to-from, n)
			for r := range u.n {
				e, others := near[r*block+from:r*block+to], pull[r*s.Group:r*s.Group+to-from]
				for i := range others {
					others[i] += far[r*block+from+i]
				}
				copy(e, t.before[r*s.Group:])
				t.row(u, r, e, others)
			}
		}
		for r := range u.n {
			copy(diff[r*cols+at:r*cols+at+n], near[r*block:])
		}
	}
}

// scaleTrials tries scales for a group of columns of one row after another. With codes' levels c before the zero point z is taken off, the error that
// a group makes beside those of others is, but for what does not depend on its codes,
//
//	s² (c − z) H (c − z)ᵀ − 2 s (c − z)·p,   p = H w − what the errors of other groups make of H
//
// with H that of the group alone. What it needs is kept up to date from one trial to the next, by the few codes that change.
type scaleTrials struct {
	m      *matrixJob
	at, n  int
	before []float32 // errors of the group before, of all rows of a unit
	h      []float32 // of the group, [n][n]
	ones   []float32 // h·1
	allOne float64   // 1·h·1

	w, p           []float32
	c              packed.Codes
	known          bool // what follows, of the trial before
	codes, next    []int8
	level, product []float32 // c, and H c
	deviation      []float32 // of values from weights
	cc, c1, cp, p1 float64   // c H c, c H 1, c·p, 1·p

	first float32 // scale
	best  float64
	scale float32 // of least error
	zero  uint8
}

func newScaleTrials(m *matrixJob) *scaleTrials {
	g := m.options.Scheme.Group
	t := &scaleTrials{m: m, before: make([]float32, rowsPerUnit*g), h: make([]float32, g*g), ones: make([]float32, g), p: make([]float32, g),
		codes: make([]int8, g), next: make([]int8, g), level: make([]float32, g), product: make([]float32, g), deviation: make([]float32, g)}
	return t
}

// begin takes up the group of n columns from at on.
func (t *scaleTrials) begin(at, n int) {
	t.at, t.n, t.allOne = at, n, 0
	for i := range n {
		row := t.m.in.H[(at+i)*t.m.cols+at : (at+i)*t.m.cols+at+n]
		copy(t.h[i*n:], row)
		var sum float64
		for _, v := range row {
			sum += float64(v)
		}
		t.ones[i] = float32(sum)
		t.allOne += sum
	}
}

// row chooses for row r of a unit. e is the error of its values now, others what errors of other groups make of H in this one.
func (t *scaleTrials) row(u *unitRows, r int, e, others []float32) {
	s, k, n := t.m.options.Scheme, t.m.solver.Kernels(), t.n
	groups, g := s.Groups(t.m.cols), t.at/s.Group
	first := u.scales[r*groups+g]
	if first == 0 {
		return
	}
	t.c = u.codes[r]
	row := (u.first + r) * t.m.cols
	t.w = t.m.w[row+t.at : row+t.at+n]
	t.p1 = 0
	for i := range n {
		t.p[i] = k.Dot(t.h[i*n:i*n+n], t.w) - others[i]
		t.p1 += float64(t.p[i])
	}
	t.search(first)
	if t.scale == first && t.zero == t.c.Zeros[g] {
		return
	}
	zero := s.Zero(t.zero)
	t.encode(t.next, t.scale, zero)
	for i := range n {
		t.deviation[i] = t.scale*t.m.grid.level(t.next[i], zero) - t.w[i]
	}
	if t.loss(t.deviation, others) >= t.loss(e, others) {
		return
	}
	copy(e, t.deviation[:n])
	copy(t.c.Codes[t.at:t.at+n], t.next)
	t.set(u, r, g)
}

// set stores the chosen scale and zero point.
func (t *scaleTrials) set(u *unitRows, r, g int) {
	s := t.m.options.Scheme
	groups := s.Groups(t.m.cols)
	if s.TwoLevel {
		t.c.Subs[g] = int8(subScale(t.scale, t.c.Scales[t.at/packed.Super]))
	} else {
		t.c.Scales[g] = half.F32ToF16(t.scale)
	}
	t.c.Zeros[g] = t.zero
	u.scales[r*groups+g], u.zeros[r*groups+g] = t.scale, s.Zero(t.zero)
}

// loss is the error of the output that errors e of the group make, but for what others make alone.
func (t *scaleTrials) loss(e, others []float32) (sum float64) {
	for i, v := range e[:t.n] {
		sum += float64(v) * (float64(t.m.solver.Kernels().Dot(t.h[i*t.n:(i+1)*t.n], e)) + 2*float64(others[i]))
	}
	return sum
}

// encode sets codes to the nearest ones under a scale.
func (t *scaleTrials) encode(codes []int8, scale, zero float32) {
	s, inverse := t.m.options.Scheme, reciprocal(scale)
	if s.Bits < 8 && !s.Asym && !s.Codebook {
		offset := int8(1) << (s.Bits - 1)
		t.m.solver.Kernels().Encode(codes[:t.n], t.w, inverse, -offset, offset-1, offset)
		return
	}
	for i, w := range t.w {
		codes[i] = t.m.grid.code(w*inverse, zero)
	}
}

// value is what a code stands for before the zero point is taken off.
func (g *grid) value(code int8) float32 {
	if g.book != nil {
		return float32(g.book[code&15])
	}
	return float32(code)
}

// search leaves the best scale and zero point of all trials around the first ones.
func (t *scaleTrials) search(first float32) {
	s := t.m.options.Scheme
	stored := t.c.Zeros[t.at/s.Group]
	step := float32(outputStep) / float32(int(1)<<(s.Bits-1))
	t.first, t.scale, t.zero, t.best = first, first, stored, 0
	t.known = false
	sides := 2
	if s.Asym || s.Bits == 8 {
		sides = 1
	}
	near, middle := first, 0
	for side := range sides {
		by := first
		if side == 1 {
			by = -first
		}
		for i := -outputTrials; i <= outputTrials; i += outputCoarse {
			before := t.best
			if t.try(by*(1+float32(i)*step), stored); t.best < before {
				near, middle = by, i
			}
		}
	}
	for d := outputCoarse / 2; d > 0; d /= 2 {
		from := middle
		for _, i := range [2]int{from - d, from + d} {
			before := t.best
			if t.try(near*(1+float32(i)*step), stored); t.best < before {
				middle = i
			}
		}
	}
	if s.Asym {
		far, by := 12, 3
		if s.Bits == 8 {
			far, by = 3, 1
		}
		scale, from := t.scale, int(t.zero)
		for z := max(from-far, 0); z <= min(from+far, 255); z += by {
			t.try(scale, uint8(z))
		}
	}
	for range outputRounds {
		best := t.best
		t.try(t.try(t.scale, t.zero), t.zero)
		if t.best == best {
			break
		}
	}
}

// try rounds the weights under the stored form of a scale, keeps it if it is the best so far, and returns the best scale for these codes.
func (t *scaleTrials) try(scale float32, stored uint8) float32 {
	s, k, n := t.m.options.Scheme, t.m.solver.Kernels(), t.n
	if s.TwoLevel {
		d := t.c.Scales[t.at/packed.Super]
		scale = half.F16ToF32(d) * subScale(scale, d)
	} else {
		scale = half.F16ToF32(half.F32ToF16(scale))
	}
	if !(abs(scale) > abs(t.first)/reach && abs(scale) < abs(t.first)*reach) {
		return scale
	}
	zero := s.Zero(stored)
	t.encode(t.next, scale, zero)
	if !t.known {
		t.known = true
		t.cc, t.c1, t.cp = 0, 0, 0
		for i, code := range t.next[:n] {
			t.level[i] = t.m.grid.value(code)
		}
		for i, l := range t.level[:n] {
			t.product[i] = k.Dot(t.h[i*n:i*n+n], t.level[:n])
			t.cc += float64(l) * float64(t.product[i])
			t.c1 += float64(l) * float64(t.ones[i])
			t.cp += float64(l) * float64(t.p[i])
		}
	} else {
		for i := 0; i < n; {
			if i+8 <= n && [8]int8(t.next[i:]) == [8]int8(t.codes[i:]) {
				i += 8 // the usual case
				continue
			}
			for end := min(i+8, n); i < end; i++ {
				if t.next[i] != t.codes[i] {
					t.change(i, t.m.grid.value(t.next[i]))
				}
			}
		}
	}
	t.codes, t.next = t.next, t.codes
	z := float64(zero)
	curve, slope := t.cc-2*z*t.c1+z*z*t.allOne, t.cp-z*t.p1
	if loss := float64(scale) * (float64(scale)*curve - 2*slope); loss < t.best {
		t.best, t.scale, t.zero = loss, scale, stored
	}
	if !(curve > 0) {
		return scale
	}
	return float32(slope / curve)
}

// change sets the level of column i of the group.
func (t *scaleTrials) change(i int, level float32) {
	d := level - t.level[i]
	row := t.h[i*t.n : (i+1)*t.n]
	t.level[i] = level
	t.cc += float64(d) * (2*float64(t.product[i]) + float64(d)*float64(row[i]))
	t.c1 += float64(d) * float64(t.ones[i])
	t.cp += float64(d) * float64(t.p[i])
	t.m.solver.Kernels().Axpy(d, row, t.product[:t.n])
}
