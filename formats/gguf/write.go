package gguf

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/ggml"
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
// a reader would refuse the result.
func Plan(m *Metadata, tensors []TensorInfo) (*Layout, error) {
	align, err := alignment(m)
	if err != nil {
		return nil, err
	}
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Len()))
	for _, key := range m.keys {
		if key == "" || len(key) > maxKey || !utf8.ValidString(key) {
			return nil, fmt.Errorf("metadata key %q cannot be written", key)
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
		if t.Name == "" || len(t.Name) > maxName || !utf8.ValidString(t.Name) || seen[t.Name] {
			return nil, fmt.Errorf("tensor name %q cannot be written: it is empty, too long, not UTF-8 or in use", t.Name)
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

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
