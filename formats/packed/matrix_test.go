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
	{Bits: 4, Group: 32, Codebook: true}, {Bits: 4, Group: 128, Codebook: true, Static: true}, {Bits: 4, Group: 32, TwoLevel: true}, {Bits: 4, Group: 32, Codebook: true, TwoLevel: true},
	{Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, {Bits: 3, Group: 32}, {Bits: 3, Group: 64}, {Bits: 3, Group: 32, TwoLevel: true}, {Bits: 3, Group: 16, Codebook: true, TwoLevel: true},
	{Bits: 3, Group: 64, Codebook: true}, {Bits: 8, Group: 128, Static: true},
}

var testBook = [16]int8{-127, -100, -80, -60, -44, -30, -20, -9, 1, 12, 25, 39, 54, 70, 90, 115}

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
		for g := range c.Subs {
			c.Subs[g] = int8(r.IntN(64) - 32)
		}
		all[i] = c
	}
	data := make([]byte, s.Bytes(rows, cols))
	panels := packed.PutPrelude(s, data, &testBook, 2.5)
	n := s.PanelBytes(cols)
	for p := 0; p*packed.Panel < rows; p++ {
		packed.PackPanel(s, panels[p*n:(p+1)*n], all[p*packed.Panel:min((p+1)*packed.Panel, rows)], cols)
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
					scale := half.F16ToF32(want.Scales[k/s.Span()])
					if s.TwoLevel {
						scale *= float32(want.Subs[g])
					}
					level := float32(want.Codes[k]) - s.Zero(want.Zeros[g])
					if s.Codebook {
						level = float32(testBook[want.Codes[k]])
					}
					require.Equal(t, scale*level, v)
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
		start := 0
		if s.Codebook || s.Static {
			start = 64
		}
		head := 16
		switch {
		case s.Asym:
			head = 24
		case s.TwoLevel && s.Group == 16:
			head = 16 + 3*8 + 2*8 // of 5 groups: 70 columns are less than a span
		case s.TwoLevel:
			head = 16 + 2*8 + 8 // of 3
		}
		for i := range rows {
			for k := range cols {
				row := i % 8
				at := start + i/8*s.PanelBytes(cols)
				at += (k/s.Span() + 1) * head
				at += k / 32 * s.Bits * 32
				in := k % 32
				var got int8
				switch s.Bits {
				case 8:
					got = int8(m.Data[at+in/4*32+row*4+in%4])
				case 3:
					low, high := m.Data[at+in/4%2*32+row*4+in%4], m.Data[at+64+row*4+in%4]
					got = int8(low>>(in/8*2)&3 + high>>(in/4)&1*4)
				default:
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
		"w4g32nl": {Bits: 4, Group: 32, Codebook: true}, "w4g16nlk": {Bits: 4, Group: 16, Codebook: true, TwoLevel: true}, "w3g32k": {Bits: 3, Group: 32, TwoLevel: true},
		"w8-s8": {Bits: 8, Group: 128, Static: true}, "w4g64nl-s8": {Bits: 4, Group: 64, Codebook: true, Static: true}, "w3": {Bits: 3, Group: 32},
	} {
		s, err := packed.ParseScheme(name)
		require.NoError(t, err, name)
		require.Equal(t, want, s)
		back, err := packed.ParseScheme(s.String())
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
	for _, name := range []string{"", "w2", "w4g16", "w4g64k", "w8k", "w8nl", "w4g32ak", "w4g32kk", "w4g", "w4g33", "w4g0", "W4", "w4g32b", "w4g32a-2:4", "w8g512", "w4g99999999999"} {
		_, err := packed.ParseScheme(name)
		require.ErrorIs(t, err, formats.ErrUnsupported, name)
	}
	require.InDelta(t, 4.5, packed.Scheme{Bits: 4, Group: 32}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 4.125, packed.Scheme{Bits: 4, Group: 128}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 4.75, packed.Scheme{Bits: 4, Group: 32, Asym: true}.BitsPerWeight(4096, 4096), 1e-9)
	require.InDelta(t, 8.125, packed.Scheme{Bits: 8, Group: 128}.BitsPerWeight(4096, 4096), 1e-9)
	for name, bits := range map[string]float64{"w4g32k": 4.25, "w4g16nlk": 4.4375, "w3g32k": 3.25, "w3g64": 3.25, "w4g64nl": 4.25} {
		s, err := packed.ParseScheme(name)
		require.NoError(t, err)
		require.InDelta(t, bits, s.BitsPerWeight(4096, 4096), 1e-4, name)
	}
	_, err := packed.NewMatrix(packed.Scheme{Bits: 4, Group: 32}, 8, 32, make([]byte, 144))
	require.Error(t, err)
}
