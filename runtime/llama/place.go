package llama

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
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
	unit        int // rows of a piece of work
	base        int // row of the whole matrix that the following begin with
	tensor      *checkpoint.Tensor
	matrix      *packed.Matrix  // what is multiplied with where it is packed; else nil
	foreign     *kernel.Foreign // the same where it was repacked to a layout of its type
}

// units is the number of pieces that a share is cut into.
func (s *share) units() int { return (s.rows + s.unit - 1) / s.unit }

// unitRows is the rows of a piece.
func (l *linear) unitRows() int {
	switch {
	case l.matrix != nil:
		return unitPanels(l.matrix.Scheme.PanelBytes(l.cols)) * packed.Panel
	case l.form != nil:
		return unitPanels(l.form.PanelBytes(l.cols)) * packed.Panel
	}
	return rowsPerTile
}

// divide gives each part of the pool a share of the rows, whole units, where they are.
func (l *linear) divide(weights []int) {
	n := l.unitRows()
	ends := numa.Split((l.rows+n-1)/n, weights)
	l.shares = make([]share, len(weights))
	for i := range l.shares {
		first := min(ends[i]*n, l.rows)
		l.shares[i] = share{first: first, rows: min(ends[i+1]*n, l.rows) - first, unit: n, tensor: l.tensor, matrix: l.matrix}
	}
}

// shareBytes is the storage of a share of its own.
func (l *linear) shareBytes(i int) int {
	rows := l.shares[i].rows
	switch {
	case rows == 0:
		return 0
	case l.matrix != nil:
		return l.matrix.Scheme.Bytes(rows, l.cols)
	// Or as it is, should it turn out that neither panels nor half precision can hold it.
	case l.form != nil:
		return max(l.form.Bytes(rows, l.cols), l.tensor.CopyBytes(rows))
	case l.half:
		return max(2*rows*l.cols, l.tensor.CopyBytes(rows))
	}
	return l.tensor.CopyBytes(rows)
}

// move copies a share to memory of its own.
func (s *share) move(to []byte) error {
	if s.matrix != nil {
		own, err := s.matrix.CopyRows(to, s.first, s.rows)
		if err != nil {
			return err
		}
		s.matrix = &own
	} else {
		own, err := s.tensor.CopyRows(to, s.first, s.rows)
		if err != nil {
			return err
		}
		s.tensor = own
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
	// stayed says why the weights were not copied to their nodes though there are several.
	stayed string
	// loose is set where there are repacked weights in memory of no node.
	loose bool
	// decoded says why weights were not repacked that could be.
	decoded string
	// refused is the first refusal to bind memory to a node, of so many.
	refused  error
	refusals int
}

// place divides the weights among the parts of the pool. Where there is more than one it copies each share to memory of its
// node. What is to be repacked is, on its way there, or else in memory of its own.
func (e *Engine) place(h host) error {
	m := &e.memory
	m.parts = e.pool.Parts()
	for _, p := range m.parts {
		m.weights = append(m.weights, p.Workers)
	}
	m.kv.region = h.region
	e.counts = make([]int, len(m.parts))
	e.heads = numa.Split(e.config.KVHeads, m.weights)
	for l := range e.linears() {
		l.divide(m.weights)
	}
	copied, err := false, error(nil)
	if len(m.parts) > 1 {
		copied, err = e.loadNodes(h)
	}
	if err == nil && !copied {
		err = e.loadRepacked(h)
	}
	if err != nil {
		return errors.Join(err, m.release())
	}
	return nil
}

// changed reports whether the shares of a matrix are something else than what the file has.
func (l *linear) changed() bool { return l.form != nil || l.half }

// sizes is the memory that the parts need for their shares: for all, or for those alone that are not as the file has them.
func (e *Engine) sizes(all bool) (parts []int, total int64) {
	parts = make([]int, len(e.memory.parts))
	for l := range e.linears() {
		for i := range l.shares {
			if all || l.changed() {
				size := aligned(l.shareBytes(i))
				parts[i] += size
				total += int64(size)
			}
		}
	}
	return parts, total
}

// fit gives up what does not fit the free memory: first what is only rounded, which takes much, and then, where less than all
// is of use, what is repacked. It gives the sizes that remain, and false where they do not fit.
func (e *Engine) fit(h host, all bool) (parts []int, total, free int64, ok bool) {
	free = h.free()
	for give := 0; ; give++ {
		parts, total = e.sizes(all)
		if free <= 0 || total <= free-free/8 {
			return parts, total, free, true
		}
		if give == 2 || give == 1 && all {
			return parts, total, free, false
		}
		for l := range e.linears() {
			if l.half || give == 1 && l.form != nil {
				e.memory.decoded = fmt.Sprintf("that takes %s, and %s are free", megabytes(total), megabytes(free))
				l.form, l.half = nil, false
				l.divide(e.memory.weights)
			}
		}
	}
}

// loadNodes gives each node its shares; false where that was not possible.
func (e *Engine) loadNodes(h host) (bool, error) {
	m := &e.memory
	sizes, total, free, ok := e.fit(h, true)
	if !ok {
		m.stayed = fmt.Sprintf("a copy of %s for the nodes does not fit the %s that are free", megabytes(total), megabytes(free))
		return false, nil
	}
	data := make([][]byte, len(m.parts))
	for i, p := range m.parts {
		r, err := h.region(sizes[i], p.Node)
		if err != nil {
			m.stayed, m.sizes, m.refused, m.refusals = reason(err).Error(), nil, nil, 0
			return false, m.release()
		}
		data[i] = r.Data
		m.regions = append(m.regions, r)
		m.sizes = append(m.sizes, int64(sizes[i]))
		if r.Refused != nil {
			m.refused, m.refusals = errors.Join(m.refused, r.Refused), m.refusals+1
		}
	}
	return true, e.load(data, true)
}

// loadRepacked repacks what is to be, bound to no node, and leaves the rest in the file's map.
func (e *Engine) loadRepacked(h host) error {
	m := &e.memory
	sizes, total, _, _ := e.fit(h, false)
	if total == 0 {
		return nil
	}
	var data []byte
	if r, err := h.region(int(total), unbound); err == nil {
		data = r.Data
		m.regions = append(m.regions, r)
	} else {
		data = make([]byte, total) // as good, but the collector waits for as much garbage
	}
	m.loose = true
	memory := make([][]byte, len(m.parts))
	for i, size := range sizes {
		memory[i], data = data[:size], data[size:]
	}
	return e.load(memory, false)
}

// unbound is the node of memory that may be on any.
const unbound = -1

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
	if m.stayed != "" && m.loose {
		return "weights on no node of their own: " + m.stayed
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

// Shortfalls says what the system refused of the placement so far: once for threads, once for weights, once for keys and values, and
// once for weights that there was no memory to repack. The engine runs all the same.
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
	if m.decoded != "" {
		out = append(out, "quantized weights are decoded for each product, not repacked: "+m.decoded)
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
