// Package formats holds what every file format shares: the names of element types and the
// errors that say what is wrong with a file. The formats themselves are in its subpackages.
package formats

import (
	"errors"
	"fmt"
	"strings"
)

// ErrMalformed is what a file that breaks its own format matches with errors.Is.
var ErrMalformed = errors.New("malformed file")

// ErrUnsupported is what a file matches that may be right but needs something qtool does not do.
var ErrUnsupported = errors.New("not supported")

// FileError says what is wrong with a file and where. It matches Kind (ErrMalformed or
// ErrUnsupported) and Err with errors.Is.
type FileError struct {
	Kind   error  // ErrMalformed or ErrUnsupported
	File   string // path as the user gave it
	Field  string // tensor, key or header field; may be empty
	Offset int64  // byte offset in File, or -1 when it says nothing
	Reason string // what was expected and what was found
	Hint   string // what to do about it; may be empty
	Err    error  // cause; may be nil
}

// Error gives "file: field (at byte N): reason (hint)".
func (e *FileError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "%q: ", e.Field)
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, "at byte %d: ", e.Offset)
	}
	b.WriteString(e.Reason)
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Unwrap lets errors.Is find the kind and the cause.
func (e *FileError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Malformed returns a FileError of kind ErrMalformed without an offset.
func Malformed(file, field, format string, args ...any) *FileError {
	return &FileError{Kind: ErrMalformed, File: file, Field: field, Offset: -1, Reason: fmt.Sprintf(format, args...)}
}

// Unsupported returns a FileError of kind ErrUnsupported without an offset.
func Unsupported(file, field, format string, args ...any) *FileError {
	return &FileError{Kind: ErrUnsupported, File: file, Field: field, Offset: -1, Reason: fmt.Sprintf(format, args...)}
}

// At sets the byte offset and returns e.
func (e *FileError) At(offset int64) *FileError {
	e.Offset = offset
	return e
}

// WithHint sets what to do about it and returns e.
func (e *FileError) WithHint(format string, args ...any) *FileError {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}
