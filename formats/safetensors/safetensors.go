// Package safetensors reads and writes the safetensors format, as its specification in the
// huggingface/safetensors repository gives it. Reading checks everything the header says before a
// byte of data is used.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/mapped"
	"qtool/formats/strictjson"
)

// maxHeader is the specification's bound on the header's JSON.
const maxHeader = 100_000_000

// maxDims and maxName are far beyond what any model has.
const (
	maxDims = 64
	maxName = 4096
)

// lengthBytes is the size of the length that a file begins with.
const lengthBytes = 8

const metadataKey = "__metadata__"

// Tensor describes one tensor of a file.
type Tensor struct {
	Name  string
	DType formats.DType
	Shape []int // row-major; empty for a scalar
	// Offset and Size of the data in bytes, from the start of the file.
	Offset, Size int64
}

// Rows is the product of all dimensions but the last, 1 for a scalar.
func (t Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		n *= d
	}
	return n
}

// Cols is the last dimension, along which elements lie side by side; 1 for a scalar.
func (t Tensor) Cols() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// Pair is an entry of a file's metadata.
type Pair struct{ Key, Value string }

// File is an open, mapped file.
type File struct {
	m       *mapped.File
	header  *header
	indices map[string]int
}

// header is what a file says before its data.
type header struct {
	metadata  []Pair
	tensors   []Tensor // by offset
	dataStart int64
}

// Open maps the file at path and checks its header: names, types, shapes, and that the data of all
// tensors cover the rest of the file exactly, without gap or overlap. Errors are
// formats.FileError: formats.ErrMalformed for a damaged file, formats.ErrUnsupported for an
// element type that is not known.
func Open(path string) (*File, error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{m: m}
	err = mapped.Guard(func() (err error) {
		f.header, err = parse(m.Bytes(), path)
		return err
	})
	if err != nil {
		_ = m.Close() // the reason to close it matters more
		return nil, err
	}
	f.indices = make(map[string]int, len(f.header.tensors))
	for i, t := range f.header.tensors {
		f.indices[t.Name] = i
	}
	return f, nil
}

// Path is the path that Open was given.
func (f *File) Path() string { return f.m.Path() }

// Metadata lists the file's own entries, in its order. The slice must not be changed.
func (f *File) Metadata() []Pair { return f.header.metadata }

