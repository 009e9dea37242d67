package tokenizer

import (
	"strings"
	"unicode/utf8"

	"qtool/formats/vocab"
)

// Decode gives the text of tokens, special ones left out if skipSpecial. Ids outside the vocabulary are left
// out; bytes that make no character become U+FFFD, one for each maximal part of a character.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.Stream(skipSpecial)
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Next(id))
	}
	b.WriteString(s.Flush())
	return b.String()
}

// Stream decodes tokens one by one, as they are generated.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	started     bool
	held        []byte // the beginning of a character
}

// Stream starts a text.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream { return &Stream{t: t, skipSpecial: skipSpecial} }

// Continue tells that the text goes on from one that has been shown: the space that encoding puts first
// is then part of it.
func (s *Stream) Continue() { s.started = true }

// Next gives the text that the token adds, as far as it makes whole characters.
func (s *Stream) Next(id int32) string {
	d := s.t.d
	if id < 0 || int(id) >= len(d.Tokens) {
		return ""
	}
	tok := d.Tokens[id]
	special := tok.Kind == vocab.Control || tok.Kind == vocab.Unknown
	if special && s.skipSpecial {
		return ""
	}
	var text []byte
	switch {
	case d.Model == vocab.WordPiece:
		text = []byte(s.wordPiece(tok.Text))
	case d.Model == vocab.ByteLevel && (special || tok.Kind == vocab.UserDefined):
		text = []byte(tok.Text) // written as it is, not as bytes
	case d.Model == vocab.ByteLevel:
		text = rawBytes(tok.Text)
	default:
		text = s.sentencePiece(tok)
	}
	s.started = true
	return s.emit(text)
}

// sentencePiece writes spaces as such, without the one that encoding put first.
func (s *Stream) sentencePiece(tok vocab.Token) []byte {
	d := s.t.d
	text := strings.ReplaceAll(tok.Text, space, " ")
	switch {
	case tok.Kind == vocab.Byte:
		text = string([]byte{hexByte(tok.Text)})
	case s.started:
	case d.StripToken:
		return []byte(strings.ReplaceAll(tok.Text, space, ""))
	}
	if !s.started && d.StripSpace {
		text = strings.TrimPrefix(text, " ")
	}
	return []byte(text)
}

// wordPiece puts a space before what begins a word.
func (s *Stream) wordPiece(text string) string {
	if s.started {
		rest, continues := strings.CutPrefix(text, s.t.d.Continuing)
		if text = rest; !continues {
			text = " " + rest
		}
	}
	if s.t.d.CleanUpSpaces {
		for _, mark := range []string{".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"} {
			if strings.HasPrefix(text, " "+mark) {
				return text[1:]
			}
		}
	}
	return text
}

// emit gives what is whole of the bytes held and new.
func (s *Stream) emit(b []byte) string {
	s.held = append(s.held, b...)
	whole := len(s.held)
	for i := max(0, whole-utf8.UTFMax+1); i < whole; i++ {
		if utf8.RuneStart(s.held[i]) && !utf8.FullRune(s.held[i:]) {
			whole = i
			break
		}
	}
	out := valid(string(s.held[:whole]))
	s.held = append(s.held[:0], s.held[whole:]...)
	return out
}

// Flush gives what is left when no token follows.
func (s *Stream) Flush() string {
	out := valid(string(s.held))
	s.held = s.held[:0]
	return out
}

// rawBytes is the inverse of printable; a text with characters that stand for no byte stays as it is.
func rawBytes(text string) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		b, ok := runeBytes[r]
		if !ok {
			return []byte(text)
		}
		out = append(out, b)
	}
	return out
}

// hexByte reads a byte token, <0x0A>.
func hexByte(text string) byte {
	var b byte
	if len(text) != 6 {
		return 0
	}
	for _, c := range text[3:5] {
		b <<= 4
		switch {
		case c >= '0' && c <= '9':
			b |= byte(c - '0')
		case c >= 'A' && c <= 'F':
			b |= byte(c-'A') + 10
		case c >= 'a' && c <= 'f':
			b |= byte(c-'a') + 10
		}
	}
	return b
}
