package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/pool"
)

func solver(t testing.TB, set *kernel.Set, threads int) *linalg.Solver {
	t.Helper()
	p := pool.New(threads)
	t.Cleanup(p.Close)
	return linalg.New(set, p)
}

// inputs are made ones whose channels differ in size and share a direction, as activations do.
func inputs(n, cols int, r *rand.Rand) []float32 {
	x := make([]float32, n*cols)
	for i := range n {
		common := r.NormFloat64()
		for c := range cols {
			x[i*cols+c] = float32((r.NormFloat64() + common) * math.Exp(float64(c%11-5)))
		}
	}
	return x
}

// TestGram compares the mean of x xᵀ with double precision, however the inputs are cut, with every set of loops and any number of
// threads: the number of threads changes no bit.
func TestGram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, cols := range []int{1, 7, 64, 172} {
		for _, n := range []int{1, 3, 512, 1300} {
			x := inputs(n, cols, r)
			want, size := make([]float64, cols*cols), make([]float64, cols*cols)
			for i := range n {
				for a, v := range x[i*cols : (i+1)*cols] {
					for b, w := range x[i*cols : (i+1)*cols] {
						p := float64(v) * float64(w) / float64(n)
						want[a*cols+b] += p
						size[a*cols+b] += math.Abs(p)
					}
				}
			}
			for _, set := range kernel.Available() {
				var first []float32
				for _, threads := range []int{1, 2, 3} {
					g := calibrate.NewGram(solver(t, set, threads), cols)
					for at, part := 0, 1; at < n; at, part = at+part, part*3 {
						part = min(part, n-at)
						require.NoError(t, g.Add(x[at*cols:], part))
					}
					require.Equal(t, n, g.Count)
					got := g.Mean()
					for i := range got {
						require.InDelta(t, want[i], got[i], 1e-5*size[i], "%s, %d inputs, element %d of %d²", set.Name, n, i, cols)
					}
					for a := range cols {
						for b := range a {
							require.Equal(t, got[a*cols+b], got[b*cols+a])
						}
					}
					if first == nil {
						first = got
					}
					require.Equal(t, first, got, "%d threads", threads)
				}
			}
		}
	}
}

// TestGramRefuses: what is not finite is named by its place in all that was added, and spoils nothing that was there.
func TestGramRefuses(t *testing.T) {
	const cols = 10
	nan, infinite := float32(math.NaN()), float32(math.Inf(1))
	x := inputs(700, cols, rand.New(rand.NewPCG(3, 4)))
	for _, bad := range []float32{nan, infinite, -infinite} {
		g := calibrate.NewGram(solver(t, kernel.Generic(), 2), cols)
		require.NoError(t, g.Add(x, 30))
		before := append([]float32(nil), g.Sum...)
		y := append([]float32(nil), x...)
		y[5*cols+7] = bad
		require.ErrorContains(t, g.Add(y, 9), "input 35, channel 7: ")
		require.Equal(t, before, g.Sum)
		require.Equal(t, 30, g.Count)
		y = append([]float32(nil), x...)
		y[600*cols+9] = bad
		require.ErrorContains(t, g.Add(y, 700), "input 630, channel 9: ")
	}
	none := calibrate.NewGram(solver(t, kernel.Generic(), 1), cols).Mean()
	require.Equal(t, make([]float32, cols*cols), none, "nothing added: zeros, which quantizers refuse")
}
