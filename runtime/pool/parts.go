package pool

import (
	"sync/atomic"

	"qtool/runtime/numa"
)

// Part is the workers that are bound to one node.
type Part struct {
	Node    int      // -1 where the pool binds nothing, and so has one part
	Workers int      // that are bound there
	CPUs    numa.Set // that they may run on
}

// part is the workers of a part, which are neighbours, and its state in a step.
type part struct {
	first, workers int
	finished       stamped // stretches of which nothing is left to be handed out
	_              [cacheLines - 24]byte
}

// stretch is the neighbouring indices of a part that a worker begins with. What has been handed out of it is
// counted from 0 in each step.
type stretch struct {
	taken stamped
	_     [cacheLines - 8]byte
}

// stamped is a count that is 0 in every new step without anyone's setting it: the step's number is in the upper bits. Setting one
// for each worker of a large machine would take the caller longer than some steps.
type stamped struct{ v atomic.Uint64 }

// Bits of a stamped count, which leave a step's number to return after many days of nothing but steps.
const (
	countBits = 24
	countMask = 1<<countBits - 1
)

// below adds 1 to the count of the step if it is below n, and gives what it was.
func (s *stamped) below(n int, step uint64) (was int, ok bool) {
	for {
		v := s.v.Load()
		if v>>countBits == step&(1<<(64-countBits)-1) {
			was = int(v & countMask)
		} else {
			was = 0
		}
		if was >= n {
			return was, false
		}
		if s.v.CompareAndSwap(v, step<<countBits|uint64(was+1)) {
			return was, true
		}
	}
}

// full makes the count of the step the largest there is.
func (s *stamped) full(step uint64) { s.v.Store(step<<countBits | countMask) }

// get gives the count of the step.
func (s *stamped) get(step uint64) int {
	if v := s.v.Load(); v>>countBits == step&(1<<(64-countBits)-1) {
		return int(v & countMask)
	}
	return 0
}

// divide finds the parts of a placed pool: the nodes that workers are bound to. A worker that could not be bound
// belongs to the part of the one before it.
func (p *Pool) divide() {
	parts, node := 0, -1
	for i, w := range p.placement.Workers {
		if len(w.CPUs) > 0 && (parts == 0 || w.Node != node) {
			parts, node = parts+1, w.Node
		}
		p.partOf[i] = max(parts-1, 0)
	}
	p.members(max(parts, 1))
}

// members makes the parts of the workers that partOf gives.
func (p *Pool) members(parts int) {
	p.parts, p.stretches = make([]part, parts), make([]stretch, len(p.partOf))
	for i, own := range p.partOf {
		q := &p.parts[own]
		if q.workers == 0 {
			q.first = i
		}
		q.workers++
	}
}

// Parts gives the parts of the pool in order, at least one. Workers of a part do its share of RunParts first.
func (p *Pool) Parts() []Part {
	out := make([]Part, len(p.parts))
	for i := range out {
		out[i].Node = -1
	}
	for i, w := range p.placement.Workers {
		if len(w.CPUs) == 0 {
			continue
		}
		o := &out[p.partOf[i]]
		o.Node = w.Node
		o.Workers++
		o.CPUs = o.CPUs.Or(w.CPUs)
	}
	if len(out) == 1 {
		out[0].Workers = max(out[0].Workers, 1)
	}
	return out
}

// RunParts is Run for work that is divided among the parts: it calls fn(worker, part, i) once for each part of the
// pool and each i in [0, counts[part]); a count is at most 2²⁴ − 2. Workers take what is of their own part first, and then of others, so that a
// part whose threads are held up by another process does not keep the step. Of a part, each worker begins at an index of
// its own and goes on with the next ones, which suits memory that is read in order; who is done helps others. counts must not change
// meanwhile.
func (p *Pool) RunParts(counts []int, fn func(worker, part, i int)) {
	if len(counts) != len(p.parts) {
		panic("pool: a count for each part is needed")
	}
	n := 0
	for _, c := range counts {
		if c >= countMask {
			panic("pool: too many indices in a part")
		}
		n += c
	}
	if n > 0 {
		p.run(task{n: n, counts: counts, byPart: fn})
	}
}

// workParts calls the function of the step until no part has an index left.
func (p *Pool) workParts(worker int) {
	own := p.partOf[worker]
	rank := worker - p.parts[own].first
	for k := range p.parts {
		p.workPart(worker, (own+k)%len(p.parts), rank)
	}
}

// workPart calls it until a part has none, beginning with the stretch of the given rank.
func (p *Pool) workPart(worker, part, rank int) {
	t, q := &p.task, &p.parts[part]
	count := t.counts[part]
	each, more := count/q.workers, count%q.workers // the first of the stretches, as many as are more, have one index more
	stretches := min(count, q.workers)
	for k := range q.workers {
		if q.finished.get(p.steps) >= stretches {
			return
		}
		i := (rank + k) % q.workers
		from, n := i*each+min(i, more), each
		if i < more {
			n++
		}
		for s := &p.stretches[q.first+i].taken; ; {
			at, ok := s.below(n, p.steps)
			if !ok {
				break
			}
			if at == n-1 {
				q.finished.below(stretches, p.steps)
			}
			t.byPart(worker, part, from+at)
		}
	}
}

// drain leaves nothing of the step to be handed out.
func (p *Pool) drain() {
	p.next.Store(int64(p.task.n))
	if p.task.counts == nil {
		return
	}
	for i := range p.stretches {
		p.stretches[i].taken.full(p.steps)
	}
}
