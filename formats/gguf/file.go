package gguf

import (
	"errors"
	"fmt"

	"qtool/formats"
	"qtool/formats/mapped"
)

// File is an open GGUF model: one file, or all shards of one.
type File struct {
	path      string
	version   uint32
	alignment int64
	metadata  *Metadata
	tensors   []Tensor
	index     map[string]int // tensor name to place in tensors
	shards    []*mapped.File
}

// Open maps the model at path and checks all that its header says: counts, names, types,
// shapes, and that the data of all tensors lie in the file without overlapping. Where path is
// one shard of a split model (NAME-00001-of-00003.gguf), the others are opened from beside it.
//
// Errors are formats.FileError: formats.ErrMalformed for a damaged file or a missing shard,
// formats.ErrUnsupported for other versions, big-endian files and unknown element types. Types
// that are known but cannot be decoded are accepted here and refused by ggml.DequantizeRows.
func Open(path string) (*File, error) {
	m, h, err := openShard(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, version: h.version, alignment: h.alignment, shards: []*mapped.File{m}}
	s, err := splitOf(h.metadata, path)
	if err == nil && s.count > 1 {
		h, err = f.openSplit(s, h)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.metadata, f.tensors = h.metadata, h.tensors
	f.index = make(map[string]int, len(f.tensors))
	for i, t := range f.tensors {
		f.index[t.Name] = i
	}
	return f, nil
}

// openShard maps one file and reads its header.
func openShard(path string) (*mapped.File, *header, error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, nil, err
	}
	var h *header
	err = mapped.Guard(func() (err error) {
		h, err = parse(m.Bytes(), path)
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, h, nil
}

// Path is the path that Open was given.
func (f *File) Path() string { return f.path }

// Paths gives the paths of all shards in order; of a model in one file that file's.
func (f *File) Paths() []string {
	out := make([]string, len(f.shards))
	for i, m := range f.shards {
		out[i] = m.Path()
	}
	return out
}

// Version is the version of the format, 2 or 3, of the first shard.
func (f *File) Version() int { return int(f.version) }

// Alignment is the alignment of tensor data in the first shard.
func (f *File) Alignment() int { return int(f.alignment) }

// Metadata gives the keys of the model. Of a split model they are those of the first shard
// without the split.* keys, which describe the files and not the model. The caller must not
// change it, but may change a Clone.
func (f *File) Metadata() *Metadata { return f.metadata }

// Tensors lists the tensors of all shards in the order of the files. The slice must not be
// changed.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by its name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Data gives the bytes of a tensor that f listed, in the map of its file: valid until Close,
// read-only. A file that is cut short while it is mapped faults on access, so read them within
// mapped.Guard.
func (f *File) Data(t Tensor) []byte {
	return f.shards[t.Shard].Bytes()[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
}

// Mapped gives the map that holds a tensor that f listed, for advice on how it will be read.
func (f *File) Mapped(t Tensor) *mapped.File { return f.shards[t.Shard] }

// CheckSize reports, as an error, a file that has been cut short since Open.
func (f *File) CheckSize() error {
	var errs []error
	for _, m := range f.shards {
		errs = append(errs, m.CheckSize())
	}
	return errors.Join(errs...)
}

// Close unmaps the model.
func (f *File) Close() error {
	var errs []error
	for _, m := range f.shards {
		if m != nil { // a shard that could not be opened
			errs = append(errs, m.Close())
		}
	}
	f.shards = nil
	return errors.Join(errs...)
}

// DequantizeError adds the file and the tensor to an error of ggml.DequantizeRows or
// ggml.Quantize.
func (f *File) DequantizeError(t Tensor, err error) error {
	var e *formats.FileError
	if errors.As(err, &e) && e.File == "" {
		c := *e
		c.File, c.Field = f.shards[t.Shard].Path(), t.Name
		return &c
	}
	return fmt.Errorf("%s: tensor %q: %w", f.path, t.Name, err)
}
