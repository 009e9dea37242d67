package llama

import (
	"qtool/formats/mapped"
	"qtool/runtime/numa"
)

// start starts the threads where the options say, and places the weights near them.
func (e *Engine) start(o Options, h host) (err error) {
	e.pool, err = h.pool(numa.Options{Threads: o.Threads, CPUs: o.CPUs, NUMA: o.NUMA})
	if err != nil {
		return err
	}
	if err := e.place(h); err != nil {
		e.pool.Close()
		return err
	}
	e.scratch = make([]workerScratch, e.pool.Threads())
	e.doWork = e.work.do(e)
	return nil
}

// work is a call of Forward or Step. It waits in the engine for the thread that does it, which takes no memory where a new
// function would.
type work struct {
	session  *Session   // of Forward
	sessions []*Session // of Step
	tokens   []int32
	from     int
	visit    func(i int, logits []float32) error
	err      error
}

// run does work where the steps of the pool start fastest.
func (e *Engine) run(w work) error {
	e.work = w
	e.pool.Do(e.doWork)
	err := e.work.err
	e.work = work{}
	return err
}

// do gives the function that does the work which is waiting.
func (w *work) do(e *Engine) func() {
	return func() {
		now := *w // visit may ask the engine for other work meanwhile
		w.err = mapped.Guard(func() error {
			if now.session != nil {
				return now.session.forward(now.tokens, now.from, now.visit)
			}
			return e.step(now.sessions, now.tokens, now.visit)
		})
	}
}
