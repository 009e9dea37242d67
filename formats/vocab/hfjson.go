package vocab

import (
	"fmt"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// reader walks tokenizer.json. Every step it does not know is refused by name.
type reader struct {
	file   string
	d      *Definition
	growth float64 // how many times as long replacements make a text
}

// Bounds, well above all that is in use: steps of a kind, and what they do to the length of a text.
const (
	maxSteps  = 64
	maxGrowth = 1024
)

func (r *reader) fail(v strictjson.Value, field, format string, args ...any) error {
	return formats.Malformed(r.file, field, format, args...).At(int64(v.Offset))
}

func (r *reader) refuse(v strictjson.Value, field, format string, args ...any) error {
	return formats.Unsupported(r.file, field, format, args...).At(int64(v.Offset))
}

// fromJSON reads tokenizer.json of the tokenizers library.
func fromJSON(data []byte, file string) (*Definition, error) {
	root, err := strictjson.Parse(data, strictjson.Options{File: file})
	if err != nil {
		return nil, err
	}
	r := &reader{file: file, growth: 1}
	model, _ := root.Get("model")
	if model.Kind != strictjson.Object {
		return nil, r.fail(root, "model", "expected an object, found %s", model.Kind)
	}
	normalizer, _ := root.Get("normalizer")
	splitter, _ := root.Get("pre_tokenizer")
	decoder, _ := root.Get("decoder")
	if err := r.model(model, splitter, decoder); err != nil {
		return nil, err
	}
	added, _ := root.Get("added_tokens")
	if err := r.added(added); err != nil {
		return nil, err
	}
	for i, t := range r.d.Tokens {
		if t.Kind == 0 {
			return nil, r.fail(model, "vocab", "no token has id %d, although higher ids are in use", i)
		}
	}
	if err := r.normalizer(normalizer); err != nil {
		return nil, err
	}
	if err := r.splitter(splitter); err != nil {
		return nil, err
	}
	if decoder.Kind != strictjson.Null {
		r.d.StripSpace = false // unless it says so itself
	}
	if err := r.decoder(decoder); err != nil {
		return nil, err
	}
	processor, _ := root.Get("post_processor")
	return r.d, r.processor(processor)
}

// typeOf gives the type of a step.
func typeOf(v strictjson.Value) string {
	t, _ := v.Get("type")
	s, _ := t.Str()
	return s
}

// flag reads a member that is true or false; absent and null count as the given value.
func flag(v strictjson.Value, key string, absent bool) bool {
	m, _ := v.Get(key)
	b, err := m.BoolValue()
	if err != nil {
		return absent
	}
	return b
}

// text reads a member that is a string; absent and null count as "".
func text(v strictjson.Value, key string) string {
	m, _ := v.Get(key)
	s, _ := m.Str()
	return s
}

// usesBytes reports whether a step, or one within it, is of type ByteLevel.
func usesBytes(v strictjson.Value) bool {
	if typeOf(v) == "ByteLevel" {
		return true
	}
	for _, key := range []string{"pretokenizers", "decoders"} {
		list, _ := v.Get(key)
		if slices.ContainsFunc(list.Elements, usesBytes) {
			return true
		}
	}
	return false
}

// model reads vocabulary and merges.
func (r *reader) model(v, splitter, decoder strictjson.Value) error {
	kind := typeOf(v)
	merges, hasMerges := v.Get("merges")
	if kind == "" && hasMerges { // files of 2020 do not name the type
		kind = "BPE"
	}
	switch kind {
	case "BPE":
		r.d = newDefinition(SentencePiece)
		if usesBytes(splitter) || usesBytes(decoder) {
			r.d = newDefinition(ByteLevel)
		}
		for _, key := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
			if text(v, key) != "" {
				return r.refuse(v, key, "%q is not supported", text(v, key))
			}
		}
		if drop, _ := v.Get("dropout"); drop.Kind != strictjson.Null {
			if p, err := drop.Float(); err != nil || p != 0 {
				return r.refuse(drop, "dropout", "merges left out at random are not supported")
			}
		}
		r.d.ByteFallback = flag(v, "byte_fallback", false)
		r.d.FuseUnknown = flag(v, "fuse_unk", false)
		r.d.IgnoreMerges = flag(v, "ignore_merges", false)
	case "WordPiece":
		r.d = newDefinition(WordPiece)
		r.d.Continuing = text(v, "continuing_subword_prefix")
		limit, _ := v.Get("max_input_chars_per_word")
		n, err := limit.Int()
		if err != nil || n < 1 || n > 1<<20 {
			return r.fail(limit, "max_input_chars_per_word", "expected a positive integer")
		}
		r.d.MaxWord = int(n)
	case "Unigram", "WordLevel":
		return r.refuse(v, "model", "tokenizers of type %s are not supported; BPE and WordPiece are", kind)
	default:
		return r.refuse(v, "model", "type %q is not known", kind)
	}
	vocab, _ := v.Get("vocab")
	if err := r.vocab(vocab); err != nil {
		return err
	}
	if name := text(v, "unk_token"); name != "" {
		if r.d.Unknown = r.d.find(name); r.d.Unknown < 0 {
			return r.fail(v, "unk_token", "%q is not in the vocabulary", name)
		}
	}
	if kind != "BPE" {
		return nil
	}
	return r.merges(merges)
}

