package convert

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/atomicfile"
	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/half"
	"qtool/formats/packed"
)

// ggmlTypes are the types that matrices can be asked to have in a GGUF file.
var ggmlTypes = map[Choice]ggml.Type{"f32": ggml.F32, "f16": ggml.F16, "bf16": ggml.BF16, "q8_0": ggml.Q8_0, "q4_0": ggml.Q4_0}

// fileTypes are llama.cpp's numbers of what most matrices of a file are (enum llama_ftype).
var fileTypes = map[ggml.Type]uint32{ggml.F32: 0, ggml.F16: 1, ggml.Q4_0: 2, ggml.Q8_0: 7, ggml.BF16: 32}

// gguf writes a GGUF file.
func (x *export) gguf(ctx context.Context) error {
	if err := CheckOutput(x.options.Output, x.model, nil); err != nil {
		return err
	}
	metadata, extra, err := x.metadata()
	if err != nil {
		return err
	}
	var items []item
	var infos []gguf.TensorInfo
	weights := make(map[ggml.Type]int64)
	for _, t := range x.model.Tensors() {
		typ, err := x.ggmlType(t)
		if err != nil {
			return err
		}
		it, err := x.ggufItem(t, typ)
		if err != nil {
			return err
		}
		items = append(items, it)
		infos = append(infos, gguf.TensorInfo{Name: t.GGUF, Shape: t.Shape, Type: typ})
		if len(t.Shape) > 1 {
			weights[typ] += int64(t.Elements())
		}
	}
	for _, e := range extra {
		infos = append(infos, gguf.TensorInfo{Name: e.Name, Shape: []int{len(e.Values)}, Type: ggml.F32})
	}
	most := ggml.F32
	for typ, n := range weights {
		if n > weights[most] || n == weights[most] && typ < most {
			most = typ
		}
	}
	if number, ok := fileTypes[most]; ok {
		metadata.Set("general.file_type", gguf.Uint32(number))
	}
	l, err := gguf.Plan(metadata, infos)
	if err != nil {
		return err
	}
	return x.writeGGUF(ctx, l, items, extra)
}

func (x *export) writeGGUF(ctx context.Context, l *gguf.Layout, items []item, extra []arch.GGUFTensor) error {
	f, err := atomicfile.Create(x.options.Output, 0o644)
	if err != nil {
		return err
	}
	for i := range items {
		items[i].offset = l.Tensors[i].Offset
	}
	fill := func() error {
		if err := f.Truncate(l.Size); err != nil { // gaps and padding are zeros
			return err
		}
		if _, err := f.WriteAt(l.Header, 0); err != nil {
			return err
		}
		for i, e := range extra {
			raw := make([]byte, 4*len(e.Values))
			half.EncodeF32(raw, e.Values)
			if _, err := f.WriteAt(raw, l.Tensors[len(items)+i].Offset); err != nil {
				return err
			}
		}
		return x.stream(ctx, f, items)
	}
	if err := fill(); err != nil {
		f.Abort()
		return err
	}
	x.result.Files, x.result.Bytes = []string{x.options.Output}, l.Size
	return f.Commit()
}

// metadata gives the keys of the file: those of the GGUF file that the model was once, else new ones; and
// what GGUF keeps in tensors instead.
func (x *export) metadata() (*gguf.Metadata, []arch.GGUFTensor, error) {
	m, err := x.model.Metadata()
	if err != nil {
		return nil, nil, err
	}
	if m != nil {
		m = m.Clone()
		m.Remove("general.alignment")
		extra, err := x.model.Config().SetGGUF(&gguf.Metadata{})
		if err != nil {
			return nil, nil, err
		}
		return m, extra, x.addFiles(m)
	}
	m = &gguf.Metadata{}
	d, err := x.model.Vocabulary()
	if err != nil {
		return nil, nil, err
	}
	extra, err := x.model.Config().SetGGUF(m)
	if err != nil {
		return nil, nil, formats.Unsupported(x.model.Path(), "", "%v", err)
	}
	m.Set("general.type", gguf.String("model"))
	m.Set("general.name", gguf.String(strings.TrimSuffix(filepath.Base(x.options.Output), filepath.Ext(x.options.Output))))
	m.Set("general.quantization_version", gguf.Uint32(2))
	if err := d.SetGGUF(m); err != nil {
		return nil, nil, err
	}
	if !d.ExactGGUF() {
		x.warn("GGUF has no exact form of this tokenizer: other programs may cut a few texts into other tokens; qtool reads tokenizer.json, which is kept in the file")
	}
	x.padTokens(m)
	return m, extra, x.addFiles(m)
}

// padTokens gives every row of the embedding a token, as llama.cpp wants it.
func (x *export) padTokens(m *gguf.Metadata) {
	const tokens, types, scores = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"
	v, _ := m.Get(tokens)
	list, _ := v.Strings()
	kinds, _ := m.Get(types)
	numbers, _ := kinds.Ints()
	values, hasScores := m.Get(scores)
	marks, _ := values.Float32s()
	if len(list) >= x.model.Config().Vocab {
		return
	}
	out := make([]int32, len(numbers))
	for i, n := range numbers {
		out[i] = int32(n)
	}
	for i := len(list); i < x.model.Config().Vocab; i++ {
		list, out, marks = append(list, fmt.Sprintf("[PAD%d]", i)), append(out, 5), append(marks, 0) // 5: unused
	}
	m.Set(tokens, gguf.Strings(list))
	m.Set(types, gguf.Array(out))
	if hasScores {
		m.Set(scores, gguf.Array(marks))
	}
}

