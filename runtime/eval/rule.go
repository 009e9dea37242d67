package eval

import "fmt"

// RuleKind names how a text is cut into windows and which tokens of a window are scored.
type RuleKind string

const (
	// RuleLlamaCpp is the rule of llama.cpp's llama-perplexity: windows of Context tokens side by
	// side, BOS in place of each window's first token where the tokenizer adds one, and only the
	// tokens after the first half and one more are scored (255 of 512); what does not fill a
	// window is left out.
	RuleLlamaCpp RuleKind = "llama.cpp"
	// RuleSliding is the strided rule of Hugging Face's guide to perplexity of fixed-length
	// models: windows of Context tokens begin Stride apart, and each scores the tokens that no
	// window before it has scored. A token is scored at most once; with Stride below Context only
	// the first of the text is not.
	RuleSliding RuleKind = "sliding"
)

// Rule of a perplexity measurement.
type Rule struct {
	Kind    RuleKind
	Context int // tokens a window
	Stride  int // RuleSliding only: tokens from one window's begin to the next
}

// DefaultContext is the window of a measurement where none is asked for.
const DefaultContext = 512

// WithDefaults gives the rule with what is not set: windows of context tokens, half a window from one to
// the next.
func (r Rule) WithDefaults(context int) Rule {
	if r.Context == 0 {
		r.Context = context
	}
	if r.Kind == RuleSliding && r.Stride == 0 {
		r.Stride = max(r.Context/2, 1)
	}
	return r
}

// Validate says what is wrong with the rule's numbers.
func (r Rule) Validate() error {
	switch r.Kind {
	case RuleLlamaCpp:
		if r.Context < 4 {
			return fmt.Errorf("context of %d tokens: the %s rule needs at least 4", r.Context, r.Kind)
		}
	case RuleSliding:
		if r.Context < 2 {
			return fmt.Errorf("context of %d tokens: the %s rule needs at least 2", r.Context, r.Kind)
		}
		if r.Stride < 1 || r.Stride > r.Context {
			return fmt.Errorf("stride %d: expected 1 to the context, %d", r.Stride, r.Context)
		}
	default:
		return fmt.Errorf("perplexity rule %q is unknown: expected %q or %q", r.Kind, RuleLlamaCpp, RuleSliding)
	}
	return nil
}

// window is a run of tokens that one pass of the model reads: begin ≤ first < end, and the
// tokens first … end-1 are scored.
type window struct{ begin, first, end int }

// windows cuts n tokens, or says that they are too few.
func (r Rule) windows(n int) ([]window, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	var ws []window
	switch r.Kind {
	case RuleLlamaCpp:
		for begin := 0; begin+r.Context <= n; begin += r.Context {
			ws = append(ws, window{begin, begin + r.Context/2 + 1, begin + r.Context})
		}
		if len(ws) == 0 {
			return nil, fmt.Errorf("%w: %d tokens, one window of the %s rule needs %d", ErrTextTooShort, n, r.Kind, r.Context)
		}
	case RuleSliding:
		if n < 2 {
			return nil, fmt.Errorf("%w: %d tokens, the %s rule needs at least 2", ErrTextTooShort, n, r.Kind)
		}
		for begin, scored := 0, 1; scored < n; begin += r.Stride {
			end := min(begin+r.Context, n)
			// The first token of a window has nothing before it to be predicted from.
			ws = append(ws, window{begin, max(scored, begin+1), end})
			scored = end
		}
	}
	return ws, nil
}
