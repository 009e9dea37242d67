package checkpoint

import (
	"maps"

	"qtool/formats"
	"qtool/formats/arch"
)

// ReadFunc gives the rows first … first+n-1 of a tensor that is computed, as Tensor.ReadRows does. Several goroutines may call it, each with a Reader
// of its own.
type ReadFunc func(dst []float32, first, n int, r *Reader) error

// Derive returns a tensor that is computed from t when it is read. Nothing of it is stored; d is the type that it would be kept in.
func (t *Tensor) Derive(spec arch.TensorSpec, d formats.DType, read ReadFunc) *Tensor {
	return &Tensor{TensorSpec: spec, storage: plain(d), file: t.file, origin: t.Origin(), read: read}
}

// Origin is the stored tensor that this one is computed from: itself where it is stored.
func (t *Tensor) Origin() *Tensor {
	if t.origin != nil {
		return t.origin
	}
	return t
}

// View returns a model of the same files with another configuration, other tensors, and other contents of the files named. m must stay open while the
// view is in use; closing the view does nothing.
func (m *Model) View(config *arch.Config, tensors []*Tensor, files map[string][]byte, warnings ...string) *Model {
	v := *m
	v.view, v.config, v.tensors = true, config, tensors
	v.warnings = append(append([]string(nil), m.warnings...), warnings...)
	v.files = maps.Clone(files)
	v.indices = make(map[string]int, len(tensors))
	for i, t := range tensors {
		v.indices[t.Name] = i
	}
	return &v
}
