package tokenizer

import (
	"strings"
	"unicode/utf8"

	"qtool/formats/vocab"
)

// symbol is a part of a piece while it is being merged: a token, or text that is none.
type symbol struct {
	id         int32 // -1 for none
	begin, end int32 // in the piece; equal once merged into another
	prev, next int32 // neighbours, -1 for none
}

// candidate is a pair of neighbours that could be merged.
type candidate struct {
	priority    float32 // the least is merged first, of equals the leftmost; a rank is below 2^24, and so exact
	left, right int32
	size        int32 // bytes of both together when it was found
	into        int32
}

// merger merges the symbols of one piece. Its slices are reused from piece to piece.
type merger struct {
	symbols []symbol
	heap    []candidate
}

// run merges until no pair is left. pair gives what two neighbours make, and its priority.
func (m *merger) run(pair func(l, r *symbol) (into int32, priority float32, ok bool)) {
	m.heap = m.heap[:0]
	consider := func(left int32) {
		if left < 0 {
			return
		}
		right := m.symbols[left].next
		if right < 0 {
			return
		}
		l, r := &m.symbols[left], &m.symbols[right]
		if into, priority, ok := pair(l, r); ok {
			m.push(candidate{priority, left, right, r.end - l.begin, into})
		}
	}
	for i := range m.symbols {
		consider(int32(i))
	}
	for len(m.heap) > 0 {
		c := m.pop()
		l, r := &m.symbols[c.left], &m.symbols[c.right]
		if l.begin == l.end || r.begin == r.end || l.next != c.right || r.end-l.begin != c.size {
			continue // one of them was merged with another meanwhile
		}
		l.id, l.end, l.next = c.into, r.end, r.next
		r.begin = r.end
		if l.next >= 0 {
			m.symbols[l.next].prev = c.left
		}
		consider(l.prev)
		consider(c.left)
	}
}

func less(a, b candidate) bool {
	if a.priority != b.priority {
		return a.priority < b.priority
	}
	return a.left < b.left
}

func (m *merger) push(c candidate) {
	m.heap = append(m.heap, c)
	for i := len(m.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !less(m.heap[i], m.heap[parent]) {
			return
		}
		m.heap[i], m.heap[parent] = m.heap[parent], m.heap[i]
		i = parent
	}
}

func (m *merger) pop() candidate {
	top, last := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[last]
	m.heap = m.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && less(m.heap[child+1], m.heap[child]) {
			child++
		}
		if !less(m.heap[child], m.heap[i]) {
			return top
		}
		m.heap[i], m.heap[child] = m.heap[child], m.heap[i]
		i = child
	}
}

// add appends a symbol.
func (m *merger) add(id int32, begin, end int) {
	n := int32(len(m.symbols))
	if n > 0 {
		m.symbols[n-1].next = n
	}
	m.symbols = append(m.symbols, symbol{id: id, begin: int32(begin), end: int32(end), prev: n - 1, next: -1})
}

// pair is the key of two neighbouring tokens, none of them -1.
func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// ranked gives what a pair of tokens makes by the list of merges.
func (t *Tokenizer) ranked(l, r *symbol) (int32, float32, bool) {
	m, ok := t.pairs[pair(l.id, r.id)]
	return m.into, float32(m.rank), ok
}

// joinsWords reports whether a vocabulary has a token that goes on after a word's end: only then can what
// stands in one word change how another is cut.
func joinsWords(tokens []vocab.Token) bool {
	for _, t := range tokens {
		if strings.Contains(strings.TrimLeft(t.Text, space), space) {
			return true
		}
	}
	return false
}

// word gives the end of the first word of a text: where spaces follow something else.
func word(text string) int {
	begin := len(text) - len(strings.TrimLeft(text, space))
	if n := strings.Index(text[begin:], space); n >= 0 {
		return begin + n
	}
	return len(text)
}

// sentencePiece merges characters: by the list of merges, or else by the scores of what they make.
func (e *encoder) sentencePiece(text string) {
	t, m := e.t, &e.merger
	if t.d.IgnoreMerges {
		if id, ok := t.ids[text]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	m.symbols = m.symbols[:0]
	for at := 0; at < len(text); {
		_, size := utf8.DecodeRuneInString(text[at:])
		id, ok := t.ids[text[at:at+size]]
		if !ok {
			id = -1
		}
		m.add(id, at, at+size)
		at += size
	}
	if t.pairs != nil {
		m.run(t.ranked)
	} else {
		m.run(func(l, r *symbol) (int32, float32, bool) {
			id, ok := t.ids[text[l.begin:r.end]]
			if !ok {
				return 0, 0, false
			}
			return id, -t.d.Tokens[id].Score, true
		})
	}
	unknown := false // the last was
	for i := int32(0); i >= 0 && int(i) < len(m.symbols); i = m.symbols[i].next {
		s := &m.symbols[i]
		switch {
		case s.id >= 0:
			e.out = append(e.out, s.id)
			unknown = false
		case t.d.ByteFallback && e.fallback(text[s.begin:s.end]):
			unknown = false
		default:
			if !unknown || !t.d.FuseUnknown {
				e.unknown()
			}
			unknown = true
		}
	}
}

// fallback emits the bytes of a character, if there is a token for each.
func (e *encoder) fallback(s string) bool {
	for i := range len(s) {
		if e.t.bytes[s[i]] < 0 {
			return false
		}
	}
	for i := range len(s) {
		e.out = append(e.out, e.t.bytes[s[i]])
	}
	return true
}

// byteLevel merges bytes.
func (e *encoder) byteLevel(text string) {
	t, m := e.t, &e.merger
	if t.d.IgnoreMerges {
		if id, ok := t.ids[printable(text)]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	m.symbols = m.symbols[:0]
	for i := range len(text) {
		m.add(t.bytes[text[i]], i, i+1)
	}
	m.run(t.ranked)
	for i := int32(0); i >= 0 && int(i) < len(m.symbols); i = m.symbols[i].next {
		if id := m.symbols[i].id; id >= 0 {
			e.out = append(e.out, id)
		} else {
			e.unknown()
		}
	}
}

// byteRunes are the characters that GPT-2's vocabulary writes bytes as: those of Latin-1 that print stand
// for themselves, the others follow from U+0100 on.
var byteRunes = func() (runes [256]rune) {
	next := rune(256)
	for b := range runes {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			runes[b] = rune(b)
		default:
			runes[b] = next
			next++
		}
	}
	return runes
}()

// runeBytes is the inverse of byteRunes.
var runeBytes = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	for b, r := range byteRunes {
		m[r] = byte(b)
	}
	return m
}()

// printable writes bytes as GPT-2's vocabulary does.
func printable(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(byteRunes[s[i]])
	}
	return b.String()
}

// wordPiece takes the longest token that the rest of the word begins with; where there is none, the whole
// word is unknown.
func (e *encoder) wordPiece(word string) {
	t, from := e.t, len(e.out)
	if utf8.RuneCountInString(word) > t.d.MaxWord {
		e.unknown()
		return
	}
	for at := 0; at < len(word); {
		prefix := ""
		if at > 0 {
			prefix = t.d.Continuing
		}
		end := at + min(len(word)-at, t.longest)
		for end > at && end < len(word) && !utf8.RuneStart(word[end]) {
			end--
		}
		for end > at {
			if id, ok := t.ids[prefix+word[at:end]]; ok {
				e.out = append(e.out, id)
				break
			}
			_, size := utf8.DecodeLastRuneInString(word[at:end])
			end -= size
		}
		if end == at {
			e.out = e.out[:from]
			e.unknown()
			return
		}
		at = end
	}
}
