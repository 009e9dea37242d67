package llama

import (
	"fmt"
	"math"

	"qtool/formats/arch"
	"qtool/runtime/kernel"
)

// Attention streams over the cache: a unit of work takes some queries of one sequence, of all heads that share keys and
// values, through a range of positions page by page, and keeps for each query the greatest score so far, the sum of the
// exponentials of the scores beneath it, and the values weighted by them (Milakov and Gimelshein 2018, arXiv:1805.02867).
//
// Each segment of positions is summed up for itself and then merged, in order. Where pages and segments end depends on
// the positions alone: so a query's result is the same bits whoever computes its segments, and whatever other queries
// are computed with it.
const (
	segment = 8 * page // positions
	// queryRows is the queries of a unit, about: enough that keys and values are seldom read, few enough that the
	// unit's work stays in the core's cache.
	queryRows = 32
)

// row is a token of the batch: the sequence that it belongs to, and its position there.
type row struct {
	session  *Session
	position int
}

// plan is the attention of a batch in the layers of one window, 0 for none.
type plan struct {
	window int
	units  []unit // by the part of the pool whose memory has the head
	counts []int  // of units, by part
	joins  []join
	dim    int // of a query's part, padded
	parts  []float32
	levels []level
}

// unit is the queries of neighbouring tokens of one sequence, and the positions that they are computed with.
type unit struct {
	head, first, tokens int // the head of keys and values, tokens of the batch
	from, to            int // positions
	// slot is the place in parts of the first query's result; −1 when it is whole, and goes where it belongs.
	slot int
}

// join is the queries whose parts are merged: so many, one after the other from slot on.
type join struct {
	head, first, tokens int
	slot, parts         int
}

// level is what the sums of a query relate to: its greatest score, and the sum of the exponentials.
type level struct{ most, sum float32 }

// attentionScratch is what a worker needs for a unit: of each query the query itself, a page's scores, the sums of a
// segment and of those before.
type attentionScratch struct {
	queries, scores, sums, total []float32
	factors, shifts              []float32
	levels, totals               []level
}

// planAttention lists the work of attention for the rows of the batch.
func (s *Session) planAttention() {
	c := s.engine.config
	if s.plans == nil {
		s.plans = append(s.plans, plan{})
		if c.SlidingWindow > 0 {
			s.plans = append(s.plans, plan{window: c.SlidingWindow})
		}
		for i := range s.plans {
			s.plans[i].dim = padded(c.HeadDim)
			s.plans[i].counts = make([]int, len(s.engine.heads)-1)
		}
	}
	for i := range s.plans {
		s.plans[i].fill(s.rows, s.engine.heads, c.Heads/c.KVHeads)
	}
}

// fill lists the work for a batch; part i of the pool has the heads ends[i] … ends[i+1]-1 of keys and values. Where a sequence has few rows, they are computed together and its positions are cut
// into segments; where it has many, the rows are cut.
func (p *plan) fill(rows []row, ends []int, group int) {
	p.units, p.joins = p.units[:0], p.joins[:0]
	slots := 0
	for i := range p.counts {
		before := len(p.units)
		slots = p.fillHeads(rows, ends[i], ends[i+1], group, slots)
		p.counts[i] = len(p.units) - before
	}
	p.parts = room(p.parts, slots*p.dim)
	if cap(p.levels) < slots {
		p.levels = make([]level, slots)
	}
	p.levels = p.levels[:slots]
}

// fillHeads lists the work of the heads low … high-1, and gives the number of slots taken so far.
func (p *plan) fillHeads(rows []row, low, high, group, slots int) int {
	step := max(1, queryRows/group)
	for first := 0; first < len(rows); {
		n := 1
		for first+n < len(rows) && rows[first+n].session == rows[first].session {
			n++
		}
		// From the last rows on, which have the most to do.
		for at := (n - 1) / step * step; at >= 0; at -= step {
			tokens := min(step, n-at)
			from, to := p.first(rows[first+at].position), rows[first+at+tokens-1].position+1
			begin, end := from/segment, (to-1)/segment+1
			for h := low; h < high; h++ {
				u := unit{head: h, first: first + at, tokens: tokens, from: from, to: to, slot: -1}
				if n > step || end-begin == 1 {
					p.units = append(p.units, u)
					continue
				}
				p.joins = append(p.joins, join{head: h, first: first + at, tokens: tokens, slot: slots, parts: end - begin})
				for k := begin; k < end; k++ {
					u.from, u.to, u.slot = max(from, k*segment), min(to, (k+1)*segment), slots
					p.units = append(p.units, u)
					slots += tokens * group
				}
			}
		}
		first += n
	}
	return slots
}

