package llama

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"qtool/formats/checkpoint"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/runtime/numa"
	"qtool/runtime/pool"
)

// host is what an engine asks of the system; tests put others in its place.
type host struct {
	pool   func(numa.Options) (*pool.Pool, error)
	region func(size, node int) (*numa.Region, error)
	free   func() int64 // bytes that may still be taken, 0 where that is not known
}

func system() host {
	return host{pool.Place, numa.NewRegion, func() int64 { return numa.FreeMemory(os.DirFS("/")) }}
}

// share is the rows of a matrix that one part of the pool, the workers of a node, has in its charge.
type share struct {
	first, rows int
	base        int // row of the whole matrix that tensor and matrix begin with
	tensor      *checkpoint.Tensor
	matrix      *packed.Matrix // what is multiplied with where it is packed; else nil
}

// units is the number of pieces that a share is cut into.
func (s *share) units() int {
	n := unitRows(s.matrix)
	return (s.rows + n - 1) / n
}

// unitRows is the rows of a unit.
func unitRows(m *packed.Matrix) int {
	if m != nil {
		return unitPanels(m.Scheme, m.Cols) * packed.Panel
	}
	return rowsPerTile
}

// divide gives each part of the pool a share of the rows, whole units, where they are.
func (l *linear) divide(weights []int) {
	n := unitRows(l.matrix)
	ends := numa.Split((l.rows+n-1)/n, weights)
	l.shares = make([]share, len(weights))
	for i := range l.shares {
		first := min(ends[i]*n, l.rows)
		l.shares[i] = share{first: first, rows: min(ends[i+1]*n, l.rows) - first, tensor: l.tensor, matrix: l.matrix}
	}
}

// bytes is the storage of a share of its own.
func (s *share) bytes() int {
	if s.matrix != nil {
		return s.matrix.Scheme.Bytes(s.rows, s.matrix.Cols)
	}
	return int(s.tensor.Bytes() / int64(max(s.tensor.Rows(), 1)) * int64(s.rows))
}

// move copies a share to memory of its own.
func (s *share) move(to []byte) error {
	if m := s.matrix; m != nil {
		prelude := m.Scheme.PreludeBytes()
		copy(to, m.Data[:prelude])
		own, err := packed.NewMatrix(m.Scheme, s.rows, m.Cols, to)
		if err != nil {
			return err
		}
		panels := own.PanelCount()
		copy(to[prelude:], m.Panels(s.first/packed.Panel, panels))
		s.matrix = &own
	} else {
		s.tensor = s.tensor.CopyRows(to, s.first, s.rows)
	}
	s.base = s.first
	return nil
}

// memory is where an engine's weights, keys and values are.
type memory struct {
	parts   []pool.Part
	weights []int // workers of each part
	sizes   []int64
	regions []*numa.Region
	kv      arena
	// stayed says why the weights were left in the file though there are several nodes.
	stayed string
	// refused is the first refusal to bind memory to a node, of so many.
	refused  error
	refusals int
}

// place divides the weights among the parts of the pool, and copies each share to memory of its node where there is more
// than one.
func (e *Engine) place(h host) error {
	m := &e.memory
	m.parts = e.pool.Parts()
	for _, p := range m.parts {
		m.weights = append(m.weights, p.Workers)
	}
	m.kv.region = h.region
	e.counts = make([]int, len(m.parts))
	e.heads = numa.Split(e.config.KVHeads, m.weights)
	sizes := make([]int, len(m.parts))
	total := int64(0)
	for l := range e.linears() {
		l.divide(m.weights)
		for i := range l.shares {
			size := aligned(l.shares[i].bytes())
			sizes[i] += size
			total += int64(size)
		}
	}
	if len(m.parts) < 2 {
		return nil
	}
	if free := h.free(); free > 0 && total > free-free/8 {
		m.stayed = fmt.Sprintf("a copy of %s for the nodes does not fit the %s that are free", megabytes(total), megabytes(free))
		return nil
	}
	for i, p := range m.parts {
		r, err := h.region(sizes[i], p.Node)
		if err != nil {
			m.stayed = reason(err).Error()
			return m.release()
		}
		m.regions = append(m.regions, r)
		m.sizes = append(m.sizes, int64(sizes[i]))
		if r.Refused != nil {
			m.refused, m.refusals = errors.Join(m.refused, r.Refused), m.refusals+1
		}
	}
	if err := e.moveWeights(); err != nil {
		return errors.Join(err, m.release())
	}
	return nil
}

