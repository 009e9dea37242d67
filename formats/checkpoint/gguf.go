package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/vocab"
)

// FileKey begins the names of the metadata keys under which a GGUF file that was written by
// qtool carries files of the model that GGUF has no keys for.
const FileKey = "qtool.file."

// openGGUF opens a GGUF file.
func (m *Model) openGGUF(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	s := &ggufSource{f}
	m.source, m.container = s, GGUF
	if m.config, err = arch.FromGGUF(f.Metadata(), s, path); err != nil {
		return err
	}
	found := make(map[string]*Tensor)
	for _, t := range f.Tensors() {
		found[t.Name] = &Tensor{
			TensorSpec: arch.TensorSpec{Name: t.Name, Shape: t.Shape},
			storage:    block(t.Type), data: f.Data(t), file: f.Mapped(t), offset: t.Offset,
		}
	}
	if err := m.place(found, func(s arch.TensorSpec) string { return s.GGUF }, arch.GGUFDroppable); err != nil {
		return err
	}
	for _, t := range m.tensors {
		t.permute, t.shifted = t.Permute, t.NormPlusOne
	}
	return nil
}

// ggufSource is a GGUF file.
type ggufSource struct{ f *gguf.File }

// Has and Float32s let the configuration look at tensors that say more than the keys do.
func (s *ggufSource) Has(name string) bool {
	_, ok := s.f.Tensor(name)
	return ok
}

// Shape gives the shape of a tensor, nil where there is none.
func (s *ggufSource) Shape(name string) []int {
	t, _ := s.f.Tensor(name)
	return t.Shape
}

// Float32s decodes a tensor.
func (s *ggufSource) Float32s(name string) ([]float32, error) {
	t, ok := s.f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %q", s.f.Path(), name)
	}
	out := make([]float32, t.Rows()*t.Cols())
	if err := ggml.DequantizeRows(out, s.f.Data(t), t.Cols(), t.Type); err != nil {
		return nil, s.f.DequantizeError(t, err)
	}
	return out, nil
}

func (s *ggufSource) readFile(name string) ([]byte, error) {
	v, ok := s.f.Metadata().Get(FileKey + name)
	if text, isText := v.Str(); ok && isText {
		return []byte(text), nil
	}
	if list, isBytes := v.Ints(); ok && isBytes && v.Elem == gguf.TypeU8 { // what is no UTF-8
		data := make([]byte, len(list))
		for i, b := range list {
			data[i] = byte(b)
		}
		return data, nil
	}
	return nil, fmt.Errorf("%s: %s: %w", s.f.Path(), name, fs.ErrNotExist)
}

func (s *ggufSource) fileNames() ([]string, error) {
	var names []string
	for _, key := range s.f.Metadata().Keys() {
		if name, ok := strings.CutPrefix(key, FileKey); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// vocabulary prefers the tokenizer's own file where the model carries it: GGUF's keys cannot say
// everything.
func (s *ggufSource) vocabulary() (*vocab.Definition, error) {
	if s.f.Metadata().Has(FileKey + "tokenizer.json") {
		return vocab.FromFiles(s.readFile, s.f.Path())
	}
	d, err := vocab.FromGGUF(s.f.Metadata())
	var e *formats.FileError
	if errors.As(err, &e) && e.File == "" {
		e.File = s.f.Path()
	}
	return d, err
}

func (s *ggufSource) paths() []string  { return s.f.Paths() }
func (s *ggufSource) checkSize() error { return s.f.CheckSize() }
func (s *ggufSource) close() error     { return s.f.Close() }
