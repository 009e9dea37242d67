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

// part is the state of a part in a step.
type part struct {
	next atomic.Int64 // index to hand out next
	n    int64
	_    [cacheLines - 16]byte
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
	p.parts = make([]part, max(parts, 1))
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
// pool and each i in [0, counts[part]). Workers take what is of their own part first, and then of others, so that a
// part whose threads are held up by another process does not keep the step. counts must not change meanwhile.
func (p *Pool) RunParts(counts []int, fn func(worker, part, i int)) {
	if len(counts) != len(p.parts) {
		panic("pool: a count for each part is needed")
	}
	n := 0
	for _, c := range counts {
		n += c
	}
	if n > 0 {
		p.run(task{n: n, counts: counts, byPart: fn})
	}
}

// workParts calls the function of the step until no part has an index left.
func (p *Pool) workParts(worker int) {
	fn := p.task.byPart
	for k := range p.parts {
		i := (p.partOf[worker] + k) % len(p.parts)
		q := &p.parts[i]
		for q.next.Load() < q.n { // look first: an addition takes the line from those who work there
			at := q.next.Add(1) - 1
			if at >= q.n {
				break
			}
			fn(worker, i, int(at))
		}
	}
}

// drain leaves nothing of the step to be handed out.
func (p *Pool) drain() {
	p.next.Store(int64(p.task.n))
	for i := range p.parts {
		p.parts[i].next.Store(p.parts[i].n)
	}
}
