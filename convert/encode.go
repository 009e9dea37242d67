package convert

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"unsafe"

	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/formats/half"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// ErrOverflow means that a value is beyond the range of the type that it is to be stored as.
var ErrOverflow = errors.New("value out of range")

// sumFloats is the digest of values as little-endian float32.
func sumFloats(values []float32) packed.Digest {
	if len(values) == 0 {
		return packed.Sum(nil)
	}
	if one := uint16(1); *(*byte)(unsafe.Pointer(&one)) == 1 {
		return packed.Sum(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values)))
	}
	raw := make([]byte, 4*len(values))
	half.EncodeF32(raw, values)
	return packed.Sum(raw)
}

// packing is the item of a tensor that is quantized row by row.
func packing(k *kernel.Set, t *checkpoint.Tensor, s packed.Scheme, rule quant.Rule) item {
	rows, cols := t.Rows(), t.Cols()
	// The codebook, if there is one, is fitted before the first row is encoded, by whoever comes first.
	book := sync.OnceValues(func() (*[16]int8, error) { return fitBook(k, t, s, rule) })
	it := item{
		tensor: t, size: int64(s.Bytes(rows, cols)), unit: packed.Panel, unitBytes: s.PanelBytes(cols),
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			q := quant.New(k, s, rule)
			panel := make([]packed.Codes, packed.Panel)
			for i := range panel {
				panel[i] = packed.NewCodes(s, cols)
			}
			size := s.PanelBytes(cols)
			fitted := !s.Codebook
			return func(dst []byte, values []float32, first, n int) (int, error) {
				if !fitted {
					b, err := book()
					if err != nil {
						return 0, err
					}
					q.UseBook(b)
					fitted = true
				}
				for at := 0; at < n; at += packed.Panel {
					part := panel[:min(packed.Panel, n-at)]
					for r := range part {
						if err := q.Row(part[r], values[(at+r)*cols:(at+r+1)*cols], nil); err != nil {
							return 0, rowError(t, first+at+r, err)
						}
					}
					packed.PackPanel(s, dst[at/packed.Panel*size:(at/packed.Panel+1)*size], part, cols)
				}
				return 0, nil
			}
		},
	}
	if s.Codebook {
		it.head = func() ([]byte, error) {
			b, err := book()
			if err != nil {
				return nil, err
			}
			head := make([]byte, s.PreludeBytes())
			packed.PutPrelude(s, head, b, 0)
			return head, nil
		}
	}
	return it
}

// fitBook fits the codebook of a tensor to some of its rows.
func fitBook(k *kernel.Set, t *checkpoint.Tensor, s packed.Scheme, rule quant.Rule) (*[16]int8, error) {
	cols := t.Cols()
	rows := quant.BookRows(t.Rows())
	w := make([]float32, len(rows)*cols)
	var reader checkpoint.Reader
	for i, r := range rows {
		if err := t.ReadRows(w[i*cols:(i+1)*cols], r, 1, &reader); err != nil {
			return nil, err
		}
	}
	book, err := quant.FitBook(k, s, rule, w, len(rows), cols)
	if err != nil {
		if bad := (*quant.RowError)(nil); errors.As(err, &bad) {
			err = &quant.RowError{Row: rows[bad.Row], Err: bad.Err}
		}
		return nil, fmt.Errorf("tensor %q: fit its codebook: %w", t.Name, err)
	}
	return book, nil
}

// copying is the item of a packed matrix that stays as it is.
func copying(t *checkpoint.Tensor) item {
	m := t.Matrix()
	return item{
		head:   func() ([]byte, error) { return m.Data[:m.Scheme.PreludeBytes()], nil },
		tensor: t, size: t.Bytes(), unit: packed.Panel, unitBytes: m.Scheme.PanelBytes(m.Cols),
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			return func(dst []byte, _ []float32, first, n int) (int, error) {
				for p := first / packed.Panel; p*packed.Panel < first+n; p++ {
					at := (p - first/packed.Panel) * m.Scheme.PanelBytes(m.Cols)
					copy(dst[at:], m.Panel(p))
				}
				return 0, nil
			}
		},
	}
}

