package document

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// maxLine bounds a line of JSON: as a tree, an array of numbers takes some fifty times as much.
const maxLine = 16 << 20

// byteOrderMark may stand before JSON in UTF-8, where it means nothing (RFC 8259, section 8.1).
var byteOrderMark = []byte("\ufeff")

// Options of Lines.
type Options struct {
	File  string // what errors call it
	Kind  Kind   // but Text
	Field string // of objects; empty stands for DefaultField
	// Vocab is the number of tokens that there are: an id beyond is an error.
	Vocab int
}

// Document is one line.
type Document struct {
	Kind Kind   // JSONLines or Tokens
	Text string // of the former
	IDs  []int32

	file   string
	line   int
	offset int64
}

// Fail is an error about what the document holds.
func (d *Document) Fail(format string, args ...any) *formats.FileError {
	return fail(d.file, d.line, format, args...).At(d.offset)
}

// Empty reports whether there is nothing in it.
func (d *Document) Empty() bool { return d.Text == "" && len(d.IDs) == 0 }

// fail is an error in a line.
func fail(file string, line int, format string, args ...any) *formats.FileError {
	return formats.Malformed(file, "", "line %d: %s", line, fmt.Sprintf(format, args...))
}

// Lines reads JSON lines and gives each document to a function, until that wants no more. Lines of white space are passed over; the first document says of
// which kind all have to be, where no kind was asked for. It returns how many bytes it has read. Errors of the content match formats.ErrMalformed.
func Lines(r io.Reader, o Options, each func(d *Document) (more bool, err error)) (int64, error) {
	o.Field = cmp.Or(o.Field, DefaultField)
	in := bufio.NewReaderSize(r, 1<<16)
	var line []byte
	var offset int64
	for number := 1; ; number++ {
		var err error
		line, err = readLine(in, line[:0])
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, errLong) {
				return offset, fail(o.File, number, "is longer than the %d bytes that are read", maxLine).At(offset).WithHint("cut the document")
			}
			return offset, err
		}
		text, start := line, offset
		if number == 1 {
			text = bytes.TrimPrefix(line, byteOrderMark)
			start += int64(len(line) - len(text))
		}
		offset += int64(len(line))
		if len(bytes.TrimSpace(text)) > 0 {
			if err := checkBinary(o.File, text, start); err != nil {
				return offset, err
			}
			d, err := o.parse(text, number, start)
			if err != nil {
				return offset, err
			}
			o.Kind = d.Kind
			if more, err := each(d); err != nil || !more {
				return offset, err
			}
		}
		if err != nil {
			return offset, nil
		}
	}
}

var errLong = errors.New("line too long")

// readLine appends the next line, its end included, to buf. The last one comes with io.EOF.
func readLine(in *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(buf)+len(part) > maxLine {
			return buf, errLong
		}
		buf = append(buf, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return buf, err
		}
	}
}

// parse reads one line, which begins at offset.
func (o *Options) parse(line []byte, number int, offset int64) (*Document, error) {
	v, err := strictjson.Parse(line, strictjson.Options{File: o.File, Offset: offset})
	if err != nil {
		var e *formats.FileError
		if errors.As(err, &e) {
			e.Reason = fmt.Sprintf("line %d: %s", number, e.Reason)
			if number == 1 {
				e.Hint = "expected one JSON value a line"
				if o.Kind == Auto {
					e.Hint += ", by the name of the file: give its kind where it is another"
				}
			}
		}
		return nil, err
	}
	at := func(v strictjson.Value) int64 { return offset + int64(v.Offset) }
	content := v
	if v.Kind == strictjson.Object {
		var ok bool
		if content, ok = v.Get(o.Field); !ok {
			return nil, fail(o.File, number, "the object has no field %q", o.Field).At(at(v)).WithHint("name the field that holds the document")
		}
	}
	d := &Document{file: o.File, line: number, offset: at(content)}
	switch {
	case content.Kind == strictjson.Array:
		d.Kind = Tokens
	case content.Kind == strictjson.String && v.Kind == strictjson.Object:
		d.Kind = JSONLines
	case v.Kind == strictjson.Object:
		return nil, d.Fail("field %q: expected a text or an array of tokens, found %s", o.Field, content.Kind)
	default:
		return nil, d.Fail("expected an object or an array of tokens, found %s", v.Kind)
	}
	if o.Kind != Auto && d.Kind != o.Kind {
		return nil, d.Fail("expected %s, found %s", o.Kind.content(), d.Kind.content())
	}
	if d.Kind == Tokens {
		return d, d.tokens(content, offset, o.Vocab)
	}
	if d.Text, err = content.Str(); err != nil {
		return nil, d.Fail("%v", err)
	}
	return d, nil
}

// tokens takes those of an array.
func (d *Document) tokens(v strictjson.Value, offset int64, vocab int) error {
	d.IDs = make([]int32, 0, len(v.Elements))
	for i, e := range v.Elements {
		id, err := e.Int()
		if err != nil {
			return fail(d.file, d.line, "token %d: %v", i, err).At(offset + int64(e.Offset))
		}
		if id < 0 || id >= int64(vocab) {
			return fail(d.file, d.line, "token %d has id %d, the vocabulary has 0 to %d", i, id, vocab-1).At(offset + int64(e.Offset)).
				WithHint("were the tokens made by the tokenizer of this model?")
		}
		d.IDs = append(d.IDs, int32(id))
	}
	return nil
}
