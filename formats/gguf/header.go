package gguf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/ggml"
)

const (
	magic = "GGUF"
	// DefaultAlignment is the alignment of tensor data where the metadata names none.
	DefaultAlignment = 32
	maxAlignment     = 1 << 20

	keyAlignment = "general.alignment"
	// maxHeader bounds the bytes before the tensor data, maxItems the number of keys and of
	// tensors; the largest known models stay a factor of ten below both.
	maxHeader = 512 << 20
	maxItems  = 1 << 20
	maxDims   = 4 // ggml's limit

	minKeyBytes    = 8 + 1 + 4 + 1           // length, one letter, type, smallest value
	minTensorBytes = 8 + 1 + 4 + 1*8 + 4 + 8 // length, one letter, dims, one dim, type, offset
)

// Tensor describes one tensor of a file.
type Tensor struct {
	Name string
	// Shape is row-major, outermost dimension first: the reverse of the order in which GGUF
	// files list dimensions.
	Shape []int
	Type  ggml.Type
	// Offset of the data in bytes from the start of the file (of shard Shard) that holds it.
	Offset int64
	// Size of the data in bytes, padding not counted.
	Size int64
	// Shard is the index of the file that holds the data, 0 where the model is one file.
	Shard int
}

// Rows is the product of all dimensions but the last.
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

// header is what one file says before its tensor data.
type header struct {
	version   uint32
	alignment int64
	metadata  *Metadata
	tensors   []Tensor // in the order of the file
}

// parse reads and checks the header of a file whose whole content is data. Nothing it returns
// refers to data.
func parse(data []byte, file string) (*header, error) {
	h := &header{metadata: &Metadata{file: file}}
	if err := checkMagic(data, file); err != nil {
		return nil, err
	}
	c := &cursor{data: data[:min(len(data), maxHeader)], at: len(magic), file: file}
	var err error
	if h.version, err = c.version(); err != nil {
		return nil, err
	}
	tensorsAt := c.at
	tensors, err := c.u64("the number of tensors")
	if err != nil {
		return nil, err
	}
	keys, err := c.count(minKeyBytes, "metadata keys")
	if err != nil {
		return nil, err
	}
	if tensors > uint64(c.left()/minTensorBytes) {
		return nil, c.fail(tensorsAt, "%d tensors cannot fit in the %d bytes that are left", tensors, c.left())
	}
	if keys > maxItems || tensors > maxItems {
		return nil, c.fail(tensorsAt, "%d tensors and %d keys: more than the %d that are accepted", tensors, keys, maxItems)
	}
	for i := range keys {
		if err := c.pair(h.metadata, i); err != nil {
			return nil, err
		}
	}
	if h.alignment, err = alignment(h.metadata); err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for range int(tensors) {
		c.field = ""
		at := c.at
		t, err := c.tensor(h.alignment)
		if err != nil {
			return nil, err
		}
		if seen[t.Name] {
			return nil, c.fail(at, "the tensor is listed twice")
		}
		seen[t.Name] = true
		h.tensors = append(h.tensors, t)
	}
	return h, place(h, int64(c.at), int64(len(data)), file)
}

// checkMagic refuses what is no GGUF file and says what it is where that can be seen.
func checkMagic(data []byte, file string) error {
	if bytes.HasPrefix(data, []byte(magic)) {
		return nil
	}
	start := data[:min(len(data), 512)]
	refuse := func(what, hint string) error {
		return formats.Malformed(file, "", "not a GGUF file but %s", what).At(0).WithHint("%s", hint)
	}
	text := strings.ToLower(strings.TrimLeft(string(start), " \t\r\n\ufeff"))
	switch {
	case len(data) == 0:
		return formats.Malformed(file, "", "the file is empty").WithHint("download it again")
	case strings.HasPrefix(text, "version https://git-lfs"):
		return refuse("a Git LFS pointer", "fetch the real file with git lfs pull")
	case strings.HasPrefix(text, "<!doctype") || strings.HasPrefix(text, "<html"):
		return refuse("a web page", "the download went wrong; fetch the file itself")
	case slices.Contains([]string{"lmgg", "fmgg", "tjgg"}, string(start[:min(4, len(start))])):
		return refuse("a model in a GGML format older than GGUF", "convert the model again from its source")
	case bytes.HasPrefix(start, []byte("PK\x03\x04")):
		return refuse("a zip archive, as PyTorch checkpoints are", "convert it to safetensors first")
	case len(start) > 9 && start[8] == '{' && binary.LittleEndian.Uint64(start) < 100<<20:
		return refuse("a safetensors file", "name it .safetensors")
	}
	return formats.Malformed(file, "", "not a GGUF file: it starts with %q, expected %q", start[:min(4, len(start))], magic).At(0)
}

// version reads the version: 2 and 3 are read alike.
func (c *cursor) version() (uint32, error) {
	at := c.at
	v, err := c.u32("the version")
	if err != nil {
		return 0, err
	}
	unsupported := func(format string, args ...any) *formats.FileError {
		return formats.Unsupported(c.file, "", format, args...).At(int64(at))
	}
	swapped := bits.ReverseBytes32(v)
	switch {
	case v == 2 || v == 3:
		return v, nil
	case v == 0:
		return 0, c.fail(at, "GGUF version 0 does not exist (2 and 3 are read)")
	case v&0xffff == 0 && swapped <= 0xffff:
		return 0, unsupported("a big-endian GGUF file (version %d); only little-endian files are read", swapped).
			WithHint("convert it with the gguf package's gguf-convert-endian")
	case v == 1:
		return 0, unsupported("GGUF version 1 (2 and 3 are read)").WithHint("convert the model again from its source")
	}
	return 0, unsupported("GGUF version %d (2 and 3 are read)", v)
}

