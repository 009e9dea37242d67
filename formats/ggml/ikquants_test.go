package ggml_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/ggml"
)

// ikGolden is rows of a type of ik_llama.cpp's and their values, as that program decodes them.
type ikGolden struct {
	golden
	Number uint32
	Cols   int
}

func ikGoldens(t *testing.T) []ikGolden {
	t.Helper()
	data, err := os.ReadFile("testdata/ikgoldens.json")
	require.NoError(t, err)
	var all []ikGolden
	require.NoError(t, json.Unmarshal(data, &all))
	require.NotEmpty(t, all)
	return all
}

func TestIKGoldens(t *testing.T) {
	for _, g := range ikGoldens(t) {
		t.Run(g.Type, func(t *testing.T) {
			typ, rows, values := g.decode(t)
			require.EqualValues(t, g.Number, typ)
			size, err := typ.RowBytes(g.Cols)
			require.NoError(t, err)
			require.Len(t, rows, size*len(values)/g.Cols)
			got := make([]float32, len(values))
			require.NoError(t, ggml.DequantizeRows(got, rows, g.Cols, typ))
			require.Equal(t, bits(values), bits(got))

			// A row alone; and rows with a head are not taken for one long row.
			clear(got)
			require.NoError(t, ggml.Dequantize(got[:g.Cols], rows[size:2*size], typ))
			require.Equal(t, bits(values[g.Cols:2*g.Cols]), bits(got[:g.Cols]))
			err = ggml.Dequantize(got, rows, typ)
			if typ.RowHead() > 0 {
				require.ErrorIs(t, err, formats.ErrMalformed)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestIKRefusals(t *testing.T) {
	for _, g := range ikGoldens(t) {
		t.Run(g.Type, func(t *testing.T) {
			typ, rows, values := g.decode(t)
			dst := make([]float32, len(values))
			for _, c := range []struct {
				what string
				dst  []float32
				src  []byte
				cols int
			}{
				{"a byte short", dst, rows[:len(rows)-1], g.Cols},
				{"a byte more", dst, append(rows[:len(rows):len(rows)], 0), g.Cols},
				{"a row short", dst, rows[:len(rows)/2], g.Cols},
				{"no data", dst, nil, g.Cols},
				{"rows of half a block", dst, rows, typ.BlockSize() / 2},
				{"rows of three halves", dst[:typ.BlockSize()*3/2], rows, typ.BlockSize() * 3 / 2},
				{"no columns", dst, rows, 0},
				{"a row and a half", dst[:g.Cols*3/2], rows, g.Cols},
			} {
				require.ErrorIs(t, ggml.DequantizeRows(c.dst, c.src, c.cols, typ), formats.ErrMalformed, c.what)
			}
			require.NoError(t, ggml.DequantizeRows(nil, nil, g.Cols, typ))
			require.ErrorIs(t, ggml.DequantizeRows(nil, rows, g.Cols, typ), formats.ErrMalformed)
			require.ErrorIs(t, ggml.Quantize(rows, dst, typ), formats.ErrUnsupported)
		})
	}
}

// TestIKScalesThatAreNotFinite: what a damaged scale covers becomes NaN or infinite, and nothing
// else does.
func TestIKScalesThatAreNotFinite(t *testing.T) {
	for _, g := range ikGoldens(t) {
		typ, rows, values := g.decode(t)
		for name, scale := range map[string]float64{"NaN": math.NaN(), "infinity": math.Inf(1)} {
			t.Run(g.Type+" "+name, func(t *testing.T) {
				broken, covered := append([]byte(nil), rows...), typ.BlockSize()
				switch typ.RowHead() {
				case 4:
					binary.LittleEndian.PutUint32(broken, math.Float32bits(float32(scale)))
				default: // half precision, at the head of the row or of the block
					h := uint16(0x7c00)
					if math.IsNaN(scale) {
						h = 0x7e00
					}
					binary.LittleEndian.PutUint16(broken, h)
				}
				if typ.RowHead() > 0 {
					covered = g.Cols
				}
				got := make([]float32, len(values))
				require.NoError(t, ggml.DequantizeRows(got, broken, g.Cols, typ))
				for i, v := range got[:covered] {
					require.True(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0), "element %d is %g", i, v)
				}
				require.Equal(t, bits(values[covered:]), bits(got[covered:]))
			})
		}
	}
}

func TestRowBytesWithHead(t *testing.T) {
	size, err := ggml.IQ4_KS.RowBytes(512)
	require.NoError(t, err)
	require.Equal(t, 4+2*136, size)
	size, err = ggml.IQ4_KS.RowBytes(0)
	require.NoError(t, err)
	require.Zero(t, size)
	_, err = ggml.IQ4_KS.RowBytes(300)
	require.ErrorIs(t, err, formats.ErrMalformed)
	require.Equal(t, 4, ggml.IQ4_KS.RowHead())
	require.Zero(t, ggml.Q4_K.RowHead())
}

// TestRepackedTypes: rows that are interleaved are refused with a word on how to do without.
func TestRepackedTypes(t *testing.T) {
	const iq4kR4 = ggml.Type(339)
	_, err := iq4kR4.RowBytes(256)
	require.ErrorIs(t, err, formats.ErrUnsupported)
	require.ErrorContains(t, err, "339")
	require.ErrorContains(t, err, "without repacking")
	_, err = ggml.Type(99).RowBytes(256)
	require.ErrorIs(t, err, formats.ErrUnsupported)
	require.NotContains(t, err.Error(), "repacking")
}
