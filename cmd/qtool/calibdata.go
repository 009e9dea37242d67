package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
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
	f.IntVarP(&o.context, "calib-context", short, 0, "tokens of a calibration sequence (default: 512, or what the model was made for where that is less)")
	f.IntVar(&o.samples, "calib-samples", 128, "calibration sequences at most")
}

// check says what is wrong with the flags, and reads --max-memory.
func (o *dataOptions) check() error {
	if o.context < 0 || o.context == 1 || o.samples < 1 {
		return usagef("expected --calib-context of 2 or more, --calib-samples of 1 or more")
	}
	return o.checkReading()
}

// checkReading is check without what a recipe has.
func (o *dataOptions) checkReading() error {
	if !corpus.Kind(o.kind).Valid() {
		return usagef("--calib-kind %s: expected text, jsonl or tokens", o.kind)
	}
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

// checkField refuses a field of JSON where the data are a text, which has none.
func (o *dataOptions) checkField(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("calib-field") {
		return nil
	}
	if corpus.Kind(o.kind).For(o.data) == corpus.Text {
		return usagef("--calib-field names a field of JSON lines: %s is read as a plain text (--calib-kind jsonl or tokens says otherwise)", o.data)
	}
	return nil
}

// defaultContext is the tokens of a sequence where none are asked for and the model was made for as many.
const defaultContext = 512

// contextFor gives the tokens of a sequence for a model: asked where that is not 0.
func contextFor(m *checkpoint.Model, asked int) int {
	if most := m.Config().MaxPositions; asked == 0 && most > 0 {
		return min(defaultContext, most)
	}
	return cmp.Or(asked, defaultContext)
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
	r := &dataReport{
		File: o.data, Kind: string(s.Kind), Context: context, Sequences: len(s.Windows), Tokens: s.Tokens,
		Documents: s.Documents, Empty: s.Empty, Dropped: s.Dropped, Limited: s.Limited,
	}
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
	Documents int    `json:"documents"`
	Empty     int    `json:"empty_documents"`
	Dropped   int    `json:"dropped_tokens"` // that were read and are in no sequence
	Limited   bool   `json:"limited"`        // to the number of sequences that was asked for: there may be more
	Note      string `json:"note,omitempty"`
}

// String says it in a line.
func (d *dataReport) String() string {
	text := fmt.Sprintf("%s of %s tokens, of %s", manyText(d.Sequences, "sequence"), countText(int64(d.Context)), manyText(d.Documents, "document"))
	if d.Empty > 0 {
		text += fmt.Sprintf(", %s more are empty", countText(int64(d.Empty)))
	}
	switch {
	case d.Limited:
		text += "; no more were asked for"
	case d.Dropped > 0:
		text += fmt.Sprintf("; the last %s tokens fill none", countText(int64(d.Dropped)))
	}
	return text
}

// printData prints what was found in the data.
func printData(w io.Writer, d *dataReport) {
	if d != nil {
		fmt.Fprintf(w, "  by %s: %s\n", d.File, d)
	}
}
