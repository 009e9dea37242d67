package eval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"qtool/formats/checkpoint"
	"qtool/formats/document"
	"qtool/runtime/llama"
	"qtool/runtime/numa"
	"qtool/runtime/tokenizer"
)

// Request says what to measure.
type Request struct {
	Model    string // path
	Baseline string // path of the model to compare with; empty for none
	Data     string // path of the text; empty for the one that came with a model, or the built-in one
	// DataKind and DataField say what the text's file holds, as document.Options do.
	DataKind  document.Kind
	DataField string
	// Rule; a context of 0 stands for DefaultContext, or what the model was made for where that is less.
	Rule    Rule
	Threads int // see llama.Options, as the next two
	CPUs    numa.Set
	NUMA    numa.Selection
	// KV is how the model's keys and values are kept; empty for llama.KVF32. The baseline's are always llama.KVF32.
	KV llama.KVType
	// Activations is how inputs of matrices are rounded; empty for llama.ActivationsAuto, by which quantized matrices of GGUF files
	// run by the integer kernels too. The baseline's are always llama.ActivationsF32.
	Activations llama.Activations
	// MaxTokens limits the text to that many tokens; 0 for all of it.
	MaxTokens int
	Limits    Limits
	Progress  func(p Progress)
}

// Run measures a model by running it, and checks the limits. The report is complete even where a limit is not kept; ok
// tells.
func Run(ctx context.Context, r Request) (report *Report, ok bool, err error) {
	start := time.Now()
	model, err := load(r.Model, llama.Options{Threads: r.Threads, CPUs: r.CPUs, NUMA: r.NUMA, KV: r.KV, Repack: true, Activations: r.Activations})
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, model.close()) }()
	r.Rule = r.Rule.WithDefaults(min(DefaultContext, model.engine.Config().MaxPositions))
	report = &Report{Model: r.Model, Baseline: r.Baseline, Rule: string(r.Rule.Kind), Context: r.Rule.Context, Stride: r.Rule.Stride, Warnings: []string{}}
	report.SizeBytes, report.BitsPerWeight = model.source.Size()
	report.Runtime = Runtime{CPU: model.engine.CPU(), Threads: model.engine.Threads(), NUMA: model.engine.NUMA(), KV: string(model.engine.KV())}
	report.Runtime.setWeights(model.engine.Weights())
	report.Warnings = append(report.Warnings, model.source.Warnings()...)

	var base *loaded
	var baseline Session
	models := []string{r.Model}
	if r.Baseline != "" {
		base, err = load(r.Baseline, llama.Options{Threads: r.Threads, CPUs: r.CPUs, NUMA: r.NUMA, Activations: llama.ActivationsF32})
		if err != nil {
			return nil, false, fmt.Errorf("baseline: %w", err)
		}
		defer func() { err = errors.Join(err, base.close()) }()
		if base.engine.Vocab() != model.engine.Vocab() {
			return nil, false, fmt.Errorf("%w: %s predicts %d tokens, the baseline %s %d",
				ErrMismatch, r.Model, model.engine.Vocab(), r.Baseline, base.engine.Vocab())
		}
		baseline = base.engine.NewSession(r.Rule.Context)
		size, bits := base.source.Size()
		report.BaselineSizeBytes, report.BaselineBitsPerWeight = &size, &bits
		models = append(models, r.Baseline)
	}
	text, err := FindText(r.Data, models...)
	if err != nil {
		return nil, false, err
	}
	text.Kind, text.Field = r.DataKind, r.DataField
	report.Data = text.Name
	if text.BuiltIn {
		report.Warnings = append(report.Warnings, "no text was given or came with the model: the figures are of the short built-in one; use --data for ones that say more")
	}
	if r.Rule.Context > model.engine.Config().MaxPositions {
		report.Warnings = append(report.Warnings, fmt.Sprintf("windows of %d tokens are longer than the %d that the model was made for",
			r.Rule.Context, model.engine.Config().MaxPositions))
	}
	tokens, err := r.tokens(text, model, base, report)
	if err != nil {
		return nil, false, err
	}
	bos := int32(-1)
	if model.tokens.AddsBOS() {
		bos = model.tokens.BOS()
	}
	f, err := Measure(ctx, model.engine.NewSession(r.Rule.Context), baseline, tokens, Options{
		Rule: r.Rule, BOS: bos, Vocab: model.engine.Vocab(), Progress: r.Progress,
	})
	if err != nil {
		return nil, false, fmt.Errorf("evaluate %s on %s: %w", r.Model, text.Name, err)
	}
	report.Warnings = append(report.Warnings, model.engine.Shortfalls()...)
	report.set(f)
	report.Seconds = time.Since(start).Seconds()
	return report, report.Check(r.Limits), nil
}

// tokens gives those of the text that are to be scored.
func (r *Request) tokens(text *Text, model, base *loaded, report *Report) ([]int32, error) {
	var others []*tokenizer.Tokenizer
	other := base != nil && !base.tokens.Same(model.tokens)
	if other {
		others = append(others, base.tokens)
	}
	read, err := text.Tokens(r.MaxTokens, model.tokens, others...)
	if err != nil {
		return nil, err
	}
	if read.Kind != document.Text {
		report.DataKind, report.Documents = string(read.Kind), read.Documents
	}
	if other && !base.cuts(read) {
		if base.tokens.Decode(read.IDs, false) != model.tokens.Decode(read.IDs, false) {
			return nil, fmt.Errorf("%w: %s and the baseline %s have different vocabularies: what the text's tokens mean to one is another text to the other",
				ErrMismatch, r.Model, r.Baseline)
		}
		if read.Kind != document.Tokens {
			report.Mismatch = "the baseline's tokenizer cuts the text otherwise: both models read the tokens of the model's"
		}
	}
	if read.More {
		report.Warnings = append(report.Warnings, fmt.Sprintf("only the first %d tokens of the text were used", len(read.IDs)))
	}
	return read.IDs, nil
}

// cuts reports whether a model's tokenizer gives the same tokens; of what is tokens already, that is not known.
func (l *loaded) cuts(read *Reading) bool {
	if read.Kind == document.Tokens {
		return false
	}
	var ids []int32
	for _, text := range read.Texts {
		ids = append(ids, l.tokens.Encode(text, tokenizer.Options{AddSpecial: true})...)
	}
	if read.More {
		ids = ids[:min(len(read.IDs), len(ids))]
	}
	return slices.Equal(read.IDs, ids)
}

// loaded is a model that can run.
type loaded struct {
	source *checkpoint.Model
	engine *llama.Engine
	tokens *tokenizer.Tokenizer
}

func load(path string, o llama.Options) (*loaded, error) {
	m, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	l := &loaded{source: m}
	d, err := m.Vocabulary()
	if err == nil {
		l.tokens, err = tokenizer.New(d)
	}
	if err == nil && l.tokens.Size() > m.Config().Vocab {
		err = fmt.Errorf("%s: the tokenizer has %d tokens, the model embeds %d", path, l.tokens.Size(), m.Config().Vocab)
	}
	if err == nil {
		l.engine, err = llama.New(m, o)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return l, nil
}

func (l *loaded) close() error {
	l.engine.Close()
	return l.source.Close()
}