// first is the first position that one attends to.
func (p *plan) first(position int) int {
	if p.window == 0 {
		return 0
	}
	return max(0, position-p.window+1)
}

// planOf is the plan of a layer.
func (s *Session) planOf(layer int) *plan {
	if s.engine.config.LayerWindow(layer) > 0 {
		return &s.plans[1]
	}
	return &s.plans[0]
}

// turnHeads normalizes and rotates the queries and keys of a token.
func (s *Session) turnHeads(_, t int) {
	c, l := s.engine.config, &s.engine.layers[s.layer]
	dim, stride := c.HeadDim, c.QDim()+2*c.KVDim()
	row := s.qkv[t*stride : (t+1)*stride]
	for h := range c.Heads + c.KVHeads {
		head := row[h*dim : (h+1)*dim]
		switch {
		case l.qNorm != nil && h < c.Heads:
			rmsNorm(head, head, l.qNorm, c.NormEps)
		case l.kNorm != nil:
			rmsNorm(head, head, l.kNorm, c.NormEps)
		}
		s.turn(s.layer, t, head)
	}
}

// placeKeys puts the keys and values of a token into the cache.
func (s *Session) placeKeys(_, t int) {
	c := s.engine.config
	q, kv, dim := c.QDim(), c.KVDim(), c.HeadDim
	stride := q + 2*kv
	to := s.rows[t]
	// The row of the page's first position, where the batch has it: nobody changes its key.
	first := t - to.position%page
	inBatch := first >= 0 && first != t && s.rows[first].session == to.session
	for h := range c.KVHeads {
		at := t*stride + q + h*dim
		key, value := s.qkv[at:at+dim], s.qkv[at+kv:at+kv+dim]
		var origin []float32
		if inBatch {
			origin = s.qkv[first*stride+q+h*dim:][:dim]
		}
		if err := to.session.cache.put(s.layer, h, to.position, key, value, origin); err != nil {
			s.failed.note(fmt.Errorf("layer %d, position %d: %w", s.layer, to.position, err))
		}
	}
}

// attend does a unit of attention of a part of the pool.
func (s *Session) attend(worker, part, i int) {
	e, c, p := s.engine, s.engine.config, s.planOf(s.layer)
	for _, n := range p.counts[:part] {
		i += n
	}
	u, a := &p.units[i], &e.scratch[worker].attention
	group := c.Heads / c.KVHeads
	n := u.tokens * group
	a.resize(n, p.dim)
	stride := c.QDim() + 2*c.KVDim()
	for j := range n {
		in := s.qkv[(u.first+j/group)*stride+(u.head*group+j%group)*c.HeadDim:]
		out := a.queries[j*p.dim : (j+1)*p.dim]
		for k, v := range in[:c.HeadDim] {
			out[k] = v * float32(c.AttnScale)
		}
		clear(out[c.HeadDim:])
	}
	for from := u.from; from < u.to; {
		to := min(u.to, (from/segment+1)*segment)
		s.sumSegment(a, p, u, from, to)
		if u.slot >= 0 {
			copy(p.parts[u.slot*p.dim:(u.slot+n)*p.dim], a.sums)
			copy(p.levels[u.slot:], a.levels[:n])
			return // such a unit is one segment
		}
		for j := range n {
			at, end := j*p.dim, (j+1)*p.dim
			a.totals[j].merge(a.levels[j], a.total[at:end], a.sums[at:end])
		}
		from = to
	}
	for j := range n {
		s.gathered(u.first+j/group, u.head*group+j%group, a.totals[j], a.total[j*p.dim:])
	}
}

// join merges the parts of some queries.
func (s *Session) join(worker, i int) {
	e, c, p := s.engine, s.engine.config, s.planOf(s.layer)
	u, a := &p.joins[i], &e.scratch[worker].attention
	group := c.Heads / c.KVHeads
	n := u.tokens * group
	a.total = room(a.total, p.dim)
	for j := range n {
		total := noLevel
		clear(a.total)
		for k := range u.parts {
			slot := u.slot + k*n + j
			total.merge(p.levels[slot], a.total, p.parts[slot*p.dim:(slot+1)*p.dim])
		}
		s.gathered(u.first+j/group, u.head*group+j%group, total, a.total)
	}
}

