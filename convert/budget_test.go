package convert

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/arch"
)

// TestAssignAgainstEveryChoice holds the choice against all there are: it keeps the limit, and is no further from the best than the bound
// says, and that bound lies below every choice.
func TestAssignAgainstEveryChoice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		tensors := make([][]option, 1+r.IntN(5))
		least, most := int64(0), int64(0)
		for i := range tensors {
			var low, high int64 = math.MaxInt64, 0
			for k := range 1 + r.IntN(4) {
				o := option{bytes: int64(10*(k+1) + r.IntN(15)), divergence: r.Float64() / float64(k+1)}
				tensors[i] = append(tensors[i], o)
				low, high = min(low, o.bytes), max(high, o.bytes)
			}
			least, most = least+low, most+high
		}
		limit := least + r.Int64N(most-least+2)
		best := every(tensors, func(bytes int64, divergence float64) float64 {
			if bytes > limit {
				return math.Inf(1)
			}
			return divergence
		})
		a, err := assign(tensors, limit, 0)
		if math.IsInf(best, 1) {
			require.ErrorIs(t, err, ErrBudget)
			continue
		}
		require.NoError(t, err)
		var bytes int64
		var divergence float64
		for i, pick := range a.picks {
			bytes += tensors[i][pick].bytes
			divergence += tensors[i][pick].divergence
		}
		require.Equal(t, bytes, a.bytes)
		require.InDelta(t, divergence, a.divergence, 1e-9)
		require.LessOrEqual(t, bytes, limit)
		require.LessOrEqual(t, a.bound, best+1e-9)
		require.GreaterOrEqual(t, a.divergence, best-1e-9)

		// The other way round.
		allowed := divergence * (0.9 + r.Float64())
		fewest := every(tensors, func(bytes int64, divergence float64) float64 {
			if divergence > allowed {
				return math.Inf(1)
			}
			return float64(bytes)
		})
		b, err := assign(tensors, 0, allowed)
		if math.IsInf(fewest, 1) {
			require.ErrorIs(t, err, ErrBudget)
			continue
		}
		require.NoError(t, err)
		require.LessOrEqual(t, b.divergence, allowed+1e-12)
		require.GreaterOrEqual(t, float64(b.bytes), fewest)
		require.Positive(t, b.bound)
		require.LessOrEqual(t, b.bound, fewest+1e-6)
	}
}

// every gives the least value of any choice.
func every(tensors [][]option, value func(bytes int64, divergence float64) float64) float64 {
	best := math.Inf(1)
	var walk func(i int, bytes int64, divergence float64)
	walk = func(i int, bytes int64, divergence float64) {
		if i == len(tensors) {
			best = min(best, value(bytes, divergence))
			return
		}
		for _, o := range tensors[i] {
			walk(i+1, bytes+o.bytes, divergence+o.divergence)
		}
	}
	walk(0, 0, 0)
	return best
}

func TestThreeDigits(t *testing.T) {
	for f, want := range map[float64]float64{0: 0, 0.0123456: 0.0123, 98765: 98800, -0.5555: -0.556, 1e-320: 0} {
		require.InDelta(t, want, round3(f), 1e-9)
	}
}

func TestBudgetValidates(t *testing.T) {
	for _, b := range []Budget{
		{BitsPerWeight: 4, Bytes: 1}, {BitsPerWeight: -1}, {Divergence: math.NaN()}, {BitsPerWeight: math.Inf(1)}, {Divergence: math.Inf(1)}, {BitsPerWeight: math.NaN()}, {Bytes: -1}, {Bytes: 1, Schemes: []Choice{"f16"}}, {Bytes: 1, Schemes: []Choice{"w5"}},
	} {
		require.Error(t, b.Validate(), "%+v", b)
	}
	require.NoError(t, Budget{BitsPerWeight: 4.25, Schemes: DefaultSchemes()}.Validate())
}

// TestRecipeIsFinite: what JSON cannot hold is found before anything is measured or written.
func TestRecipeIsFinite(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		r := DefaultRecipe("w4g32")
		r.Budget = &Budget{BitsPerWeight: v}
		require.Error(t, r.Validate())
		_, err := r.json()
		require.Error(t, err)
		r = DefaultRecipe("w4g32")
		r.Assigned = map[string]Assigned{"x": {"w8", v}}
		require.ErrorContains(t, r.Validate(), "not a finite number")
		_, err = r.json()
		require.Error(t, err)
	}
}

// TestSampleIsBounded: what is kept of the sample never passes its bound, whatever the model.
func TestSampleIsBounded(t *testing.T) {
	for _, c := range []arch.Config{
		{Hidden: 64, Layers: 4, Vocab: 512}, {Hidden: 4096, Layers: 32, Vocab: 128256}, {Hidden: 8192, Layers: 80, Vocab: 152064}, {Hidden: 16384, Layers: 126, Vocab: 262144},
	} {
		for _, length := range []int{2, 128, 512, 2048, 1 << 20} {
			n, tokens := sampleSize(&c, 128, length)
			require.Positive(t, n)
			require.LessOrEqual(t, n, sampleSequences)
			require.LessOrEqual(t, tokens, length)
			require.GreaterOrEqual(t, tokens, min(length, 32))
			require.LessOrEqual(t, n*tokens*perToken(&c), sampleElements)
		}
	}
	n, _ := sampleSize(&arch.Config{Hidden: 1 << 20, Layers: 200, Vocab: 1 << 20}, 128, 512)
	require.Zero(t, n)
}
