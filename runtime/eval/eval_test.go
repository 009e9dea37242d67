package eval

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// table is a model whose logits depend on the last token alone.
type table struct {
	logits [][]float32
	fed    []int32
	resets int
}

func (t *table) Reset() { t.fed = t.fed[:0]; t.resets++ }

func (t *table) Forward(tokens []int32, from int, visit func(int, []float32) error) error {
	for i, tok := range tokens {
		t.fed = append(t.fed, tok)
		if i >= from {
			if err := visit(i, t.logits[tok]); err != nil {
				return err
			}
		}
	}
	return nil
}

func randomTable(seed uint64, vocab int) *table {
	r := rand.New(rand.NewPCG(seed, 1))
	t := &table{}
	for range vocab {
		row := make([]float32, vocab)
		for i := range row {
			row[i] = float32(r.NormFloat64())
		}
		t.logits = append(t.logits, row)
	}
	return t
}

func randomTokens(n, vocab int) []int32 {
	r := rand.New(rand.NewPCG(7, 7))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(vocab))
	}
	return out
}

// softmax is the textbook one, in float64.
func softmax(x []float32) []float64 {
	p, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		p[i] = math.Exp(float64(v))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// TestMeasureAgainstDefinition computes every figure again from its definition.
func TestMeasureAgainstDefinition(t *testing.T) {
	const vocab, ctx, bos = 11, 8, 1
	model, base := randomTable(1, vocab), randomTable(2, vocab)
	tokens := randomTokens(27, vocab)

	var nll, kl, dp []float64
	same := 0
	for begin := 0; begin+ctx <= len(tokens); begin += ctx {
		for j := ctx / 2; j < ctx-1; j++ {
			p, q := softmax(base.logits[tokens[begin+j]]), softmax(model.logits[tokens[begin+j]])
			next := tokens[begin+j+1]
			nll = append(nll, -math.Log(q[next]))
			dp = append(dp, q[next]-p[next])
			sum, tp, tq := 0.0, 0, 0
			for i := range p {
				sum += p[i] * math.Log(p[i]/q[i])
				if p[i] > p[tp] {
					tp = i
				}
				if q[i] > q[tq] {
					tq = i
				}
			}
			kl = append(kl, sum)
			if tp == tq {
				same++
			}
		}
	}
	var sq float64
	for _, v := range dp {
		sq += v * v
	}

	var seen []Progress
	f, err := Measure(t.Context(), model, base, tokens, Options{
		Rule: Rule{Kind: RuleLlamaCpp, Context: ctx}, BOS: bos, Vocab: vocab,
		Progress: func(p Progress) { seen = append(seen, p) },
	})
	require.NoError(t, err)
	require.Equal(t, 3, f.Windows)
	require.Equal(t, 27, f.Tokens)
	require.Equal(t, 9, f.Scored)
	require.InDelta(t, math.Exp(mean(nll)), f.Perplexity, 1e-9)
	require.InDelta(t, mean(kl), f.KLMean, 1e-6)
	require.InDelta(t, float64(same)/9, f.SameTop1, 1e-12)
	require.InDelta(t, math.Sqrt(sq/9), f.RMSDeltaP, 1e-9)
	require.InDelta(t, f.Perplexity/f.BaselinePerplexity, f.PerplexityRatio, 1e-9)
	require.GreaterOrEqual(t, f.KLMax, f.KLP999)
	require.GreaterOrEqual(t, f.KLP999, f.KLP99)
	require.GreaterOrEqual(t, f.KLP99, f.KLMedian)
	require.Len(t, seen, 3)
	require.InDelta(t, f.Perplexity, seen[2].Perplexity, 1e-9)

	// The last window as the model saw it: BOS first, last token never fed.
	want := append([]int32{bos}, tokens[17:23]...)
	require.Equal(t, want, model.fed)
	require.Equal(t, 3, model.resets)
}

func TestMeasureSameModelIsExact(t *testing.T) {
	m, b := randomTable(3, 50), randomTable(3, 50)
	f, err := Measure(t.Context(), m, b, randomTokens(300, 50), Options{Rule: Rule{Kind: RuleLlamaCpp, Context: 64}, BOS: -1, Vocab: 50})
	require.NoError(t, err)
	require.Zero(t, f.KLMax)
	require.Equal(t, 1.0, f.SameTop1)
	require.Zero(t, f.RMSDeltaP)
	require.Equal(t, 1.0, f.PerplexityRatio)
	require.Zero(t, f.PerplexityRatioErr)
}

func TestSlidingScoresEachTokenOnce(t *testing.T) {
	for _, tc := range []struct{ n, context, stride int }{
		{100, 16, 4}, {100, 16, 15}, {101, 16, 8}, {17, 16, 8}, {16, 16, 8}, {5, 16, 8}, {2, 2, 1},
	} {
		ws, err := Rule{RuleSliding, tc.context, tc.stride}.windows(tc.n)
		require.NoError(t, err)
		scored := make([]int, tc.n)
		for _, w := range ws {
			require.LessOrEqual(t, w.end-w.begin, tc.context)
			require.Greater(t, w.first, w.begin, "a scored token has a token before it")
			for i := w.first; i < w.end; i++ {
				scored[i]++
			}
		}
		require.Zero(t, scored[0], "the first token of the text cannot be scored")
		for i, s := range scored[1:] {
			require.Equal(t, 1, s, "%+v: token %d", tc, i+1)
		}
	}
}

func TestMeasureRefuses(t *testing.T) {
	rule := Rule{Kind: RuleLlamaCpp, Context: 16}
	good := randomTable(1, 9)
	nan := randomTable(1, 9)
	nan.logits[4][2] = float32(math.NaN())
	inf := randomTable(1, 9)
	for i := range inf.logits {
		inf.logits[i][0] = float32(math.Inf(1))
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx         context.Context
		model, base Session
		n           int
		rule        Rule
		is          error
		text        string
	}{
		"too short":       {t.Context(), good, nil, 15, rule, ErrTextTooShort, "15 tokens"},
		"empty":           {t.Context(), good, nil, 0, rule, ErrTextTooShort, "0 tokens"},
		"one, sliding":    {t.Context(), good, nil, 1, Rule{RuleSliding, 16, 8}, ErrTextTooShort, "1 tokens"},
		"nan":             {t.Context(), nan, nil, 640, rule, ErrNotFinite, "window"},
		"inf":             {t.Context(), inf, nil, 32, rule, ErrNotFinite, "window"},
		"nan in baseline": {t.Context(), good, nan, 640, rule, ErrNotFinite, "baseline"},
		"vocabulary":      {t.Context(), good, randomTable(1, 10), 32, rule, ErrMismatch, "10 logits"},
		"cancelled":       {cancelled, good, nil, 32, rule, context.Canceled, ""},
		"context":         {t.Context(), good, nil, 32, Rule{RuleLlamaCpp, 3, 0}, nil, "at least 4"},
		"stride":          {t.Context(), good, nil, 32, Rule{RuleSliding, 8, 9}, nil, "stride 9"},
		"rule":            {t.Context(), good, nil, 32, Rule{"median", 8, 9}, nil, "median"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Measure(tc.ctx, tc.model, tc.base, randomTokens(tc.n, 9), Options{Rule: tc.rule, BOS: -1, Vocab: 9})
			require.Error(t, err)
			require.Contains(t, err.Error(), tc.text)
			if tc.is != nil {
				require.True(t, errors.Is(err, tc.is), err)
			}
		})
	}
}