// vocab reads the map from texts to ids. Holes may be filled by added tokens.
func (r *reader) vocab(v strictjson.Value) error {
	if v.Kind != strictjson.Object || len(v.Members) == 0 {
		return r.fail(v, "vocab", "expected an object from tokens to ids, found %s", v.Kind)
	}
	if len(v.Members) > maxTokens {
		return r.fail(v, "vocab", "%d tokens, at most %d are accepted", len(v.Members), maxTokens)
	}
	for _, m := range v.Members {
		if err := r.token(m.Value, m.Key, Normal, int64(2*len(v.Members)+1<<16)); err != nil {
			return err
		}
	}
	if r.d.Model == SentencePiece && r.d.ByteFallback {
		bytes := make(map[string]bool, 256)
		for b := range 256 {
			bytes[byteToken(b)] = true
		}
		for i := range r.d.Tokens {
			if bytes[r.d.Tokens[i].Text] {
				r.d.Tokens[i].Kind = Byte
			}
		}
	}
	return nil
}

// token gives an id its text.
func (r *reader) token(v strictjson.Value, name string, kind Kind, limit int64) error {
	id, err := v.Int()
	switch {
	case err != nil:
		return r.fail(v, name, "token id: %v", err)
	case id < 0 || id >= min(limit, maxTokens):
		return r.fail(v, name, "token id %d, expected 0 to %d", id, min(limit, maxTokens)-1)
	}
	if n := int(id) + 1; n > len(r.d.Tokens) {
		r.d.Tokens = append(r.d.Tokens, make([]Token, n-len(r.d.Tokens))...)
	}
	t := &r.d.Tokens[id]
	if t.Kind != 0 && t.Text != name {
		return r.fail(v, name, "token id %d is that of %q too", id, t.Text)
	}
	if t.Kind == 0 || kind != Normal {
		*t = Token{Text: name, Kind: kind}
	}
	return nil
}

// merges reads "left right" or ["left", "right"], in the order of rank.
func (r *reader) merges(v strictjson.Value) error {
	if v.Kind != strictjson.Array {
		return r.fail(v, "merges", "expected an array, found %s", v.Kind)
	}
	if len(v.Elements) > maxTokens {
		return r.fail(v, "merges", "%d merges, at most %d are accepted", len(v.Elements), maxTokens)
	}
	ids := r.d.index()
	r.d.Merges = make([]Merge, len(v.Elements))
	for i, e := range v.Elements {
		var left, right string
		if pair, err := e.Strings(); err == nil && len(pair) == 2 {
			left, right = pair[0], pair[1]
		} else if s, err := e.Str(); err == nil {
			var ok bool
			if left, right, ok = strings.Cut(s, " "); !ok || strings.Contains(right, " ") {
				return r.fail(e, "merges", "merge %d, %q: expected two tokens and a space between them", i, s)
			}
		} else {
			return r.fail(e, "merges", "merge %d: expected two tokens", i)
		}
		m, ok := mergeOf(ids, left, right)
		if !ok {
			return r.fail(e, "merges", "merge %d: %q, %q or what they make is not in the vocabulary", i, left, right)
		}
		r.d.Merges[i] = m
	}
	return nil
}

// added reads the tokens that are found before anything else.
func (r *reader) added(v strictjson.Value) error {
	if v.Kind == strictjson.Null {
		return nil
	}
	if v.Kind != strictjson.Array || len(v.Elements) > maxTokens {
		return r.fail(v, "added_tokens", "expected an array, found %s", v.Kind)
	}
	for _, e := range v.Elements {
		id, _ := e.Get("id")
		content, _ := e.Get("content")
		name, err := content.Str()
		if err != nil || name == "" {
			return r.fail(e, "added_tokens", "expected a token with a content")
		}
		special := flag(e, "special", false)
		kind := UserDefined
		if special {
			kind = Control
		}
		if err := r.token(id, name, kind, int64(len(r.d.Tokens)+len(v.Elements)+1<<16)); err != nil {
			return err
		}
		n, _ := id.Int()
		if int32(n) == r.d.Unknown && special {
			r.d.Tokens[n].Kind = Unknown
		}
		r.d.Added = append(r.d.Added, Added{
			ID: int32(n), Text: name, Special: special, Normalized: flag(e, "normalized", false),
			SingleWord: flag(e, "single_word", false), LStrip: flag(e, "lstrip", false), RStrip: flag(e, "rstrip", false),
		})
	}
	return nil
}

