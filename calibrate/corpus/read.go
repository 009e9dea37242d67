package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"qtool/formats"
	"qtool/formats/document"
	"qtool/runtime/tokenizer"
)

// maxText bounds a text of which all is needed: its tokens alone take as much memory again.
const maxText = 1 << 30

// text reads a file that is one document, as far as it takes.
func (r *reader) text(f io.Reader, size int64) error {
	source := tokenizer.Source{Reader: f, Most: maxText + 1, Size: size, Check: r.check}
	_, ids, err := tokenizer.First(source, r.o.MaxSequences*r.o.Context, r.tok)
	if errors.Is(err, tokenizer.ErrTooLarge) {
		return fmt.Errorf("calibration text %s: %d bytes, of which all are needed: %w; give a part of it", r.path, size, err)
	}
	if err != nil {
		return fmt.Errorf("calibration text: %w", err)
	}
	r.s.Documents = 1
	if id := r.append(ids); id >= 0 {
		return fmt.Errorf("calibration text %s: its token %d is outside the vocabulary of %d tokens; is the tokenizer that of the model?", r.path, id, r.o.Vocab)
	}
	return nil
}

// check refuses what is no text.
func (r *reader) check(data []byte, whole bool) error {
	if whole && len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("%s: %w: it is empty (%d bytes), one window needs %d tokens", r.path, ErrTooShort, len(data), r.o.Context)
	}
	return document.CheckText(r.path, data)
}

// encode appends the tokens of a document. It returns the first that is outside the vocabulary, -1 where there is none.
func (r *reader) encode(text string) int32 {
	return r.append(r.tok.Encode(text, tokenizer.Options{AddSpecial: true}))
}

// append is encode of tokens.
func (r *reader) append(ids []int32) int32 {
	for i, id := range ids {
		if int(id) >= r.o.Vocab {
			r.ids = append(r.ids, ids[:i]...)
			return id
		}
	}
	if r.ids == nil {
		r.ids = ids // not to have them twice
		return -1
	}
	r.ids = append(r.ids, ids...)
	return -1
}

// lines reads a file of JSON lines until it ends or there are tokens enough.
func (r *reader) lines(f io.Reader) error {
	size, err := document.Lines(f, document.Options{File: r.path, Kind: r.o.Kind, Field: r.o.Field, Vocab: r.o.Vocab}, func(d *document.Document) (bool, error) {
		r.s.Kind = d.Kind
		err := r.document(d)
		return !r.full(), err
	})
	if err != nil {
		var content *formats.FileError
		if errors.As(err, &content) || errors.Is(err, ErrNeedsTokenizer) {
			return err
		}
		return fmt.Errorf("calibration data: %w", err)
	}
	if r.s.Documents == 0 {
		return fmt.Errorf("calibration data %s: %w: no document in %d bytes, one window needs %d tokens", r.path, ErrTooShort, size, r.o.Context)
	}
	return nil
}

// document appends the tokens of one.
func (r *reader) document(d *document.Document) error {
	if d.Kind == JSONLines && r.tok == nil {
		return fmt.Errorf("calibration data %s: %w", r.path, ErrNeedsTokenizer)
	}
	if d.Empty() {
		r.s.Empty++
		return nil
	}
	r.s.Documents++
	if d.Kind == Tokens {
		r.ids = append(r.ids, d.IDs...)
		return nil
	}
	if id := r.encode(d.Text); id >= 0 {
		return d.Fail("token %d of the text is outside the vocabulary of %d tokens", id, r.o.Vocab).WithHint("is the tokenizer that of the model?")
	}
	return nil
}
