// Package pool runs the steps of a computation on a fixed set of OS threads.
//
// A step is a parallel loop: indices are handed out one by one by atomic counters, so that a
// thread that is held up by another process takes fewer of them. Steps are published by one
// atomic store. Workers that wait spin for a short while and then park; a worker that is not
// awake in time is not waited for, the others do its part.
package pool

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"qtool/runtime/numa"
)

// cacheLines is the distance that keeps two variables out of each other's cache lines: two lines
// of 64 bytes, because the prefetcher of x86 fetches lines in pairs.
const cacheLines = 128

// spin is how long a worker looks for the next step before it parks, and the caller for the last
// worker. The serial parts between two steps of a forward pass are shorter.
const spin = 50 * time.Microsecond

// The gate is one word: a step's number in the upper half, flags and the number of workers
// inside the step in the lower.
const (
	gateOpen    = 1 << 31 // workers may join the step
	gateWaiting = 1 << 30 // the caller is parked, the last worker to leave wakes it
	gateClosed  = 1 << 29 // the pool is closed
	gateJoined  = 1<<16 - 1
	gateStep    = 1 << 32 // unit of the step number
)

// maxThreads keeps the count of joined workers within its bits, far above any machine's cores.
const maxThreads = 1 << 12

// Pool is a set of worker threads. Its methods may be called from several goroutines, which take
// turns.
type Pool struct {
	gate atomic.Uint64
	_    [cacheLines - 8]byte
	next atomic.Int64 // index to hand out next
	_    [cacheLines - 8]byte

	// Of the current step: written by the caller before the gate opens.
	task task

	steps     uint64    // the current one's number
	parts     []part    // see Parts
	partOf    []int     // the part of each worker
	stretches []stretch // of each worker

	turn    sync.Mutex
	closed  bool
	failure atomic.Pointer[Panic]
	done    chan struct{} // the last worker has left, sent only when gateWaiting is set
	workers []worker
	spin    time.Duration
	exited  sync.WaitGroup

	// Of a placed pool, see NewPlaced.
	lead      *lead // nil where the caller of Run is worker 0
	pin       func(numa.Set) (before numa.Set, err error)
	starting  sync.WaitGroup // threads that are not bound yet
	refusals  []error        // of each worker
	placement Placement
}

// worker is what the caller knows of one thread.
type worker struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [cacheLines - 16]byte
}

// Panic is what Run panics with when fn panicked: the first of them. A fault while reading
// mapped memory (a runtime.Error with an Addr method) is passed on as it was instead, for a
// recover that knows the map.
type Panic struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

// Error gives the value's text.
func (p *Panic) Error() string {
	if err, ok := p.Value.(error); ok {
		return "panic in a worker: " + err.Error()
	}
	if s, ok := p.Value.(string); ok {
		return "panic in a worker: " + s
	}
	return "panic in a worker"
}

// Unwrap returns the value when it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// New starts threads-1 workers; the goroutine that calls Run is the remaining one, number 0.
// threads 0 stands for Available(). Threads are not bound to CPUs; NewPlaced binds them.
func New(threads int) *Pool {
	if threads <= 0 {
		threads = Available()
	}
	p := prepare(threads)
	p.start()
	return p
}

// prepare makes a pool without its threads.
func prepare(threads int) *Pool {
	threads = min(threads, maxThreads)
	p := &Pool{done: make(chan struct{}, 1), workers: make([]worker, threads-1), spin: spin, refusals: make([]error, threads)}
	p.partOf = make([]int, threads)
	p.members(1)
	p.placement = Placement{Workers: make([]numa.Worker, threads), Why: "off"}
	for i := range p.placement.Workers {
		p.placement.Workers[i].Node = -1
	}
	if threads > runtime.GOMAXPROCS(0) {
		// More threads than can run at once: one that spins would keep another from working.
		p.spin = 0
	}
	return p
}

// start starts the workers but number 0.
func (p *Pool) start() {
	p.exited.Add(len(p.workers))
	for i := range p.workers {
		p.workers[i].wake = make(chan struct{}, 1)
		go p.serve(i + 1)
	}
}

// Threads returns the number of threads that share the work, the caller's included.
func (p *Pool) Threads() int { return len(p.workers) + 1 }

// Run calls fn(worker, i) once for each i in [0, n), from several threads, and returns when all
// calls have returned. worker is in [0, Threads()) and never used by two calls at a time, so it
// may index per-thread scratch. A panic in fn ends the step early and is raised again in the
// caller, see Panic. fn must not call Run of the same pool, nor runtime.Goexit. Run does not
// allocate.
func (p *Pool) Run(n int, fn func(worker, i int)) {
	if n > 0 {
		p.run(task{n: n, fn: fn})
	}
}

