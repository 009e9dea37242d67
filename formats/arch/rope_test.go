package arch

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/testdata"
)

// ropeCase is an entry of testdata/rope/frequencies.json.
type ropeCase struct {
	Name            string          `json:"name"`
	Config          json.RawMessage `json:"config"`
	Length          int             `json:"length"`
	LayerType       string          `json:"layer_type"`
	Frequencies     []float64       `json:"frequencies"`
	AttentionFactor float64         `json:"attention_factor"`
}

func ropeCases(t testing.TB) []ropeCase {
	t.Helper()
	data, err := os.ReadFile(testdata.Path("rope", "frequencies.json"))
	require.NoError(t, err)
	var cases []ropeCase
	require.NoError(t, json.Unmarshal(data, &cases))
	require.NotEmpty(t, cases)
	return cases
}

// TestFrequencies compares with transformers, through FromHF, so that both the formulas and the
// reading of their parameters are covered. transformers computes in float32.
func TestFrequencies(t *testing.T) {
	for _, tc := range ropeCases(t) {
		t.Run(tc.Name, func(t *testing.T) {
			c, err := FromHF(tc.Config, "config.json")
			require.NoError(t, err)
			r := c.Rope
			if tc.LayerType == slidingAttention {
				r = *c.LocalRope
			}
			frequencies, factor := r.Frequencies(c.RotaryDim, tc.Length)
			require.Len(t, frequencies, len(tc.Frequencies))
			for i, want := range tc.Frequencies {
				require.InEpsilon(t, want, frequencies[i], 3e-6, "pair %d", i)
			}
			require.InEpsilon(t, tc.AttentionFactor, factor, 1e-12)
		})
	}
}

// TestFrequenciesThroughHFJSON checks that writing a configuration loses nothing.
func TestFrequenciesThroughHFJSON(t *testing.T) {
	for _, tc := range ropeCases(t) {
		t.Run(tc.Name, func(t *testing.T) {
			c, err := FromHF(tc.Config, "config.json")
			require.NoError(t, err)
			requireRoundTrip(t, c)
		})
	}
}

// requireRoundTrip writes c as config.json and requires the same configuration back.
func requireRoundTrip(t *testing.T, c *Config) {
	t.Helper()
	text, err := c.HFJSON()
	require.NoError(t, err)
	back, err := FromHF(text, "config.json")
	require.NoError(t, err, "%s", text)
	require.Empty(t, back.Warnings)
	want := *c
	want.Warnings = nil
	require.Equal(t, &want, back)
	again, err := back.HFJSON()
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
}

func TestLongropeSwitchesPastTheOriginalContext(t *testing.T) {
	r := Rope{
		Kind: RopeLongrope, Theta: 10000, Factor: 4, OriginalContext: 32,
		ShortFactors: []float64{1, 2}, LongFactors: []float64{3, 5},
	}
	short, _ := r.Frequencies(4, 32)
	long, _ := r.Frequencies(4, 33)
	require.InDeltaSlice(t, []float64{1, 0.005}, short, 1e-15)
	require.InDeltaSlice(t, []float64{1.0 / 3, 0.002}, long, 1e-15)
	require.False(t, r.Long(32))
	require.True(t, r.Long(33))
	require.False(t, Rope{Kind: RopeYarn, OriginalContext: 32}.Long(33))
}

func TestFrequenciesAreFinite(t *testing.T) {
	for _, tc := range ropeCases(t) {
		c, err := FromHF(tc.Config, "config.json")
		require.NoError(t, err)
		for _, length := range []int{1, 1 << 30} {
			frequencies, factor := c.Rope.Frequencies(c.RotaryDim, length)
			require.False(t, math.IsNaN(factor) || math.IsInf(factor, 0))
			for _, f := range frequencies {
				require.True(t, f > 0 && f <= 1, "%s: %v", tc.Name, f)
			}
		}
	}
}
