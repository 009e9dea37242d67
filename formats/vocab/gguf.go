package vocab

import (
	"errors"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/gguf"
)

// Keys of GGUF, by its specification.
const (
	keyModel       = "tokenizer.ggml.model"
	keyPre         = "tokenizer.ggml.pre"
	keyTokens      = "tokenizer.ggml.tokens"
	keyScores      = "tokenizer.ggml.scores"
	keyTypes       = "tokenizer.ggml.token_type"
	keyMerges      = "tokenizer.ggml.merges"
	keyBOS         = "tokenizer.ggml.bos_token_id"
	keyEOS         = "tokenizer.ggml.eos_token_id"
	keyUnknown     = "tokenizer.ggml.unknown_token_id"
	keySeparator   = "tokenizer.ggml.seperator_token_id" // spelled so
	keyPadding     = "tokenizer.ggml.padding_token_id"
	keyCLS         = "tokenizer.ggml.cls_token_id"
	keyAddBOS      = "tokenizer.ggml.add_bos_token"
	keyAddEOS      = "tokenizer.ggml.add_eos_token"
	keySpacePrefix = "tokenizer.ggml.add_space_prefix"
	keySqueeze     = "tokenizer.ggml.remove_extra_whitespaces"
)

// FromGGUF reads the tokenizer of a GGUF file as llama.cpp does. Errors match formats.ErrMalformed or
// formats.ErrUnsupported.
func FromGGUF(m *gguf.Metadata) (*Definition, error) {
	r := &ggufReader{m: m}
	name := r.text(keyModel)
	if r.err != nil {
		return nil, r.err
	}
	var d *Definition
	switch name {
	case "llama":
		d = newDefinition(SentencePiece)
	case "gpt2":
		d = newDefinition(ByteLevel)
	case "bert":
		d = newDefinition(WordPiece)
	default:
		return nil, formats.Unsupported("", keyModel, "tokenizer model %q is not supported", name).WithHint("llama, gpt2 and bert are")
	}
	r.tokens(d)
	d.Unknown, d.BOS, d.EOS, d.PAD = r.id(keyUnknown, d), r.id(keyBOS, d), r.id(keyEOS, d), r.id(keyPadding, d)
	if r.err != nil {
		return nil, r.err
	}
	addBOS, addEOS := false, false
	switch d.Model {
	case SentencePiece:
		addBOS = true
		d.ByteFallback, d.FuseUnknown, d.StripSpace = true, true, r.flag(keySpacePrefix, true)
		d.Normalizers = sentencePieceNormalizers(d.StripSpace)
		if r.flag(keySqueeze, false) {
			d.Normalizers = append([]Normalizer{{Op: Squeeze}}, d.Normalizers...)
		}
		if d.Unknown < 0 && len(d.Tokens) > 0 {
			d.Unknown = 0
		}
		r.special(d)
	case ByteLevel:
		addBOS = r.byteLevel(d)
		r.special(d)
	case WordPiece:
		addBOS, addEOS = true, true
		r.wordPiece(d)
	}
	if r.flag(keyAddBOS, addBOS) && d.BOS >= 0 {
		d.Prefix = []int32{d.BOS}
	}
	if r.flag(keyAddEOS, addEOS) && d.EOS >= 0 {
		d.Suffix = []int32{d.EOS}
	}
	return d, r.err
}

// ggufReader reads typed keys and keeps the first error.
type ggufReader struct {
	m   *gguf.Metadata
	err error
}

func (r *ggufReader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = formats.Malformed("", key, format, args...)
	}
}

// optional forgets an error that says that a key is absent.
func optional[T any](r *ggufReader, v T, err error, absent T) T {
	switch {
	case err == nil:
		return v
	case !errors.Is(err, gguf.ErrNoKey) && r.err == nil:
		r.err = err
	}
	return absent
}

func (r *ggufReader) text(key string) string {
	s, err := r.m.Str(key)
	if r.err == nil {
		r.err = err
	}
	return s
}

func (r *ggufReader) flag(key string, absent bool) bool {
	v, err := r.m.Bool(key)
	return optional(r, v, err, absent)
}

// id reads a token id; one outside the vocabulary stands for none, as files use it.
func (r *ggufReader) id(key string, d *Definition) int32 {
	n, err := r.m.Int(key)
	n = optional(r, n, err, -1)
	if n < 0 || n >= int64(len(d.Tokens)) {
		return -1
	}
	return int32(n)
}