// moveWeights copies the shares, each by threads of its node, and lets go of the file's pages. The threads are not the
// pool's: there any thread may do the work of another.
func (e *Engine) moveWeights() error {
	type move struct {
		share *share
		to    []byte
	}
	moves := make([][]move, len(e.memory.parts))
	at := make([]int, len(moves))
	for l := range e.linears() {
		for i := range l.shares {
			s := &l.shares[i]
			if size := s.bytes(); s.rows > 0 {
				moves[i] = append(moves[i], move{s, e.memory.regions[i].Data[at[i] : at[i]+size : at[i]+size]})
				at[i] += aligned(size)
			}
		}
	}
	var failed failure
	var threads sync.WaitGroup
	for i, p := range e.memory.parts {
		next := new(atomic.Int64)
		for range p.Workers {
			threads.Go(func() {
				runtime.LockOSThread() // and never unlocked: the thread ends bound
				if _, err := numa.Pin(p.CPUs); err != nil {
					runtime.UnlockOSThread() // the copy is right, if perhaps from afar
				}
				failed.note(mapped.Guard(func() error {
					for k := next.Add(1) - 1; k < int64(len(moves[i])); k = next.Add(1) - 1 {
						if err := moves[i][k].share.move(moves[i][k].to); err != nil {
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
		return fmt.Errorf("copy weights to their nodes: %w", err)
	}
	for l := range e.linears() {
		// What is left of them in memory is the system's cache of the file. A hint: an error changes nothing.
		_ = l.tensor.Advise(0, l.tensor.Bytes(), mapped.DontNeed)
	}
	return nil
}

// aligned is a size up to where the next share begins.
func aligned(size int) int { return (size + packed.Align - 1) &^ (packed.Align - 1) }

// release gives all memory of nodes back.
func (m *memory) release() error {
	var err error
	for _, r := range append(m.regions, m.kv.regions...) {
		err = errors.Join(err, r.Close())
	}
	m.regions, m.kv.regions = nil, nil
	return err
}

// String says where the weights are; nothing where one node has all.
func (m *memory) String() string {
	if len(m.parts) < 2 {
		return ""
	}
	if m.stayed != "" {
		return "weights in the file's map: " + m.stayed
	}
	if m.refusals == len(m.parts) {
		return fmt.Sprintf("weights not bound: %v", reason(m.refused))
	}
	least, most := m.sizes[0], m.sizes[0]
	for _, s := range m.sizes {
		least, most = min(least, s), max(most, s)
	}
	text := fmt.Sprintf("weights: %d nodes, %s each", len(m.parts), megabytes(most))
	if megabytes(least) != megabytes(most) {
		text = fmt.Sprintf("weights: %d nodes, %s to %s", len(m.parts), megabytes(least), megabytes(most))
	}
	if m.refusals > 0 {
		text += fmt.Sprintf(", %d of them not bound: %v", m.refusals, reason(m.refused))
	}
	return text
}

// reason is what the system answered, without the name of the call.
func reason(err error) error {
	if r := new(numa.Refused); errors.As(err, &r) {
		return r.Err
	}
	return err
}

// megabytes gives a size as reports do.
func megabytes(n int64) string {
	switch v := float64(n) / 1e6; {
	case v < 10:
		return fmt.Sprintf("%.1f MB", v)
	case v < 10e3:
		return fmt.Sprintf("%.0f MB", v)
	default:
		return fmt.Sprintf("%.0f GB", v/1e3)
	}
}

// NUMA says how threads and weights are placed.
func (e *Engine) NUMA() string {
	parts := []string{e.pool.Placement().String()}
	if text := e.memory.String(); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// Shortfalls says what the system refused of the placement so far: once for threads, once for weights, once for keys and values. The engine runs
// all the same.
func (e *Engine) Shortfalls() []string {
	var out []string
	if err := e.pool.Placement().Refused; err != nil {
		out = append(out, fmt.Sprintf("threads could not be bound to CPUs: %v", reason(err)))
	}
	m := &e.memory
	switch {
	case len(m.parts) < 2:
	case m.stayed != "":
		out = append(out, "weights could not be copied to their nodes: "+m.stayed)
	case m.refused != nil:
		out = append(out, fmt.Sprintf("memory could not be bound to nodes: %v", reason(m.refused)))
	}
	if err := m.kv.refusal(); err != nil && m.refused == nil {
		out = append(out, fmt.Sprintf("keys and values could not be bound to nodes: %v", reason(err)))
	}
	return out
}

// linears lists the matrices of the model, the head last.
func (e *Engine) linears() func(yield func(*linear) bool) {
	return func(yield func(*linear) bool) {
		for i := range e.layers {
			l := &e.layers[i]
			for _, w := range []*linear{&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down} {
				if w.tensor != nil && !yield(w) {
					return
				}
			}
		}
		yield(&e.head)
	}
}
