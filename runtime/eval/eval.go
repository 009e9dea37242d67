// Package eval measures how well a language model predicts a text, and how far a compressed
// model has moved from the model it was made from.
//
// Perplexity follows one of two published rules (see Rule). Against a baseline, the two models
// read the same tokens side by side, and the distributions they predict are compared token by
// token: Kullback-Leibler divergence, rate of equal first choices, and the change of the
// probability given to the token that really follows.
package eval

import (
	"context"
	"errors"
	"fmt"
	"math"

	"qtool/runtime/llama"
)

// Errors that a caller may want to tell apart.
var (
	// ErrTextTooShort means that the text has fewer tokens than one window.
	ErrTextTooShort = errors.New("text too short")
	// ErrNotFinite means that a model gave NaN or infinite logits, so that no figure would mean
	// anything.
	ErrNotFinite = llama.ErrNotFinite
	// ErrMismatch means that two models do not predict over the same vocabulary.
	ErrMismatch = errors.New("models cannot be compared")
)

// Session is one running sequence of a model: llama.Session is the one in use.
type Session interface {
	// Reset forgets every token.
	Reset()
	// Forward appends tokens and calls visit in order for each index i ≥ from of tokens with the
	// logits that follow it, [vocab]; the slice is valid during the call only.
	Forward(tokens []int32, from int, visit func(i int, logits []float32) error) error
}

// Options of a measurement.
type Options struct {
	Rule Rule
	// BOS replaces the first token of every window under RuleLlamaCpp; negative: nothing is
	// replaced, as for a tokenizer that adds none.
	BOS int32
	// Vocab is the number of logits at a position.
	Vocab int
	// Progress, if set, is called after each window.
	Progress func(p Progress)
}

// Progress of a measurement.
type Progress struct {
	Window, Windows int
	Perplexity      float64 // so far
}

// Figures of one measurement. Fields that need a baseline are meaningless without one.
type Figures struct {
	Windows, Tokens, Scored int

	Perplexity, PerplexityErr      float64 // with its standard error
	BaselinePerplexity             float64
	BaselinePerplexityErr          float64
	PerplexityRatio                float64 // Perplexity / BaselinePerplexity
	PerplexityRatioErr             float64
	KLMean, KLMeanErr              float64 // nats, KL(baseline ‖ model)
	KLMedian, KLP99, KLP999, KLMax float64
	SameTop1, SameTop1Err          float64 // share of positions whose most probable token is the same
	RMSDeltaP                      float64 // of the probability of the true next token
	WithBaseline                   bool
}

// maxHeld bounds the baseline logits held at once to 64 MB.
const maxHeld = 16 << 20

// Measure scores tokens with model under the rule, and against baseline when it is not nil.
//
// It returns ErrTextTooShort, ErrNotFinite, or the error of a model.
func Measure(ctx context.Context, model, baseline Session, tokens []int32, o Options) (*Figures, error) {
	windows, err := o.Rule.windows(len(tokens))
	if err != nil {
		return nil, err
	}
	c := &comparison{vocab: o.Vocab}
	buf := make([]int32, 0, o.Rule.Context)
	for n, w := range windows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		buf = append(buf[:0], tokens[w.begin:w.end]...)
		if o.Rule.Kind == RuleLlamaCpp && o.BOS >= 0 {
			buf[0] = o.BOS
		}
		if err := c.window(ctx, model, baseline, buf, w.first-w.begin); err != nil {
			return nil, fmt.Errorf("window %d of %d (tokens %d to %d): %w", n+1, len(windows), w.begin, w.end, err)
		}
		if o.Progress != nil {
			o.Progress(Progress{Window: n + 1, Windows: len(windows), Perplexity: math.Exp(mean(c.nll))})
		}
	}
	f := c.figures(baseline != nil)
	f.Windows, f.Tokens = len(windows), len(tokens)
	return f, nil
}

// comparison gathers what is measured at each scored position.
type comparison struct {
	vocab   int
	nll     []float64 // of the model, nats
	baseNLL []float64
	kl      []float64
	sameTop int
	sumDP2  float64

	held []float32 // baseline logits of the positions in flight
}

