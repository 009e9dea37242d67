package llama

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"qtool/formats/checkpoint"
	"qtool/formats/mapped"
	"qtool/runtime/numa"
	"qtool/runtime/repack"
)

// bytesPerMove is about how much of a matrix one thread changes at a time.
const bytesPerMove = 1 << 20

// move is a share that is copied, or part of one that is repacked or rounded to half precision.
type move struct {
	linear   *linear
	share    *share
	to       []byte         // memory of the share
	matrix   *repack.Matrix // what the share is repacked to; else nil
	first, n int            // panels of it, or rows to be rounded
	of       *progress
}

// progress is how far the moves of a matrix are.
type progress struct {
	left    atomic.Int32
	refused atomic.Bool // a weight that no panel or half-precision number can hold was met
}

// moveScratch is what a thread needs for moves.
type moveScratch struct {
	repack repack.Scratch
	reader checkpoint.Reader
	row    []float32
	halves []uint16
}

// do does a move.
func (e *Engine) do(m *move, s *moveScratch) (err error) {
	switch {
	case m.matrix != nil:
		row := func(r int) []byte { return m.linear.tensor.BlockRow(m.share.first + r) }
		for p := m.first; p < m.first+m.n && !m.of.refused.Load(); p++ {
			if !m.matrix.Pack(p, row, &s.repack) {
				m.of.refused.Store(true)
			}
		}
	case m.linear.half:
		for r := m.first; r < m.first+m.n && err == nil && !m.of.refused.Load(); r++ {
			err = e.halveRow(m, r, s)
		}
	default:
		err = m.share.move(m.to)
	}
	if m.of.left.Add(-1) == 0 {
		// What is left of it in memory is the system's cache of the file. A hint: an error changes nothing.
		t := m.linear.tensor
		_ = t.Advise(0, t.Bytes(), mapped.DontNeed)
	}
	return err
}

// halveRow rounds row r of a share.
func (e *Engine) halveRow(m *move, r int, s *moveScratch) error {
	cols := m.linear.cols
	if len(s.row) != cols {
		s.row, s.halves = make([]float32, cols), make([]uint16, cols)
	}
	if err := m.linear.tensor.ReadRows(s.row, m.share.first+r, 1, &s.reader); err != nil {
		return err
	}
	e.kernels.EncodeF16(s.halves, s.row)
	to := m.to[2*r*cols : 2*(r+1)*cols]
	for i, h := range s.halves {
		if h&0x7c00 == 0x7c00 { // too large, or no number
			m.of.refused.Store(true)
			return nil
		}
		binary.LittleEndian.PutUint16(to[2*i:], h)
	}
	return nil
}

// load fills memory of the parts' own with the shares: with all of them, or with those alone that are changed.
func (e *Engine) load(memory [][]byte, all bool) error {
	moves := make([][]move, len(memory))
	for l := range e.linears() {
		if !all && !l.changed() {
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

// split makes moves of parts of a share that is changed, and gives the share what will be multiplied with.
func (m move) split() ([]move, error) {
	f, s, cols := m.linear.form, m.share, m.linear.cols
	var all, size int
	switch {
	case f != nil:
		var err error
		if m.matrix, err = repack.New(*f, s.rows, cols, m.to[:f.Bytes(s.rows, cols)]); err != nil {
			return nil, err
		}
		if err := s.hold(m.matrix); err != nil {
			return nil, err
		}
		all, size = m.matrix.PanelCount(), f.PanelBytes(cols)
	case m.linear.half:
		s.tensor, s.base = m.linear.tensor.AsHalf(m.to[:2*s.rows*cols], s.rows), s.first
		all, size = s.rows, 2*cols
	default:
		return []move{m}, nil
	}
	var out []move
	for each := max(1, bytesPerMove/size); m.first < all; m.first += each {
		m.n = min(each, all-m.first)
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
					var scratch moveScratch
					for k := next.Add(1) - 1; k < int64(len(moves[i])); k = next.Add(1) - 1 {
						if err := e.do(&moves[i][k], &scratch); err != nil {
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

// decodeRefused takes matrices with weights that no panel or half-precision number can hold as they are, all their shares alike, so that it does
// not matter where the nodes' shares end.
func (e *Engine) decodeRefused(moves [][]move, copied bool) error {
	return mapped.Guard(func() error {
		for _, part := range moves {
			for _, m := range part {
				if m.first > 0 || !m.of.refused.Load() {
					continue
				}
				m.linear.form, m.linear.half = nil, false
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

// repackedBytes is the memory of what a matrix was changed to.
func (l *linear) repackedBytes() int64 {
	n := 0
	for i := range l.shares {
		s := &l.shares[i]
		switch {
		case s.rows == 0 || !l.changed():
		case s.foreign != nil:
			n += len(s.foreign.Data)
		case s.matrix != nil:
			n += len(s.matrix.Data)
		default:
			n += len(s.tensor.Raw())
		}
	}
	return int64(n)
}