func TestGates(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	nan := math.NaN()
	for name, tc := range map[string]struct {
		r      Report
		l      Limits
		ok     bool
		failed string
	}{
		"none":          {Report{}, Limits{}, true, ""},
		"held":          {Report{PerplexityRatio: f(1.009), KLMean: f(0.01), SameTop1: f(0.97)}, Limits{f(0.01), f(0.01), f(0.97)}, true, ""},
		"perplexity":    {Report{PerplexityRatio: f(1.011)}, Limits{MaxPPLIncrease: f(0.01)}, false, "max-ppl-increase"},
		"divergence":    {Report{KLMean: f(0.02)}, Limits{MaxKLD: f(0.01)}, false, "max-kld"},
		"top1":          {Report{SameTop1: f(0.96)}, Limits{MinTop1: f(0.97)}, false, "min-top1"},
		"not measured":  {Report{}, Limits{MaxKLD: f(0.01)}, false, "max-kld"},
		"not a number":  {Report{KLMean: &nan}, Limits{MaxKLD: f(0.01)}, false, "max-kld"},
		"better is ok":  {Report{PerplexityRatio: f(0.9)}, Limits{MaxPPLIncrease: f(0)}, true, ""},
		"negative gate": {Report{PerplexityRatio: f(0.995)}, Limits{MaxPPLIncrease: f(-0.01)}, false, "max-ppl-increase"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.ok, tc.r.Check(tc.l))
			require.NotNil(t, tc.r.Gates)
			for _, g := range tc.r.Gates {
				require.Equal(t, g.Name != tc.failed, g.OK, g)
			}
		})
	}
}

func TestParseShare(t *testing.T) {
	for in, want := range map[string]float64{"0.01": 0.01, "1%": 0.01, " 2.5 % ": 0.025, "-1%": -0.01, "0": 0} {
		got, err := ParseShare(in)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1e-15, in)
	}
	for _, in := range []string{"", "%", "one", "NaN", "Inf%", "1%%", "1,5"} {
		_, err := ParseShare(in)
		require.Error(t, err, in)
	}
}
