// Package corpus turns calibration data into sequences of tokens: a text, documents in JSON lines, or tokens
// that another program made.
//
// The tokens of all documents are joined and cut into windows side by side, the first token of each replaced by
// BOS where the tokenizer adds one, as llama.cpp's imatrix and perplexity tools do; what does not fill a window is
// left out.
package corpus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/zeebo/xxh3"

	"qtool/formats/document"
	"qtool/formats/packed"
	"qtool/runtime/tokenizer"
)

// ErrTooShort is what an error matches where the data do not fill one window.
var ErrTooShort = errors.New("too little calibration data")

// ErrNeedsTokenizer is what an error matches where the data are text and there is no tokenizer.
var ErrNeedsTokenizer = errors.New("a text needs a tokenizer")

// Kind says what a file holds.
type Kind = document.Kind

// Kinds of files.
const (
	Auto      = document.Auto
	Text      = document.Text
	JSONLines = document.JSONLines
	Tokens    = document.Tokens
)

// DefaultField is the field of an object that is read where none is named.
const DefaultField = document.DefaultField

// Options of Read.
type Options struct {
	Kind  Kind
	Field string // of objects; empty stands for DefaultField
	// Context is the number of tokens of a window, at least 2.
	Context int
	// MaxSequences ends the reading when there are as many windows; 0 for all.
	MaxSequences int
	// Vocab is the number of tokens that the model knows: others are an error. 0 stands for the size of the
	// tokenizer.
	Vocab int
	// BOS takes the place of the first token of each window, negative for none. It is asked for only where there
	// is no tokenizer, which knows better.
	BOS int32
}

// Sequences is what Read gives.
type Sequences struct {
	Kind      Kind // as found where Auto was asked for
	Windows   [][]int32
	Tokens    int // of all windows
	Documents int
	Empty     int // documents without any text or token, which do not count
	Dropped   int // tokens that were read and are in no window
	// Limited says that MaxSequences ended the reading, so that there may be more.
	Limited bool
	// Digest is of the kind, the context and the tokens of all windows.
	Digest packed.Digest
}

// Read reads the file at path. tok may be nil for tokens. Errors of a file's content match formats.ErrMalformed, or
// ErrTooShort where there is just not enough of it.
func Read(path string, tok *tokenizer.Tokenizer, o Options) (*Sequences, error) {
	if err := o.complete(path, tok); err != nil {
		return nil, err
	}
	// Not to hang on a named pipe, look before opening.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("calibration data: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("calibration data %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("calibration data: %w", err)
	}
	r := &reader{path: path, tok: tok, o: o, s: &Sequences{Kind: o.Kind}}
	if o.Kind == Text {
		err = r.text(f, info.Size())
	} else {
		err = r.lines(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return r.s, r.cut()
}

// complete sets what follows from the rest, and says what is wrong with the options.
func (o *Options) complete(path string, tok *tokenizer.Tokenizer) error {
	if !o.Kind.Valid() {
		return fmt.Errorf("calibration data of kind %q are not known: expected %q, %q or %q", o.Kind, Text, JSONLines, Tokens)
	}
	o.Kind = o.Kind.For(path)
	if o.Field == "" {
		o.Field = DefaultField
	}
	if o.Context < 2 {
		return fmt.Errorf("calibration windows of %d tokens: at least 2 are needed", o.Context)
	}
	if o.MaxSequences < 0 {
		return fmt.Errorf("%d calibration sequences: expected 1 or more, or 0 for all", o.MaxSequences)
	}
	if tok != nil {
		o.BOS = -1
		if tok.AddsBOS() {
			o.BOS = tok.BOS()
		}
		if o.Vocab == 0 {
			o.Vocab = tok.Size()
		}
	} else if o.Kind == Text || o.Kind == JSONLines {
		return fmt.Errorf("calibration data %s: %w", path, ErrNeedsTokenizer)
	}
	if o.Vocab < 1 {
		return fmt.Errorf("calibration data %s: the size of the vocabulary is not known", path)
	}
	if int(o.BOS) >= o.Vocab {
		return fmt.Errorf("token %d, which begins a text, is outside the vocabulary of %d tokens", o.BOS, o.Vocab)
	}
	return nil
}

// reader is one run of Read.
type reader struct {
	path string
	tok  *tokenizer.Tokenizer
	o    Options
	s    *Sequences
	ids  []int32 // of all documents so far
}

// full reports whether there are as many tokens as are asked for.
func (r *reader) full() bool {
	return r.o.MaxSequences > 0 && len(r.ids)/r.o.Context >= r.o.MaxSequences
}

// many counts things.
func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cut makes windows of the tokens.
func (r *reader) cut() error {
	n, context := len(r.ids), r.o.Context
	if n < context {
		return fmt.Errorf("calibration data %s: %w: %s in %s, one window needs %d",
			r.path, ErrTooShort, many(n, "token"), many(r.s.Documents, "document"), context)
	}
	windows := n / context
	if r.full() {
		windows, r.s.Limited = r.o.MaxSequences, true
	}
	r.s.Windows = make([][]int32, windows)
	for i := range r.s.Windows {
		w := r.ids[i*context : (i+1)*context : (i+1)*context]
		if r.o.BOS >= 0 {
			w[0] = r.o.BOS
		}
		r.s.Windows[i] = w
	}
	r.s.Tokens = windows * context
	r.s.Dropped = n - r.s.Tokens
	r.s.Digest = digest(r.s.Kind, context, r.s.Windows)
	return nil
}

// digest is xxh3-128 over the kind, a zero byte, the context as 8 bytes and each token as 4 bytes, little-endian.
func digest(kind Kind, context int, windows [][]int32) packed.Digest {
	h := xxh3.New()
	b := append([]byte(kind), 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(context))
	_, _ = h.Write(b) // a hash takes everything
	for _, w := range windows {
		b = b[:0]
		for _, id := range w {
			b = binary.LittleEndian.AppendUint32(b, uint32(id))
		}
		_, _ = h.Write(b)
	}
	return packed.Digest(h.Sum128().Bytes())
}
