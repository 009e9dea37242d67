package gguf

import (
	"encoding/binary"
	"fmt"

	"qtool/formats"
	"qtool/formats/ggml"
)

const (
	maxWrittenName = 63      // ggml ends names by a NUL in 64 bytes
	maxWritten     = 1 << 60 // bytes of tensor data
)

// TensorInfo is a tensor to be written.
type TensorInfo struct {
	Name  string
	Shape []int // row-major, outermost dimension first
	Type  ggml.Type
}

// Layout says where everything of a file to be written will be.
type Layout struct {
	Header  []byte   // all bytes before the tensor data, padding included
	Tensors []Tensor // as planned, with offset and size; the bytes between them are zero
	Size    int64    // of the whole file, the last tensor's padding included
}

// Plan lays out a file of version 3 with the tensors in the given order, each at a multiple of
// general.alignment (32 where m has no such key). The same input gives the same bytes. It is an error where
// a reader would refuse the result, this package's or ggml's, whose tensor names are shorter than 64 bytes.
func Plan(m *Metadata, tensors []TensorInfo) (*Layout, error) {
	align, err := alignment(m)
	if err != nil {
		return nil, err
	}
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Len()))
	if len(tensors) > maxItems || m.Len() > maxItems {
		return nil, fmt.Errorf("%d tensors and %d keys: more than the %d that can be read", len(tensors), m.Len(), maxItems)
	}
	for _, key := range m.keys {
		if err := checkName("metadata key", key, maxKey); err != nil {
			return nil, err
		}
		v := m.values[key]
		b = appendString(b, key)
		b = binary.LittleEndian.AppendUint32(b, uint32(v.Type))
		b = v.appendPayload(b)
	}
	l := &Layout{Tensors: make([]Tensor, len(tensors))}
	seen := make(map[string]bool, len(tensors))
	var at int64
	for i, info := range tensors {
		t := Tensor{Name: info.Name, Shape: info.Shape, Type: info.Type, Offset: at}
		if err := checkName("tensor name", t.Name, maxWrittenName); err != nil {
			return nil, err
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor name %q is in use already", t.Name)
		}
		seen[t.Name] = true
		if len(t.Shape) < 1 || len(t.Shape) > maxDims {
			return nil, formats.Unsupported("", t.Name, "GGUF has tensors of 1 to %d dimensions, this one has %d", maxDims, len(t.Shape))
		}
		if t.Size, err = dataSize(t, ""); err != nil {
			return nil, err
		}
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for k := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Shape[len(t.Shape)-1-k]))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		if at > maxWritten-t.Size {
			return nil, fmt.Errorf("the file would be larger than %d bytes", int64(maxWritten))
		}
		at = alignUp(at+t.Size, align)
		l.Tensors[i] = t
	}
	b = append(b, make([]byte, alignUp(int64(len(b)), align)-int64(len(b)))...)
	if len(b) > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes, at most %d can be read", len(b), maxHeader)
	}
	for i := range l.Tensors {
		l.Tensors[i].Offset += int64(len(b))
	}
	l.Header, l.Size = b, int64(len(b))+at
	return l, nil
}

// checkName returns what is wrong with a name of 1 to limit bytes.
func checkName(what, name string, limit int) error {
	switch bad := badName([]byte(name)); {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > limit:
		return fmt.Errorf("%s %q is longer than %d bytes", what, name[:64], limit)
	case bad != "":
		return fmt.Errorf("%s %q %s", what, name, bad)
	}
	return nil
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