// Meta gives one entry of the metadata.
func (f *File) Meta(key string) (string, bool) {
	for _, p := range f.header.metadata {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// Tensors lists the tensors in the order of their data. The slice must not be changed.
func (f *File) Tensors() []Tensor { return f.header.tensors }

// Tensor finds a tensor by its name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.indices[name]
	if !ok {
		return Tensor{}, false
	}
	return f.header.tensors[i], true
}

// Data gives the bytes of a tensor that f listed, in its map: valid until Close, read-only. Where
// the file may be cut short meanwhile, read them within mapped.Guard.
func (f *File) Data(t Tensor) []byte {
	return f.m.Bytes()[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
}

// Mapped gives the map, for advice on how it will be read.
func (f *File) Mapped() *mapped.File { return f.m }

// DataStart is the offset of the first byte of data.
func (f *File) DataStart() int64 { return f.header.dataStart }

// CheckSize reports, as an error, a file that has changed its size since Open.
func (f *File) CheckSize() error { return f.m.CheckSize() }

// Close unmaps the file.
func (f *File) Close() error { return f.m.Close() }

// parse reads the header of a file whose whole content is data. Nothing it returns refers to data.
func parse(data []byte, file string) (*header, error) {
	if err := sniff(data, file); err != nil {
		return nil, err
	}
	if len(data) < lengthBytes {
		return nil, formats.Malformed(file, "", "the file has %d bytes, the length of the header alone takes %d", len(data), lengthBytes).
			WithHint("download it again")
	}
	n := binary.LittleEndian.Uint64(data)
	switch {
	case n < 2:
		return nil, formats.Malformed(file, "", "the header has a length of %d bytes, expected a JSON object", n).At(0)
	case n > maxHeader:
		return nil, formats.Malformed(file, "", "the header has a length of %d bytes, the format allows %d", n, maxHeader).At(0).
			WithHint("is this a safetensors file?")
	case n > uint64(len(data)-lengthBytes):
		return nil, formats.Malformed(file, "", "the header has a length of %d bytes, the file ends after %d", n, len(data)-lengthBytes).At(0).
			WithHint("the file is truncated; download it again")
	}
	text := data[lengthBytes : lengthBytes+n]
	if text[0] != '{' {
		return nil, formats.Malformed(file, "", "the header starts with %q, expected %q", text[:1], "{").At(lengthBytes)
	}
	root, err := strictjson.Parse(text, strictjson.Options{File: file, Offset: lengthBytes, MaxDepth: 8})
	if err != nil {
		return nil, err
	}
	h := &header{dataStart: lengthBytes + int64(n)}
	size := int64(len(data)) - h.dataStart
	for _, m := range root.Members {
		if m.Key == metadataKey {
			h.metadata, err = metadata(m.Value, file)
		} else {
			var t Tensor
			t, err = tensor(m, size, file)
			t.Offset += h.dataStart
			h.tensors = append(h.tensors, t)
		}
		if err != nil {
			return nil, err
		}
	}
	return h, h.place(size, file)
}

// sniff says what a file is that is often found in the place of weights.
func sniff(data []byte, file string) error {
	start := strings.ToLower(strings.TrimLeft(string(data[:min(len(data), 512)]), " \t\r\n\ufeff"))
	refuse := func(what, hint string) error {
		return formats.Malformed(file, "", "not a safetensors file but %s", what).At(0).WithHint("%s", hint)
	}
	switch {
	case len(data) == 0:
		return formats.Malformed(file, "", "the file is empty").WithHint("download it again")
	case strings.HasPrefix(start, "version https://git-lfs"):
		return refuse("a Git LFS pointer", "fetch the real file with git lfs pull")
	case strings.HasPrefix(start, "<!doctype"), strings.HasPrefix(start, "<html"):
		return refuse("a web page", "the download went wrong; fetch the file itself")
	case bytes.HasPrefix(data, []byte("GGUF")):
		return refuse("a GGUF file", "name it .gguf")
	case bytes.HasPrefix(data, []byte("PK\x03\x04")):
		return refuse("a zip archive, as PyTorch checkpoints are", "convert it to safetensors first")
	}
	return nil
}

// metadata reads the map of strings that the file says of itself.
func metadata(v strictjson.Value, file string) ([]Pair, error) {
	if v.Kind != strictjson.Object {
		return nil, formats.Malformed(file, metadataKey, "expected an object of strings, found %s", v.Kind).At(int64(v.Offset) + lengthBytes)
	}
	pairs := make([]Pair, len(v.Members))
	for i, m := range v.Members {
		s, err := m.Value.Str()
		if err != nil {
			return nil, formats.Malformed(file, metadataKey, "%q: %v", m.Key, err).At(int64(m.Value.Offset) + lengthBytes)
		}
		pairs[i] = Pair{m.Key, s}
	}
	return pairs, nil
}

// tensor reads one entry. Its Offset is still relative to the data, of which there are size bytes.
func tensor(m strictjson.Member, size int64, file string) (Tensor, error) {
	t := Tensor{Name: m.Key}
	fail := func(v strictjson.Value, format string, args ...any) *formats.FileError {
		return formats.Malformed(file, m.Key, format, args...).At(int64(v.Offset) + lengthBytes)
	}
	if err := checkName(m.Key); err != nil {
		return t, fail(m.Value, "%v", err)
	}
	if m.Value.Kind != strictjson.Object {
		return t, fail(m.Value, "expected an object, found %s", m.Value.Kind)
	}
	for _, e := range m.Value.Members {
		switch e.Key {
		case "dtype", "shape", "data_offsets":
		default:
			return t, fail(e.Value, "unknown key %q, expected dtype, shape and data_offsets", e.Key)
		}
	}
	dtype, _ := m.Value.Get("dtype")
	name, err := dtype.Str()
	if err != nil {
		return t, fail(m.Value, "dtype: %v", err)
	}
	t.DType = formats.DType(name)
	width, ok := t.DType.Bits()
	if !ok {
		return t, formats.Unsupported(file, m.Key, "element type %q is not known", name).At(int64(dtype.Offset) + lengthBytes)
	}
	shape, _ := m.Value.Get("shape")
	if t.Shape, err = integers(shape, maxDims); err != nil {
		return t, fail(m.Value, "shape: %v", err)
	}
	n, err := formats.Elements(t.Shape)
	if err != nil {
		return t, fail(shape, "%v", err)
	}
	offsets, _ := m.Value.Get("data_offsets")
	at, err := integers(offsets, 2)
	switch {
	case err != nil:
		return t, fail(m.Value, "data_offsets: %v", err)
	case len(at) != 2:
		return t, fail(offsets, "data_offsets has %d numbers, expected 2", len(at))
	case at[0] < 0 || at[1] < at[0]:
		return t, fail(offsets, "data_offsets %v: expected a begin and an end not before it", at)
	case int64(at[1]) > size:
		return t, fail(offsets, "data_offsets %v end past the end of the data (%d bytes)", at, size).
			WithHint("the file is truncated; download it again")
	}
	bits := n * width
	if bits%8 != 0 {
		return t, fail(shape, "%d elements of %s are no whole number of bytes", n, t.DType)
	}
	t.Offset, t.Size = int64(at[0]), int64(at[1]-at[0])
	if t.Size != int64(bits/8) {
		return t, fail(offsets, "%s of shape %v takes %d bytes, data_offsets %v hold %d", t.DType, t.Shape, bits/8, at, t.Size)
	}
	return t, nil
}

// checkName refuses names that no program can have meant.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a tensor without a name")
	case len(name) > maxName:
		return fmt.Errorf("a name of %d bytes, at most %d are accepted", len(name), maxName)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("a name with a NUL character")
	}
	return nil
}

// integers reads an array of at most limit integers.
func integers(v strictjson.Value, limit int) ([]int, error) {
	if v.Kind != strictjson.Array {
		return nil, fmt.Errorf("expected an array of integers, found %s", v.Kind)
	}
	if len(v.Elements) > limit {
		return nil, fmt.Errorf("%d numbers, at most %d are accepted", len(v.Elements), limit)
	}
	list := make([]int, len(v.Elements))
	for i, e := range v.Elements {
		n, err := e.Int()
		if err != nil {
			return nil, err
		}
		list[i] = int(n)
	}
	return list, nil
}

// place sorts the tensors by their data and checks that these lie end to end.
func (h *header) place(size int64, file string) error {
	slices.SortStableFunc(h.tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	end := h.dataStart
	for i, t := range h.tensors {
		switch {
		case t.Offset < end:
			return formats.Malformed(file, t.Name, "data from byte %d on overlaps that of %q, which ends at byte %d", t.Offset, h.tensors[i-1].Name, end)
		case t.Offset > end:
			return formats.Malformed(file, t.Name, "%d bytes before its data, from byte %d on, belong to no tensor", t.Offset-end, end)
		}
		end += t.Size
	}
	if have := h.dataStart + size; end != have {
		return formats.Malformed(file, "", "the data of all tensors end at byte %d, the file has %d bytes", end, have)
	}
	return nil
}
