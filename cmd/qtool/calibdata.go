package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"qtool/calibrate/corpus"
	"qtool/formats/checkpoint"
	"qtool/runtime/tokenizer"
)

// dataOptions are the flags that say what a model is run on to calibrate.
type dataOptions struct {
	data             string
	context, samples int
	kind, field      string
	memory           string
	maxMemory        int64
}

// addFlags declares the flags; short is a letter for --calib-context, empty for none.
func (o *dataOptions) addFlags(f *pflag.FlagSet, short string) {
	f.StringVar(&o.kind, "calib-kind", "", "what the data are: text, jsonl or tokens (default: by the name and the first line)")
	f.StringVar(&o.field, "calib-field", corpus.DefaultField, "field of a JSON line that holds the text or the tokens")
	f.StringVar(&o.memory, "max-memory", "", "for hidden states and inputs of layers: 8GB; beyond it states go to a temporary file beside the output, inputs are computed again (default: no limit)")
	f.IntVarP(&o.context, "calib-context", short, 512, "tokens of a calibration sequence")
	f.IntVar(&o.samples, "calib-samples", 128, "calibration sequences at most")
}

// check says what is wrong with the flags, and reads --max-memory.
func (o *dataOptions) check() error {
	switch corpus.Kind(o.kind) {
	case corpus.Auto, corpus.Text, corpus.JSONLines, corpus.Tokens:
	default:
		return usagef("--calib-kind %s: expected text, jsonl or tokens", o.kind)
	}
	if o.context < 2 || o.samples < 1 {
		return usagef("expected --calib-context of 2 or more, --calib-samples of 1 or more")
	}
	return o.setMemory()
}

// setMemory reads --max-memory.
func (o *dataOptions) setMemory() error {
	if o.memory == "" {
		return nil
	}
	n, err := parseSize(o.memory)
	if err != nil {
		return usagef("--max-memory: %w", err)
	}
	o.maxMemory = n
	return nil
}

// tokenizerOf gives the tokenizer that came with a model.
func tokenizerOf(m *checkpoint.Model) (*tokenizer.Tokenizer, error) {
	d, err := m.Vocabulary()
	if err != nil {
		return nil, err
	}
	return tokenizer.New(d)
}

// sequences reads the data for a model. Tokens need no tokenizer: what one would put at the start of each sequence is then left out.
func (o *dataOptions) sequences(m *checkpoint.Model, context, most int) (*corpus.Sequences, *dataReport, error) {
	t, missing := tokenizerOf(m)
	if missing != nil {
		t = nil
	}
	s, err := corpus.Read(o.data, t, corpus.Options{
		Kind: corpus.Kind(o.kind), Field: o.field, Context: context, MaxSequences: most, Vocab: m.Config().Vocab, BOS: -1,
	})
	if errors.Is(err, corpus.ErrNeedsTokenizer) {
		err = fmt.Errorf("%w: %w", err, missing)
	}
	if err != nil {
		return nil, nil, err
	}
	r := &dataReport{File: o.data, Kind: string(s.Kind), Context: context, Sequences: len(s.Windows), Tokens: s.Tokens}
	if missing != nil {
		r.Note = fmt.Sprintf("sequences begin as the tokens do: the model's tokenizer, which may put a token first, cannot be used (%v)", missing)
	}
	return s, r, nil
}

// dataReport says what was found in the data that a model is run on.
type dataReport struct {
	File      string `json:"file"`
	Kind      string `json:"kind"`
	Context   int    `json:"context"`
	Sequences int    `json:"sequences"`
	Tokens    int    `json:"tokens"`
	Note      string `json:"note,omitempty"`
}
