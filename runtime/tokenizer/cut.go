package tokenizer

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"qtool/formats/vocab"
)

// A border is a single space between two ASCII letters. With nearly every vocabulary the tokens of a text begin with those of what stands before any
// border of it, so that a long text may be read and encoded in parts. Which steps and added tokens keep that is decided here; where one does not, texts
// are encoded as a whole.

// border gives the place of the last border in a text, 0 where there is none.
func border(text string) int {
	for i := len(text) - 2; i > 0; i-- {
		if text[i] == ' ' && asciiLetter(text[i-1]) && asciiLetter(text[i+1]) {
			return i
		}
	}
	return 0
}

func asciiLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// borders reports what holds for every border of every text: cuts, that the tokens before it do not depend on what comes after; parts, that the rest may
// be encoded by an encoder that goes on there.
func (t *Tokenizer) borders() (cuts, parts bool) {
	for _, f := range []*finder{t.raw[0], t.raw[1], t.normalized[0], t.normalized[1]} {
		for text, a := range f.tokens {
			if !keepsBorders(text, a) {
				return false, false
			}
		}
	}
	parts = true
	visible := false // spaces have become ▁
	for _, n := range t.d.Normalizers {
		switch n.Op {
		case vocab.Replace:
			turns, ok := replaceKeepsBorders(n)
			if !ok {
				return false, false
			}
			visible = visible || turns
		case vocab.Squeeze:
			parts = false // the space that a part begins with would go
		case vocab.Prepend, vocab.NFC, vocab.NFD, vocab.NFKC, vocab.NFKD, vocab.Lowercase, vocab.Accents, vocab.Marks, vocab.BertClean, vocab.BertCJK:
		default:
			return false, false
		}
	}
	for i, s := range t.d.Splits {
		switch s.Op {
		case vocab.SplitPattern:
			switch s.Pattern {
			case vocab.PatternGPT2, vocab.PatternLlama3, vocab.PatternQwen2, vocab.PatternLetters, vocab.PatternLatin:
				cuts = true // a run of letters is a match, and ends there
			}
		case vocab.SplitBytes:
			parts = parts && !visible
		case vocab.SplitSpaces:
			visible = true
			cuts = cuts || s.Cut
			parts = parts && (i == 0 || s.PrependSpace != "first")
		case vocab.SplitBertWord:
			cuts = cuts || !visible
		default:
			return false, false
		}
	}
	cuts = cuts || visible && t.words
	return cuts, cuts && parts
}

// keepsBorders reports whether an added token never reaches over a border, nor looks beyond one.
func keepsBorders(text string, a vocab.Added) bool {
	for i := range len(text) - 1 {
		if asciiLetter(text[i]) && (text[i+1] == ' ' || strings.HasPrefix(text[i+1:], space)) {
			return false
		}
	}
	if a.RStrip && asciiLetter(text[len(text)-1]) { // the space behind it
		return false
	}
	return !a.SingleWord || text[0] != ' ' && !strings.HasPrefix(text, space) // the letter before it
}

// replaceKeepsBorders reports whether a step leaves borders as they are, or writes their spaces visibly.
func replaceKeepsBorders(n vocab.Normalizer) (visible, ok bool) {
	if n.Pattern == " " {
		return true, n.Content == space
	}
	if n.Pattern == "" || n.Pattern == space {
		return false, false
	}
	for i := range len(n.Pattern) {
		if asciiLetter(n.Pattern[i]) {
			return false, false
		}
	}
	return false, true
}

// partBytes is how much of a long text is encoded at once.
const partBytes = 1 << 20

// partOf gives the length of what is encoded next of a text: all of it, or up to a border where parts are worth it.
func (t *Tokenizer) partOf(text string) int {
	if !t.parts {
		return len(text)
	}
	for size := t.partBytes; size < len(text); size *= 2 {
		if end := border(text[:size]); end > 0 {
			return end
		}
	}
	return len(text)
}

// cut gives the length of a beginning of text whose tokens are those that text begins with, however it goes on; 0 where none is known.
func (t *Tokenizer) cut(text string) int {
	if !t.cuts {
		return 0
	}
	return border(text)
}

