package packed_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/half"
	"qtool/formats/packed"
)

var schemes = []packed.Scheme{
	{Bits: 4, Group: 32}, {Bits: 4, Group: 64}, {Bits: 4, Group: 128, Asym: true}, {Bits: 4, Group: 32, Asym: true},
	{Bits: 8, Group: 128}, {Bits: 8, Group: 32}, {Bits: 8, Group: 64, Asym: true}, {Bits: 4, Group: 256},
}

// randomMatrix packs random codes and returns them too.
func randomMatrix(t *testing.T, s packed.Scheme, rows, cols int, r *rand.Rand) (packed.Matrix, []packed.Codes) {
	t.Helper()
	least, most := s.Levels()
	all := make([]packed.Codes, rows)
	for i := range all {
		c := packed.NewCodes(s, cols)
		for k := range c.Codes {
			c.Codes[k] = int8(least + r.IntN(most-least+1))
		}
		for g := range c.Scales {
			c.Scales[g] = half.F32ToF16(float32(r.NormFloat64()))
			if s.Asym {
				c.Zeros[g] = uint8(r.IntN(256))
			}
		}
		all[i] = c
	}
	data := make([]byte, s.Bytes(rows, cols))
	n := s.PanelBytes(cols)
	for p := 0; p*packed.Panel < rows; p++ {
		packed.PackPanel(s, data[p*n:(p+1)*n], all[p*packed.Panel:min((p+1)*packed.Panel, rows)], cols)
	}
	m, err := packed.NewMatrix(s, rows, cols, data)
	require.NoError(t, err)
	return m, all
}

func TestPackRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range schemes {
		for _, shape := range [][2]int{{1, 1}, {7, 31}, {8, 32}, {9, 33}, {16, 172}, {17, 300}, {3, 257}, {24, 128}} {
			rows, cols := shape[0], shape[1]
			m, all := randomMatrix(t, s, rows, cols, r)
			got := packed.NewCodes(s, cols)
			values := make([]float32, cols)
			for i, want := range all {
				m.UnpackRow(i, got)
				require.Equal(t, want, got, "%s %v row %d", s, shape, i)
				m.DequantizeRow(values, i, got)
				for k, v := range values {
					g := k / s.Group
					require.Equal(t, half.F16ToF32(want.Scales[g])*(float32(want.Codes[k])-s.Zero(want.Zeros[g])), v)
				}
			}
		}
	}
}

// TestLayout holds the storage against the specification, position by position.
func TestLayout(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, s := range schemes {
		const rows, cols = 11, 70
		m, all := randomMatrix(t, s, rows, cols, r)
		head := 16
		if s.Asym {
			head = 24
		}
		for i := range rows {
			for k := range cols {
				group, row := k/s.Group, i%8
				at := i / 8 * s.PanelBytes(cols)
				at += (group + 1) * head
				at += k / 32 * s.Bits * 32
				in := k % 32
				var got int8
				if s.Bits == 8 {
					got = int8(m.Data[at+in/4*32+row*4+in%4])
				} else {
					got = int8(m.Data[at+in%16/4*32+row*4+in%4] >> (in / 16 * 4) & 15)
				}
				require.Equal(t, all[i].Codes[k], got, "%s row %d column %d", s, i, k)
			}
		}
	}
}

func TestSchemes(t *testing.T) {
	for name, want := range map[string]packed.Scheme{
		"w8": {Bits: 8, Group: 128}, "w8g32": {Bits: 8, Group: 32}, "w4": {Bits: 4, Group: 32}, "w4g128": {Bits: 4, Group: 128},
		"w4g32a": {Bits: 4, Group: 32, Asym: true}, "w8a": {Bits: 8, Group: 128, Asym: true}, "w4g256": {Bits: 4, Group: 256},
	} {
		s, err := packed.ParseScheme(name)
		require.NoError(t, err, name)
		require.Equal(t, want, s)
		back, err := packed.ParseScheme(s.String())
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	for _, name := range []string{"", "w3", "w4g", "w4g33", "w4g0", "W4", "w4g32b", "w4g32a-2:4", "w8g512", "w4g99999999999"} {
		_, err := packed.ParseScheme(name)
		require.ErrorIs(t, err, formats.ErrUnsupported, name)
	}
	require.InDelta(t, 4.5, packed.Scheme{Bits: 4, Group: 32}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 4.125, packed.Scheme{Bits: 4, Group: 128}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 4.75, packed.Scheme{Bits: 4, Group: 32, Asym: true}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 8.125, packed.Scheme{Bits: 8, Group: 128}.BitsPerWeight(4096, 4096), 1e-9)
	_, err := packed.NewMatrix(packed.Scheme{Bits: 4, Group: 32}, 8, 32, make([]byte, 144))
	require.Error(t, err)
}
