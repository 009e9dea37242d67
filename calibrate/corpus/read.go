package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"qtool/formats"
	"qtool/formats/strictjson"
	"qtool/runtime/tokenizer"
)

const (
	// maxText bounds a text of which all is needed: its tokens alone take as much memory again.
	maxText = 1 << 30
	// maxLine bounds a line of JSON: as a tree, an array of numbers takes some fifty times as much.
	maxLine = 16 << 20
)

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
	if err := r.binary(data, 0); err != nil {
		return err
	}
	if at := invalidAt(data); at >= 0 {
		return formats.Malformed(r.path, "", "byte %#02x is not UTF-8", data[at]).At(int64(at)).WithHint("give plain text")
	}
	return nil
}

// binary refuses what cannot be text in UTF-8 and says what it looks like; data begins at offset.
func (r *reader) binary(data []byte, offset int64) error {
	if offset == 0 && (bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff})) {
		return formats.Malformed(r.path, "", "begins with the byte order mark of UTF-16, expected UTF-8").At(0).WithHint("save it as UTF-8")
	}
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return formats.Malformed(r.path, "", "a byte of 0, which no text has: looks like a binary file").At(offset + int64(at)).WithHint("give plain text")
	}
	return nil
}

// byteOrderMark may stand before JSON in UTF-8, where it means nothing (RFC 8259, section 8.1).
var byteOrderMark = []byte("\ufeff")

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

// invalidAt returns the offset of the first byte that is not UTF-8, -1 where all are.
func invalidAt(data []byte) int {
	for at := 0; at < len(data); {
		c, size := utf8.DecodeRune(data[at:])
		if c == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// lines reads a file of JSON lines until it ends or there are tokens enough. Lines of white space are passed over.
func (r *reader) lines(f io.Reader) error {
	in := bufio.NewReaderSize(f, 1<<16)
	var line []byte
	var offset int64
	for number := 1; !r.full(); number++ {
		var err error
		line, err = readLine(in, line[:0])
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, errLong) {
				return r.fail(number, "is longer than the %d bytes that are read", maxLine).At(offset).WithHint("cut the document")
			}
			return fmt.Errorf("calibration data: %w", err)
		}
		text, start := line, offset
		if number == 1 {
			text = bytes.TrimPrefix(line, byteOrderMark)
			start += int64(len(line) - len(text))
		}
		if len(bytes.TrimSpace(text)) > 0 {
			if err := r.binary(text, start); err != nil {
				return err
			}
			if err := r.document(text, number, start); err != nil {
				return err
			}
		}
		offset += int64(len(line))
		if err != nil {
			break
		}
	}
	if r.s.Documents == 0 {
		return fmt.Errorf("calibration data %s: %w: no document in %d bytes, one window needs %d tokens", r.path, ErrTooShort, offset, r.o.Context)
	}
	return nil
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

// fail is an error in a line.
func (r *reader) fail(number int, format string, args ...any) *formats.FileError {
	return formats.Malformed(r.path, "", "line %d: %s", number, fmt.Sprintf(format, args...))
}

// document reads one line, which begins at offset.
func (r *reader) document(line []byte, number int, offset int64) error {
	v, err := strictjson.Parse(line, strictjson.Options{File: r.path, Offset: offset})
	if err != nil {
		var e *formats.FileError
		if errors.As(err, &e) {
			e.Reason = fmt.Sprintf("line %d: %s", number, e.Reason)
			if number == 1 {
				e.Hint = "expected one JSON value a line"
			}
		}
		return err
	}
	at := func(v strictjson.Value) int64 { return offset + int64(v.Offset) }
	content := v
	if v.Kind == strictjson.Object {
		var ok bool
		if content, ok = v.Get(r.o.Field); !ok {
			return r.fail(number, "the object has no field %q", r.o.Field).At(at(v)).WithHint("name the field that holds the document")
		}
	}
	found := Kind("")
	switch {
	case content.Kind == strictjson.Array:
		found = Tokens
	case content.Kind == strictjson.String && v.Kind == strictjson.Object:
		found = JSONLines
	case v.Kind == strictjson.Object:
		return r.fail(number, "field %q: expected a text or an array of tokens, found %s", r.o.Field, content.Kind).At(at(content))
	default:
		return r.fail(number, "expected an object or an array of tokens, found %s", v.Kind).At(at(v))
	}
	if r.s.Kind == Auto {
		r.s.Kind = found
	}
	if found != r.s.Kind {
		return r.fail(number, "expected %s, found %s", r.s.Kind.content(), found.content()).At(at(content))
	}
	if found == Tokens {
		return r.tokens(content, number, offset)
	}
	if r.tok == nil {
		return fmt.Errorf("calibration data %s: %w", r.path, ErrNeedsTokenizer)
	}
	text, err := content.Str()
	if err != nil {
		return r.fail(number, "%v", err).At(at(content))
	}
	if text == "" {
		r.s.Empty++
		return nil
	}
	r.s.Documents++
	if id := r.encode(text); id >= 0 {
		return r.fail(number, "token %d of the text is outside the vocabulary of %d tokens", id, r.o.Vocab).At(at(content)).
			WithHint("is the tokenizer that of the model?")
	}
	return nil
}

// content names what a line of a kind of file holds.
func (k Kind) content() string {
	if k == Tokens {
		return "an array of tokens"
	}
	return "an object with a text"
}

// tokens appends the tokens of an array.
func (r *reader) tokens(v strictjson.Value, number int, offset int64) error {
	if len(v.Elements) == 0 {
		r.s.Empty++
		return nil
	}
	r.s.Documents++
	for i, e := range v.Elements {
		id, err := e.Int()
		if err != nil {
			return r.fail(number, "token %d: %v", i, err).At(offset + int64(e.Offset))
		}
		if id < 0 || id >= int64(r.o.Vocab) {
			return r.fail(number, "token %d has id %d, the vocabulary has 0 to %d", i, id, r.o.Vocab-1).At(offset + int64(e.Offset)).
				WithHint("were the tokens made by the tokenizer of this model?")
		}
		r.ids = append(r.ids, int32(id))
	}
	return nil
}