// normalizer reads one step, or a sequence of them.
func (r *reader) normalizer(v strictjson.Value) error {
	if v.Kind == strictjson.Null {
		return nil
	}
	add := func(n ...Normalizer) { r.d.Normalizers = append(r.d.Normalizers, n...) }
	switch name := typeOf(v); name {
	case "Sequence":
		list, _ := v.Get("normalizers")
		for _, e := range list.Elements {
			if err := r.normalizer(e); err != nil {
				return err
			}
		}
	case "Prepend":
		add(Normalizer{Op: Prepend, Content: text(v, "prepend")})
	case "Replace":
		pattern, _ := v.Get("pattern")
		if _, ok := pattern.Get("String"); !ok {
			return r.refuse(v, "normalizer", "a replacement by regular expression is not supported")
		}
		if text(pattern, "String") == "" {
			return r.fail(v, "normalizer", "a replacement of nothing")
		}
		n := Normalizer{Op: Replace, Pattern: text(pattern, "String"), Content: text(v, "content")}
		r.growth *= max(1, float64(len(n.Content))/float64(len(n.Pattern)))
		add(n)
	case "NFC":
		add(Normalizer{Op: NFC})
	case "NFD":
		add(Normalizer{Op: NFD})
	case "NFKC":
		add(Normalizer{Op: NFKC})
	case "NFKD":
		add(Normalizer{Op: NFKD})
	case "Lowercase":
		add(Normalizer{Op: Lowercase})
	case "StripAccents":
		add(Normalizer{Op: Marks})
	case "BertNormalizer":
		lower := flag(v, "lowercase", true)
		// Null stands for the same as lowercase.
		add(bertNormalizers(flag(v, "clean_text", true), flag(v, "handle_chinese_chars", true), flag(v, "strip_accents", lower), lower)...)
	default:
		return r.refuse(v, "normalizer", "step %q is not supported", name)
	}
	switch n := len(r.d.Normalizers); {
	case n > maxSteps:
		return r.fail(v, "normalizer", "more than %d steps", maxSteps)
	case r.growth > maxGrowth || n > 0 && len(r.d.Normalizers[n-1].Content) > maxGrowth:
		return r.fail(v, "normalizer", "the steps make a text more than %d times as long", maxGrowth)
	}
	return nil
}

// splitter reads one step of pre-tokenization, or a sequence of them.
func (r *reader) splitter(v strictjson.Value) error {
	if v.Kind == strictjson.Null {
		return nil
	}
	add := func(s ...Split) { r.d.Splits = append(r.d.Splits, s...) }
	switch name := typeOf(v); name {
	case "Sequence":
		list, _ := v.Get("pretokenizers")
		for _, e := range list.Elements {
			if err := r.splitter(e); err != nil {
				return err
			}
		}
	case "ByteLevel":
		first := "never"
		if flag(v, "add_prefix_space", true) {
			first = "always"
		}
		if flag(v, "use_regex", true) {
			if first != "never" {
				add(Split{Op: SplitBytes, PrependSpace: first})
			}
			add(Split{Op: SplitPattern, Pattern: PatternGPT2})
			first = "never"
		}
		add(Split{Op: SplitBytes, PrependSpace: first})
	case "Split":
		return r.split(v)
	case "Digits":
		if !flag(v, "individual_digits", false) {
			add(Split{Op: SplitPattern, Pattern: PatternDigits})
		} else {
			add(Split{Op: SplitPattern, Pattern: PatternDigit})
		}
	case "Metaspace":
		scheme, err := r.scheme(v, "pre_tokenizer")
		if err != nil {
			return err
		}
		add(Split{Op: SplitSpaces, PrependSpace: scheme, Cut: flag(v, "split", true)})
		r.d.StripSpace = r.d.StripSpace || scheme != "never"
	case "BertPreTokenizer":
		add(Split{Op: SplitBertWord})
	default:
		return r.refuse(v, "pre_tokenizer", "step %q is not supported", name)
	}
	if len(r.d.Splits) > maxSteps {
		return r.fail(v, "pre_tokenizer", "more than %d steps", maxSteps)
	}
	return nil
}

