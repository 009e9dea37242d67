package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// The expressions that texts are split by are those of Unicode 16 in the tokenizers library; Go's tables are of
// Unicode 15. These are the characters that came in between.
var (
	newLetters = ranges(0x1c89, 0x1c8a, 0xa7cb, 0xa7cd, 0xa7da, 0xa7dc, 0x105c0, 0x105f3, 0x10d4a, 0x10d65, 0x10d6f, 0x10d85,
		0x10ec2, 0x10ec4, 0x11380, 0x11389, 0x1138b, 0x1138b, 0x1138e, 0x1138e, 0x11390, 0x113b5, 0x113b7, 0x113b7, 0x113d1, 0x113d1,
		0x113d3, 0x113d3, 0x11bc0, 0x11be0, 0x13460, 0x143fa, 0x16100, 0x1611d, 0x16d40, 0x16d6c, 0x18cff, 0x18cff, 0x1e5d0, 0x1e5ed,
		0x1e5f0, 0x1e5f0, 0x2ebf0, 0x2ee5d)
	newNumbers = ranges(0x10d40, 0x10d49, 0x116d0, 0x116e3, 0x11bf0, 0x11bf9, 0x16130, 0x16139, 0x16d70, 0x16d79, 0x1ccf0, 0x1ccf9,
		0x1e5f1, 0x1e5fa)
	newPunctuation = ranges(0x1b4e, 0x1b4f, 0x1b7f, 0x1b7f, 0x10d6e, 0x10d6e, 0x113d4, 0x113d5, 0x113d7, 0x113d8, 0x11be1, 0x11be1,
		0x16d6d, 0x16d6f, 0x1e5ff, 0x1e5ff)
)

// firstNew is the least of them.
const firstNew = 0x1b4e

// ranges makes a table of pairs of first and last characters, in order.
func ranges(bounds ...rune) *unicode.RangeTable {
	t := &unicode.RangeTable{}
	for i := 0; i < len(bounds); i += 2 {
		lo, hi := uint32(bounds[i]), uint32(bounds[i+1])
		if hi <= 0xffff {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(lo), Hi: uint16(hi), Stride: 1})
		} else {
			t.R32 = append(t.R32, unicode.Range32{Lo: lo, Hi: hi, Stride: 1})
		}
	}
	return t
}

// letter, number and punctuation are \p{L}, \p{N} and \p{P}.
func letter(r rune) bool {
	if r < utf8.RuneSelf {
		return r|0x20 >= 'a' && r|0x20 <= 'z'
	}
	return unicode.IsLetter(r) || r >= firstNew && unicode.Is(newLetters, r)
}

func number(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= '0' && r <= '9'
	}
	return unicode.IsNumber(r) || r >= firstNew && unicode.Is(newNumbers, r)
}

func punctuation(r rune) bool {
	return unicode.IsPunct(r) || r >= firstNew && unicode.Is(newPunctuation, r)
}

// latin reports whether DeepSeek's expression lists a character as a letter with case: it leaves many out, as
// the small Armenian and the mathematical ones.
func latin(r rune) bool {
	switch {
	case r == 0x295:
		return true
	case !unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt):
		return false
	case r < 0x560:
		return true
	case r <= 0x588, r >= 0x10c7 && r <= 0x10ff, r >= 0x1c80 && r <= 0x1c8f, r >= 0x2d00 && r <= 0x2d2d, r >= 0xa790 && r <= 0xab6f:
		return false
	}
	return r < 0x10570 || r >= 0x10c80 && r <= 0x10cf2 || r >= 0x118a0 && r <= 0x118df || r >= 0x1e900 && r <= 0x1e943
}
