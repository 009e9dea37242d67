// Package checkpoint shows a model in any container (Hugging Face directory, safetensors file, GGUF,
// packed file) the same way: a configuration, tensors by Hugging Face's names and in its row order,
// and the files that belong to it.
package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/gguf"
	"qtool/formats/hfdir"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/formats/strictjson"
	"qtool/formats/vocab"
)

// Container is the kind of file or folder that a model is stored in.
type Container string

// Containers, as reports name them.
const (
	HuggingFace Container = "safetensors"
	GGUF        Container = "gguf"
	Packed      Container = "qpk"
)

// GGUFMetadata is the name of the file in which a model that was once a GGUF file carries that
// file's metadata, with the type of every value.
const GGUFMetadata = "gguf_metadata.json"

// Annotations is the name of the file in which a model outside of safetensors carries what the metadata of its
// safetensors files said: a JSON object of strings.
const Annotations = "safetensors_metadata.json"

// Model is an open model. Tensors refer to its maps: they are valid until Close.
type Model struct {
	path      string
	container Container
	config    *arch.Config
	tensors   []*Tensor
	indices   map[string]int
	dropped   []string
	warnings  []string
	source    source
	// view is set for a View, and files has what stands in for files of the source.
	view  bool
	files map[string][]byte
}

// source is what a container gives besides tensors.
type source interface {
	// readFile gives the content of a file of the model; one that is not there matches
	// fs.ErrNotExist.
	readFile(name string) ([]byte, error)
	// fileNames lists the files of the model.
	fileNames() ([]string, error)
	// vocabulary describes the tokenizer.
	vocabulary() (*vocab.Definition, error)
	// paths lists the files that hold the weights.
	paths() []string
	// checkSize reports a file that has changed its size since it was opened.
	checkSize() error
	close() error
}

// Open opens the model at path: a folder, or a file of any container. Every tensor that the
// configuration asks for must be there with its shape, and no other unless it is known to carry
// nothing. Errors match formats.ErrMalformed or formats.ErrUnsupported where the model is at fault.
func Open(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	m := &Model{path: path, indices: make(map[string]int)}
	switch {
	case info.IsDir():
		err = m.openDir(path)
	default:
		err = m.openFile(path)
	}
	if err != nil {
		if m.source != nil {
			err = errors.Join(err, m.source.close())
		}
		return nil, err
	}
	return m, nil
}

