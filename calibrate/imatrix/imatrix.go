// Package imatrix reads llama.cpp's importance matrices, of the binary form that its imatrix tool wrote until 2025 and that ik_llama.cpp writes, and of the GGUF
// form since: for each matrix the mean square of every channel of its input.
package imatrix

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/gguf"
	"qtool/formats/half"
	"qtool/formats/mapped"
	"qtool/formats/packed"
)

// Form of a file.
type Form string

// Forms.
const (
	Binary Form = "binary"
	GGUF   Form = "GGUF"
)

// Keys and endings of names of the GGUF form.
const (
	keyType      = "general.type"
	keyDatasets  = "imatrix.datasets"
	keyChunks    = "imatrix.chunk_count"
	keyChunkSize = "imatrix.chunk_size"

	endSums   = ".in_sum2"
	endCounts = ".counts"
)

// Bounds far beyond what any file has.
const (
	maxEntries = 1 << 20
	maxName    = 1 << 10
)

// Entry is what is known of the input of one matrix.
type Entry struct {
	Name string // as the file has it
	// Importance is the mean square by channel; nil where the matrix saw no data.
	Importance []float32
}

// File is what a file says.
type File struct {
	Path     string
	Form     Form
	Datasets []string
	Chunks   int // that were run; 0 where the file does not say
	Context  int // tokens of a chunk; 0 where the file does not say
	Entries  []Entry
	Digest   packed.Digest // of the whole file
}

// IsBinary reports whether a file that begins so can be one of the binary form: no text can.
func IsBinary(start []byte) bool {
	if len(start) < 12 {
		return false
	}
	entries, name := binary.LittleEndian.Uint32(start), binary.LittleEndian.Uint32(start[4:])
	return entries >= 1 && entries <= maxEntries && name >= 1 && name <= maxName && start[8] >= ' ' && start[8] < 0x7f
}

