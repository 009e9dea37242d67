// Package repack lays matrices in ggml's block types out in the panels that the kernels multiply: the same weights, moved
// and not quantized again. Types that are a scheme of packed matrices become one, others a kernel.Foreign.
package repack

import (
	"fmt"

	"qtool/formats/ggml"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// way is how a type is repacked.
type way struct {
	scheme packed.Scheme // of the matrix, where layout is 0
	layout kernel.Layout
	// pack writes a panel from at most 8 rows as they are stored. It reports false where the layout cannot hold a weight.
	pack func(dst []byte, rows [][]byte, cols int, s *Scratch) bool
}

var ways = map[ggml.Type]way{
	ggml.Q4_0:   {scheme: packed.Scheme{Bits: 4, Group: 32}, pack: packQ4_0},
	ggml.IQ4_NL: {scheme: packed.Scheme{Bits: 4, Group: 32, Codebook: true}, pack: packQ4_0},
	ggml.IQ4_XS: {scheme: packed.Scheme{Bits: 4, Group: 32, Codebook: true, TwoLevel: true}, pack: packIQ4_XS},
	ggml.Q3_K:   {scheme: packed.Scheme{Bits: 3, Group: 16, TwoLevel: true}, pack: packQ3_K},
	ggml.Q8_0:   {scheme: packed.Scheme{Bits: 8, Group: 32}, pack: packQ8_0},
	ggml.Q4_1:   {layout: kernel.Offset4, pack: packQ4_1},
	ggml.Q5_0:   {layout: kernel.Offset5, pack: packQ5_0},
	ggml.Q5_1:   {layout: kernel.Offset5, pack: packQ5_1},
	ggml.Q4_K:   {layout: kernel.Super4, pack: packQ4_K},
	ggml.Q5_K:   {layout: kernel.Super5, pack: packQ5_K},
	ggml.Q6_K:   {layout: kernel.Super6, pack: packQ6_K},
}

// Scratch is room that packing needs. The zero Scratch is ready; one goroutine at a time.
type Scratch struct {
	codes  []packed.Codes
	scheme packed.Scheme // that codes has room for
	cols   int
}

// room gives a row's codes for each row of a panel.
func (s *Scratch) room(scheme packed.Scheme, cols int) []packed.Codes {
	if s.codes == nil || s.scheme != scheme || s.cols != cols {
		s.codes, s.scheme, s.cols = make([]packed.Codes, packed.Panel), scheme, cols
		for i := range s.codes {
			s.codes[i] = packed.NewCodes(scheme, cols)
		}
	}
	return s.codes
}

// Matrix is a matrix that is being repacked. Exactly one of Packed and Foreign is for the kernels: see IsPacked.
type Matrix struct {
	Type ggml.Type

	way        way
	rows, cols int
	data       []byte
	panels     []byte // of data
}

// New takes memory for a matrix of rows × cols weights of a type; false where the type is not one that can be repacked.
func New(t ggml.Type, rows, cols int) (*Matrix, bool) {
	w, ok := ways[t]
	if !ok || rows <= 0 || cols <= 0 || cols%t.BlockSize() != 0 {
		return nil, false
	}
	m := &Matrix{Type: t, way: w, rows: rows, cols: cols}
	if w.layout != 0 {
		m.data = make([]byte, m.PanelCount()*w.layout.PanelBytes(cols))
		m.panels = m.data
		return m, true
	}
	m.data = make([]byte, w.scheme.Bytes(rows, cols))
	m.panels = m.data
	if w.scheme.PreludeBytes() > 0 {
		m.panels = packed.PutPrelude(w.scheme, m.data, &levelsIQ4, 0)
	}
	return m, true
}

// Bytes is the memory of the matrix.
func (m *Matrix) Bytes() int { return len(m.data) }

// Bits is the size of a code.
func (m *Matrix) Bits() int {
	if m.way.layout != 0 {
		return m.way.layout.Bits()
	}
	return m.way.scheme.Bits
}

// PanelCount is the number of panels.
func (m *Matrix) PanelCount() int { return (m.rows + packed.Panel - 1) / packed.Panel }

// Pack fills panel i; row gives the stored bytes of a row. It reports false where the panels cannot hold the same weights.
// Different panels may be filled at the same time.
func (m *Matrix) Pack(i int, row func(r int) []byte, s *Scratch) bool {
	var all [packed.Panel][]byte
	n := min(packed.Panel, m.rows-i*packed.Panel)
	for r := range n {
		all[r] = row(i*packed.Panel + r)
	}
	size := m.way.scheme.PanelBytes
	if m.way.layout != 0 {
		size = m.way.layout.PanelBytes
	}
	bytes := size(m.cols)
	return m.way.pack(m.panels[i*bytes:(i+1)*bytes], all[:n], m.cols, s)
}

// IsPacked tells a matrix that Packed gives from one that Foreign gives.
func (m *Matrix) IsPacked() bool { return m.way.layout == 0 }

// Packed gives the matrix where it is a packed one.
func (m *Matrix) Packed() (packed.Matrix, error) {
	if !m.IsPacked() {
		return packed.Matrix{}, fmt.Errorf("%s is no scheme of packed matrices", m.Type)
	}
	return packed.NewMatrix(m.way.scheme, m.rows, m.cols, m.data)
}

// Foreign gives the matrix where it is no packed one.
func (m *Matrix) Foreign() (kernel.Foreign, error) {
	if m.IsPacked() {
		return kernel.Foreign{}, fmt.Errorf("%s is a scheme of packed matrices", m.Type)
	}
	return kernel.NewForeign(m.way.layout, m.rows, m.cols, m.data)
}
