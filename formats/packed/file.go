package packed

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"qtool/formats"
	"qtool/formats/mapped"
	"qtool/formats/safetensors"
	"qtool/formats/strictjson"
)

// Keys of the file's metadata.
const (
	keyFormat     = "format"
	keyVersion    = "qpk.version"
	keyDigest     = "qpk.digest"     // of the header, this value taken as zeros
	keyTensors    = "qpk.tensors"    // scheme and shape of each packed tensor
	keyDigests    = "qpk.digests"    // of the data of each tensor
	keyProvenance = "qpk.provenance" // how the file was made

	formatName = "qpk"
	version    = 1

	// FilePrefix begins the names of tensors that hold a file of the model.
	FilePrefix = "file/"
)

// Digest is an xxh3-128 checksum. It finds damage, not forgery.
type Digest [16]byte

// Sum is the digest of data.
func Sum(data []byte) Digest { return Digest(xxh3.Hash128(data).Bytes()) }

// String gives 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads what String gives.
func ParseDigest(s string) (d Digest, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) || strings.ToLower(s) != s {
		return d, fmt.Errorf("%q is not a digest of %d hexadecimal digits", s, 2*len(d))
	}
	return Digest(b), nil
}

// Entry is a tensor of a packed file.
type Entry struct {
	Name  string
	Shape []int // of the tensor that is meant, for a packed one too
	// Scheme of a packed matrix; nil for a tensor stored as DType says.
	Scheme *Scheme
	DType  formats.DType
}

// Bytes is the storage of the entry.
func (e Entry) Bytes() (int64, error) {
	n, err := formats.Elements(e.Shape)
	if err != nil {
		return 0, err
	}
	if e.Scheme != nil {
		if len(e.Shape) != 2 || n == 0 {
			return 0, fmt.Errorf("shape %v cannot be packed as %s: expected a matrix", e.Shape, e.Scheme)
		}
		return int64(e.Scheme.Bytes(e.Shape[0], e.Shape[1])), nil
	}
	width, ok := e.DType.Bits()
	if !ok || n*width%8 != 0 {
		return 0, fmt.Errorf("element type %q cannot be stored", e.DType)
	}
	return int64(n * width / 8), nil
}

// SideFile is a file of the model that rides along.
type SideFile struct {
	Name string
	Data []byte
}

// Contents is what a packed file is planned from.
type Contents struct {
	Entries []Entry
	Files   []SideFile
	// Provenance says how the file was made: a JSON object, the same for the same input.
	Provenance json.RawMessage
}

// Layout gives the layout of a packed file and its header with the given digests of the data of
// each tensor by stored name. Digests that are missing count as zeros, so that a layout can be had before the data;
// the header has the same size with any digests. Packed matrices come first, then plain tensors from
// the widest element type to the narrowest, then files: so everything is aligned.
func (c Contents) Layout(digests map[string]Digest) (*safetensors.Layout, error) {
	var tensors []safetensors.Tensor
	table := make(map[string]any)
	for _, e := range c.Entries {
		n, err := e.Bytes()
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", e.Name, err)
		}
		if strings.HasPrefix(e.Name, FilePrefix) {
			return nil, fmt.Errorf("tensor name %q begins like that of a file", e.Name)
		}
		if e.Scheme == nil {
			continue
		}
		table[e.Name] = map[string]any{"scheme": e.Scheme.String(), "shape": e.Shape}
		tensors = append(tensors, safetensors.Tensor{Name: e.Name, DType: formats.U8, Shape: []int{int(n)}})
	}
	plain := len(tensors)
	for _, e := range c.Entries {
		if e.Scheme == nil {
			tensors = append(tensors, safetensors.Tensor{Name: e.Name, DType: e.DType, Shape: e.Shape})
		}
	}
	slices.SortStableFunc(tensors[plain:], func(a, b safetensors.Tensor) int {
		wa, _ := a.DType.Bits()
		wb, _ := b.DType.Bits()
		return wb - wa
	})
	for _, f := range c.Files {
		tensors = append(tensors, safetensors.Tensor{Name: FilePrefix + f.Name, DType: formats.U8, Shape: []int{len(f.Data)}})
	}
	sums := make(map[string]string, len(tensors))
	for _, t := range tensors {
		sums[t.Name] = digests[t.Name].String()
	}
	provenance := []byte(c.Provenance)
	if len(provenance) == 0 {
		provenance = []byte("{}")
	}
	l, err := safetensors.Plan(tensors, safetensors.LayoutOptions{Align: Align, Metadata: []safetensors.Pair{
		{Key: keyFormat, Value: formatName},
		{Key: keyVersion, Value: strconv.Itoa(version)},
		{Key: keyDigest, Value: Digest{}.String()},
		{Key: keyTensors, Value: marshal(table)},
		{Key: keyDigests, Value: marshal(sums)},
		{Key: keyProvenance, Value: string(provenance)},
	}})
	if err != nil {
		return nil, err
	}
	at := digestAt(l.Header)
	sum := Sum(l.Header)
	copy(l.Header[at:], sum.String())
	return l, nil
}