// Read reads a file of either form. Errors match formats.ErrMalformed or formats.ErrUnsupported where the file is at fault.
func Read(path string) (f *File, err error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	f = &File{Path: path, Form: Binary}
	err = mapped.Guard(func() error {
		data := m.Bytes()
		f.Digest = packed.Sum(data)
		if len(data) >= 4 && string(data[:4]) == "GGUF" {
			f.Form = GGUF
			return nil
		}
		return f.parse(data)
	})
	if err = errors.Join(err, m.Close()); err != nil {
		return nil, err
	}
	if f.Form == GGUF {
		err = f.readGGUF()
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// reader reads the binary form.
type reader struct {
	data []byte
	at   int
	path string
}

// number reads an integer from 0 to limit.
func (r *reader) number(what string, limit int64) (int, error) {
	if len(r.data)-r.at < 4 {
		return 0, formats.Malformed(r.path, what, "expected 4 bytes, the file ends after %d", len(r.data)-r.at).At(int64(r.at))
	}
	n := int64(int32(binary.LittleEndian.Uint32(r.data[r.at:])))
	if n < 0 || n > limit {
		return 0, formats.Malformed(r.path, what, "expected 0 to %d, found %d", limit, n).At(int64(r.at))
	}
	r.at += 4
	return int(n), nil
}

// take reads n elements of size bytes.
func (r *reader) take(what string, n, size int) ([]byte, error) {
	if left := len(r.data) - r.at; n > left/size {
		return nil, formats.Malformed(r.path, what, "expected %d bytes, the file ends after %d", n*size, left).At(int64(r.at))
	}
	b := r.data[r.at : r.at+n*size]
	r.at += n * size
	return b, nil
}

// parse reads the binary form: the number of entries; for each the length of its name, the name, the number of calls, the number of values, and these,
// sums that are the mean square times the calls; then, in all but the oldest, the number of chunks and the name of the text.
func (f *File) parse(data []byte) error {
	r := &reader{data: data, path: f.Path}
	entries, err := r.number("number of entries", maxEntries)
	if err != nil {
		return err
	}
	for i := range entries {
		n, err := r.number("length of a name", maxName)
		if err != nil {
			return err
		}
		name, err := r.take("name", n, 1)
		if err != nil {
			return err
		}
		e := Entry{Name: string(name)}
		calls, err := r.number(e.Name+": calls", math.MaxInt32)
		if err != nil {
			return err
		}
		n, err = r.number(e.Name+": number of values", math.MaxInt32)
		if err != nil {
			return err
		}
		raw, err := r.take(e.Name, n, 4)
		if err != nil {
			return err
		}
		if n == 0 {
			return formats.Malformed(f.Path, e.Name, "entry %d of %d has no values", i+1, entries)
		}
		if calls > 0 {
			e.Importance = make([]float32, n)
			half.DecodeF32(e.Importance, raw)
			for k := range e.Importance {
				e.Importance[k] /= float32(calls)
			}
		}
		f.Entries = append(f.Entries, e)
	}
	if r.at == len(data) {
		return nil
	}
	if f.Chunks, err = r.number("number of chunks", math.MaxInt32); err != nil {
		return err
	}
	n, err := r.number("length of the text's name", math.MaxInt32)
	if err != nil {
		return err
	}
	name, err := r.take("name of the text", n, 1)
	if err != nil {
		return err
	}
	if r.at != len(data) {
		return formats.Malformed(f.Path, "", "expected the end, %d more bytes follow", len(data)-r.at).At(int64(r.at))
	}
	f.Datasets = []string{string(name)}
	return nil
}

// readGGUF reads the GGUF form.
func (f *File) readGGUF() (err error) {
	g, err := gguf.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	m := g.Metadata()
	kind, err := m.Str(keyType)
	if err != nil || kind != "imatrix" {
		return formats.Malformed(f.Path, keyType, "expected %q, found %q", "imatrix", kind).WithHint("a model is no calibration data")
	}
	if m.Has(keyDatasets) {
		if f.Datasets, err = m.Strings(keyDatasets); err != nil {
			return err
		}
	}
	for _, k := range []struct {
		key string
		to  *int
	}{{keyChunks, &f.Chunks}, {keyChunkSize, &f.Context}} {
		n, err := m.Uint(k.key)
		if err != nil {
			return err
		}
		if n > math.MaxInt32 {
			return formats.Malformed(f.Path, k.key, "expected 0 to %d, found %d", math.MaxInt32, n)
		}
		*k.to = int(n)
	}
	for _, t := range g.Tensors() {
		name, isSums := strings.CutSuffix(t.Name, endSums)
		if !isSums {
			if other, ok := strings.CutSuffix(t.Name, endCounts); ok {
				if _, ok := g.Tensor(other + endSums); ok {
					continue
				}
			}
			return formats.Malformed(f.Path, t.Name, "expected names that end in %s, each with one that ends in %s", endSums, endCounts)
		}
		c, ok := g.Tensor(name + endCounts)
		if !ok {
			return formats.Malformed(f.Path, t.Name, "the file has no %s%s", name, endCounts)
		}
		sums, err := floats(g, t)
		if err != nil {
			return err
		}
		counts, err := floats(g, c)
		if err != nil {
			return err
		}
		if t.Rows() != 1 || len(counts) != 1 {
			return formats.Unsupported(f.Path, t.Name, "statistics of %d matrices in one, with %d counts: mixtures of experts are not supported", t.Rows(), len(counts))
		}
		if !(counts[0] >= 0) || math.IsInf(float64(counts[0]), 0) {
			return formats.Malformed(f.Path, c.Name, "expected a count of 0 or more, found %g", counts[0])
		}
		e := Entry{Name: name}
		if counts[0] > 0 {
			e.Importance = sums
			for k := range sums {
				sums[k] /= counts[0]
			}
		}
		f.Entries = append(f.Entries, e)
	}
	return nil
}

// floats reads a tensor of single precision.
func floats(g *gguf.File, t gguf.Tensor) ([]float32, error) {
	if d, ok := t.Type.DType(); !ok || d != formats.F32 {
		return nil, formats.Malformed(g.Path(), t.Name, "expected values of type F32, found %s", t.Type)
	}
	out := make([]float32, t.Size/4)
	err := mapped.Guard(func() error {
		half.DecodeF32(out, g.Data(t))
		return nil
	})
	return out, err
}

// check says what is wrong with the numbers.
func (f *File) check() error {
	if len(f.Entries) == 0 {
		return formats.Malformed(f.Path, "", "the file has no entries")
	}
	slices.SortStableFunc(f.Entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for i, e := range f.Entries {
		if i > 0 && f.Entries[i-1].Name == e.Name {
			return formats.Malformed(f.Path, e.Name, "is there twice")
		}
		for c, v := range e.Importance {
			if !(v >= 0) || math.IsInf(float64(v), 0) {
				return formats.Malformed(f.Path, e.Name, "channel %d: expected a finite number of 0 or more, found %g", c, v)
			}
		}
	}
	return nil
}
