package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"qtool/formats/vocab"
)

// finder finds added tokens in a text.
type finder struct {
	tokens  map[string]vocab.Added // by what to look for
	lengths [256][]int             // of those that begin with a byte, longest first
}

func newFinder() *finder { return &finder{tokens: make(map[string]vocab.Added)} }

// add makes text stand for a token, if it is not empty and stands for none yet.
func (f *finder) add(text string, a vocab.Added) {
	if _, ok := f.tokens[text]; ok || text == "" {
		return
	}
	f.tokens[text] = a
	lengths := &f.lengths[text[0]]
	if i, ok := slices.BinarySearchFunc(*lengths, len(text), func(a, b int) int { return b - a }); !ok {
		*lengths = slices.Insert(*lengths, i, len(text))
	}
}

// match finds the longest token at a place, and its end there.
func (f *finder) match(text string, at int) (vocab.Added, int, bool) {
	for _, n := range f.lengths[text[at]] {
		if n > len(text)-at {
			continue
		}
		if a, ok := f.tokens[text[at:at+n]]; ok {
			return a, at + n, true
		}
	}
	return vocab.Added{}, at, false
}

// find emits the added tokens in text and calls rest for what lies between them. Of tokens that overlap, the one
// that begins first counts, and of those the longest, even where it is then not taken for being part of a word.
func (e *encoder) find(text string, f *finder, rest func(string)) {
	from := 0
	for at := 0; len(f.tokens) > 0 && at < len(text); {
		a, end, ok := f.match(text, at)
		if !ok {
			at++
			continue
		}
		start := at
		at = end
		if a.SingleWord && partOfWord(text, start, end) {
			continue
		}
		if a.LStrip && start > from {
			start = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if a.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if start > from {
			rest(text[from:start])
		}
		e.out = append(e.out, a.ID)
		e.first, e.goesOn = false, false
		from = end
	}
	if from < len(text) {
		rest(text[from:])
	}
}

// partOfWord reports whether a character of a word stands before or after a part of a text.
func partOfWord(text string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return start > 0 && wordRune(before) || end < len(text) && wordRune(after)
}

// wordRune is \w of Unicode's regular expressions.
func wordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) ||
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