// marshal gives the JSON of a map with strings for keys, sorted.
func marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and integers only
	}
	return string(b)
}

// digestAt finds the digits of the header's own digest.
func digestAt(header []byte) int {
	key := []byte(`"` + keyDigest + `":"`)
	i := bytes.Index(header, key)
	if i < 0 || i+len(key)+2*len(Digest{}) > len(header) {
		return -1
	}
	return i + len(key)
}

// Tensor is an entry of an open file with its place.
type Tensor struct {
	Entry
	stored safetensors.Tensor
}

// File is an open packed file.
type File struct {
	f       *safetensors.File
	tensors []Tensor
	indices map[string]int
	digests map[string]Digest
	prov    json.RawMessage
}

// IsPacked reports whether a safetensors file says that it is a packed one.
func IsPacked(f *safetensors.File) bool {
	v, _ := f.Meta(keyFormat)
	return v == formatName
}

// Open opens a packed file and checks everything but the data's digests, which Verify does. Errors
// are formats.FileError.
func Open(path string) (*File, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	p := &File{f: f, indices: make(map[string]int)}
	if err := mapped.Guard(p.read); err != nil {
		_ = f.Close() // the reason to close it matters more
		return nil, err
	}
	return p, nil
}

// read checks the profile.
func (p *File) read() error {
	path := p.f.Path()
	if !IsPacked(p.f) {
		return formats.Malformed(path, keyFormat, "not a packed file: expected %q in its metadata", formatName)
	}
	if v, _ := p.f.Meta(keyVersion); v != strconv.Itoa(version) {
		return formats.Unsupported(path, keyVersion, "version %q of the packed format, this program reads %d", v, version).
			WithHint("use the program that wrote it, or quantize the model again")
	}
	if err := p.checkHeader(); err != nil {
		return err
	}
	table, err := p.object(keyTensors)
	if err != nil {
		return err
	}
	packedAs := make(map[string]Entry, len(table.Members))
	for _, m := range table.Members {
		e, err := entry(m, path)
		if err != nil {
			return err
		}
		packedAs[e.Name] = e
	}
	for _, t := range p.f.Tensors() {
		e, ok := packedAs[t.Name]
		if !ok {
			e = Entry{Name: t.Name, Shape: t.Shape, DType: t.DType}
		} else {
			delete(packedAs, t.Name)
			n, err := e.Bytes()
			if err != nil {
				return formats.Malformed(path, t.Name, "%v", err)
			}
			if t.DType != formats.U8 || n != t.Size {
				return formats.Malformed(path, t.Name, "%s of shape %v takes %d bytes, found %d of %s", e.Scheme, e.Shape, n, t.Size, t.DType)
			}
			if t.Offset%Align != 0 {
				return formats.Malformed(path, t.Name, "data starts at byte %d, expected a multiple of %d", t.Offset, Align)
			}
		}
		p.indices[t.Name] = len(p.tensors)
		p.tensors = append(p.tensors, Tensor{Entry: e, stored: t})
	}
	for name := range packedAs {
		return formats.Malformed(path, name, "%s lists a tensor that is not in the file", keyTensors)
	}
	return p.readDigests()
}

// checkHeader compares the header with its digest.
func (p *File) checkHeader() error {
	header := bytes.Clone(p.f.Mapped().Bytes()[:p.f.DataStart()])
	at := digestAt(header)
	said, ok := p.f.Meta(keyDigest)
	if at < 0 || !ok {
		return formats.Malformed(p.f.Path(), keyDigest, "is missing")
	}
	var zero Digest
	copy(header[at:], zero.String())
	if sum := Sum(header); sum.String() != said {
		return formats.Malformed(p.f.Path(), keyDigest, "the header has digest %s, it says %s", sum, said).WithHint("the file was altered or damaged")
	}
	return nil
}

// object reads a metadata value that holds a JSON object.
func (p *File) object(key string) (strictjson.Value, error) {
	text, ok := p.f.Meta(key)
	if !ok {
		return strictjson.Value{}, formats.Malformed(p.f.Path(), key, "is missing")
	}
	v, err := strictjson.Parse([]byte(text), strictjson.Options{File: p.f.Path() + ": " + key})
	if err != nil {
		return v, err
	}
	if v.Kind != strictjson.Object {
		return v, formats.Malformed(p.f.Path(), key, "expected an object, found %s", v.Kind)
	}
	return v, nil
}