// scheme gives which texts a step of type Metaspace puts a space before.
func (r *reader) scheme(v strictjson.Value, field string) (string, error) {
	if text(v, "replacement") != space {
		return "", r.refuse(v, field, "a space written as %q is not supported", text(v, "replacement"))
	}
	scheme := text(v, "prepend_scheme")
	if scheme == "" {
		scheme = "never"
		if flag(v, "add_prefix_space", true) {
			scheme = "always"
		}
	}
	if !slices.Contains([]string{"always", "first", "never"}, scheme) {
		return "", r.refuse(v, field, "prepend_scheme %q is not known", scheme)
	}
	return scheme, nil
}

// split reads a step that splits by a regular expression, which must be a known one.
func (r *reader) split(v strictjson.Value) error {
	pattern, _ := v.Get("pattern")
	expression := text(pattern, "Regex")
	known, ok := expressions[expression]
	behavior := text(v, "behavior")
	inverted := flag(v, "invert", false)
	// With every character in some match, removing what lies between matches changes nothing.
	covering := slices.Contains([]Pattern{PatternGPT2, PatternLlama3, PatternQwen2}, known)
	if !ok || !(behavior == "Isolated" && !inverted || behavior == "Removed" && inverted && covering) {
		return r.refuse(v, "pre_tokenizer", "splitting by %q (%s) is not supported", expression+text(pattern, "String"), behavior)
	}
	r.d.Splits = append(r.d.Splits, Split{Op: SplitPattern, Pattern: known})
	return nil
}

// decoder checks that decoding is what goes with the model, and takes what varies.
func (r *reader) decoder(v strictjson.Value) error {
	if v.Kind == strictjson.Null {
		return nil
	}
	switch name := typeOf(v); name {
	case "Sequence":
		list, _ := v.Get("decoders")
		for _, e := range list.Elements {
			if err := r.decoder(e); err != nil {
				return err
			}
		}
	case "Strip":
		start, _ := v.Get("start")
		n, err := start.Int()
		if text(v, "content") != " " || err != nil || n > 1 {
			return r.refuse(v, "decoder", "stripping other than one leading space is not supported")
		}
		r.d.StripSpace = n == 1
	case "WordPiece":
		r.d.CleanUpSpaces = flag(v, "cleanup", true)
	case "Metaspace":
		scheme, err := r.scheme(v, "decoder")
		if err != nil {
			return err
		}
		r.d.StripSpace = scheme != "never"
		r.d.StripToken = r.d.StripSpace
	case "ByteLevel", "ByteFallback", "Fuse", "Replace":
	default:
		return r.refuse(v, "decoder", "step %q is not supported", name)
	}
	return nil
}

// processor reads what is put around a text.
func (r *reader) processor(v strictjson.Value) error {
	switch name := typeOf(v); {
	case v.Kind == strictjson.Null || name == "ByteLevel":
		return nil
	case name == "Sequence":
		list, _ := v.Get("processors")
		for _, e := range list.Elements {
			if err := r.processor(e); err != nil {
				return err
			}
		}
		return nil
	case name == "BertProcessing" || name == "RobertaProcessing":
		for _, side := range []struct {
			key string
			ids *[]int32
		}{{"cls", &r.d.Prefix}, {"sep", &r.d.Suffix}} {
			pair, _ := v.Get(side.key)
			if pair.Kind != strictjson.Array || len(pair.Elements) != 2 {
				return r.fail(v, "post_processor", "%s: expected a token and its id", side.key)
			}
			s, err := pair.Elements[0].Str()
			if err != nil {
				return r.fail(v, "post_processor", "%s: %v", side.key, err)
			}
			if err := r.surround(v, s, side.ids); err != nil {
				return err
			}
		}
		return nil
	case name == "TemplateProcessing":
		single, _ := v.Get("single")
		side := &r.d.Prefix
		for _, e := range single.Elements {
			if _, ok := e.Get("Sequence"); ok {
				side = &r.d.Suffix
				continue
			}
			token, ok := e.Get("SpecialToken")
			if !ok {
				return r.fail(e, "post_processor", "expected a sequence or a special token")
			}
			if err := r.surround(e, text(token, "id"), side); err != nil {
				return err
			}
		}
		return nil
	default:
		return r.refuse(v, "post_processor", "%q is not supported", name)
	}
}

// surround adds a token to those around a text.
func (r *reader) surround(v strictjson.Value, name string, ids *[]int32) error {
	id := r.d.find(name)
	if id < 0 {
		return r.fail(v, "post_processor", "token %q is not in the vocabulary", name)
	}
	if len(*ids) >= maxSteps {
		return r.fail(v, "post_processor", "more than %d tokens around a text", maxSteps)
	}
	*ids = append(*ids, id)
	return nil
}

// String describes the tokenizer in a few words.
func (d *Definition) String() string {
	return fmt.Sprintf("%s, %d tokens", d.Model, len(d.Tokens))
}