// ErrTooLarge is what an error of First matches where all of a text is needed, and that is more than may be read.
var ErrTooLarge = errors.New("text too large")

// Source is a text to be read from.
type Source struct {
	Reader io.Reader
	// Check, if set, is shown what was read, from the beginning on, before it is encoded: all of it, or up to the end of a character.
	Check func(text []byte, whole bool) error
	// Most bounds what is read: a text must be smaller, in bytes.
	Most int64
	// Size, if not 0, is how large the text is thought to be.
	Size int64
}

// Start is what First has read.
type Start struct {
	Text  string
	Whole bool // there is no more
}

// firstRead is what is read at least, in bytes.
const firstRead = 1 << 20

// FirstBytes is how much of a text First reads, and checks, before it looks whether that gives n tokens.
func FirstBytes(n int) int64 { return max(firstRead, 8*int64(n)) }

// First reads as much of a text as gives n tokens by every one of some tokenizers, tokens that the vocabulary puts behind a text not counted, so that
// these n are those of the whole text. It reads all where n is 0, where the text has fewer, or where a tokenizer needs to see all. The ids are of the first tokenizer.
func First(s Source, n int, tokenizers ...*Tokenizer) (*Start, []int32, error) {
	size := s.Most
	if n > 0 {
		size = min(s.Most, FirstBytes(n))
	}
	if n == 0 && s.Size >= s.Most {
		return nil, nil, fmt.Errorf("%w: at most %d bytes are read", ErrTooLarge, s.Most-1)
	}
	data := make([]byte, 0, min(size, s.Size+1))
	for {
		var err error
		if data, err = fill(s.Reader, data, size); err != nil {
			return nil, nil, err
		}
		// Nothing writes to data once a text has been made of it: what is read later goes behind it, or elsewhere.
		text, whole := unsafe.String(unsafe.SliceData(data), len(data)), int64(len(data)) < size
		if whole {
			if err := s.check(data, true); err != nil {
				return nil, nil, err
			}
			return &Start{text, true}, tokenizers[0].Encode(text, Options{AddSpecial: true}), nil
		}
		if n > 0 {
			if err := s.check(data[:lastRune(data)], false); err != nil {
				return nil, nil, err
			}
			ids, end, ok := enough(text, n, tokenizers)
			if ok {
				return &Start{text[:end], false}, ids, nil
			}
		}
		if size == s.Most {
			return nil, nil, fmt.Errorf("%w: at most %d bytes are read", ErrTooLarge, s.Most-1)
		}
		size = min(2*size, s.Most)
	}
}

func (s Source) check(text []byte, whole bool) error {
	if s.Check == nil {
		return nil
	}
	return s.Check(text, whole)
}

// enough encodes what of a text is certain, and says whether these are n tokens.
func enough(text string, n int, tokenizers []*Tokenizer) (ids []int32, end int, ok bool) {
	for i, t := range tokenizers {
		if end = t.cut(text); end == 0 {
			return nil, 0, false
		}
		found := t.Encode(text[:end], Options{AddSpecial: true})
		found = found[:len(found)-len(t.d.Suffix)]
		if len(found) < n {
			return nil, 0, false
		}
		if i == 0 {
			ids = found
		}
	}
	return ids, end, true
}

// fill reads until data have size bytes, or there are no more.
func fill(r io.Reader, data []byte, size int64) ([]byte, error) {
	for int64(len(data)) < size {
		if len(data) == cap(data) {
			data = slices.Grow(data, int(min(size-int64(len(data)), max(firstRead, int64(len(data))))))
		}
		n, err := r.Read(data[len(data):min(int64(cap(data)), size)])
		data = data[:len(data)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return data, nil
}

// lastRune gives the end of the last character of data that is whole, so that what was cut is not taken for damage.
func lastRune(data []byte) int {
	for i := len(data) - 1; i >= max(0, len(data)-utf8.UTFMax); i-- {
		if utf8.RuneStart(data[i]) {
			if utf8.FullRune(data[i:]) {
				return len(data)
			}
			return i
		}
	}
	return len(data)
}
