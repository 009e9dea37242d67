// Package document reads what models are run on: plain texts, and files of JSON lines, which have a document a line, a text or the tokens that another
// program made of one.
package document

import (
	"bytes"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"qtool/formats"
)

// Kind says what a file holds.
type Kind string

// Kinds of files.
const (
	// Auto takes a file named .jsonl or .json for JSON lines of text or of tokens, as its first line says, and
	// any other for a text.
	Auto Kind = ""
	// Text is one document in UTF-8.
	Text Kind = "text"
	// JSONLines has an object a line, whose field holds the text of a document.
	JSONLines Kind = "jsonl"
	// Tokens has an array of token ids a line, or an object a line whose field holds one.
	Tokens Kind = "tokens"
)

// DefaultField is the field of an object that is read where none is named.
const DefaultField = "text"

// Valid reports whether there is such a kind.
func (k Kind) Valid() bool { return k == Auto || k == Text || k == JSONLines || k == Tokens }

// For gives what the name of a file says of its kind where that is Auto: Text, or Auto still, which is for the first line to say.
func (k Kind) For(path string) Kind {
	if ext := strings.ToLower(filepath.Ext(path)); k == Auto && ext != ".jsonl" && ext != ".json" {
		return Text
	}
	return k
}

// content names what a line of a kind of file holds.
func (k Kind) content() string {
	if k == Tokens {
		return "an array of tokens"
	}
	return "an object with a text"
}

// CheckText refuses what is no text in UTF-8; data are all of a file, or its beginning up to the end of a character. Errors match formats.ErrMalformed.
func CheckText(file string, data []byte) error {
	if err := checkBinary(file, data, 0); err != nil {
		return err
	}
	for at := 0; at < len(data); {
		c, size := utf8.DecodeRune(data[at:])
		if c == utf8.RuneError && size == 1 {
			return NoText(file, data[at], int64(at))
		}
		at += size
	}
	return nil
}

// CheckStart refuses a file that begins as one in UTF-16 does.
func CheckStart(file string, data []byte) error {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return formats.Malformed(file, "", "begins with the byte order mark of UTF-16, expected UTF-8").At(0).WithHint("save it as UTF-8")
	}
	return nil
}

// NoText says what is wrong with a byte that no text has: 0, or one that begins no character.
func NoText(file string, b byte, at int64) error {
	if b == 0 {
		return formats.Malformed(file, "", "a byte of 0, which no text has: looks like a binary file").At(at).WithHint("give plain text")
	}
	return formats.Malformed(file, "", "byte %#02x is not UTF-8", b).At(at).WithHint("give plain text")
}

// checkBinary refuses what cannot be text, whatever it is about; data begin at offset.
func checkBinary(file string, data []byte, offset int64) error {
	if offset == 0 {
		if err := CheckStart(file, data); err != nil {
			return err
		}
	}
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return NoText(file, 0, offset+int64(at))
	}
	return nil
}
