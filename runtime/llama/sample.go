package llama

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how the next token is chosen.
type Sampling struct {
	Temperature float64 // 0 takes the most probable token
	TopP        float64 // tokens are drawn from the most probable ones that together have this share; 1 for all
	Seed        uint64
}

// Generation is one run of Generate.
type Generation struct {
	Session  *Session
	Prompt   []int32
	Max      int // tokens to generate at most
	Sampling Sampling
	// Stop reports whether a token ends the text; it is not passed on.
	Stop func(token int32) bool
	// Token is called with each token; an error of it ends the run.
	Token func(token int32) error
}

// Generate continues a prompt until a token that ends the text, the most that are wanted or the end of the
// context, and returns the number of tokens. The same seed gives the same text.
func (g Generation) Generate(ctx context.Context) (int, error) {
	if len(g.Prompt) == 0 {
		return 0, errors.New("nothing to continue: the prompt has no tokens")
	}
	draw := rand.New(rand.NewPCG(g.Sampling.Seed, 0))
	var next int32
	feed := func(tokens []int32) error {
		return g.Session.Forward(tokens, len(tokens)-1, func(_ int, logits []float32) error {
			next = g.Sampling.choose(logits, draw)
			return nil
		})
	}
	if err := feed(g.Prompt); err != nil {
		return 0, err
	}
	for n := 0; n < g.Max; n++ {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if g.Stop != nil && g.Stop(next) {
			return n, nil
		}
		if err := g.Token(next); err != nil {
			return n, err
		}
		if n+1 == g.Max || g.Session.Room() == 0 {
			return n + 1, nil
		}
		if err := feed([]int32{next}); err != nil {
			return n + 1, err
		}
	}
	return g.Max, nil
}

// choose picks a token.
func (s Sampling) choose(logits []float32, draw *rand.Rand) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	if s.Temperature <= 0 {
		return int32(best)
	}
	type option struct {
		token int32
		p     float64
	}
	options := make([]option, len(logits))
	var sum float64
	for i, v := range logits {
		p := math.Exp(float64(v-logits[best]) / s.Temperature)
		options[i] = option{int32(i), p}
		sum += p
	}
	if s.TopP < 1 {
		slices.SortStableFunc(options, func(a, b option) int {
			switch {
			case a.p > b.p:
				return -1
			case a.p < b.p:
				return 1
			}
			return 0
		})
		var kept float64
		for i, o := range options {
			kept += o.p
			if kept >= s.TopP*sum {
				options, sum = options[:i+1], kept
				break
			}
		}
	}
	x := draw.Float64() * sum
	for _, o := range options {
		if x -= o.p; x < 0 {
			return o.token
		}
	}
	return options[len(options)-1].token
}
