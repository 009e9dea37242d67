package half_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"qtool/formats/half"
)

// TestF16Widening holds every binary16 number against x448/float16.
func TestF16Widening(t *testing.T) {
	src := make([]byte, 2<<16)
	for h := range 1 << 16 {
		binary.LittleEndian.PutUint16(src[2*h:], uint16(h))
	}
	bulk := make([]float32, 1<<16)
	half.DecodeF16(bulk, src)
	for h := range 1 << 16 {
		want := float16.Frombits(uint16(h)).Float32()
		require.Equal(t, math.Float32bits(want), math.Float32bits(half.F16ToF32(uint16(h))), "%#x", h)
		require.Equal(t, math.Float32bits(want), math.Float32bits(bulk[h]), "%#x", h)
		if want == want {
			require.Equal(t, uint16(h), half.F32ToF16(want))
		}
	}
}

// TestBF16Rounding checks rounding against a search for the nearest neighbour in float64.
func TestBF16Rounding(t *testing.T) {
	for _, bits := range []uint32{
		0, 0x80000000, 1, 0x7fff, 0x8000, 0x8001, 0x18000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f817fff,
		0x3f808001, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x00800000, 0xbf808000,
	} {
		f := math.Float32frombits(bits)
		got := half.F32ToBF16(f)
		below, above := uint16(bits>>16), uint16(bits>>16)+1
		lo, hi := math.Abs(float64(half.BF16ToF32(below))), math.Abs(float64(half.BF16ToF32(above)))
		if bits&0x7fffffff >= 0x7f000000 {
			hi = math.Ldexp(1, 128) // what the infinity stands for when rounding
			if bits&0x7fffffff == 0x7f800000 {
				require.Equal(t, below, got)
				continue
			}
			if above&0x7fff != 0x7f80 {
				hi = math.Abs(float64(half.BF16ToF32(above)))
			}
		}
		x := math.Abs(float64(f))
		want := below
		if hi-x < x-lo || (hi-x == x-lo && below&1 == 1) {
			want = above
		}
		require.Equal(t, want, got, "%#x", bits)
	}
	for _, nan := range []uint32{0x7f800001, 0x7fffffff, 0xffc00000, 0xff80ffff} {
		require.True(t, math.IsNaN(float64(half.BF16ToF32(half.F32ToBF16(math.Float32frombits(nan))))))
	}
}

func TestOverflowIsCounted(t *testing.T) {
	inf := float32(math.Inf(1))
	dst := make([]byte, 12)
	require.Equal(t, 2, half.EncodeF16(dst, []float32{65504, 65520, -1e9, inf, -inf, float32(math.NaN())}))
	require.Equal(t, 1, half.EncodeBF16(dst, []float32{65504, math.MaxFloat32, inf, float32(math.NaN()), 0}))
}

// TestF8 holds the 8-bit types against the values that the OCP specification tabulates.
func TestF8(t *testing.T) {
	for b, want := range map[uint8]float32{
		0x00: 0, 0x01: 1.0 / 512, 0x07: 7.0 / 512, 0x08: 1.0 / 64, 0x38: 1, 0x7e: 448, 0xfe: -448, 0xb8: -1,
	} {
		require.Equal(t, want, half.F8E4M3ToF32(b), "%#x", b)
	}
	for b, want := range map[uint8]float32{
		0x00: 0, 0x01: 1.0 / 65536, 0x04: 1.0 / 16384, 0x3c: 1, 0x7b: 57344, 0xfb: -57344,
	} {
		require.Equal(t, want, half.F8E5M2ToF32(b), "%#x", b)
	}
	require.True(t, math.IsNaN(float64(half.F8E4M3ToF32(0x7f))))
	require.True(t, math.Signbit(float64(half.F8E4M3ToF32(0x80))))
	require.True(t, math.IsInf(float64(half.F8E5M2ToF32(0xfc)), -1))
	require.True(t, math.IsNaN(float64(half.F8E5M2ToF32(0x7d))))
	got := make([]float32, 2)
	half.DecodeF8E4M3(got, []byte{0x38, 0x7e})
	require.Equal(t, []float32{1, 448}, got)
	half.DecodeF8E5M2(got, []byte{0x3c, 0x7b})
	require.Equal(t, []float32{1, 57344}, got)
}

func TestPlainRoundTrip(t *testing.T) {
	src := []float32{0, -1.5, math.MaxFloat32, math.SmallestNonzeroFloat32}
	raw, back := make([]byte, 16), make([]float32, 4)
	half.EncodeF32(raw, src)
	half.DecodeF32(back, raw)
	require.Equal(t, src, back)
	wide := make([]byte, 0, 16)
	for _, v := range []float64{math.Pi, 1e-300} {
		wide = binary.LittleEndian.AppendUint64(wide, math.Float64bits(v))
	}
	half.DecodeF64(back[:2], wide)
	require.Equal(t, []float32{float32(math.Pi), 0}, back[:2])
}

func BenchmarkDecode(b *testing.B) {
	const n = 1 << 16
	src, dst := make([]byte, 2*n), make([]float32, n)
	for i := range n {
		binary.LittleEndian.PutUint16(src[2*i:], half.F32ToF16(float32(i%251)-125))
	}
	for name, decode := range map[string]func([]float32, []byte){"F16": half.DecodeF16, "BF16": half.DecodeBF16} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(2 * n)
			for b.Loop() {
				decode(dst, src)
			}
		})
	}
}