// gathered writes what a head of a token gathers from the values.
func (s *Session) gathered(t, head int, l level, sums []float32) {
	c := s.engine.config
	out := s.mixed[t*c.QDim()+head*c.HeadDim : t*c.QDim()+(head+1)*c.HeadDim]
	f := 1 / l.sum
	for k := range out {
		out[k] = sums[k] * f
	}
}

// noLevel is the level of no scores.
var noLevel = level{most: float32(math.Inf(-1))}

// resize makes room for n queries of dim elements and clears their sums. One query is computed alone, others by fours:
// those beyond n have queries of zeros.
func (a *attentionScratch) resize(n, dim int) {
	all := n
	if n > 1 {
		all = (n + 3) &^ 3
	}
	a.queries, a.sums, a.total = room(a.queries, all*dim), room(a.sums, all*dim), room(a.total, all*dim)
	a.scores, a.factors, a.shifts = room(a.scores, all*page), room(a.factors, all), room(a.shifts, all)
	if cap(a.levels) < all {
		a.levels, a.totals = make([]level, all), make([]level, all)
	}
	a.levels, a.totals = a.levels[:all], a.totals[:all]
	clear(a.queries[n*dim:])
	clear(a.total)
	clear(a.shifts)
	for j := range a.totals {
		a.totals[j] = noLevel
	}
}

// sumSegment sums up the positions from … to-1, of one segment, for the queries of a unit.
func (s *Session) sumSegment(a *attentionScratch, p *plan, u *unit, from, to int) {
	c, cache := s.engine.config, s.rows[u.first].session.cache
	group, queries := c.Heads/c.KVHeads, len(a.factors)
	clear(a.sums)
	for j := range a.levels {
		a.levels[j], a.factors[j] = noLevel, 1
	}
	for start := from &^ (page - 1); start < to; start += page {
		first := max(start, from) &^ 3
		n := min(start+page, to) - first
		cache.scores(a.scores, a.shifts, a.queries, queries, s.layer, u.head, first, n)
		for j := range u.tokens * group {
			position := s.rows[u.first+j/group].position
			low, high := max(p.first(position)-first, 0), min(position+1-first, n)
			a.factors[j] = s.weigh(a.scores[j*page:j*page+n], a.shifts[j], low, high, &a.levels[j])
		}
		cache.mix(a.sums, a.factors, a.scores, queries, s.layer, u.head, first, n)
	}
}

// weigh turns a query's scores low … high-1, of which shift was taken off, into weights, the others into 0, and gives the
// factor that sums before have to be multiplied with.
func (s *Session) weigh(scores []float32, shift float32, low, high int, l *level) (factor float32) {
	if low >= high {
		clear(scores)
		return 1
	}
	clear(scores[:low])
	clear(scores[high:])
	seen := scores[low:high]
	if limit := float32(s.engine.config.AttnSoftcap); limit != 0 {
		for i := range seen {
			seen[i] += shift
		}
		shift = 0
		softcap(seen, limit)
	}
	factor = 1
	if most := s.engine.kernels.Greatest(seen) + shift; !(most <= l.most) {
		factor = exp(l.most - most)
		l.most = most
	}
	l.sum = l.sum*factor + s.engine.kernels.Exp(seen, l.most-shift)
	if !(l.most <= math.MaxFloat32) {
		l.sum = float32(math.NaN()) // of infinite scores: no sum may look like a number
	}
	return factor
}

// merge adds the sums of a part to those so far.
func (l *level) merge(part level, sums, more []float32) {
	if math.IsInf(float64(part.most), -1) && part.sum == 0 {
		return // a query that sees nothing of the part
	}
	most := max(l.most, part.most)
	f, g := exp(l.most-most), exp(part.most-most)
	l.most, l.sum = most, l.sum*f+part.sum*g
	for k := range sums {
		sums[k] = sums[k]*f + more[k]*g
	}
}

func exp(x float32) float32 { return float32(math.Exp(float64(x))) }

// softcap bends x to within ±limit: limit·tanh(x/limit). A limit of 0 leaves x alone.
func softcap(x []float32, limit float32) {
	if limit == 0 {
		return
	}
	for i, v := range x {
		x[i] = limit * float32(math.Tanh(float64(v/limit)))
	}
}

// activate writes the activation of gate times up.
func activate(set *kernel.Set, a arch.Activation, dst, gate, up []float32) {
	switch a {
	case arch.GELUTanh:
		const c = 0.7978845608028654 // √(2/π)
		for i, g := range gate {
			x := float64(g)
			dst[i] = float32(0.5*x*(1+math.Tanh(c*(x+0.044715*x*x*x)))) * up[i]
		}
	default:
		set.SiLU(dst, gate, up)
	}
}
