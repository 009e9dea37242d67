package eval

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// builtinText is a few hundred words of English prose, written for this purpose, so that no
// model has seen them in training.
//
//go:embed builtin.txt
var builtinText string

// Text is what a model is measured on.
type Text struct {
	Name    string // what the report calls it: a path, or "built-in text"
	Content string
	BuiltIn bool
}

// evalFile is the text that may come with a model, beside its weights.
const evalFile = "eval.txt"

// maxText bounds a text file: far more than an evaluation can read in a day.
const maxText = 1 << 30

// FindText returns the text of path; when path is empty, the file eval.txt that came with the first of
// the models that has one, in its folder or beside its file; and else a short built-in text. A file that
// is empty or not UTF-8 is an error.
func FindText(path string, models ...string) (*Text, error) {
	if path != "" {
		return readText(path)
	}
	for _, model := range models {
		t, err := readText(filepath.Join(folder(model), evalFile))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	return &Text{Name: "built-in text", Content: builtinText, BuiltIn: true}, nil
}

func readText(path string) (*Text, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("evaluation text: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("evaluation text %s: not a regular file", path)
	}
	if info.Size() > maxText {
		return nil, fmt.Errorf("evaluation text %s: %d bytes, at most %d are read; give a part of it", path, info.Size(), int64(maxText))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("evaluation text: %w", err)
	}
	content := string(data)
	if strings.TrimSpace(content) == "" {
		return nil, fmt.Errorf("evaluation text %s: %w: it is empty", path, ErrTextTooShort)
	}
	if at := strings.IndexByte(content, 0); at >= 0 {
		return nil, fmt.Errorf("evaluation text %s: byte %d is 0, which no text has: looks like a binary file; give plain text", path, at)
	}
	if !utf8.ValidString(content) {
		return nil, fmt.Errorf("evaluation text %s: byte %d is not UTF-8; give plain text", path, invalidAt(content))
	}
	return &Text{Name: path, Content: content}, nil
}

// invalidAt returns the offset of the first byte that is not UTF-8.
func invalidAt(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return i
			}
		}
	}
	return len(s)
}

// folder is where files that came with a model are.
func folder(model string) string {
	if info, err := os.Stat(model); err == nil && info.IsDir() {
		return model
	}
	return filepath.Dir(model)
}
