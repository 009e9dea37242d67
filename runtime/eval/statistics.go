package eval

import (
	"math"
	"slices"
)

// figures turns what was gathered into means, quantiles and standard errors. A standard error is
// that of the mean of independent positions, as llama-perplexity prints it; positions of one
// text are not quite independent, so it is a lower bound.
func (c *comparison) figures(withBaseline bool) *Figures {
	n := len(c.nll)
	f := &Figures{Scored: n, WithBaseline: withBaseline}
	m, se := meanErr(c.nll)
	f.Perplexity = math.Exp(m)
	f.PerplexityErr = se * f.Perplexity
	if !withBaseline {
		return f
	}
	bm, bse := meanErr(c.baseNLL)
	f.BaselinePerplexity = math.Exp(bm)
	f.BaselinePerplexityErr = bse * f.BaselinePerplexity

	diff := make([]float64, n)
	for i := range diff {
		diff[i] = c.nll[i] - c.baseNLL[i]
	}
	dm, dse := meanErr(diff)
	f.PerplexityRatio = math.Exp(dm)
	f.PerplexityRatioErr = dse * f.PerplexityRatio

	f.KLMean, f.KLMeanErr = meanErr(c.kl)
	sorted := slices.Sorted(slices.Values(c.kl))
	f.KLMedian = quantile(sorted, 0.5)
	f.KLP99 = quantile(sorted, 0.99)
	f.KLP999 = quantile(sorted, 0.999)
	f.KLMax = sorted[n-1]

	f.SameTop1 = float64(c.sameTop) / float64(n)
	if n > 1 {
		f.SameTop1Err = math.Sqrt(f.SameTop1 * (1 - f.SameTop1) / float64(n-1))
	}
	f.RMSDeltaP = math.Sqrt(c.sumDP2 / float64(n))
	return f
}

func mean(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// meanErr returns the mean of x and its standard error, 0 for fewer than two values.
func meanErr(x []float64) (m, se float64) {
	m = mean(x)
	if len(x) < 2 {
		return m, 0
	}
	var sum float64
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	n := float64(len(x))
	return m, math.Sqrt(sum / n / (n - 1))
}

// quantile interpolates linearly between the two nearest of the sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	lo := int(at)
	if lo+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	frac := at - float64(lo)
	return sorted[lo]*(1-frac) + sorted[lo+1]*frac
}
