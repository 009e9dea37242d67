package vocab

import (
	"errors"
	"math"
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
	keyEOT         = "tokenizer.ggml.eot_token_id"
	keyEOM         = "tokenizer.ggml.eom_token_id"
	keyAddBOS      = "tokenizer.ggml.add_bos_token"
	keyAddEOS      = "tokenizer.ggml.add_eos_token"
	keyAddSEP      = "tokenizer.ggml.add_sep_token"
	keySpacePrefix = "tokenizer.ggml.add_space_prefix"
	keyLowercase   = "tokenizer.ggml.normalizer.lowercase"
	keyAccents     = "tokenizer.ggml.normalizer.strip_accents"
	keyName        = "general.name"
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
	// Where keys are absent, llama.cpp takes the ids of the first models of each kind.
	absent := map[Model][3]int32{SentencePiece: {0, 1, 2}, ByteLevel: {-1, -1, -1}, WordPiece: {100, 101, 102}}[d.Model]
	d.Unknown, d.BOS, d.EOS = r.id(keyUnknown, d, absent[0]), r.id(keyBOS, d, absent[1]), r.id(keyEOS, d, absent[2])
	d.PAD = r.id(keyPadding, d, -1)
	for _, key := range []string{keyEOT, keyEOM} {
		if id := r.id(key, d, -1); id >= 0 {
			d.Ends = append(d.Ends, id)
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	addBOS, keySuffix, addSuffix := true, keyAddEOS, false
	switch d.Model {
	case SentencePiece:
		d.ByteFallback, d.FuseUnknown, d.StripSpace = true, true, r.flag(keySpacePrefix, true)
		d.Normalizers = sentencePieceNormalizers(d.StripSpace)
		r.special(d)
	case ByteLevel:
		addBOS = r.byteLevel(d)
		r.special(d)
	case WordPiece:
		keySuffix, addSuffix = keyAddSEP, true
		r.wordPiece(d)
	}
	if r.flag(keyAddBOS, addBOS) && d.BOS >= 0 {
		d.Prefix = []int32{d.BOS}
	}
	if r.flag(keySuffix, addSuffix) && d.EOS >= 0 {
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

// id reads a token id; one outside the vocabulary counts as absent, as files use it.
func (r *ggufReader) id(key string, d *Definition, absent int32) int32 {
	n, err := r.m.Int(key)
	n = optional(r, n, err, -1)
	switch size := int64(len(d.Tokens)); {
	case n >= 0 && n < size:
		return int32(n)
	case int64(absent) < size:
		return absent
	}
	return -1
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
	if s, ok := d.repeated(); ok {
		r.fail(keyTokens, "token %q is there twice", s)
		return
	}
	if scores, err := r.m.Float32s(keyScores); err == nil {
		if len(scores) != len(texts) {
			r.fail(keyScores, "%d scores of %d tokens", len(scores), len(texts))
			return
		}
		for i, s := range scores {
			if math.IsNaN(float64(s)) {
				r.fail(keyScores, "the score of token %d is no number", i)
				return
			}
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
		if slices.Contains(endings, texts[i]) {
			d.Tokens[i].Kind = Control // whatever the file says, as in llama.cpp
		}
	}
}

// special lists the tokens that are found in the text before anything else.
func (r *ggufReader) special(d *Definition) {
	// GGUF does not tell which tokens take the white space after them. Phi-3's do, and llama.cpp knows them by the
	// model's name, but for those that are Llama's.
	strip := false
	if r.m != nil {
		name, _ := r.m.Str(keyName)
		name = strings.ToLower(name)
		strip = strings.Contains(name, "phi-3") || strings.Contains(name, "phi3")
	}
	for i, t := range d.Tokens {
		switch {
		case t.Text == "":
		case t.Kind == Control || t.Kind == Unknown:
			d.Added = append(d.Added, Added{ID: int32(i), Text: t.Text, Special: true})
		case t.Kind == UserDefined:
			d.Added = append(d.Added, Added{ID: int32(i), Text: t.Text})
		}
	}
	for i, a := range d.Added {
		d.Added[i].RStrip = strip && a.Text != "<unk>" && a.Text != "<s>" && a.Text != "<|endoftext|>"
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
	lowercase := r.flag(keyLowercase, true)
	d.Normalizers = bertNormalizers(true, true, r.flag(keyAccents, lowercase), lowercase)
	d.Splits = []Split{{Op: SplitBertWord}}
	d.CleanUpSpaces = true
	d.BOS = r.id(keyCLS, d, d.BOS)
	d.EOS = r.id(keySeparator, d, d.EOS)
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
		if err := d.wordPieceTexts(texts); err != nil {
			return err
		}
		lowercase, accents := d.has(Lowercase), d.has(Accents)
		if !slices.Equal(d.Normalizers, bertNormalizers(true, true, accents, lowercase)) || !slices.Equal(d.Splits, []Split{{Op: SplitBertWord}}) {
			return formats.Unsupported("", keyModel, "GGUF has no name for this model's way to clean and split a text")
		}
		m.Set(keyModel, gguf.String("bert"))
		m.Set(keyPre, gguf.String(pre))
		m.Set(keyTokens, gguf.Strings(texts))
		m.Set(keyTypes, gguf.Array(kinds))
		if !lowercase || !accents { // absent keys stand for both, also to programs older than the keys
			m.Set(keyLowercase, gguf.Bool(lowercase))
			m.Set(keyAccents, gguf.Bool(accents))
		}
	}
	for _, s := range []struct {
		key string
		id  int32
	}{{keyBOS, d.BOS}, {keyEOS, d.EOS}, {keyUnknown, d.Unknown}, {keyPadding, d.PAD}} {
		if s.id >= 0 {
			m.Set(s.key, gguf.Uint32(uint32(s.id)))
		}
	}
	keySuffix := keyAddEOS
	if d.Model == WordPiece {
		keySuffix = keyAddSEP
		if d.BOS >= 0 {
			m.Set(keyCLS, gguf.Uint32(uint32(d.BOS)))
		}
		if d.EOS >= 0 {
			m.Set(keySeparator, gguf.Uint32(uint32(d.EOS)))
		}
	}
	for i, key := range []string{keyEOT, keyEOM} {
		if i < len(d.Ends) {
			m.Set(key, gguf.Uint32(uint32(d.Ends[i])))
		}
	}
	m.Set(keyAddBOS, gguf.Bool(d.BOS >= 0 && slices.Equal(d.Prefix, []int32{d.BOS})))
	m.Set(keySuffix, gguf.Bool(d.EOS >= 0 && slices.Equal(d.Suffix, []int32{d.EOS})))
	return nil
}

// has reports whether a step is among those of normalization.
func (d *Definition) has(op NormalizerOp) bool {
	return slices.ContainsFunc(d.Normalizers, func(n Normalizer) bool { return n.Op == op })
}

// wordPieceTexts gives the tokens the form of GGUF, the inverse of what is done in reading.
func (d *Definition) wordPieceTexts(texts []string) error {
	if d.Continuing != "##" || d.MaxWord != 100 {
		return formats.Unsupported("", keyModel, "GGUF has no form of a WordPiece tokenizer with prefix %q and words of %d characters", d.Continuing, d.MaxWord)
	}
	seen := make(map[string]bool, len(texts))
	for i, t := range d.Tokens {
		rest, continues := strings.CutPrefix(t.Text, d.Continuing)
		switch {
		case t.Kind != Normal, bracketed(t.Text):
		case continues:
			texts[i] = rest
		default:
			texts[i] = space + t.Text
		}
		begins := strings.HasPrefix(texts[i], space)
		if seen[texts[i]] || t.Kind != Normal && begins || t.Kind == Normal && continues && (begins || bracketed(rest)) {
			return formats.Unsupported("", t.Text, "GGUF has no form of this token")
		}
		seen[texts[i]] = true
	}
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
		if !a.Special && (a.SingleWord || a.LStrip || a.RStrip || a.Within || a.Normalized && len(d.Normalizers) > 0) {
			return false
		}
	}
	around := func(ids []int32, id int32) bool { return len(ids) == 0 || slices.Equal(ids, []int32{id}) }
	if !around(d.Prefix, d.BOS) || !around(d.Suffix, d.EOS) {
		return false
	}
	switch d.Model {
	case ByteLevel:
		return len(d.Normalizers) == 0
	case WordPiece:
		return true // what else there is, SetGGUF refuses
	}
	// GGUF always falls back to bytes, and does no more to a text than this.
	if !d.ByteFallback || len(d.Splits) > 0 || !slices.Equal(d.Normalizers, sentencePieceNormalizers(d.prependsSpace())) {
		return false
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
