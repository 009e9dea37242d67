package llama

import (
	"sync/atomic"

	"qtool/formats/mapped"
	"qtool/runtime/repack"
)

// repack lays the matrices in block types out for the integer kernels, on all threads. What no panels can hold stays as it is, and
// Weights says so.
func (e *Engine) repack() error {
	scratch := make([]repack.Scratch, e.pool.Threads())
	var err error
	e.pool.Do(func() {
		err = mapped.Guard(func() error {
			for _, l := range e.linears() {
				if err := e.repackLinear(l, scratch); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return err
}

// repackLinear repacks one matrix, if it is of a type that can be.
func (e *Engine) repackLinear(l *linear, scratch []repack.Scratch) error {
	t := l.tensor
	block, ok := t.Block()
	if !ok || t.BlockRow(0) == nil {
		return nil
	}
	m, ok := repack.New(block, l.rows, l.cols)
	if !ok {
		return nil
	}
	var refused atomic.Bool
	units := (m.PanelCount() + panelsPerUnit - 1) / panelsPerUnit
	e.pool.Run(units, func(worker, i int) {
		for p := i * panelsPerUnit; p < min((i+1)*panelsPerUnit, m.PanelCount()); p++ {
			if !m.Pack(p, t.BlockRow, &scratch[worker]) {
				refused.Store(true)
			}
		}
	})
	if refused.Load() {
		return nil
	}
	if m.IsPacked() {
		w, err := m.Packed()
		if err != nil {
			return err
		}
		l.matrix = &w
	} else {
		w, err := m.Foreign()
		if err != nil {
			return err
		}
		l.foreign = &w
	}
	l.own, l.repacked = l.matrix, m.Bytes()
	if t != e.embedding {
		// The file's pages have been read for the last time. Where the kernel has no use for the hint, they are still mapped.
		_ = t.Advise(0, t.Bytes(), mapped.DontNeed)
	}
	return nil
}
