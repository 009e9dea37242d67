package pool

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"qtool/runtime/numa"
)

// Placement is where the threads of a pool really run.
type Placement struct {
	// Workers has the CPUs and the node of each worker; no CPUs and node -1 for one that is not bound.
	Workers []numa.Worker
	// Why says why threads were not to be bound; empty where they were.
	Why string
	// Refused is the first refusal of the system to bind a thread, nil where there was none.
	Refused error
}

// Place reads the machine, plans by the options and starts a pool by the plan. A machine whose description cannot
// be read is an error only for an explicit choice of CPUs or nodes; otherwise the pool runs unbound, and the
// placement says why.
func Place(o numa.Options) (*Pool, error) {
	if o.NUMA.Off() && len(o.CPUs) == 0 {
		return New(o.Threads), nil
	}
	if o.Limit == 0 {
		o.Limit = runtime.GOMAXPROCS(0)
	}
	m, err := numa.Local()
	if err != nil {
		if len(o.CPUs) > 0 || len(o.NUMA.Nodes) > 0 {
			return nil, err
		}
		p := New(o.Threads)
		p.placement.Why = "off: " + err.Error()
		return p, nil
	}
	plan, err := m.Plan(o)
	if err != nil {
		return nil, err
	}
	return NewPlaced(plan), nil
}

// NewPlaced starts a pool with a thread for each worker of the plan, bound to the worker's CPUs. Where the system
// refuses that, the thread runs unbound, see Placement.
//
// The goroutine that calls Run cannot be worker 0 of such a pool: binding it would change a thread that is not
// the pool's. Worker 0 is a thread of its own, and the caller waits for it. Each Run then costs a change of
// goroutines; Do avoids that for a sequence of them.
func NewPlaced(plan *numa.Plan) *Pool { return newPlaced(plan, numa.Pin) }

func newPlaced(plan *numa.Plan, pin func(numa.Set) (numa.Set, error)) *Pool {
	if !plan.Bound() {
		p := New(len(plan.Workers))
		p.placement.Why = plan.Why
		return p
	}
	if numa.ThreadID() == 0 {
		// Without a way to tell threads apart there is no lead; nor can threads be bound on such systems.
		p := New(len(plan.Workers))
		_, p.placement.Refused = pin(plan.Workers[0].CPUs)
		p.placement.Why = ""
		return p
	}
	p := prepare(len(plan.Workers))
	p.pin = pin
	p.placement.Why = ""
	copy(p.placement.Workers, plan.Workers[:p.Threads()])
	p.lead = &lead{tasks: make(chan task), results: make(chan any)}
	p.starting.Add(p.Threads())
	p.exited.Add(1)
	go p.serveLead()
	p.start()
	p.starting.Wait()
	for _, err := range p.refusals {
		if err != nil {
			p.placement.Refused = err
			break
		}
	}
	p.divide()
	return p
}

// Placement tells where the threads run.
func (p *Pool) Placement() Placement {
	out := p.placement
	out.Workers = slices.Clone(out.Workers)
	return out
}

// bind binds the calling thread to the CPUs of worker id and reports whether it did; undo gives the thread back
// what it could run on before.
func (p *Pool) bind(id int) (undo func(), bound bool) {
	defer p.starting.Done()
	before, err := p.pin(p.placement.Workers[id].CPUs)
	if err != nil {
		p.refusals[id] = err
		p.placement.Workers[id] = numa.Worker{Node: -1}
		return nil, false
	}
	return func() {
		// The thread ends in any case.
		_, _ = p.pin(before)
	}, true
}

// lockThread keeps the goroutine of worker id on a thread, bound as planned, until release is called at its end.
// A thread whose CPUs were changed is never unlocked: it ends with its goroutine, so that no other inherits it.
func (p *Pool) lockThread(id int) (release func()) {
	runtime.LockOSThread()
	if p.pin != nil {
		if id == 0 {
			p.lead.thread = numa.ThreadID()
		}
		if undo, bound := p.bind(id); bound {
			return undo
		}
	}
	return runtime.UnlockOSThread
}

// lead is worker 0 of a placed pool.
type lead struct {
	thread  int // of the system
	tasks   chan task
	results chan any // what a task panicked with, nil for nothing
	ended   bool     // by runtime.Goexit; guarded by the pool's turn
}

// task is a function to call, or a step to run.
type task struct {
	call func()

	n      int // indices in all
	fn     func(worker, i int)
	counts []int // of each part, for byPart; else nil
	byPart func(worker, part, i int)
}

// goexit is the result of a task that ended its goroutine.
type goexit struct{}

// Do calls fn where steps start fastest: on the thread of worker 0 of a placed pool, else where it is called. fn
// may call Run and Do of this pool, but not Close. A panic in fn is raised again in the caller, as Run does.
// Other goroutines that call Do or Run wait until fn has returned.
func (p *Pool) Do(fn func()) {
	if p.lead == nil || p.leading() {
		fn()
		return
	}
	p.hand(task{call: fn})
}

// leading reports whether the calling goroutine is that of the lead. It is the only one that ever runs on its
// thread.
func (p *Pool) leading() bool { return numa.ThreadID() == p.lead.thread }

// hand has the lead do a task.
func (p *Pool) hand(t task) {
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.closed || p.lead.ended {
		panic("pool: used after Close, or after runtime.Goexit in Do")
	}
	p.lead.tasks <- t
	switch v := (<-p.lead.results).(type) {
	case nil:
	case goexit:
		p.lead.ended = true
		panic(&Panic{Value: errors.New("pool: runtime.Goexit in Do")})
	default:
		panic(v)
	}
}

// serveLead is the life of worker 0.
func (p *Pool) serveLead() {
	defer p.exited.Done()
	defer p.lockThread(0)()
	debug.SetPanicOnFault(true)
	for t := range p.lead.tasks {
		p.lead.results <- p.attempt(t)
	}
}

// attempt does a task and returns what it panicked with.
func (p *Pool) attempt(t task) (failure any) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		if v == nil {
			p.lead.results <- goexit{}
			return
		}
		failure = passed(v)
	}()
	if t.call != nil {
		t.call()
	} else {
		p.step(t)
	}
	returned = true
	return nil
}

// passed is what a panic is raised again with in another goroutine: faults of mapped memory and what Run has made
// a Panic of stay as they are.
func passed(v any) any {
	switch v.(type) {
	case *Panic, interface{ Addr() uintptr }:
		return v
	}
	return &Panic{Value: v, Stack: debug.Stack()}
}

// String says what is in force, as reports show it.
func (p Placement) String() string {
	if p.Why != "" {
		return p.Why
	}
	nodes := make(map[int]bool)
	bound, whole := 0, false
	for _, w := range p.Workers {
		if len(w.CPUs) > 0 {
			bound++
			nodes[w.Node] = true
			whole = whole || len(w.CPUs) > 1
		}
	}
	var reason error
	if p.Refused != nil {
		reason = p.Refused
		if r := new(numa.Refused); errors.As(p.Refused, &r) {
			reason = r.Err
		}
		if bound == 0 {
			return fmt.Sprintf("pinning refused: %v", reason)
		}
	}
	how := "pinned"
	if whole {
		how = "bound to their nodes"
	}
	text := fmt.Sprintf("%s, %s %s", plural(len(nodes), "node"), plural(bound, "thread"), how)
	if reason != nil {
		text += fmt.Sprintf(", %d refused: %v", len(p.Workers)-bound, reason)
	}
	return text
}

// plural gives a number and what it counts.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