func (r *ggufReader) tokens(d *Definition) {
	texts, err := r.m.Strings(keyTokens)
	if err != nil {
		r.err = err
		return
	}
	if len(texts) == 0 || len(texts) > maxTokens {
		r.fail(keyTokens, "%d tokens, expected 1 to %d", len(texts), maxTokens)
		return
	}
	d.Tokens = make([]Token, len(texts))
	for i, s := range texts {
		d.Tokens[i] = Token{Text: s, Kind: Normal}
	}
	if scores, err := r.m.Float32s(keyScores); err == nil {
		if len(scores) != len(texts) {
			r.fail(keyScores, "%d scores of %d tokens", len(scores), len(texts))
			return
		}
		for i, s := range scores {
			d.Tokens[i].Score = s
		}
	} else if d.Model == SentencePiece {
		r.err = err
	}
	types, err := r.m.Ints(keyTypes)
	types = optional(r, types, err, nil)
	if types == nil || r.err != nil {
		return
	}
	if len(types) != len(texts) {
		r.fail(keyTypes, "%d types of %d tokens", len(types), len(texts))
		return
	}
	for i, k := range types {
		if k < int64(Normal) || k > int64(Byte) {
			k = int64(Normal) // llama.cpp reads them so
		}
		d.Tokens[i].Kind = Kind(k)
	}
}

// special lists the tokens that are found in the text before anything else.
func (r *ggufReader) special(d *Definition) {
	for i, t := range d.Tokens {
		switch {
		case t.Text == "":
		case t.Kind == Control || t.Kind == Unknown:
			d.Added = append(d.Added, Added{ID: int32(i), Text: t.Text, Special: true})
		case t.Kind == UserDefined:
			d.Added = append(d.Added, Added{ID: int32(i), Text: t.Text})
		}
	}
}

// byteLevel reads merges and pre-tokenizer, and reports whether BOS is added by default.
func (r *ggufReader) byteLevel(d *Definition) bool {
	name, err := r.m.Str(keyPre)
	name = optional(r, name, err, "default")
	p, ok := presetOf(name)
	if !ok && r.err == nil {
		r.err = formats.Unsupported("", keyPre, "pre-tokenizer %q is not known", name)
		return false
	}
	d.Splits, d.IgnoreMerges = p.splits(), p.ignoreMerges
	texts, err := r.m.Strings(keyMerges)
	if err != nil && r.err == nil {
		r.err = err
	}
	if len(texts) > maxTokens {
		r.fail(keyMerges, "%d merges, at most %d are accepted", len(texts), maxTokens)
	}
	if r.err != nil {
		return false
	}
	ids := d.index()
	for i, s := range texts {
		// The parts hold no space: the left one may only begin with one, which is not written so.
		left, right, ok := strings.Cut(s, " ")
		if !ok {
			r.fail(keyMerges, "merge %d, %q: expected two tokens and a space", i, s)
			return false
		}
		if m, ok := mergeOf(ids, left, right); ok {
			d.Merges = append(d.Merges, m)
		}
	}
	return p.addBOS
}

// mergeOf looks the tokens of a merge up; one that makes no token can never happen.
func mergeOf(ids map[string]int32, left, right string) (Merge, bool) {
	l, okL := ids[left]
	r, okR := ids[right]
	into, okI := ids[left+right]
	return Merge{l, r, into}, okL && okR && okI
}

// wordPiece gives the tokens the form of BERT's own vocabulary: GGUF marks what begins a word, BERT what
// continues one.
func (r *ggufReader) wordPiece(d *Definition) {
	d.Continuing, d.MaxWord = "##", 100
	for i := range d.Tokens {
		t := &d.Tokens[i]
		switch rest, begins := strings.CutPrefix(t.Text, space); {
		case begins:
			t.Text = rest
		case t.Kind == Normal && !bracketed(t.Text):
			t.Text = d.Continuing + t.Text
		}
	}
	d.Normalizers = bertNormalizers(true, true, true, true)
	d.Splits = []Split{{Op: SplitBertWord}}
	d.CleanUpSpaces = true
	if id := r.id(keyCLS, d); id >= 0 {
		d.BOS = id
	}
	if id := r.id(keySeparator, d); id >= 0 {
		d.EOS = id
	}
	if d.Unknown < 0 {
		d.Unknown = d.find("[UNK]")
	}
	r.special(d)
}

