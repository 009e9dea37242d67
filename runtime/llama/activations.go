package llama

import (
	"fmt"
	"slices"
	"strings"

	"qtool/formats/packed"
)

// Activations is how the inputs of matrices with integer codes are rounded.
type Activations string

// Ways to round activations.
const (
	// ActivationsAuto rounds to 8 bits, and to 12 or 16, see kernel.Fine, where weights have 8, since there activations of 8
	// would lose as much as the weights do.
	ActivationsAuto Activations = "auto"
	ActivationsInt8 Activations = "int8"
	// ActivationsInt16 rounds to 16 bits, as two planes of 8.
	ActivationsInt16 Activations = "int16"
	// ActivationsF32 rounds nothing: weights are decoded to single precision for each product.
	ActivationsF32 Activations = "f32"
)

// ParseActivations checks the name of a way to round activations.
func ParseActivations(name string) (Activations, error) {
	all := []Activations{ActivationsAuto, ActivationsInt8, ActivationsInt16, ActivationsF32}
	if a := Activations(name); slices.Contains(all, a) {
		return a, nil
	}
	return "", fmt.Errorf("activations cannot be %q: expected one of %v", name, all)
}

// rounding is how the input of a matrix is rounded.
type rounding int

const (
	roundNone  rounding = iota
	roundInt8           // in blocks, each by its largest
	roundFixed          // to 8 bits in ranges that calibration chose
	roundInt16          // two planes of 8 bits
	roundFine           // see kernel.Fine
)

// rounding says how the input of a matrix is rounded.
func (e *Engine) rounding(w *linear) rounding {
	switch {
	case !w.integer():
		return roundNone
	case w.limit() > 0:
		return roundFixed
	case e.activations == ActivationsInt8:
		return roundInt8
	case e.activations == ActivationsInt16:
		return roundInt16
	case w.bits() == 8: // of a packed matrix: no layout of foreign ones has as many
		return roundFine
	}
	return roundInt8
}

// roundingName names it for reports.
func (e *Engine) roundingName(w *linear) string {
	switch e.rounding(w) {
	case roundInt8:
		return string(ActivationsInt8)
	case roundFixed:
		return "int8 in calibrated ranges"
	case roundInt16:
		return string(ActivationsInt16)
	case roundFine:
		return fmt.Sprintf("int%d", e.kernels.FineBits())
	}
	return string(ActivationsF32)
}

// Weights says how the matrices of one type are run.
type Weights struct {
	Type    string `json:"type"` // as they are stored: F16, Q4_K, w4g32
	Tensors int    `json:"tensors"`
	// Form is what products are made with: "as packed", "repacked, 4 bits", "rounded to f16", "decoded to f32" or "as stored".
	Form        string `json:"form"`
	Activations string `json:"activations"` // int8, int16, f32
	Bytes       int64  `json:"bytes"`       // as they are stored
	// RepackedBytes is the memory taken for them beside the file.
	RepackedBytes int64 `json:"repacked_bytes"`
}

// String is a line of a report.
func (w Weights) String() string {
	tensors := "tensors"
	if w.Tensors == 1 {
		tensors = "tensor"
	}
	return fmt.Sprintf("%d %s %s %s, activations in %s", w.Tensors, tensors, w.Type, w.Form, w.Activations)
}

// Roundings names all the ways that activations are rounded in: int8, or int12 and int8.
func Roundings(all []Weights) string {
	var names []string
	for _, w := range all {
		if !slices.Contains(names, w.Activations) {
			names = append(names, w.Activations)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// Weights says how matrices are run, those of a kind together, in the order of the model. The embedding is among them where it is
// the head too: else its rows are decoded one by one.
func (e *Engine) Weights() []Weights {
	var all []Weights
	for l := range e.linears() {
		w := Weights{Type: l.tensor.Storage(), Form: "decoded to f32", Activations: e.roundingName(l), Bytes: l.tensor.Bytes()}
		switch {
		case l.form != nil:
			w.Form = fmt.Sprintf("repacked, %d bits", l.bits())
			w.RepackedBytes = l.repackedBytes()
		case l.half:
			w.Form = "rounded to f16"
			w.RepackedBytes = l.repackedBytes()
		case l.matrix != nil:
			w.Form = "as packed"
		default:
			if _, ok := l.tensor.Float32s(0, 1); ok {
				w.Form = "as stored"
			}
		}
		i := slices.IndexFunc(all, func(o Weights) bool {
			return o.Type == w.Type && o.Form == w.Form && o.Activations == w.Activations
		})
		if i < 0 {
			all, i = append(all, Weights{Type: w.Type, Form: w.Form, Activations: w.Activations}), len(all)
		}
		all[i].Tensors++
		all[i].Bytes += w.Bytes
		all[i].RepackedBytes += w.RepackedBytes
	}
	return all
}

// integer reports whether a matrix is multiplied by the integer kernels.
func (l *linear) integer() bool { return l.matrix != nil || l.form != nil }

// bits is the size of the codes of a matrix that the integer kernels multiply.
func (l *linear) bits() int {
	if l.matrix != nil {
		return l.matrix.Scheme.Bits
	}
	return l.form.Bits()
}

// scheme is that of the panels, if the kernels' own loops multiply them.
func (l *linear) scheme() (packed.Scheme, bool) {
	switch {
	case l.matrix != nil:
		return l.matrix.Scheme, true
	case l.form != nil && l.form.Layout == 0:
		return l.form.Scheme, true
	}
	return packed.Scheme{}, false
}

// limit is the range of activations that a matrix was calibrated for, 0 for none.
func (l *linear) limit() float32 {
	if l.matrix == nil {
		return 0
	}
	return l.matrix.Range()
}
