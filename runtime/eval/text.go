package eval

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/document"
	"qtool/runtime/tokenizer"
)

// builtinText is a few hundred words of English prose, written for this purpose, so that no
// model has seen them in training.
//
//go:embed builtin.txt
var builtinText string

// Text is what a model is measured on.
type Text struct {
	Name    string // what the report calls it: a path, or "built-in text"
	BuiltIn bool
	// Kind and Field say what the file holds, as document.Options do.
	Kind  document.Kind
	Field string
}

// Reading is what Tokens has read.
type Reading struct {
	IDs  []int32
	More bool          // there are more tokens
	Kind document.Kind // as found where the text's is document.Auto
	// Texts are what was read, a text for each document, for another tokenizer, to which it is as much; none of tokens.
	Texts []string
	// Documents with anything in them.
	Documents int
}

// evalFile is the text that may come with a model, beside its weights.
const evalFile = "eval.txt"

// maxText bounds a text of which all is read: far more than an evaluation can read in a day.
const maxText = 1 << 30

// FindText returns the text of path; when path is empty, the file eval.txt that came with the first of
// the models that has one, in its folder or beside its file; and else a short built-in text.
func FindText(path string, models ...string) (*Text, error) {
	if path != "" {
		return findText(path)
	}
	for _, model := range models {
		t, err := findText(filepath.Join(folder(model), evalFile))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	return &Text{Name: "built-in text", BuiltIn: true}, nil
}

func findText(path string) (*Text, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("evaluation text: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("evaluation text %s: not a regular file", path)
	}
	return &Text{Name: path}, nil
}

// Tokens reads the text, as much as gives n tokens, or all where n is 0, and gives its tokens by a tokenizer: the first n, and whether there are more.
// Documents of JSON lines are encoded one by one and joined, as calibration does. A file that is empty or not UTF-8 as far as it is read is an error.
func (t *Text) Tokens(n int, tok *tokenizer.Tokenizer, others ...*tokenizer.Tokenizer) (*Reading, error) {
	source := tokenizer.Source{Reader: strings.NewReader(builtinText), Most: maxText + 1, Check: t.check}
	r := &Reading{Kind: document.Text, Documents: 1}
	if !t.BuiltIn {
		f, size, err := t.open()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		source.Reader, source.Size = f, size
		r.Kind = t.Kind.For(t.Name)
	}
	want := 0
	if n > 0 {
		want = n + 1 // to know whether there are more
	}
	var err error
	if r.Kind == document.Text {
		var start *tokenizer.Start
		if start, r.IDs, err = tokenizer.First(source, want, append([]*tokenizer.Tokenizer{tok}, others...)...); err == nil {
			r.Texts = []string{start.Text}
		}
	} else {
		err = t.documents(source, r, want, tok)
	}
	if err != nil {
		return nil, t.fail(err)
	}
	if n > 0 && len(r.IDs) > n {
		r.IDs, r.More = r.IDs[:n], true
	}
	return r, nil
}

// documents is Tokens of JSON lines, without cutting.
func (t *Text) documents(source tokenizer.Source, r *Reading, want int, tok *tokenizer.Tokenizer) error {
	r.Documents = 0
	return t.lines(source.Reader, source.Size, want > 0, tok.Size(), func(d *document.Document) (bool, error) {
		r.Kind = d.Kind
		r.Documents++
		if d.Kind == document.Tokens {
			r.IDs = append(r.IDs, d.IDs...)
		} else {
			r.Texts = append(r.Texts, d.Text)
			r.IDs = append(r.IDs, tok.Encode(d.Text, tokenizer.Options{AddSpecial: true})...)
		}
		return want == 0 || len(r.IDs) < want, nil
	})
}

// lines gives each document that is not empty.
func (t *Text) lines(f io.Reader, size int64, some bool, vocab int, each func(d *document.Document) (bool, error)) error {
	if !some && size > maxText {
		return fmt.Errorf("%w: at most %d bytes are read", tokenizer.ErrTooLarge, maxText)
	}
	found := false
	_, err := document.Lines(f, document.Options{File: t.Name, Kind: t.Kind, Field: t.Field, Vocab: vocab}, func(d *document.Document) (bool, error) {
		if d.Empty() {
			return true, nil
		}
		found = true
		return each(d)
	})
	if err == nil && !found {
		err = errBlank
	}
	return err
}

// open opens the file and gives its size.
func (t *Text) open() (*os.File, int64, error) {
	f, err := os.Open(t.Name)
	if err != nil {
		return nil, 0, fmt.Errorf("evaluation text: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("evaluation text: %w", err), f.Close())
	}
	return f, info.Size(), nil
}

// fail says what an error is about; those of a file's content name it.
func (t *Text) fail(err error) error {
	var content *formats.FileError
	if errors.As(err, &content) {
		return fmt.Errorf("evaluation text: %w", err)
	}
	return fmt.Errorf("evaluation text %s: %w", t.Name, err)
}

// Check looks for what is no text in what Tokens surely reads for n tokens, or in all where n is 0, but without a tokenizer: for a job that takes long
// before it needs the text.
func (t *Text) Check(n int) error {
	if t.BuiltIn {
		return nil
	}
	f, size, err := t.open()
	if err != nil {
		return err
	}
	defer f.Close()
	if t.Kind.For(t.Name) == document.Text {
		err = t.checkText(f, size, n)
	} else {
		err = t.checkLines(f, size, n)
	}
	if err != nil {
		return t.fail(err)
	}
	return nil
}

// checkLines is Check of JSON lines.
func (t *Text) checkLines(f io.Reader, size int64, n int) error {
	tokens := 0 // there are no more
	return t.lines(f, size, n > 0, math.MaxInt32, func(d *document.Document) (bool, error) {
		tokens += len(d.IDs)
		if d.Kind == document.JSONLines {
			tokens += len(d.Text) + 2 // what a tokenizer puts around it
		}
		return n == 0 || tokens <= n, nil
	})
}

// checkText is Check of a plain text.
func (t *Text) checkText(f io.Reader, size int64, n int) error {
	limit := int64(maxText)
	switch {
	case n > 0:
		limit = tokenizer.FirstBytes(n + 1)
	case size > maxText:
		return fmt.Errorf("%w: at most %d bytes are read", tokenizer.ErrTooLarge, maxText)
	}
	in := bufio.NewReaderSize(f, 1<<16)
	if start, _ := in.Peek(2); len(start) == 2 { // else an error is met again
		if err := document.CheckStart(t.Name, start); err != nil {
			return err
		}
	}
	blank := true
	for at := int64(0); at < limit; {
		c, width, err := in.ReadRune()
		if errors.Is(err, io.EOF) {
			if blank {
				return errBlank
			}
			return nil
		}
		if err != nil {
			return err
		}
		if c == 0 || c == utf8.RuneError && width == 1 {
			b := byte(0)
			if c != 0 && in.UnreadRune() == nil {
				b, _ = in.ReadByte() // it was read once
			}
			return document.NoText(t.Name, b, at)
		}
		blank = blank && unicode.IsSpace(c)
		at += int64(width)
	}
	return nil
}

// errBlank says that there is nothing in a text.
var errBlank = fmt.Errorf("%w: it is empty", ErrTextTooShort)

// check is what Tokens shows to First.
func (t *Text) check(data []byte, whole bool) error {
	if whole && len(bytes.TrimSpace(data)) == 0 {
		return errBlank
	}
	return document.CheckText(t.Name, data)
}

// folder is where files that came with a model are.
func folder(model string) string {
	if info, err := os.Stat(model); err == nil && info.IsDir() {
		return model
	}
	return filepath.Dir(model)
}
