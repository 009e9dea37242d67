package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/atomicfile"
)

// Layout says where everything of a file to be written will be.
type Layout struct {
	Header  []byte   // length, JSON and padding: the bytes before the data
	Tensors []Tensor // as planned, with offset and size
	Size    int64    // of the whole file
}

// LayoutOptions of Plan.
type LayoutOptions struct {
	Metadata []Pair
	Align    int // of the first byte of data, a power of two; 0 stands for 8
}

// Plan lays out tensors, of which it reads name, type and shape, in the given order and end to end, as the
// format demands. The same input gives the same bytes. It is an error where a reader would refuse the
// result.
func Plan(tensors []Tensor, o LayoutOptions) (*Layout, error) {
	l := &Layout{Tensors: make([]Tensor, len(tensors))}
	var b strings.Builder
	b.WriteByte('{')
	if len(o.Metadata) > 0 {
		if err := planMetadata(&b, o.Metadata); err != nil {
			return nil, err
		}
	}
	seen := make(map[string]bool, len(tensors))
	var at int64
	for i, t := range tensors {
		size, err := planned(t, seen)
		if err != nil {
			return nil, err
		}
		t.Offset, t.Size = at, size
		at += size
		l.Tensors[i] = t
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(quote(t.Name))
		fmt.Fprintf(&b, `:{"dtype":%q,"shape":[`, t.DType)
		for k, d := range t.Shape {
			if k > 0 {
				b.WriteByte(',')
			}
			fmt.Fprint(&b, d)
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, t.Offset, at)
	}
	b.WriteByte('}')
	align := max(o.Align, 8)
	for (lengthBytes+b.Len())%align != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes, the safetensors format allows %d", b.Len(), maxHeader)
	}
	l.Header = append(binary.LittleEndian.AppendUint64(nil, uint64(b.Len())), b.String()...)
	start := int64(len(l.Header))
	for i := range l.Tensors {
		l.Tensors[i].Offset += start
	}
	l.Size = start + at
	return l, nil
}

func planMetadata(b *strings.Builder, pairs []Pair) error {
	b.WriteString(`"` + metadataKey + `":{`)
	seen := make(map[string]bool, len(pairs))
	for i, p := range pairs {
		if seen[p.Key] {
			return fmt.Errorf("metadata key %q is given twice", p.Key)
		}
		seen[p.Key] = true
		if !utf8.ValidString(p.Key) || !utf8.ValidString(p.Value) {
			return fmt.Errorf("metadata %q is not UTF-8", p.Key)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(quote(p.Key))
		b.WriteByte(':')
		b.Write(quote(p.Value))
	}
	b.WriteByte('}')
	return nil
}

// planned checks a tensor to be written and gives the size of its data.
func planned(t Tensor, seen map[string]bool) (int64, error) {
	if err := checkName(t.Name); err != nil {
		return 0, err
	}
	if seen[t.Name] || t.Name == metadataKey || !utf8.ValidString(t.Name) {
		return 0, fmt.Errorf("tensor name %q cannot be written: it is in use, reserved or not UTF-8", t.Name)
	}
	seen[t.Name] = true
	width, ok := t.DType.Bits()
	if !ok {
		return 0, formats.Unsupported("", t.Name, "element type %q is not one of safetensors'", t.DType)
	}
	n, err := formats.Elements(t.Shape)
	if err != nil || n*width%8 != 0 {
		return 0, fmt.Errorf("tensor %q of shape %v cannot be written as %s", t.Name, t.Shape, t.DType)
	}
	return int64(n * width / 8), nil
}

// quote writes a string as JSON, with no more escapes than needed.
func quote(s string) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always can be
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// Write puts a file of the layout at path as a whole: data is called for each tensor in turn and writes
// exactly its bytes. Where it fails, nothing is changed.
func Write(path string, l *Layout, data func(i int, w io.Writer) error) error {
	return atomicfile.WriteFrom(path, 0o644, func(w io.Writer) error {
		if _, err := w.Write(l.Header); err != nil {
			return err
		}
		for i, t := range l.Tensors {
			c := &counter{w: w}
			if err := data(i, c); err != nil {
				return err
			}
			if c.n != t.Size {
				return fmt.Errorf("tensor %q: %d bytes were written, %d are planned", t.Name, c.n, t.Size)
			}
		}
		return nil
	})
}

// counter counts what passes through.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
