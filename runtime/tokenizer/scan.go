package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"qtool/formats/vocab"
)

// scanner gives the end of the match of a pattern that begins at a place, or that place for none.
type scanner func(s string, at int) int

// scanners has the scanner of each known pattern.
var scanners = map[vocab.Pattern]scanner{
	vocab.PatternGPT2:        scanGPT2,
	vocab.PatternLlama3:      func(s string, at int) int { return scanLlama3(s, at, 3) },
	vocab.PatternQwen2:       func(s string, at int) int { return scanLlama3(s, at, 1) },
	vocab.PatternNewline:     one(func(r rune) bool { return r == '\r' || r == '\n' }),
	vocab.PatternDigit:       one(number),
	vocab.PatternDigits:      many(number),
	vocab.PatternThreeDigits: scanThreeDigits,
	vocab.PatternLetters:     afterSpace(letter),
	vocab.PatternPunctuation: afterSpace(punctuation),
	vocab.PatternFalcon:      many(func(r rune) bool { return punctuation(r) || strings.ContainsRune("$+<=>^~|`", r) }),
	vocab.PatternDefault:     many(func(r rune) bool { return punctuation(r) || strings.ContainsRune("$+<=>^~|", r) }),
	vocab.PatternCJK: many(func(r rune) bool {
		return r >= 0x4e00 && r <= 0x9fa5 || r >= 0x0800 && r <= 0x4e00 || r >= 0xac00 && r <= 0xd7ff
	}),
	vocab.PatternLatin: afterSpace(latin),
	vocab.PatternMarks: afterSpace(func(r rune) bool {
		return r >= '!' && r <= '/' || r >= ':' && r <= '~' || // letters too: so the expression says
			r >= 0xff01 && r <= 0xff0f || r >= 0xff1a && r <= 0xff5e || r >= 0x2018 && r <= 0x201f || r >= 0x3000 && r <= 0x3002
	}),
}

// run gives the end of a run of characters.
func run(s string, at int, in func(rune) bool) int {
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		if !in(r) {
			break
		}
		at += size
	}
	return at
}

// one matches a single character, many a run.
func one(in func(rune) bool) scanner {
	return func(s string, at int) int {
		if r, size := utf8.DecodeRuneInString(s[at:]); in(r) {
			return at + size
		}
		return at
	}
}

func many(in func(rune) bool) scanner {
	return func(s string, at int) int { return run(s, at, in) }
}

// afterSpace matches a run after at most one white space. A white space that itself belongs to the run needs
// no other character after it.
func afterSpace(in func(rune) bool) scanner {
	return func(s string, at int) int {
		r, size := utf8.DecodeRuneInString(s[at:])
		if unicode.IsSpace(r) {
			if end := run(s, at+size, in); end > at+size {
				return end
			}
		}
		return run(s, at, in)
	}
}

func scanThreeDigits(s string, at int) int {
	if at+3 > len(s) {
		return at
	}
	for _, c := range []byte(s[at : at+3]) {
		if c < '0' || c > '9' {
			return at
		}
	}
	return at + 3
}

// contraction matches the endings of English contractions, in lower case or, if folded, in any.
func contraction(s string, at int, folded bool) int {
	if s[at] != '\'' {
		return at
	}
	for _, ending := range []string{"s", "t", "re", "ve", "m", "ll", "d"} {
		end := at + 1 + len(ending)
		if end > len(s) {
			continue
		}
		if part := s[at+1 : end]; part == ending || folded && strings.EqualFold(part, ending) {
			return end
		}
	}
	// A letter that folds to an ASCII one, though longer.
	if folded && strings.HasPrefix(s[at+1:], "ſ") {
		return at + 1 + len("ſ")
	}
	return at
}

func other(r rune) bool { return !unicode.IsSpace(r) && !letter(r) && !number(r) }

// scanGPT2 matches GPT-2's pattern, in which every text is covered by matches.
func scanGPT2(s string, at int) int {
	if end := contraction(s, at, false); end > at {
		return end
	}
	begin := at
	if s[at] == ' ' {
		begin++
	}
	for _, in := range []func(rune) bool{letter, number, other} {
		if end := run(s, begin, in); end > begin {
			return end
		}
	}
	return spaces(s, at)
}

// spaces matches a run of white space, but for its last character where something follows.
func spaces(s string, at int) int {
	end := run(s, at, unicode.IsSpace)
	if end == len(s) {
		return end
	}
	_, size := utf8.DecodeLastRuneInString(s[at:end])
	if end-size > at {
		return end - size
	}
	return end
}

// scanLlama3 matches Llama 3's pattern, in which numbers come in parts of at most digits characters.
func scanLlama3(s string, at, digits int) int {
	if end := contraction(s, at, true); end > at {
		return end
	}
	r, size := utf8.DecodeRuneInString(s[at:])
	if !letter(r) && !number(r) && r != '\r' && r != '\n' {
		if end := run(s, at+size, letter); end > at+size {
			return end
		}
	}
	if end := run(s, at, letter); end > at {
		return end
	}
	if number(r) {
		end := at
		for range digits {
			r, size := utf8.DecodeRuneInString(s[end:])
			if size == 0 || !number(r) {
				break
			}
			end += size
		}
		return end
	}
	begin := at
	if r == ' ' {
		begin++
	}
	if end := run(s, begin, other); end > begin {
		return run(s, end, func(r rune) bool { return r == '\r' || r == '\n' })
	}
	// White space: up to the last line break in the run, if there is one.
	end := run(s, at, unicode.IsSpace)
	if i := strings.LastIndexAny(s[at:end], "\r\n"); i >= 0 {
		return at + i + 1
	}
	return spaces(s, at)
}
