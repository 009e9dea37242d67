package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/ggml"
	"qtool/formats/half"
	"qtool/formats/mapped"
	"qtool/formats/packed"
)

// Tensor is a tensor of an open model, named and ordered as Hugging Face does, whatever the
// container.
type Tensor struct {
	arch.TensorSpec

	storage storage
	matrix  packed.Matrix // where storage.packed
	data    []byte
	file    *mapped.File
	offset  int64 // of data in file
	permute int   // heads whose rows the container interleaves
	shifted bool  // the container stores 1 + the value
	// origin and read are set where the tensor is computed: see Derive.
	origin *Tensor
	read   ReadFunc
}

// storage is how values are stored: as a plain type, in blocks of ggml's, or packed.
type storage struct {
	name   string
	packed bool
	block  ggml.Type     // valid where dtype is empty
	dtype  formats.DType // a plain type
}

// plain is the storage of a plain type.
func plain(d formats.DType) storage { return storage{name: string(d), dtype: d} }

// block is the storage of a ggml type.
func block(t ggml.Type) storage {
	if d, ok := t.DType(); ok {
		return plain(d)
	}
	return storage{name: t.String(), block: t}
}

// Path is the file that the values are stored in.
func (t *Tensor) Path() string { return t.file.Path() }

// Storage names how the values are stored: F16, Q4_K, w4g32 and so on.
func (t *Tensor) Storage() string { return t.storage.name }

// DType is the plain type in which the values are stored, and false for packed and block types.
func (t *Tensor) DType() (formats.DType, bool) { return t.storage.dtype, t.storage.dtype != "" }

// Block is the ggml type in whose blocks the values are stored, and false for plain types and packed
// matrices.
func (t *Tensor) Block() (ggml.Type, bool) {
	return t.storage.block, t.storage.dtype == "" && !t.storage.packed
}

// Packed reports whether the tensor is a packed matrix.
func (t *Tensor) Packed() bool { return t.storage.packed }

// Matrix is the packed matrix.
func (t *Tensor) Matrix() packed.Matrix { return t.matrix }

// Rows is the product of all dimensions but the last, 1 for a vector.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		n *= d
	}
	return n
}

// Cols is the last dimension, along which elements lie side by side.
func (t *Tensor) Cols() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// Elements is the number of values.
func (t *Tensor) Elements() int { return t.Rows() * t.Cols() }

// Bytes is the storage: what it would be for a tensor that is computed.
func (t *Tensor) Bytes() int64 {
	if t.read != nil {
		bits, _ := t.storage.dtype.Bits()
		return int64(t.Elements()) * int64(bits) / 8
	}
	return int64(len(t.data))
}

// Raw gives the stored bytes in the map of their file. They are in the order of Shape unless
// Reordered.
func (t *Tensor) Raw() []byte { return t.data }

// Row gives the stored bytes of row r, in Hugging Face's order, of a matrix that is stored as a plain type; false for
// any other. They are in the map of the file: read them within mapped.Guard where it may be cut short.
func (t *Tensor) Row(r int) ([]byte, formats.DType, bool) {
	if t.storage.dtype == "" || t.shifted || t.read != nil || len(t.Shape) < 2 {
		return nil, "", false
	}
	size := t.rowBytes()
	at := t.storedRow(r) * size
	return t.data[at : at+size : at+size], t.storage.dtype, true
}

// BlockRow gives the stored bytes of row r, in Hugging Face's order, of a matrix in a ggml type whose rows are not shifted: as
// Row for plain types. nil for any other.
func (t *Tensor) BlockRow(r int) []byte {
	if _, ok := t.Block(); !ok || t.shifted || t.read != nil || len(t.Shape) < 2 {
		return nil
	}
	size := t.rowBytes()
	at := t.storedRow(r) * size
	return t.data[at : at+size : at+size]
}

// Reordered reports whether the container stores other values or another order of rows than ReadRows
// gives.
func (t *Tensor) Reordered() bool { return t.permute > 0 || t.shifted || t.read != nil }

// Advise says how the data will be read: see mapped.File.Advise. Part of them is from byte first on.
func (t *Tensor) Advise(first, n int64, a mapped.Advice) error {
	if t.read != nil {
		return nil
	}
	return t.file.Advise(t.offset+first, n, a)
}

// same reports whether two tensors hold the same bytes.
func (t *Tensor) same(o *Tensor) bool {
	return t.storage == o.storage && sameShape(t.Shape, o.Shape) && bytes.Equal(t.data, o.data)
}

// Reader holds the scratch space of reads. The zero Reader is ready; one goroutine at a time.
type Reader struct {
	codes  packed.Codes
	scheme packed.Scheme // that codes has room for
}

// CanRead says, as an error that matches formats.ErrUnsupported, that the values cannot be read as
// numbers.
func (t *Tensor) CanRead() error {
	switch {
	case t.read != nil:
		return t.origin.CanRead()
	case t.storage.packed:
	case t.storage.dtype != "":
		if !t.storage.dtype.Float() {
			return formats.Unsupported(t.file.Path(), t.Name, "values of type %s cannot be read as weights", t.storage.dtype)
		}
	case !t.storage.block.CanDequantize():
		return formats.Unsupported(t.file.Path(), t.Name, "element type %s cannot be decoded", t.storage.block).
			WithHint("quantize the model again to a type such as Q4_K or Q8_0")
	}
	return nil
}

// rowBytes is the storage of one row, for what is stored row by row.
func (t *Tensor) rowBytes() int { return len(t.data) / max(t.Rows(), 1) }

// storedRow is where the container has row r. GGUF interleaves the two halves of each head of a
// permuted matrix: row j·half + i of a head is its row 2·i + j.
func (t *Tensor) storedRow(r int) int {
	if t.permute == 0 {
		return r
	}
	dim := t.permutedRows() / t.permute
	head, in := r/dim, r%dim
	return head*dim + in%(dim/2)*2 + in/(dim/2)
}

