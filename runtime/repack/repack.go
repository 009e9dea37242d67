// Package repack lays matrices in ggml's block types out in the panels that the kernels multiply: the same weights, moved
// and not quantized again. Types that are a scheme of packed matrices become one, others a kernel.Foreign.
package repack

import (
	"fmt"

	"qtool/formats/ggml"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// Form is how a type is repacked.
type Form struct {
	Type   ggml.Type
	Scheme packed.Scheme // of the matrix, where Layout is 0
	Layout kernel.Layout
	// pack writes a panel from at most 8 rows as they are stored. It reports false where the layout cannot hold a weight.
	pack func(dst []byte, rows [][]byte, cols int, s *Scratch) bool
}

var forms = []Form{
	{Type: ggml.Q4_0, Scheme: packed.Scheme{Bits: 4, Group: 32}, pack: packQ4_0},
	{Type: ggml.IQ4_NL, Scheme: packed.Scheme{Bits: 4, Group: 32, Codebook: true}, pack: packQ4_0},
	{Type: ggml.IQ4_XS, Scheme: packed.Scheme{Bits: 4, Group: 32, Codebook: true, TwoLevel: true}, pack: packIQ4_XS},
	{Type: ggml.Q3_K, Scheme: packed.Scheme{Bits: 3, Group: 16, TwoLevel: true}, pack: packQ3_K},
	{Type: ggml.Q8_0, Scheme: packed.Scheme{Bits: 8, Group: 32}, pack: packQ8_0},
	{Type: ggml.Q4_1, Layout: kernel.Offset4, pack: packQ4_1},
	{Type: ggml.Q5_0, Layout: kernel.Offset5, pack: packQ5_0},
	{Type: ggml.Q5_1, Layout: kernel.Offset5, pack: packQ5_1},
	{Type: ggml.Q4_K, Layout: kernel.Super4, pack: packQ4_K},
	{Type: ggml.Q5_K, Layout: kernel.Super5, pack: packQ5_K},
	{Type: ggml.Q6_K, Layout: kernel.Super6, pack: packQ6_K},
}

// Of gives the form of a type for rows of cols weights; false where there is none.
func Of(t ggml.Type, cols int) (Form, bool) {
	for _, f := range forms {
		if f.Type == t {
			return f, cols > 0 && cols%t.BlockSize() == 0
		}
	}
	return Form{}, false
}

// IsPacked tells a form that is a scheme of packed matrices from one that is a layout of foreign ones.
func (f Form) IsPacked() bool { return f.Layout == 0 }

// Bits is the size of a code.
func (f Form) Bits() int {
	if f.IsPacked() {
		return f.Scheme.Bits
	}
	return f.Layout.Bits()
}

// PanelBytes is the storage of a panel of rows of cols weights.
func (f Form) PanelBytes(cols int) int {
	if f.IsPacked() {
		return f.Scheme.PanelBytes(cols)
	}
	return f.Layout.PanelBytes(cols)
}

// Bytes is the storage of a matrix.
func (f Form) Bytes(rows, cols int) int {
	if f.IsPacked() {
		return f.Scheme.Bytes(rows, cols)
	}
	return (rows + packed.Panel - 1) / packed.Panel * f.Layout.PanelBytes(cols)
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

// Matrix is a matrix that is being repacked. Exactly one of Packed and Foreign is for the kernels: see Form.IsPacked.
type Matrix struct {
	Form       Form
	Rows, Cols int

	data   []byte
	panels []byte // of data
}

// New begins a matrix in data, which has Form.Bytes(rows, cols) bytes.
func New(f Form, rows, cols int, data []byte) (*Matrix, error) {
	if want := f.Bytes(rows, cols); rows <= 0 || cols <= 0 || cols%f.Type.BlockSize() != 0 || len(data) != want {
		return nil, fmt.Errorf("repack %d × %d weights of %s: they take %d bytes, found %d", rows, cols, f.Type, want, len(data))
	}
	m := &Matrix{Form: f, Rows: rows, Cols: cols, data: data, panels: data}
	if f.IsPacked() && f.Scheme.PreludeBytes() > 0 {
		m.panels = packed.PutPrelude(f.Scheme, m.data, &levelsIQ4, 0)
	}
	return m, nil
}

// PanelCount is the number of panels.
func (m *Matrix) PanelCount() int { return (m.Rows + packed.Panel - 1) / packed.Panel }

// Pack fills panel i; row gives the stored bytes of a row. It reports false where the panels cannot hold the same weights.
// Different panels may be filled at the same time.
func (m *Matrix) Pack(i int, row func(r int) []byte, s *Scratch) bool {
	var all [packed.Panel][]byte
	n := min(packed.Panel, m.Rows-i*packed.Panel)
	for r := range n {
		all[r] = row(i*packed.Panel + r)
	}
	size := m.Form.PanelBytes(m.Cols)
	return m.Form.pack(m.panels[i*size:(i+1)*size], all[:n], m.Cols, s)
}

// Packed gives the matrix where it is a packed one.
func (m *Matrix) Packed() (packed.Matrix, error) {
	if !m.Form.IsPacked() {
		return packed.Matrix{}, fmt.Errorf("%s is no scheme of packed matrices", m.Form.Type)
	}
	return packed.NewMatrix(m.Form.Scheme, m.Rows, m.Cols, m.data)
}

// Foreign gives the matrix where it is no packed one.
func (m *Matrix) Foreign() (kernel.Foreign, error) {
	if m.Form.IsPacked() {
		return kernel.Foreign{}, fmt.Errorf("%s is a scheme of packed matrices", m.Form.Type)
	}
	return kernel.NewForeign(m.Form.Layout, m.Rows, m.Cols, m.data)
}
