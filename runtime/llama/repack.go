package llama

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"qtool/formats/mapped"
	"qtool/runtime/numa"
	"qtool/runtime/repack"
)

// bytesPerMove is about how much of a matrix one thread repacks at a time.
const bytesPerMove = 1 << 20

// move is a share that is copied, or panels of one that are repacked.
type move struct {
	linear *linear
	share  *share
	to     []byte         // memory of the share
	matrix *repack.Matrix // what the share is repacked to, nil where it is copied as it is
	first  int            // panel of it, and how many
	panels int
	of     *progress
}

// progress is how far the moves of a matrix are.
type progress struct {
	left    atomic.Int32
	refused atomic.Bool // a weight that no panel can hold was met
}

// do does the move.
func (m *move) do(s *repack.Scratch) error {
	if m.matrix == nil {
		if err := m.share.move(m.to); err != nil {
			return err
		}
	} else {
		row := func(r int) []byte { return m.linear.tensor.BlockRow(m.share.first + r) }
		for p := m.first; p < m.first+m.panels && !m.of.refused.Load(); p++ {
			if !m.matrix.Pack(p, row, s) {
				m.of.refused.Store(true)
			}
		}
	}
	if m.of.left.Add(-1) == 0 {
		// What is left of it in memory is the system's cache of the file. A hint: an error changes nothing.
		t := m.linear.tensor
		_ = t.Advise(0, t.Bytes(), mapped.DontNeed)
	}
	return nil
}

// load fills memory of the parts' own with the shares: with all of them, or with those alone that are repacked.
func (e *Engine) load(memory [][]byte, all bool) error {
	moves := make([][]move, len(memory))
	for l := range e.linears() {
		if !all && l.form == nil {
			continue
		}
		of := new(progress)
		for i := range l.shares {
			s, size := &l.shares[i], l.shareBytes(i)
			if s.rows == 0 {
				continue
			}
			m := move{linear: l, share: s, to: memory[i][:size:size], of: of}
			memory[i] = memory[i][aligned(size):]
			parts, err := m.split()
			if err != nil {
				return err
			}
			of.left.Add(int32(len(parts)))
			moves[i] = append(moves[i], parts...)
		}
	}
	if err := e.doMoves(moves); err != nil {
		return err
	}
	return e.decodeRefused(moves, all)
}

// split makes moves of the panels of a share that is repacked, and gives the share its matrix.
func (m move) split() ([]move, error) {
	f, s := m.linear.form, m.share
	if f == nil {
		return []move{m}, nil
	}
	cols := m.linear.cols
	var err error
	if m.matrix, err = repack.New(*f, s.rows, cols, m.to[:f.Bytes(s.rows, cols)]); err != nil {
		return nil, err
	}
	if err := s.hold(m.matrix); err != nil {
		return nil, err
	}
	var out []move
	for each := max(1, bytesPerMove/f.PanelBytes(cols)); m.first < m.matrix.PanelCount(); m.first += each {
		m.panels = min(each, m.matrix.PanelCount()-m.first)
		out = append(out, m)
	}
	return out, nil
}

// hold lets products be made with what a share is repacked to.
func (s *share) hold(m *repack.Matrix) error {
	s.base = s.first
	if !m.Form.IsPacked() {
		w, err := m.Foreign()
		s.foreign = &w
		return err
	}
	w, err := m.Packed()
	s.matrix = &w
	return err
}

// doMoves does the moves to each part by threads that are bound as its workers are. They are not the pool's: there any
// thread may do the work of another.
func (e *Engine) doMoves(moves [][]move) error {
	var failed failure
	var threads sync.WaitGroup
	for i, p := range e.memory.parts {
		next := new(atomic.Int64)
		workers := p.Workers
		if len(moves) == 1 {
			workers = e.pool.Threads()
		}
		for range workers {
			threads.Go(func() {
				if p.Node >= 0 {
					runtime.LockOSThread() // and never unlocked: the thread ends bound
					if _, err := numa.Pin(p.CPUs); err != nil {
						runtime.UnlockOSThread() // the copy is right, if perhaps from afar
					}
				}
				failed.note(mapped.Guard(func() error {
					var scratch repack.Scratch
					for k := next.Add(1) - 1; k < int64(len(moves[i])); k = next.Add(1) - 1 {
						if err := moves[i][k].do(&scratch); err != nil {
							return err
						}
					}
					return nil
				}))
			})
		}
	}
	threads.Wait()
	if err := failed.take(); err != nil {
		return fmt.Errorf("load weights to memory: %w", err)
	}
	return nil
}

// decodeRefused takes matrices with weights that no panel can hold as they are, all their shares alike, so that it does
// not matter where the nodes' shares end.
func (e *Engine) decodeRefused(moves [][]move, copied bool) error {
	return mapped.Guard(func() error {
		for _, part := range moves {
			for _, m := range part {
				if m.matrix == nil || m.first > 0 || !m.of.refused.Load() {
					continue
				}
				m.linear.form = nil
				*m.share = share{first: m.share.first, rows: m.share.rows, unit: rowsPerTile, tensor: m.linear.tensor}
				if copied {
					if err := m.share.move(m.to[:m.linear.tensor.CopyBytes(m.share.rows)]); err != nil {
						return err
					}
				}
			}
		}
		for l := range e.linears() {
			for i := range l.shares {
				l.shares[i].unit = l.unitRows() // of shares without rows too
			}
		}
		return nil
	})
}

// repackedBytes is the memory of what a matrix was repacked to.
func (l *linear) repackedBytes() int64 {
	if l.form == nil {
		return 0
	}
	n := 0
	for i := range l.shares {
		s := &l.shares[i]
		if s.matrix != nil {
			n += len(s.matrix.Data)
		}
		if s.foreign != nil {
			n += len(s.foreign.Data)
		}
	}
	return int64(n)
}