// entry reads one member of the table of packed tensors.
func entry(m strictjson.Member, path string) (Entry, error) {
	e := Entry{Name: m.Key}
	fail := func(err error) error { return formats.Malformed(path, m.Key, "%v", err) }
	scheme, _ := m.Value.Get("scheme")
	name, err := scheme.Str()
	if err != nil {
		return e, fail(fmt.Errorf("scheme: %w", err))
	}
	s, err := ParseScheme(name)
	if err != nil {
		return e, formats.Unsupported(path, m.Key, "%v", err).WithHint("use the program that wrote the file")
	}
	e.Scheme = &s
	shape, _ := m.Value.Get("shape")
	if shape.Kind != strictjson.Array || len(shape.Elements) != 2 {
		return e, fail(fmt.Errorf("expected a shape of two dimensions"))
	}
	for _, d := range shape.Elements {
		n, err := d.Int()
		if err != nil {
			return e, fail(fmt.Errorf("shape: %w", err))
		}
		e.Shape = append(e.Shape, int(n))
	}
	return e, nil
}

func (p *File) readDigests() error {
	sums, err := p.object(keyDigests)
	if err != nil {
		return err
	}
	p.digests = make(map[string]Digest, len(sums.Members))
	for _, m := range sums.Members {
		text, err := m.Value.Str()
		if err != nil {
			return formats.Malformed(p.f.Path(), keyDigests, "%q: %v", m.Key, err)
		}
		if p.digests[m.Key], err = ParseDigest(text); err != nil {
			return formats.Malformed(p.f.Path(), keyDigests, "%q: %v", m.Key, err)
		}
	}
	for _, t := range p.tensors {
		if _, ok := p.digests[t.Name]; !ok {
			return formats.Malformed(p.f.Path(), keyDigests, "lacks the digest of %q", t.Name)
		}
	}
	v, err := p.object(keyProvenance)
	if err != nil {
		return err
	}
	if v.Kind == strictjson.Object {
		text, _ := p.f.Meta(keyProvenance)
		p.prov = json.RawMessage(text)
	}
	return nil
}

// Path is the path that Open was given.
func (p *File) Path() string { return p.f.Path() }

// Tensors lists the tensors in the order of their data, files of the model not among them.
func (p *File) Tensors() []Tensor {
	return slices.DeleteFunc(slices.Clone(p.tensors), func(t Tensor) bool { return strings.HasPrefix(t.Name, FilePrefix) })
}

// Provenance says how the file was made.
func (p *File) Provenance() json.RawMessage { return p.prov }

// Data gives the bytes of a tensor that p listed, in the map of the file.
func (p *File) Data(t Tensor) []byte { return p.f.Data(t.stored) }

// Mapped gives the map of the file.
func (p *File) Mapped() *mapped.File { return p.f.Mapped() }

// Offset is where the data of a tensor that p listed start in the file.
func (p *File) Offset(t Tensor) int64 { return t.stored.Offset }

// File gives the content of a file that rides along, in the map of the packed one.
func (p *File) File(name string) ([]byte, bool) {
	i, ok := p.indices[FilePrefix+name]
	if !ok {
		return nil, false
	}
	return p.Data(p.tensors[i]), true
}

// Files lists the names of the files that ride along.
func (p *File) Files() []string {
	var names []string
	for _, t := range p.tensors {
		if name, ok := strings.CutPrefix(t.Name, FilePrefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// Verify compares the data of every tensor with its digest, and calls progress, if set, after each part. The
// error names the first tensor that differs.
func (p *File) Verify(progress func(done, total int64) error) error {
	return mapped.Guard(func() error {
		var total, done int64
		for _, t := range p.tensors {
			total += t.stored.Size
		}
		for _, t := range p.tensors {
			h := xxh3.New()
			data := p.Data(t)
			for len(data) > 0 {
				part := data[:min(len(data), 64<<20)]
				_, _ = h.Write(part) // a hash takes everything
				data = data[len(part):]
				done += int64(len(part))
				if progress != nil {
					if err := progress(done, total); err != nil {
						return err
					}
				}
			}
			if sum := Digest(h.Sum128().Bytes()); sum != p.digests[t.Name] {
				return formats.Malformed(p.f.Path(), t.Name, "the data have digest %s, the header says %s", sum, p.digests[t.Name]).
					At(t.stored.Offset).WithHint("the file was altered or damaged after it was written")
			}
		}
		return nil
	})
}

// CheckSize reports a file that has changed its size since Open.
func (p *File) CheckSize() error { return p.f.CheckSize() }

// Close unmaps the file.
func (p *File) Close() error { return p.f.Close() }