// pair reads key number i and its value.
func (c *cursor) pair(m *Metadata, i int) error {
	c.field = ""
	at := c.at
	key, err := c.name("the name of a metadata key", maxKey)
	if err != nil {
		return err
	}
	c.field = key
	if m.Has(key) {
		return c.fail(at, "key %d is a second one of this name", i)
	}
	t, err := c.valueType("value type")
	if err != nil {
		return err
	}
	v, err := c.value(t)
	if err != nil {
		return err
	}
	v.data = bytes.Clone(v.data) // the file may be closed before the metadata is
	m.Set(key, v)
	return nil
}

// alignment gives the alignment that the metadata asks for, a power of two from 8 to 1 MiB.
func alignment(m *Metadata) (int64, error) {
	v, ok := m.Get(keyAlignment)
	if !ok {
		return DefaultAlignment, nil
	}
	n, _ := v.Uint()
	if v.Type != TypeU32 || n < 8 || n > maxAlignment || n&(n-1) != 0 {
		return 0, m.mismatch(keyAlignment, "a u32 power of two from 8 to 1048576", v)
	}
	return int64(n), nil
}

// tensor reads the description of one tensor. Its Offset is still relative to the data.
func (c *cursor) tensor(align int64) (Tensor, error) {
	var t Tensor
	var err error
	if t.Name, err = c.name("the name of a tensor", maxName); err != nil {
		return t, err
	}
	c.field = t.Name
	at := c.at
	dims, err := c.u32("the number of dimensions")
	if err != nil {
		return t, err
	}
	if dims < 1 || dims > maxDims {
		return t, c.fail(at, "%d dimensions (1 to %d are allowed)", dims, maxDims)
	}
	t.Shape = make([]int, dims)
	for i := range t.Shape {
		d, err := c.u64("a dimension")
		if err != nil {
			return t, err
		}
		if d > formats.MaxElements {
			return t, c.fail(c.at-8, "dimension %d has %d elements, more than the %d that are accepted", i, d, int64(formats.MaxElements))
		}
		t.Shape[len(t.Shape)-1-i] = int(d)
	}
	number, err := c.u32("the element type")
	if err != nil {
		return t, err
	}
	t.Type = ggml.Type(number)
	if t.Size, err = dataSize(t, c.file); err != nil {
		return t, err
	}
	at = c.at
	offset, err := c.u64("the offset of the data")
	if err != nil {
		return t, err
	}
	if offset > 1<<62 || offset%uint64(align) != 0 {
		return t, c.fail(at, "data offset %d is not a multiple of the alignment %d", offset, align)
	}
	t.Offset = int64(offset)
	return t, nil
}

// dataSize gives the bytes of a tensor's data from its type and shape.
func dataSize(t Tensor, file string) (int64, error) {
	elements, err := formats.Elements(t.Shape)
	if err != nil {
		return 0, formats.Malformed(file, t.Name, "%v", err)
	}
	row, err := t.Type.RowBytes(t.Cols())
	if err != nil {
		return 0, named(err, file, t.Name)
	}
	if elements == 0 {
		return 0, nil
	}
	return int64(row) * int64(elements/t.Cols()), nil
}

// named adds file and tensor to an error of ggml.
func named(err error, file, tensor string) error {
	var e *formats.FileError
	if errors.As(err, &e) {
		e.File, e.Field = file, tensor
	}
	return err
}

// place turns the offsets of tensors, relative to the data that follows the header of headEnd
// bytes, into offsets in the file, and checks that all lie in the file, apart from each other.
func place(h *header, headEnd, fileSize int64, file string) error {
	if len(h.tensors) == 0 {
		return nil
	}
	start := alignUp(headEnd, h.alignment)
	order := make([]int, len(h.tensors))
	for i := range h.tensors {
		h.tensors[i].Offset += start
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		ta, tb := h.tensors[a], h.tensors[b]
		return cmp.Or(cmp.Compare(ta.Offset, tb.Offset), cmp.Compare(ta.Size, tb.Size))
	})
	var end int64
	last := -1
	for _, i := range order {
		t := h.tensors[i]
		switch {
		case t.Offset > fileSize || t.Size > fileSize-t.Offset:
			return formats.Malformed(file, t.Name, "data of %d bytes at byte %d ends past the end of the file (%d bytes)", t.Size, t.Offset, fileSize).
				WithHint("the file is truncated or damaged")
		case last >= 0 && t.Offset < end:
			return formats.Malformed(file, t.Name, "data at byte %d overlaps that of %q, which ends at byte %d", t.Offset, h.tensors[last].Name, end)
		}
		end, last = t.Offset+t.Size, i
	}
	// Most programs pad the data of the last tensor too, some do not; an end amid the padding
	// can only be a file cut short.
	if padded := alignUp(end, h.alignment); fileSize > end && fileSize < padded {
		return formats.Malformed(file, h.tensors[last].Name, "the file ends at byte %d, within the padding that ends at byte %d", fileSize, padded).
			WithHint("the file is truncated")
	}
	return nil
}

// alignUp rounds n up to a multiple of align, a power of two.
func alignUp(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }
