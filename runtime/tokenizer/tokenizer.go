// Package tokenizer turns text into tokens and back, exactly as the programs that the vocabularies come
// from do.
//
// Characters that are newer than those programs' tables are where they differ among themselves: patterns
// follow Unicode 16, BERT's steps and lower case Unicode 15.
package tokenizer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"qtool/formats/vocab"
)

// Options of an encoding.
type Options struct {
	// AddSpecial puts the tokens around the text that the vocabulary says, such as BOS.
	AddSpecial bool
	// ParseSpecial makes the text of a special token that stands in the input that token. Without it,
	// it is text like any other.
	ParseSpecial bool
}

// Tokenizer encodes and decodes. It is not changed by use: several goroutines may share it.
type Tokenizer struct {
	d    *vocab.Definition
	ids  map[string]int32
	ends map[int32]bool

	longest int // bytes of a token's text

	bytes [256]int32 // token of each byte, -1 for none
	pairs map[uint64]ranked
	words bool // of SentencePiece: a text may be encoded word by word

	cuts, parts bool // see borders
	partBytes   int

	raw, normalized [2]*finder // of tokens found before and after normalization: without and with special ones
}

// ranked is what a merge makes, and when.
type ranked struct {
	rank int32
	into int32
}

// New prepares a tokenizer.
func New(d *vocab.Definition) (*Tokenizer, error) {
	t := &Tokenizer{d: d, ids: make(map[string]int32, len(d.Tokens)), ends: make(map[int32]bool)}
	for i, tok := range d.Tokens {
		if _, ok := t.ids[tok.Text]; !ok {
			t.ids[tok.Text] = int32(i)
		}
		t.longest = max(t.longest, len(tok.Text))
	}
	for _, id := range d.EndTokens() {
		t.ends[id] = true
	}
	for b := range t.bytes {
		name := fmt.Sprintf("<0x%02X>", b)
		if d.Model == vocab.ByteLevel {
			name = string(byteRunes[b])
		}
		t.bytes[b] = -1
		if id, ok := t.ids[name]; ok && (d.Model != vocab.SentencePiece || d.ByteFallback) {
			t.bytes[b] = id
		}
	}
	if len(d.Merges) > 0 {
		t.pairs = make(map[uint64]ranked, len(d.Merges))
		for i, m := range d.Merges {
			key := pair(m.Left, m.Right)
			if _, ok := t.pairs[key]; !ok {
				t.pairs[key] = ranked{int32(i), m.Into}
			}
		}
	}
	if d.Model == vocab.SentencePiece && !d.IgnoreMerges {
		_, known := t.ids[space] // else it would belong to a run of unknown characters
		t.words = known && !joinsWords(d.Tokens)
	}
	for _, s := range d.Splits {
		if s.Op == vocab.SplitPattern && s.Pattern != vocab.PatternTrailing && scanners[s.Pattern] == nil {
			return nil, fmt.Errorf("text pattern %q has no scanner", s.Pattern)
		}
	}
	for special := range t.raw {
		t.raw[special], t.normalized[special] = newFinder(), newFinder()
	}
	for _, a := range d.Added {
		text, finders := a.Text, t.raw
		if a.Within || a.Normalized {
			finders = t.normalized
		}
		if a.Normalized && !a.Within {
			text = t.normalize(text, false)
		}
		if !a.Special {
			finders[0].add(text, a)
		}
		finders[1].add(text, a)
	}
	t.partBytes = partBytes
	t.cuts, t.parts = t.borders()
	return t, nil
}

// Size is the number of tokens of the vocabulary.
func (t *Tokenizer) Size() int { return len(t.d.Tokens) }

// BOS is the token that begins a text, -1 where there is none.
func (t *Tokenizer) BOS() int32 { return t.d.BOS }

// AddsBOS reports whether AddSpecial puts BOS first.
func (t *Tokenizer) AddsBOS() bool {
	return len(t.d.Prefix) > 0 && t.d.BOS >= 0 && t.d.Prefix[0] == t.d.BOS
}

// EndsText reports whether nothing is to be generated after the token.
func (t *Tokenizer) EndsText(id int32) bool { return t.ends[id] }

// Same reports whether another tokenizer has the same vocabulary and the same rules, so that it gives the same tokens of any text.
func (t *Tokenizer) Same(other *Tokenizer) bool { return reflect.DeepEqual(t.d, other.d) }

// Encode gives the tokens of a text. Bytes that are no UTF-8 count as U+FFFD, one for each maximal part of
// a character, as Unicode recommends and Python does.
func (t *Tokenizer) Encode(text string, o Options) []int32 {
	e := &encoder{t: t, options: o, cache: make(map[string][]int32)}
	if o.AddSpecial {
		e.out = append(e.out, t.d.Prefix...)
	}
	e.first = true
	special := 0
	if o.ParseSpecial {
		special = 1
	}
	for whole, reserved := len(text), false; text != ""; {
		end := t.partOf(text)
		e.find(valid(text[:end]), t.raw[special], func(s string) {
			s = t.normalize(s, e.goesOn)
			e.goesOn = false
			e.find(s, t.normalized[special], e.pieces)
		})
		if text, e.goesOn = text[end:], true; len(text) > 0 && !reserved {
			// Growing step by step would have the tokens twice: the rest is taken to have as many a byte, and a few more.
			e.out = slices.Grow(e.out, int(1.05*float64(len(e.out))/float64(whole-len(text))*float64(len(text))))
			reserved = true
		}
	}
	if o.AddSpecial {
		e.out = append(e.out, t.d.Suffix...)
	}
	return e.out
}

