package ggml_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/ggml"
)

// golden is blocks and their values, as the gguf Python package gives them.
type golden struct {
	Type   string
	Blocks string
	Values string
}

func (g golden) decode(t *testing.T) (typ ggml.Type, blocks []byte, values []float32) {
	t.Helper()
	typ, err := ggml.ParseType(g.Type)
	require.NoError(t, err)
	blocks, err = base64.StdEncoding.DecodeString(g.Blocks)
	require.NoError(t, err)
	raw, err := base64.StdEncoding.DecodeString(g.Values)
	require.NoError(t, err)
	values = make([]float32, len(raw)/4)
	_, err = binary.Decode(raw, binary.LittleEndian, values)
	require.NoError(t, err)
	return typ, blocks, values
}

func goldens(t *testing.T) (dequantize, quantize []golden) {
	t.Helper()
	data, err := os.ReadFile("testdata/goldens.json")
	require.NoError(t, err)
	var all struct{ Dequantize, Quantize []golden }
	require.NoError(t, json.Unmarshal(data, &all))
	require.NotEmpty(t, all.Dequantize)
	require.NotEmpty(t, all.Quantize)
	return all.Dequantize, all.Quantize
}

// bits gives the bit patterns, which tell −0 from 0 and one NaN from another.
func bits(v []float32) []uint32 {
	out := make([]uint32, len(v))
	for i, f := range v {
		out[i] = math.Float32bits(f)
	}
	return out
}

func TestDequantizeGoldens(t *testing.T) {
	cases, _ := goldens(t)
	for _, g := range cases {
		t.Run(g.Type, func(t *testing.T) {
			typ, blocks, values := g.decode(t)
			got := make([]float32, len(values))
			require.NoError(t, ggml.Dequantize(got, blocks, typ))
			require.Equal(t, bits(values), bits(got))
		})
	}
}

func TestQuantizeGoldens(t *testing.T) {
	_, cases := goldens(t)
	for _, g := range cases {
		t.Run(g.Type, func(t *testing.T) {
			typ, blocks, values := g.decode(t)
			got := make([]byte, len(blocks))
			require.NoError(t, ggml.Quantize(got, values, typ))
			require.Equal(t, blocks, got)
		})
	}
}

func TestQuantizeRefusesWhatItCannotHold(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name  string
		typ   ggml.Type
		value float32
		want  error
	}{
		{"NaN in Q8_0", ggml.Q8_0, nan, ggml.ErrNotFinite},
		{"NaN in Q4_0", ggml.Q4_0, nan, ggml.ErrNotFinite},
		{"Inf in Q8_0", ggml.Q8_0, inf, ggml.ErrNotFinite},
		{"-Inf in Q4_0", ggml.Q4_0, -inf, ggml.ErrNotFinite},
		{"scale over f16 in Q8_0", ggml.Q8_0, 1e8, ggml.ErrOverflow},
		{"scale over f16 in Q4_0", ggml.Q4_0, -1e6, ggml.ErrOverflow},
		{"70000 in F16", ggml.F16, 70000, ggml.ErrOverflow},
		{"largest float in BF16", ggml.BF16, math.MaxFloat32, ggml.ErrOverflow},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := make([]float32, 64)
			src[40] = c.value
			size, err := c.typ.RowBytes(len(src))
			require.NoError(t, err)
			err = ggml.Quantize(make([]byte, size), src, c.typ)
			require.ErrorIs(t, err, c.want)
			var ve *ggml.ValueError
			require.ErrorAs(t, err, &ve)
			if errors.Is(c.want, ggml.ErrNotFinite) || c.typ.BlockSize() == 1 {
				require.Equal(t, 40, ve.Index)
			}
		})
	}
	// Plain types keep NaN and infinities.
	for _, typ := range []ggml.Type{ggml.F32, ggml.F16, ggml.BF16} {
		src, back := []float32{nan, inf, -inf}, make([]float32, 3)
		dst := make([]byte, 3*typ.BlockBytes())
		require.NoError(t, ggml.Quantize(dst, src, typ))
		require.NoError(t, ggml.Dequantize(back, dst, typ))
		require.True(t, math.IsNaN(float64(back[0])))
		require.Equal(t, src[1:], back[1:])
	}
}

func TestRefusals(t *testing.T) {
	for typ := range ggml.Type(512) {
		n := max(typ.BlockSize(), 1)
		dst, src := make([]float32, n), make([]byte, typ.RowHead()+typ.BlockBytes())
		dq, q := ggml.Dequantize(dst, src, typ), ggml.Quantize(src, dst, typ)
		if typ.CanDequantize() {
			require.NoError(t, dq, typ)
			require.ErrorIs(t, ggml.Dequantize(dst, append(src, 0), typ), formats.ErrMalformed, typ)
			require.ErrorIs(t, ggml.Dequantize(dst, src[1:], typ), formats.ErrMalformed, typ)
		} else {
			require.ErrorIs(t, dq, formats.ErrUnsupported, typ)
			require.ErrorContains(t, dq, strings.TrimPrefix(typ.String(), "type "), typ)
		}
		if typ.CanQuantize() {
			require.NoError(t, q, typ)
			require.Error(t, ggml.Quantize(src[1:], dst, typ), typ)
		} else {
			require.ErrorIs(t, q, formats.ErrUnsupported, typ)
		}
	}
	_, err := ggml.Q4_K.RowBytes(300)
	require.ErrorIs(t, err, formats.ErrMalformed)
	_, err = ggml.ParseType("Q4_Z")
	require.ErrorIs(t, err, formats.ErrUnsupported)
	typ, err := ggml.ParseType("q5_k")
	require.NoError(t, err)
	require.Equal(t, ggml.Q5_K, typ)
	require.InDelta(t, 5.5, typ.BitsPerWeight(), 1e-9)
}

func BenchmarkDequantize(b *testing.B) {
	const n = 1 << 16
	dst := make([]float32, n)
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range []ggml.Type{
		ggml.F32, ggml.F16, ggml.BF16, ggml.Q4_0, ggml.Q4_1, ggml.Q5_0, ggml.Q5_1, ggml.Q8_0, ggml.Q2_K,
		ggml.Q3_K, ggml.Q4_K, ggml.Q5_K, ggml.Q6_K, ggml.IQ4_NL, ggml.IQ4_XS, ggml.IQ3_S,
		ggml.IQ2_K, ggml.IQ3_K, ggml.IQ4_K, ggml.IQ5_K, ggml.IQ4_KS, ggml.IQ5_KS, ggml.IQ4_KSS, ggml.IQ2_KS, ggml.IQ3_KS,
	} {
		b.Run(typ.String(), func(b *testing.B) {
			src := make([]byte, typ.RowHead()+n/typ.BlockSize()*typ.BlockBytes())
			for i := range src {
				src[i] = byte(r.Uint32()) & 0x3f // no NaN among the scales
			}
			b.SetBytes(4 * n)
			for b.Loop() {
				if err := ggml.Dequantize(dst, src, typ); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkQuantize(b *testing.B) {
	const n = 1 << 16
	src := make([]float32, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range src {
		src[i] = float32(r.NormFloat64())
	}
	for _, typ := range []ggml.Type{ggml.F16, ggml.BF16, ggml.Q8_0, ggml.Q4_0} {
		b.Run(typ.String(), func(b *testing.B) {
			dst := make([]byte, n/typ.BlockSize()*typ.BlockBytes())
			b.SetBytes(4 * n)
			for b.Loop() {
				if err := ggml.Quantize(dst, src, typ); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
