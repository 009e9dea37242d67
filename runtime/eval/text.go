package eval

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

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
// What was read is given too, for another tokenizer, to which it is as much. A file that is empty or not UTF-8 as far as it is read is an error.
func (t *Text) Tokens(n int, tok *tokenizer.Tokenizer, others ...*tokenizer.Tokenizer) (ids []int32, more bool, read string, err error) {
	source := tokenizer.Source{Reader: strings.NewReader(builtinText), Most: maxText + 1, Check: check}
	if !t.BuiltIn {
		f, err := os.Open(t.Name)
		if err != nil {
			return nil, false, "", fmt.Errorf("evaluation text: %w", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, false, "", fmt.Errorf("evaluation text: %w", err)
		}
		source.Reader, source.Size = f, info.Size()
	}
	want := 0
	if n > 0 {
		want = n + 1 // to know whether there are more
	}
	start, ids, err := tokenizer.First(source, want, append([]*tokenizer.Tokenizer{tok}, others...)...)
	if err != nil {
		return nil, false, "", fmt.Errorf("evaluation text %s: %w", t.Name, err)
	}
	if n > 0 && len(ids) > n {
		ids, more = ids[:n], true
	}
	return ids, more, start.Text, nil
}

// Check looks for what is no text in what Tokens surely reads for n tokens, or in all where n is 0, but without a tokenizer: for a job that takes long
// before it needs the text.
func (t *Text) Check(n int) error {
	if t.BuiltIn {
		return nil
	}
	f, err := os.Open(t.Name)
	if err != nil {
		return fmt.Errorf("evaluation text: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("evaluation text: %w", err)
	}
	limit := int64(maxText)
	switch {
	case n > 0:
		limit = tokenizer.FirstBytes(n + 1)
	case info.Size() > maxText:
		return fmt.Errorf("evaluation text %s: %w: at most %d bytes are read", t.Name, tokenizer.ErrTooLarge, maxText)
	}
	in := bufio.NewReaderSize(f, 1<<16)
	blank := true
	for at := int64(0); at < limit; {
		c, size, err := in.ReadRune()
		if errors.Is(err, io.EOF) {
			if blank {
				return fmt.Errorf("evaluation text %s: %w", t.Name, errBlank)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("evaluation text: %w", err)
		}
		if c == 0 || c == utf8.RuneError && size == 1 {
			return fmt.Errorf("evaluation text %s: %w", t.Name, noText(c, at))
		}
		blank = blank && unicode.IsSpace(c)
		at += int64(size)
	}
	return nil
}

// errBlank says that there is nothing in a text.
var errBlank = fmt.Errorf("%w: it is empty", ErrTextTooShort)

// noText says what is wrong with the byte at a place: 0, or what is no character.
func noText(c rune, at int64) error {
	if c == 0 {
		return fmt.Errorf("byte %d is 0, which no text has: looks like a binary file; give plain text", at)
	}
	return fmt.Errorf("byte %d is not UTF-8; give plain text", at)
}

// check is what Tokens shows to First.
func check(data []byte, whole bool) error {
	if whole && len(bytes.TrimSpace(data)) == 0 {
		return errBlank
	}
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return noText(0, int64(at))
	}
	for at := 0; at < len(data); {
		c, size := utf8.DecodeRune(data[at:])
		if c == utf8.RuneError && size == 1 {
			return noText(c, int64(at))
		}
		at += size
	}
	return nil
}

// folder is where files that came with a model are.
func folder(model string) string {
	if info, err := os.Stat(model); err == nil && info.IsDir() {
		return model
	}
	return filepath.Dir(model)
}