// bracketed reports whether a token of BERT's is one of those that stand for themselves.
func bracketed(s string) bool { return strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") }

// bertNormalizers are the steps of BERT's own normalizer.
func bertNormalizers(clean, cjk, accents, lowercase bool) []Normalizer {
	var out []Normalizer
	if clean {
		out = append(out, Normalizer{Op: BertClean})
	}
	if cjk {
		out = append(out, Normalizer{Op: BertCJK})
	}
	if accents {
		out = append(out, Normalizer{Op: NFD}, Normalizer{Op: Accents})
	}
	if lowercase {
		out = append(out, Normalizer{Op: Lowercase})
	}
	return out
}

// SetGGUF sets the keys that llama.cpp reads a tokenizer from. FromGGUF of them encodes as d does, but for what
// ExactGGUF tells; where GGUF cannot say what d does, the error matches formats.ErrUnsupported.
func (d *Definition) SetGGUF(m *gguf.Metadata) error {
	texts, kinds := make([]string, len(d.Tokens)), make([]int32, len(d.Tokens))
	for i, t := range d.Tokens {
		texts[i], kinds[i] = t.Text, int32(t.Kind)
	}
	pre := "default"
	switch d.Model {
	case SentencePiece:
		scores := d.scores()
		m.Set(keyModel, gguf.String("llama"))
		m.Set(keyPre, gguf.String(pre))
		m.Set(keyTokens, gguf.Strings(texts))
		m.Set(keyScores, gguf.Array(scores))
		m.Set(keyTypes, gguf.Array(kinds))
		m.Set(keySpacePrefix, gguf.Bool(d.prependsSpace()))
	case ByteLevel:
		var ok bool
		if pre, ok = presetFor(d); !ok || !composesOnly(d.Normalizers) {
			return formats.Unsupported("", keyPre, "GGUF has no name for this model's way to split a text")
		}
		merges := make([]string, len(d.Merges))
		for i, x := range d.Merges {
			merges[i] = texts[x.Left] + " " + texts[x.Right]
		}
		m.Set(keyModel, gguf.String("gpt2"))
		m.Set(keyPre, gguf.String(pre))
		m.Set(keyTokens, gguf.Strings(texts))
		m.Set(keyTypes, gguf.Array(kinds))
		m.Set(keyMerges, gguf.Strings(merges))
	default:
		return formats.Unsupported("", keyModel, "a %s tokenizer is not written to GGUF", d.Model)
	}
	for _, s := range []struct {
		key string
		id  int32
	}{{keyBOS, d.BOS}, {keyEOS, d.EOS}, {keyUnknown, d.Unknown}, {keyPadding, d.PAD}} {
		if s.id >= 0 {
			m.Set(s.key, gguf.Uint32(uint32(s.id)))
		}
	}
	m.Set(keyAddBOS, gguf.Bool(d.BOS >= 0 && slices.Equal(d.Prefix, []int32{d.BOS})))
	m.Set(keyAddEOS, gguf.Bool(d.EOS >= 0 && slices.Equal(d.Suffix, []int32{d.EOS})))
	return nil
}

// composesOnly reports whether normalization does nothing but compose characters, which GGUF files leave out:
// nearly every text is composed already.
func composesOnly(steps []Normalizer) bool {
	return !slices.ContainsFunc(steps, func(n Normalizer) bool { return n.Op != NFC })
}

// ExactGGUF reports whether a program that reads only the keys of SetGGUF encodes every text as d does, special
// tokens that stand in the text aside. Where GGUF merges by scores, any two tokens that make a token may be
// merged; a list of merges may leave some of these out, and rank the ways to make one token differently.
func (d *Definition) ExactGGUF() bool {
	for _, a := range d.Added {
		if !a.Special && (a.SingleWord || a.LStrip || a.RStrip || a.Normalized && len(d.Normalizers) > 0) {
			return false
		}
	}
	if d.Model != SentencePiece {
		return len(d.Normalizers) == 0
	}
	if !d.ByteFallback {
		return false // GGUF always falls back to bytes
	}
	if len(d.Merges) == 0 {
		return true
	}
	known := make(map[Merge]bool, len(d.Merges))
	last := make(map[int32]int, len(d.Merges))
	for i, m := range d.Merges {
		if at, ok := last[m.Into]; ok && at != i-1 {
			return false
		}
		known[m], last[m.Into] = true, i
	}
	all := d.mergesOfScores()
	for _, m := range all {
		if !known[m] {
			return false
		}
	}
	return len(all) == len(known)
}

// prependsSpace reports whether a SentencePiece text gets a space first.
func (d *Definition) prependsSpace() bool {
	for _, n := range d.Normalizers {
		if n.Op == Prepend && n.Content == space {
			return true
		}
	}
	for _, s := range d.Splits {
		if s.Op == SplitSpaces && s.PrependSpace != "never" {
			return true
		}
	}
	return false
}

// scores gives the scores of a SentencePiece vocabulary; for one of merges such that the highest score is
// the merge of the lowest rank.
func (d *Definition) scores() []float32 {
	scores := make([]float32, len(d.Tokens))
	if len(d.Merges) == 0 {
		for i, t := range d.Tokens {
			scores[i] = t.Score
		}
		return scores
	}
	for i := range scores {
		scores[i] = -1e6
	}
	for rank := len(d.Merges) - 1; rank >= 0; rank-- {
		scores[d.Merges[rank].Into] = -float32(rank)
	}
	for i, t := range d.Tokens {
		if t.Kind != Normal {
			scores[i] = 0
		}
	}
	return scores
}