// encoder is one run of Encode.
type encoder struct {
	t       *Tokenizer
	options Options
	out     []int32
	first   bool // nothing of the text has been encoded yet
	goesOn  bool // what comes next goes on after what was encoded last
	cache   map[string][]int32
	merger  merger
}

// pieces cuts a text by the steps of pre-tokenization and encodes each piece.
func (e *encoder) pieces(text string) {
	e.split(text, e.t.d.Splits, e.piece)
	e.first = false
}

// split applies the first of steps, hands the pieces to the others, and calls f for what comes out.
func (e *encoder) split(text string, steps []vocab.Split, f func(string)) {
	if text == "" {
		return
	}
	if len(steps) == 0 {
		f(text)
		return
	}
	s := steps[0]
	next := func(part string) { e.split(part, steps[1:], f) }
	switch s.Op {
	case vocab.SplitPattern:
		if s.Pattern == vocab.PatternTrailing { // at once: scanned for, each space of a run would look at the others
			end := len(strings.TrimRightFunc(text, unicode.IsSpace))
			for _, part := range []string{text[:end], text[end:]} {
				if part != "" {
					next(part)
				}
			}
			return
		}
		scan := scanners[s.Pattern]
		from := 0
		for at := 0; at < len(text); {
			end := scan(text, at)
			if end <= at {
				_, size := utf8.DecodeRuneInString(text[at:])
				at += size
				continue
			}
			if at > from {
				next(text[from:at])
			}
			next(text[at:end])
			from, at = end, end
		}
		if from < len(text) {
			next(text[from:])
		}
	case vocab.SplitBytes:
		if s.PrependSpace != "never" && text[0] != ' ' {
			text = " " + text
		}
		next(text)
	case vocab.SplitSpaces:
		text = strings.ReplaceAll(text, " ", space)
		if (s.PrependSpace == "always" || s.PrependSpace == "first" && e.first) && !strings.HasPrefix(text, space) {
			text = space + text
		}
		if !s.Cut {
			next(text)
			return
		}
		for len(text) > 0 {
			end := len(text)
			if i := strings.Index(text[1:], space); i >= 0 {
				end = i + 1
			}
			next(text[:end])
			text = text[end:]
		}
	case vocab.SplitBertWord:
		bertWords(text, next)
	}
}

// space is the character that SentencePiece writes for a space.
const space = "▁"

// cachedBytes and cachedPieces bound what is remembered of pieces during one encoding.
const (
	cachedBytes  = 64
	cachedPieces = 1 << 16
)

// longestPiece bounds what is encoded at once, far above what memory allows for.
const longestPiece = 1 << 30

// piece encodes one piece by the model.
func (e *encoder) piece(text string) {
	for len(text) > longestPiece {
		end := longestPiece
		for !utf8.RuneStart(text[end]) {
			end--
		}
		e.piece(text[:end])
		text = text[end:]
	}
	if !e.t.words {
		e.part(text)
		return
	}
	for len(text) > 0 {
		end := word(text)
		e.part(text[:end])
		text = text[end:]
	}
}

// part encodes a piece, or a word of one, by itself.
func (e *encoder) part(text string) {
	known, ok := e.cache[text]
	if ok {
		e.out = append(e.out, known...)
		return
	}
	from := len(e.out)
	switch e.t.d.Model {
	case vocab.ByteLevel:
		e.byteLevel(text)
	case vocab.WordPiece:
		e.wordPiece(text)
	default:
		e.sentencePiece(text)
	}
	if len(text) <= cachedBytes && len(e.cache) < cachedPieces {
		e.cache[text] = slices.Clone(e.out[from:])
	}
}

// unknown emits the token for what the vocabulary lacks.
func (e *encoder) unknown() {
	if e.t.d.Unknown >= 0 {
		e.out = append(e.out, e.t.d.Unknown)
	}
}

// valid replaces what is not UTF-8.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 {
			size = maximalPart(s)
		}
		b.WriteRune(r)
		s = s[size:]
	}
	return b.String()
}

// maximalPart is the length of the longest beginning of a damaged text that could begin a character.
func maximalPart(s string) int {
	n := 1
	for n < min(len(s), 3) {
		if utf8.FullRuneInString(s[:n]) { // nothing could follow: it is damaged already
			break
		}
		if utf8.FullRuneInString(s[:n+1]) { // the next byte does not belong
			break
		}
		n++
	}
	return n
}