// plain is the item of a tensor that is stored value by value. clamp cuts values to the range of the type
// instead of failing.
func plain(t *checkpoint.Tensor, d formats.DType, clamp bool) (item, error) {
	width, ok := d.Bits()
	if !ok {
		return item{}, fmt.Errorf("tensor %q: element type %q cannot be written", t.Name, d)
	}
	if own, isPlain := t.DType(); isPlain && own == d && !t.Reordered() {
		return raw(t), nil
	}
	var encode func(dst []byte, src []float32) int
	limit := float32(math.MaxFloat32)
	switch d {
	case formats.F32:
		encode = func(dst []byte, src []float32) int { half.EncodeF32(dst, src); return 0 }
	case formats.F16:
		encode, limit = half.EncodeF16, 65504
	case formats.BF16:
		encode, limit = half.EncodeBF16, half.BF16ToF32(0x7f7f)
	default:
		return item{}, formats.Unsupported("", t.Name, "values of type %s cannot be written as %s", t.Storage(), d)
	}
	cols := t.Cols()
	return item{
		tensor: t, size: int64(t.Elements()) * int64(width/8), unit: 1, unitBytes: cols * width / 8,
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			return func(dst []byte, values []float32, first, _ int) (int, error) {
				if encode(dst, values) == 0 {
					return 0, nil
				}
				clamped := 0
				for i, v := range values {
					if abs := float32(math.Abs(float64(v))); abs <= limit || math.IsInf(float64(abs), 0) || v != v {
						continue
					}
					if !clamp {
						return 0, rowError(t, first+i/cols, fmt.Errorf("column %d: %w: %g exceeds %s; use --clamp to cut such values", i%cols, ErrOverflow, v, d))
					}
					values[i] = float32(math.Copysign(float64(limit), float64(v)))
					clamped++
				}
				encode(dst, values)
				return clamped, nil
			}
		},
	}, nil
}

// raw is the item of a tensor whose bytes are copied.
func raw(t *checkpoint.Tensor) item {
	rows := max(t.Rows(), 1)
	size := int(t.Bytes()) / rows
	return item{
		tensor: t, size: t.Bytes(), unit: 1, unitBytes: size,
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			return func(dst []byte, _ []float32, first, n int) (int, error) {
				t.ReadRaw(dst, first, n)
				return 0, nil
			}
		},
	}
}

// blocks is the item of a tensor that is stored in a type of ggml's. shift is added to each value, and row
// gives the row of the tensor that is stored as row i.
func blocks(t *checkpoint.Tensor, typ ggml.Type, shift float32) (item, error) {
	cols := t.Cols()
	size, err := typ.RowBytes(cols)
	if err != nil {
		return item{}, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return item{
		tensor: t, size: int64(size) * int64(t.Rows()), unit: 1, unitBytes: size,
		encoder: func() func([]byte, []float32, int, int) (int, error) {
			return func(dst []byte, values []float32, first, _ int) (int, error) {
				if shift != 0 {
					for i := range values {
						values[i] += shift
					}
				}
				err := ggml.Quantize(dst, values, typ)
				var v *ggml.ValueError
				if errors.As(err, &v) {
					return 0, rowError(t, first+v.Index/cols, fmt.Errorf("column %d: %w", v.Index%cols, v.Err))
				}
				return 0, err
			}
		},
	}, nil
}

// rowError says which row of which tensor of which file a value is in.
func rowError(t *checkpoint.Tensor, row int, err error) error {
	return fmt.Errorf("%s: tensor %q, row %d: %w", t.Path(), t.Name, row, err)
}

// checked is an item whose values must be finite, as those of quantized ones must: a norm with one that is not makes a model that predicts nothing.
func checked(it item) item {
	t, encoder := it.tensor, it.encoder
	it.encoder = func() func([]byte, []float32, int, int) (int, error) {
		encode := encoder()
		return func(dst []byte, values []float32, first, n int) (int, error) {
			if err := checkFinite(t, first, values); err != nil {
				return 0, err
			}
			return encode(dst, values, first, n)
		}
	}
	return it
}

// checkFinite says which of the values, of rows from first on, is NaN or an infinity.
func checkFinite(t *checkpoint.Tensor, first int, values []float32) error {
	for i, v := range values {
		if v-v != 0 {
			return rowError(t, first+i/t.Cols(), fmt.Errorf("column %d: %g is %w", i%t.Cols(), v, quant.ErrNotFinite))
		}
	}
	return nil
}

// readGuarded reads rows of a tensor whose file may be cut short meanwhile.
func readGuarded(t *checkpoint.Tensor, dst []float32, first, n int, r *checkpoint.Reader) error {
	return mapped.Guard(func() error { return t.ReadRows(dst, first, n, r) })
}

// writeLittleEndian writes values to a hash; raw has room for them.
func writeLittleEndian(h io.Writer, raw []byte, values []float32) {
	half.EncodeF32(raw[:4*len(values)], values)
	_, _ = h.Write(raw[:4*len(values)]) // a hash takes everything
}