// permutedRows is the number of rows that storedRow permutes: the elements of a vector count as
// rows.
func (t *Tensor) permutedRows() int {
	if len(t.Shape) == 1 {
		return t.Shape[0]
	}
	return t.Rows()
}

// Float32s gives the rows first … first+n-1 in place, without decoding, where they are stored as such;
// else false. The slice is valid until the model is closed and must not be written.
func (t *Tensor) Float32s(first, n int) ([]float32, bool) {
	if t.storage.dtype != formats.F32 || t.Reordered() || n == 0 || t.Cols() == 0 {
		return nil, false
	}
	size := t.rowBytes()
	part := t.data[first*size : (first+n)*size]
	if uintptr(unsafe.Pointer(unsafe.SliceData(part)))%4 != 0 || !littleEndian {
		return nil, false
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(part))), n*t.Cols()), true
}

// littleEndian tells whether numbers in memory are as they are in files.
var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// ReadRows decodes the rows first … first+n-1 to dst, [n][Cols]. A row or vector of a permuted tensor
// comes in Hugging Face's order. Read within mapped.Guard where the file may be cut short meanwhile.
func (t *Tensor) ReadRows(dst []float32, first, n int, r *Reader) error {
	cols := t.Cols()
	dst = dst[:n*cols]
	switch {
	case t.read != nil:
		return t.read(dst, first, n, r)
	case t.storage.packed:
		if s := t.matrix.Scheme; len(r.codes.Codes) != cols || r.scheme != s {
			r.codes, r.scheme = packed.NewCodes(s, cols), s
		}
		for i := range n {
			t.matrix.DequantizeRow(dst[i*cols:(i+1)*cols], first+i, r.codes)
		}
		return nil
	case t.permute > 0 && len(t.Shape) > 1:
		size := t.rowBytes()
		for i := range n {
			at := t.storedRow(first+i) * size
			if err := t.decode(dst[i*cols:(i+1)*cols], t.data[at:at+size]); err != nil {
				return err
			}
		}
		return nil
	}
	size := t.rowBytes()
	if err := t.decode(dst, t.data[first*size:(first+n)*size]); err != nil {
		return err
	}
	if t.permute > 0 {
		stored := append([]float32(nil), dst...)
		for i := range dst {
			dst[i] = stored[t.storedRow(i)]
		}
	}
	if t.shifted {
		for i := range dst {
			dst[i]--
		}
	}
	return nil
}

// ReadAll decodes the whole tensor to dst, which has Elements elements.
func (t *Tensor) ReadAll(dst []float32) error {
	return mapped.Guard(func() error { return t.ReadRows(dst, 0, t.Rows(), &Reader{}) })
}

// CopyRows copies the rows first … first+n-1 of a matrix to dst, of CopyBytes(n), and gives a tensor of n rows that reads them
// there, with the same values. Of a packed matrix they are whole panels. Advice about it is about the file still.
func (t *Tensor) CopyRows(dst []byte, first, n int) (*Tensor, error) {
	out := *t
	out.Shape = []int{n, t.Cols()}
	out.data, out.permute = dst, 0
	if t.storage.packed {
		var err error
		out.matrix, err = t.matrix.CopyRows(dst, first, n)
		return &out, err
	}
	t.ReadRaw(dst, first, n)
	return &out, nil
}

// AsHalf gives a tensor of n rows of a matrix that are stored in data as half-precision numbers, row by row. Advice about it is
// about the file still.
func (t *Tensor) AsHalf(data []byte, n int) *Tensor {
	spec := t.TensorSpec
	spec.Shape = []int{n, t.Cols()}
	return &Tensor{TensorSpec: spec, storage: plain(formats.F16), file: t.file, offset: t.offset, data: data}
}

// CopyBytes is the storage of n rows that CopyRows needs.
func (t *Tensor) CopyBytes(n int) int {
	if t.storage.packed {
		return t.matrix.Scheme.Bytes(n, t.Cols())
	}
	return int(t.Bytes() / int64(max(t.Rows(), 1)) * int64(n))
}

// decode decodes values in the container's order.
func (t *Tensor) decode(dst []float32, src []byte) error {
	switch t.storage.dtype {
	case formats.F32:
		half.DecodeF32(dst, src)
	case formats.F16:
		half.DecodeF16(dst, src)
	case formats.BF16:
		half.DecodeBF16(dst, src)
	case formats.F64:
		half.DecodeF64(dst, src)
	case formats.F8E4M3:
		half.DecodeF8E4M3(dst, src)
	case formats.F8E5M2:
		half.DecodeF8E5M2(dst, src)
	case "":
		if err := ggml.DequantizeRows(dst, src, t.Cols(), t.storage.block); err != nil {
			var e *formats.FileError
			if errors.As(err, &e) {
				c := *e
				c.File, c.Field = t.file.Path(), t.Name
				return &c
			}
			return fmt.Errorf("%s: tensor %q: %w", t.file.Path(), t.Name, err)
		}
	default:
		return t.CanRead()
	}
	return nil
}

// ReadRaw copies the stored bytes of the rows first … first+n-1 to dst, in Hugging Face's order, for
// tensors that are stored row by row and not shifted.
func (t *Tensor) ReadRaw(dst []byte, first, n int) {
	size := t.rowBytes()
	if t.permute == 0 || len(t.Shape) < 2 {
		copy(dst, t.data[first*size:(first+n)*size])
		return
	}
	for i := range n {
		at := t.storedRow(first+i) * size
		copy(dst[i*size:(i+1)*size], t.data[at:at+size])
	}
}
