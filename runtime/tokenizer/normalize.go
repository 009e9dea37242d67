package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"qtool/formats/vocab"
)

// normalize applies the steps of normalization. Nothing is put before a text that goes on after another.
func (t *Tokenizer) normalize(s string, goesOn bool) string {
	for _, n := range t.d.Normalizers {
		switch n.Op {
		case vocab.Prepend:
			if s != "" && !goesOn {
				s = n.Content + s
			}
		case vocab.Replace:
			s = strings.ReplaceAll(s, n.Pattern, n.Content)
		case vocab.NFC:
			s = norm.NFC.String(s)
		case vocab.NFD:
			s = norm.NFD.String(s)
		case vocab.NFKC:
			s = norm.NFKC.String(s)
		case vocab.NFKD:
			s = norm.NFKD.String(s)
		case vocab.Lowercase:
			s = lowercase(s)
		case vocab.Accents:
			s = strings.Map(func(r rune) rune {
				if unicode.Is(unicode.Mn, r) {
					return -1
				}
				return r
			}, s)
		case vocab.Marks:
			s = strings.Map(func(r rune) rune {
				if unicode.IsMark(r) {
					return -1
				}
				return r
			}, s)
		case vocab.BertClean:
			s = strings.Map(cleaned, s)
		case vocab.BertCJK:
			s = spaceCJK(s)
		case vocab.Squeeze:
			s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' }), " ")
			s = strings.TrimRight(s, " "+space) // spaces that are written visibly go at the end only
		}
	}
	return s
}

// lowercase is Unicode's full mapping without context, as Rust's char::to_lowercase: one character
// alone becomes two.
func lowercase(s string) string {
	s = strings.ReplaceAll(s, "İ", "i̇")
	return strings.Map(unicode.ToLower, s)
}

// cleaned maps a character as BERT's normalizer does: -1 where it is removed.
func cleaned(r rune) rune {
	switch {
	case r == '\t' || r == '\n' || r == '\r':
		return ' '
	case r == 0 || r == 0xfffd || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Cs, unicode.Co):
		return -1
	case unicode.IsSpace(r):
		return ' '
	}
	return r
}

// spaceCJK puts spaces around Chinese characters.
func spaceCJK(s string) string {
	if strings.IndexFunc(s, chinese) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if chinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// chinese reports whether a character is in the blocks that BERT's tokenizer takes for Chinese.
func chinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df ||
		r >= 0x2a700 && r <= 0x2b73f || r >= 0x2b740 && r <= 0x2b81f || r >= 0x2b920 && r <= 0x2ceaf ||
		r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
}

// bertWords calls f for each word, and each punctuation character by itself.
func bertWords(s string, f func(string)) {
	from := 0
	for i, r := range s {
		switch {
		case unicode.IsSpace(r):
			if i > from {
				f(s[from:i])
			}
			from = i + len(string(r))
		case bertPunctuation(r):
			if i > from {
				f(s[from:i])
			}
			from = i + len(string(r))
			f(s[i:from])
		}
	}
	if from < len(s) {
		f(s[from:])
	}
}

// bertPunctuation reports whether a character stands alone: punctuation, and every ASCII symbol.
func bertPunctuation(r rune) bool {
	return r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~' || unicode.IsPunct(r)
}