func (m *Model) openFile(path string) error {
	magic, err := start(path)
	if err != nil {
		return err
	}
	if magic == "GGUF" || strings.EqualFold(filepath.Ext(path), ".gguf") {
		return m.openGGUF(path)
	}
	if strings.HasSuffix(path, ".index.json") {
		return m.openDir(path)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	isPacked := packed.IsPacked(f)
	if err := f.Close(); err != nil {
		return err
	}
	if isPacked || strings.EqualFold(filepath.Ext(path), ".qpk") {
		return m.openPacked(path)
	}
	return m.openDir(path)
}

// start gives the first four bytes of a file, or as many as it has.
func start(path string) (string, error) {
	f, err := mapped.Open(path)
	if err != nil {
		return "", err
	}
	var s string
	err = mapped.Guard(func() error {
		s = string(f.Bytes()[:min(4, len(f.Bytes()))])
		return nil
	})
	return s, errors.Join(err, f.Close())
}

// Path is the path that Open was given.
func (m *Model) Path() string { return m.path }

// Container is the kind of container.
func (m *Model) Container() Container { return m.container }

// Config describes the model. It must not be changed.
func (m *Model) Config() *arch.Config { return m.config }

// Tensors lists the tensors in the order of a forward pass. The slice must not be changed.
func (m *Model) Tensors() []*Tensor { return m.tensors }

// Tensor finds a tensor by its Hugging Face name.
func (m *Model) Tensor(name string) (*Tensor, bool) {
	i, ok := m.indices[name]
	if !ok {
		return nil, false
	}
	return m.tensors[i], true
}

// Dropped names stored tensors that carry nothing and are left aside.
func (m *Model) Dropped() []string { return m.dropped }

// Warnings says what was met and left aside, or resolved one way of two.
func (m *Model) Warnings() []string { return append(m.config.Warnings, m.warnings...) }

// Files lists the names of the files that belong to the model beside its weights.
func (m *Model) Files() ([]string, error) { return m.source.fileNames() }

// ReadFile reads one of Files; a name that is not there matches fs.ErrNotExist.
func (m *Model) ReadFile(name string) ([]byte, error) {
	if data, ok := m.files[name]; ok {
		return data, nil
	}
	var data []byte
	err := mapped.Guard(func() (err error) {
		data, err = m.source.readFile(name)
		return err
	})
	return data, err
}

// Vocabulary describes the tokenizer that came with the model.
func (m *Model) Vocabulary() (*vocab.Definition, error) { return m.source.vocabulary() }

// Metadata gives the GGUF metadata of a GGUF file, or of a model that was once one; nil where there
// is none.
func (m *Model) Metadata() (*gguf.Metadata, error) {
	if g, ok := m.source.(*ggufSource); ok {
		return g.f.Metadata(), nil
	}
	data, err := m.ReadFile(GGUFMetadata)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return gguf.ParseTyped(data, m.path+": "+GGUFMetadata)
}

// Annotations gives what the metadata of the model's safetensors files say of it, sorted by key: not the
// format, which every file has, nor which tensors shared their storage when they were saved.
func (m *Model) Annotations() ([]safetensors.Pair, error) {
	var pairs []safetensors.Pair
	if d, ok := m.source.(*dirSource); ok {
		for _, p := range d.dir.Metadata() {
			_, key := d.dir.Tensor(p.Key)
			_, value := d.dir.Tensor(p.Value)
			if p.Key != "format" && !key && !value {
				pairs = append(pairs, p)
			}
		}
	} else {
		data, err := m.ReadFile(Annotations)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		root, err := strictjson.Parse(data, strictjson.Options{File: m.path + ": " + Annotations})
		if err != nil {
			return nil, err
		}
		for _, e := range root.Members {
			s, err := e.Value.Str()
			if err != nil {
				return nil, formats.Malformed(m.path+": "+Annotations, e.Key, "%v", err)
			}
			pairs = append(pairs, safetensors.Pair{Key: e.Key, Value: s})
		}
	}
	slices.SortFunc(pairs, func(a, b safetensors.Pair) int { return strings.Compare(a.Key, b.Key) })
	return pairs, nil
}

// Paths lists the files that hold the weights.
func (m *Model) Paths() []string { return m.source.paths() }

// Verify compares all data with their digests, where the container has any: a packed file. progress, if set, is called after each part. The error
// names the first tensor that differs.
func (m *Model) Verify(progress func(done, total int64) error) error {
	if p, ok := m.source.(*packedSource); ok {
		return p.f.Verify(progress)
	}
	return nil
}

// CheckSize reports a weight file that has changed its size since Open.
func (m *Model) CheckSize() error { return m.source.checkSize() }

// Close unmaps the model.
func (m *Model) Close() error {
	if m.view {
		return nil
	}
	return m.source.close()
}

// Size of all tensors in bytes, and their storage in bits by the number of weights.
func (m *Model) Size() (bytes int64, bitsPerWeight float64) {
	var weights int64
	for _, t := range m.tensors {
		bytes += t.Bytes()
		weights += int64(t.Elements())
	}
	if weights == 0 {
		return bytes, 0
	}
	return bytes, 8 * float64(bytes) / float64(weights)
}

// place puts the tensors that were found into the order of a forward pass. found has them by their
// name in the container, and loses those that were used; name gives that name of a specification.
func (m *Model) place(found map[string]*Tensor, name func(arch.TensorSpec) string, droppable func(string) bool) error {
	c := m.config
	if err := m.tie(found, name); err != nil {
		return err
	}
	for _, spec := range c.Tensors() {
		key := name(spec)
		t, ok := found[key]
		if !ok {
			if spec.Optional {
				continue
			}
			return formats.Malformed(m.path, key, "the model has no such tensor").
				WithHint("a %s of this configuration needs it; is a shard missing?", c.Architecture)
		}
		delete(found, key)
		if spec.Role == arch.Head && c.TieEmbeddings {
			m.warnings = append(m.warnings, fmt.Sprintf("%s is stored although the configuration ties it to the embedding; it is not used", key))
			m.dropped = append(m.dropped, key)
			continue
		}
		if !sameShape(t.Shape, spec.Shape) {
			return formats.Malformed(m.path, key, "expected shape %v by the configuration, found %v", spec.Shape, t.Shape)
		}
		t.TensorSpec = spec
		m.indices[spec.Name] = len(m.tensors)
		m.tensors = append(m.tensors, t)
	}
	for key := range found {
		if !droppable(key) {
			return formats.Unsupported(m.path, key, "a %s has no such tensor", c.Architecture).
				WithHint("the model may be a variant that is not supported")
		}
		m.dropped = append(m.dropped, key)
	}
	return nil
}

// tie settles what the head is where configuration and tensors differ. Without a stored embedding
// the head is it, as in files that kept the other name of a shared tensor; a tied model whose stored
// head has other weights than its embedding is refused, since programs differ on which one they use.
func (m *Model) tie(found map[string]*Tensor, name func(arch.TensorSpec) string) error {
	var embedding, head arch.TensorSpec
	for _, s := range m.config.Tensors() {
		switch s.Role {
		case arch.Embedding:
			embedding = s
		case arch.Head:
			head = s
		}
	}
	e, hasEmbedding := found[name(embedding)]
	h, hasHead := found[name(head)]
	switch {
	case m.config.TieEmbeddings && !hasEmbedding && hasHead:
		m.warnings = append(m.warnings, fmt.Sprintf("%s is stored in place of %s, to which it is tied", name(head), name(embedding)))
		found[name(embedding)] = h
		delete(found, name(head))
	case m.config.TieEmbeddings && hasEmbedding && hasHead && !e.same(h):
		return formats.Malformed(m.path, name(head), "differs from %s, to which the configuration ties it", name(embedding)).
			WithHint("set tie_word_embeddings to false in config.json if the head is meant to be used")
	}
	return nil
}

func sameShape(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// openDir opens safetensors weights.
func (m *Model) openDir(path string) error {
	d, err := hfdir.Open(path)
	if err != nil {
		return err
	}
	s := &dirSource{dir: d}
	m.source, m.container = s, HuggingFace
	text, err := d.Config()
	if err != nil {
		return err
	}
	if m.config, err = arch.FromHF(text, filepath.Join(d.Path(), hfdir.ConfigName)); err != nil {
		return err
	}
	found := make(map[string]*Tensor)
	for _, t := range d.Tensors() {
		found[t.Name] = &Tensor{
			TensorSpec: arch.TensorSpec{Name: t.Name, Shape: t.Shape},
			storage:    plain(t.DType), data: d.Data(t), file: d.Mapped(t), offset: t.Offset,
		}
	}
	return m.place(found, func(s arch.TensorSpec) string { return s.Name }, arch.Droppable)
}

// dirSource is a Hugging Face directory.
type dirSource struct{ dir *hfdir.Dir }

func (s *dirSource) readFile(name string) ([]byte, error) { return s.dir.ReadFile(name) }

func (s *dirSource) fileNames() ([]string, error) {
	files, err := s.dir.SideFiles()
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	return names, err
}

func (s *dirSource) vocabulary() (*vocab.Definition, error) {
	return vocabulary(s.dir.ReadFile, s.dir.Path())
}

func (s *dirSource) paths() []string  { return s.dir.Paths() }
func (s *dirSource) checkSize() error { return s.dir.CheckSize() }
func (s *dirSource) close() error     { return s.dir.Close() }

// vocabulary reads a tokenizer from the files of a model. The metadata of a GGUF file it once was
// says most exactly how to tokenize, and is preferred.
func vocabulary(read func(name string) ([]byte, error), name string) (*vocab.Definition, error) {
	data, err := read(GGUFMetadata)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return vocab.FromFiles(read, name)
	case err != nil:
		return nil, err
	}
	m, err := gguf.ParseTyped(data, name+": "+GGUFMetadata)
	if err != nil {
		return nil, err
	}
	return vocab.FromGGUF(m)
}

// openPacked opens a packed file.
func (m *Model) openPacked(path string) error {
	p, err := packed.Open(path)
	if err != nil {
		return err
	}
	s := &packedSource{p}
	m.source, m.container = s, Packed
	text, err := s.readFile(hfdir.ConfigName)
	if err != nil {
		return formats.Malformed(path, hfdir.ConfigName, "the configuration is missing")
	}
	if m.config, err = arch.FromHF(text, path+": "+hfdir.ConfigName); err != nil {
		return err
	}
	found := make(map[string]*Tensor)
	for _, t := range p.Tensors() {
		out := &Tensor{TensorSpec: arch.TensorSpec{Name: t.Name, Shape: t.Shape}, data: p.Data(t), file: p.Mapped(), offset: p.Offset(t)}
		if t.Scheme == nil {
			out.storage = plain(t.DType)
		} else {
			matrix, err := packed.NewMatrix(*t.Scheme, t.Shape[0], t.Shape[1], out.data)
			if err != nil {
				return formats.Malformed(path, t.Name, "%v", err)
			}
			out.storage, out.matrix = storage{packed: true, name: t.Scheme.String()}, matrix
		}
		found[t.Name] = out
	}
	return m.place(found, func(s arch.TensorSpec) string { return s.Name }, arch.Droppable)
}

// packedSource is a packed file.
type packedSource struct{ f *packed.File }

func (s *packedSource) readFile(name string) ([]byte, error) {
	data, ok := s.f.File(name)
	if !ok {
		return nil, fmt.Errorf("%s: %s: %w", s.f.Path(), name, fs.ErrNotExist)
	}
	return append([]byte(nil), data...), nil
}

func (s *packedSource) fileNames() ([]string, error) { return s.f.Files(), nil }

func (s *packedSource) vocabulary() (*vocab.Definition, error) {
	return vocabulary(s.readFile, s.f.Path())
}

func (s *packedSource) paths() []string  { return []string{s.f.Path()} }
func (s *packedSource) checkSize() error { return s.f.CheckSize() }
func (s *packedSource) close() error     { return s.f.Close() }