// run runs a step, on the lead where there is one.
func (p *Pool) run(t task) {
	switch {
	case p.lead == nil:
		p.turn.Lock()
		defer p.turn.Unlock()
		if p.closed {
			panic("pool: Run after Close")
		}
	case !p.leading():
		p.hand(t)
		return
	case p.task.n != 0:
		panic("pool: Run within Run")
	}
	p.step(t)
}

// step runs a step with the calling goroutine as worker 0.
func (p *Pool) step(t task) {
	p.task = t
	p.next.Store(0)
	p.steps++
	if t.n == 1 || len(p.workers) == 0 {
		p.work(0)
	} else {
		// Nobody is inside: the last step ended with an empty gate.
		p.gate.Store(p.gate.Load()&^(gateStep-1) + gateStep | gateOpen)
		p.wake()
		p.work(0)
		p.wait()
	}
	p.task = task{}
	if f := p.failure.Swap(nil); f != nil {
		if _, ok := f.Value.(interface{ Addr() uintptr }); ok {
			panic(f.Value)
		}
		panic(f)
	}
}

// wake wakes parked workers, no more than have something to do.
func (p *Pool) wake() {
	t := &p.task
	if t.counts == nil || t.n > len(p.workers) {
		for i := range p.workers[:min(t.n-1, len(p.workers))] {
			p.workers[i].unpark()
		}
		return
	}
	part, left := -1, 0
	for i := range p.workers {
		if own := p.partOf[i+1]; own != part {
			part, left = own, t.counts[own]
		}
		if left > 0 {
			left--
			p.workers[i].unpark()
		}
	}
}

// Close ends the workers. Run must not be called afterwards.
func (p *Pool) Close() {
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.gate.Store(p.gate.Load()&^(gateStep-1) + gateStep | gateClosed)
	for i := range p.workers {
		p.workers[i].unpark()
	}
	if p.lead != nil {
		close(p.lead.tasks)
	}
	p.exited.Wait()
}

// work calls fn until no index is left.
func (p *Pool) work(worker int) {
	defer func() {
		if v := recover(); v != nil {
			p.drain()
			p.failure.CompareAndSwap(nil, &Panic{Value: v, Stack: debug.Stack()})
		}
	}()
	if p.task.counts != nil {
		p.workParts(worker)
		return
	}
	fn, n := p.task.fn, p.task.n
	for {
		i := int(p.next.Add(1)) - 1
		if i >= n {
			return
		}
		fn(worker, i)
	}
}

// wait closes the gate and returns when the workers that joined have left.
func (p *Pool) wait() {
	p.gate.And(^uint64(gateOpen))
	deadline := time.Time{}
	for looks := 1; ; looks++ {
		g := p.gate.Load()
		if g&gateJoined == 0 {
			return
		}
		if looks%64 != 0 {
			continue
		}
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(p.spin)
		}
		if now.After(deadline) && p.gate.CompareAndSwap(g, g|gateWaiting) {
			<-p.done
			return
		}
	}
}

// serve is the life of worker number id.
func (p *Pool) serve(id int) {
	defer p.exited.Done()
	defer p.lockThread(id)()
	// Weights are mapped files: a file that is cut while in use must not kill the process.
	debug.SetPanicOnFault(true)
	w := &p.workers[id-1]
	seen := p.gate.Load() / gateStep
	if seen > 0 {
		// The first step was published before this goroutine ran; it may still be open.
		seen--
	}
	deadline := time.Time{}
	for looks := 1; ; looks++ {
		g := p.gate.Load()
		if step := g / gateStep; step != seen {
			if g&gateClosed != 0 {
				return
			}
			if g&gateOpen == 0 {
				seen = step // over before this worker looked
				continue
			}
			if !p.gate.CompareAndSwap(g, g+1) {
				continue
			}
			seen = step
			p.work(id)
			if g := p.gate.Add(^uint64(0)); g&gateJoined == 0 && g&gateWaiting != 0 {
				p.done <- struct{}{}
			}
			deadline = time.Time{}
			continue
		}
		if looks%64 != 0 && p.spin > 0 {
			continue
		}
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(p.spin)
		}
		if p.spin == 0 || now.After(deadline) {
			w.park(func() bool { return p.gate.Load()/gateStep != seen })
			deadline = time.Time{}
		}
	}
}

// park blocks until unpark, unless there is news.
func (w *worker) park(news func() bool) {
	w.parked.Store(true)
	// A step published before parked was set sent no wake-up: look once more. Whoever clears
	// the flag decides whether a wake-up is on its way.
	if news() && w.parked.CompareAndSwap(true, false) {
		return
	}
	<-w.wake
}

// unpark wakes the worker if it is parked.
func (w *worker) unpark() {
	if w.parked.Load() && w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}