// window scores tokens[first:], each given the tokens before it.
func (c *comparison) window(ctx context.Context, model, baseline Session, tokens []int32, first int) error {
	model.Reset()
	if baseline != nil {
		baseline.Reset()
	}
	// Logits at i predict token i+1: positions first-1 … len-2 are read, the last token never
	// needs to be fed.
	if first > 1 {
		for _, s := range []Session{baseline, model} {
			if s == nil {
				continue
			}
			if err := s.Forward(tokens[:first-1], first-1, nil); err != nil {
				return err
			}
		}
	}
	step := len(tokens)
	if baseline != nil {
		step = max(8, maxHeld/max(c.vocab, 1))
	}
	for at := first - 1; at < len(tokens)-1; at += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(at+step, len(tokens)-1)
		if err := c.positions(model, baseline, tokens[at:end], tokens[at+1:end+1]); err != nil {
			return err
		}
	}
	return nil
}

// positions feeds tokens to both models and compares what they say about next.
func (c *comparison) positions(model, baseline Session, tokens, next []int32) error {
	if baseline != nil {
		c.held = grow(c.held, len(tokens)*c.vocab)
		err := baseline.Forward(tokens, 0, func(i int, logits []float32) error {
			if len(logits) != c.vocab {
				return fmt.Errorf("%w: the baseline gives %d logits, the model %d", ErrMismatch, len(logits), c.vocab)
			}
			copy(c.held[i*c.vocab:(i+1)*c.vocab], logits)
			return nil
		})
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
	}
	return model.Forward(tokens, 0, func(i int, logits []float32) error {
		target := next[i]
		if int(target) >= len(logits) || target < 0 {
			return fmt.Errorf("%w: token %d is outside the %d logits", ErrMismatch, target, len(logits))
		}
		q, err := newDistribution(logits)
		if err != nil {
			return err
		}
		c.nll = append(c.nll, -q.logProb(target))
		if baseline == nil {
			return nil
		}
		p, err := newDistribution(c.held[i*c.vocab : (i+1)*c.vocab])
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		c.baseNLL = append(c.baseNLL, -p.logProb(target))
		c.kl = append(c.kl, divergence(p, q))
		if p.top == q.top {
			c.sameTop++
		}
		dp := math.Exp(q.logProb(target)) - math.Exp(p.logProb(target))
		c.sumDP2 += dp * dp
		return nil
	})
}

// distribution is the softmax of one position's logits, kept as logits and their log-sum-exp.
type distribution struct {
	logits []float32
	logSum float64
	top    int // the lowest index among the most probable
}

func newDistribution(logits []float32) (distribution, error) {
	top := 0
	for i, v := range logits {
		if v > logits[top] {
			top = i
		}
	}
	sum, peak := 0.0, float64(logits[top])
	for _, v := range logits {
		sum += math.Exp(float64(v) - peak)
	}
	d := distribution{logits: logits, logSum: peak + math.Log(sum), top: top}
	if math.IsNaN(d.logSum) || math.IsInf(d.logSum, 0) {
		return d, fmt.Errorf("%w: logits", ErrNotFinite)
	}
	return d, nil
}

func (d distribution) logProb(token int32) float64 { return float64(d.logits[token]) - d.logSum }

// Divergence is KL(p ‖ q) in nats of the distributions that two sets of logits stand for. The error is ErrNotFinite.
func Divergence(p, q []float32) (float64, error) {
	a, err := newDistribution(p)
	if err != nil {
		return 0, err
	}
	b, err := newDistribution(q)
	if err != nil {
		return 0, err
	}
	return divergence(a, b), nil
}

// divergence is KL(p ‖ q) in nats. Rounding may leave a tiny negative sum where p equals q: it
// is cut at zero, which the true value never passes.
func divergence(p, q distribution) float64 {
	var kl float64
	for i, v := range p.logits {
		lp := float64(v) - p.logSum
		if prob := math.Exp(lp); prob > 0 {
			kl += prob * (lp - (float64(q.logits[i]) - q.logSum))
		}
	}
	return max(kl, 0)
}

// grow returns a slice of length n, reusing s when it is large enough.
func grow(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}