// addFiles keeps the files of the model under keys of their own.
func (x *export) addFiles(m *gguf.Metadata) error {
	if x.model.Container() == checkpoint.GGUF {
		return nil // they are among the keys already
	}
	files, warnings, err := Files(x.model)
	if err != nil {
		return err
	}
	x.result.Warnings = append(x.result.Warnings, warnings...)
	for _, f := range files {
		switch {
		case f.Name == checkpoint.GGUFMetadata:
		case utf8.Valid(f.Data):
			m.Set(checkpoint.FileKey+f.Name, gguf.String(string(f.Data)))
		default:
			m.Set(checkpoint.FileKey+f.Name, gguf.Array(f.Data))
		}
	}
	return nil
}

// ggmlType is the type that a tensor gets in a GGUF file. llama.cpp wants vectors as F32.
func (x *export) ggmlType(t *checkpoint.Tensor) (ggml.Type, error) {
	if len(t.Shape) < 2 {
		return ggml.F32, nil
	}
	if x.options.Type == Keep {
		if typ, ok := t.Block(); ok {
			return typ, nil
		}
		if d, ok := t.DType(); ok {
			if typ, ok := ggml.FromDType(d); ok && typ.CanQuantize() {
				return typ, nil
			}
		}
		if repackable(t) {
			if t.Matrix().Scheme.Bits == 4 {
				return ggml.Q4_0, nil
			}
			return ggml.Q8_0, nil
		}
		x.result.Changed++
		return ggml.F32, nil
	}
	typ, ok := ggmlTypes[x.options.Type]
	if !ok {
		return 0, fmt.Errorf("type %q cannot be written to GGUF", x.options.Type)
	}
	if t.Cols()%typ.BlockSize() != 0 {
		x.result.Changed++
		x.warn("%s: rows of %d weights cannot be %s, whose blocks hold %d: stored as F16", t.Name, t.Cols(), typ, typ.BlockSize())
		return ggml.F16, nil
	}
	return typ, nil
}

// ggufItem gives the item of a tensor in GGUF's order of rows.
func (x *export) ggufItem(t *checkpoint.Tensor, typ ggml.Type) (item, error) {
	if own, ok := t.Block(); ok && own == typ && x.model.Container() == checkpoint.GGUF {
		return stored(t), nil
	}
	var it item
	var err error
	if x.options.Type == Keep && repackable(t) {
		it, err = repacking(t, typ)
	} else {
		var shift float32
		if t.NormPlusOne {
			shift = 1
		}
		it, err = blocks(t, typ, shift)
	}
	if err != nil || t.Permute == 0 {
		return it, err
	}
	if len(t.Shape) == 1 {
		return interleavedVector(it), nil
	}
	dim := t.Rows() / t.Permute
	it.rowOf = func(stored int) int { return interleaved(stored, dim) }
	return it, nil
}

// interleaved gives the place in Hugging Face's order of what GGUF has at place i: within a head of dim,
// its even places hold the first half, the odd ones the second.
func interleaved(i, dim int) int {
	head, in := i/dim, i%dim
	return head*dim + in%2*(dim/2) + in/2
}

// interleavedVector reorders the elements of a vector.
func interleavedVector(it item) item {
	dim := it.tensor.Elements() / it.tensor.Permute
	make1 := it.encoder
	it.encoder = func() func([]byte, []float32, int, int) (int, error) {
		encode := make1()
		return func(dst []byte, values []float32, first, n int) (int, error) {
			out := make([]float32, len(values))
			for i := range out {
				out[i] = values[interleaved(i, dim)]
			}
			return encode(dst, out, first, n)
		}
	}
	return it
}

// stored is the item of a tensor whose bytes are copied in the container's own order.
func stored(t *checkpoint.Tensor) item {
	size := int(t.Bytes()) / max(t.Rows(), 1)
	return item{
		tensor: t, size: t.Bytes(), unit: 1, unitBytes: size,
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			return func(dst []byte, _ []float32, first, n int) (int, error) {
				copy(dst, t.Raw()[first*size:(first+n)*size])
				return 0, nil
			}
		},
	}
}

// repacking is the item of a packed matrix whose codes and scales a type of ggml's can hold as they are.
func repacking(t *checkpoint.Tensor, typ ggml.Type) (item, error) {
	it, err := blocks(t, typ, 0)
	m := t.Matrix()
	it.encoder = func() func([]byte, []float32, int, int) (int, error) {
		codes := packed.NewCodes(m.Scheme, m.Cols)
		rowOf := func(i int) int { return i }
		if t.Permute > 0 {
			dim := t.Rows() / t.Permute
			rowOf = func(i int) int { return interleaved(i, dim) }
		}
		return func(dst []byte, _ []float32, first, n int) (int, error) {
			for i := range n {
				m.UnpackRow(rowOf(first+i), codes)
				row := dst[i*it.unitBytes : (i+1)*it.unitBytes]
				for g, scale := range codes.Scales {
					b := row[g*typ.BlockBytes() : (g+1)*typ.BlockBytes()]
					binary.LittleEndian.PutUint16(b, scale)
					part := codes.Codes[g*packed.Block : (g+1)*packed.Block]
					for k := range b[2:] {
						if typ == ggml.Q8_0 {
							b[2+k] = uint8(part[k])
						} else {
							b[2+k] = uint8(part[k]) | uint8(part[k+packed.Block/2])<<4
						}
					}
				}
			}
			return 0, nil
		}
	}
	return it, err
}
