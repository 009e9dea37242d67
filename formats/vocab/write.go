package vocab

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"qtool/formats"
)

// TokenizerJSON writes the tokenizer as tokenizer.json and tokenizer_config.json for the transformers
// library, the same bytes for the same definition. Reading them back gives a tokenizer that encodes the
// same. What they cannot say matches formats.ErrUnsupported.
func (d *Definition) TokenizerJSON() (tokenizer, config []byte, err error) {
	model, err := d.modelJSON()
	if err != nil {
		return nil, nil, err
	}
	added := []any{}
	for _, a := range d.Added {
		if a.Within {
			return nil, nil, formats.Unsupported("", a.Text, "a token that is found within normalized text has no form in tokenizer.json")
		}
		added = append(added, ordered{
			{"id", a.ID}, {"content", a.Text}, {"single_word", a.SingleWord}, {"lstrip", a.LStrip}, {"rstrip", a.RStrip},
			{"normalized", a.Normalized}, {"special", a.Special},
		})
	}
	normalizers, err := d.normalizerJSON()
	if err != nil {
		return nil, nil, err
	}
	splits, err := d.splitJSON()
	if err != nil {
		return nil, nil, err
	}
	tokenizer, err = encode(ordered{
		{"version", "1.0"}, {"truncation", nil}, {"padding", nil}, {"added_tokens", added}, {"normalizer", normalizers},
		{"pre_tokenizer", splits}, {"post_processor", d.processorJSON()}, {"decoder", d.decoderJSON()}, {"model", model},
	})
	if err != nil {
		return nil, nil, err
	}
	settings := ordered{
		{"tokenizer_class", "PreTrainedTokenizerFast"},
		{"add_bos_token", d.BOS >= 0 && slices.Equal(d.Prefix, []int32{d.BOS})},
		{"add_eos_token", d.EOS >= 0 && slices.Equal(d.Suffix, []int32{d.EOS})},
		{"clean_up_tokenization_spaces", false},
	}
	for _, s := range []struct {
		key string
		id  int32
	}{{"bos_token", d.BOS}, {"eos_token", d.EOS}, {"pad_token", d.PAD}, {"unk_token", d.Unknown}} {
		if s.id >= 0 {
			settings = append(settings, field{s.key, d.Tokens[s.id].Text})
		}
	}
	config, err = encode(settings)
	return tokenizer, config, err
}

// ordered is a JSON object that keeps the order of its keys.
type ordered []field

type field struct {
	key   string
	value any
}

// MarshalJSON writes the object.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		for k, v := range []any{f.key, f.value} {
			if k > 0 {
				b.WriteByte(':')
			}
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				return nil, err
			}
			b.Truncate(b.Len() - 1) // the line break that Encode adds
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode writes JSON as the tokenizers library does: indented, nothing escaped that need not be.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

func (d *Definition) modelJSON() (ordered, error) {
	vocab := make(ordered, len(d.Tokens))
	seen := make(map[string]bool, len(d.Tokens))
	for i, t := range d.Tokens {
		if seen[t.Text] {
			return nil, formats.Unsupported("", t.Text, "two tokens have this text, which tokenizer.json cannot say")
		}
		seen[t.Text] = true
		vocab[i] = field{t.Text, i}
	}
	var unknown any
	if d.Unknown >= 0 {
		unknown = d.Tokens[d.Unknown].Text
	}
	if d.Model == WordPiece {
		return ordered{
			{"type", "WordPiece"}, {"unk_token", unknown}, {"continuing_subword_prefix", d.Continuing},
			{"max_input_chars_per_word", d.MaxWord}, {"vocab", vocab},
		}, nil
	}
	merges := d.Merges
	if d.Model == SentencePiece && len(merges) == 0 {
		merges = d.mergesOfScores()
	}
	pairs := make([][2]string, len(merges))
	for i, m := range merges {
		pairs[i] = [2]string{d.Tokens[m.Left].Text, d.Tokens[m.Right].Text}
	}
	return ordered{
		{"type", "BPE"}, {"dropout", nil}, {"unk_token", unknown}, {"continuing_subword_prefix", nil}, {"end_of_word_suffix", nil},
		{"fuse_unk", d.FuseUnknown}, {"byte_fallback", d.ByteFallback}, {"ignore_merges", d.IgnoreMerges},
		{"vocab", vocab}, {"merges", pairs},
	}, nil
}

// mergesOfScores lists the merges that a vocabulary of scores stands for: each way to make a token of
// two, the higher score first, and of one token the pairs by their ids.
func (d *Definition) mergesOfScores() []Merge {
	ids := d.index()
	var merges []Merge
	for i, t := range d.Tokens {
		if t.Kind != Normal && t.Kind != UserDefined {
			continue
		}
		for at := range t.Text {
			if at == 0 {
				continue
			}
			if m, ok := mergeOf(ids, t.Text[:at], t.Text[at:]); ok && m.Into == int32(i) {
				merges = append(merges, m)
			}
		}
	}
	slices.SortStableFunc(merges, func(a, b Merge) int {
		sa, sb := d.Tokens[a.Into].Score, d.Tokens[b.Into].Score
		switch {
		case sa > sb:
			return -1
		case sa < sb:
			return 1
		case a.Left != b.Left:
			return int(a.Left) - int(b.Left)
		}
		return int(a.Right) - int(b.Right)
	})
	return merges
}

func (d *Definition) normalizerJSON() (any, error) {
	list := []any{}
	for i := 0; i < len(d.Normalizers); i++ {
		n := d.Normalizers[i]
		if step, count := bertStep(d.Normalizers[i:]); count > 0 {
			list = append(list, step)
			i += count - 1
			continue
		}
		switch n.Op {
		case Prepend:
			list = append(list, ordered{{"type", "Prepend"}, {"prepend", n.Content}})
		case Replace:
			list = append(list, ordered{{"type", "Replace"}, {"pattern", ordered{{"String", n.Pattern}}}, {"content", n.Content}})
		case NFC, NFD, NFKC, NFKD:
			list = append(list, ordered{{"type", strings.ToUpper(string(n.Op))}})
		case Lowercase:
			list = append(list, ordered{{"type", "Lowercase"}})
		case Marks:
			list = append(list, ordered{{"type", "StripAccents"}})
		default:
			return nil, formats.Unsupported("", "normalizer", "step %q has no form in tokenizer.json", n.Op)
		}
	}
	switch len(list) {
	case 0:
		return nil, nil
	case 1:
		return list[0], nil
	}
	return ordered{{"type", "Sequence"}, {"normalizers", list}}, nil
}

// bertStep writes the steps that come first as BERT's normalizer, and tells how many they are; none if
// there is no need for it.
func bertStep(from []Normalizer) (step ordered, count int) {
	for bits := range 16 {
		clean, cjk, accents, lowercase := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
		steps := bertNormalizers(clean, cjk, accents, lowercase)
		if !(clean || cjk || accents) || len(steps) <= count || len(steps) > len(from) || !slices.Equal(from[:len(steps)], steps) {
			continue
		}
		step = ordered{
			{"type", "BertNormalizer"}, {"clean_text", clean}, {"handle_chinese_chars", cjk}, {"strip_accents", accents}, {"lowercase", lowercase},
		}
		count = len(steps)
	}
	return step, count
}

func (d *Definition) splitJSON() (any, error) {
	list := []any{}
	for i := 0; i < len(d.Splits); i++ {
		s, rest := d.Splits[i], d.Splits[i:]
		// A step of type ByteLevel writes bytes as characters: it must be the only one.
		whole := []Split{{Op: SplitPattern, Pattern: PatternGPT2}, {Op: SplitBytes, PrependSpace: "never"}}
		if prefix := s.Op == SplitBytes && s.PrependSpace != "never"; prefix && len(rest) > 1 {
			if !slices.Equal(rest[1:], whole) {
				return nil, formats.Unsupported("", "pre_tokenizer", "a space before a text that is split otherwise than GPT-2's has no form in tokenizer.json")
			}
			list = append(list, byteLevelStep(true, true))
			break
		} else if slices.Equal(rest, whole) {
			list = append(list, byteLevelStep(false, true))
			break
		}
		switch s.Op {
		case SplitPattern:
			expression := ""
			for text, p := range expressions {
				if p == s.Pattern && (expression == "" || text < expression) {
					expression = text
				}
			}
			if expression == "" {
				return nil, formats.Unsupported("", "pre_tokenizer", "pattern %q has no form in tokenizer.json", s.Pattern)
			}
			list = append(list, ordered{{"type", "Split"}, {"pattern", ordered{{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}})
		case SplitBytes:
			list = append(list, byteLevelStep(s.PrependSpace != "never", false))
		case SplitSpaces:
			list = append(list, ordered{{"type", "Metaspace"}, {"replacement", space}, {"prepend_scheme", s.PrependSpace}, {"split", s.Cut}})
		case SplitBertWord:
			list = append(list, ordered{{"type", "BertPreTokenizer"}})
		}
	}
	switch len(list) {
	case 0:
		return nil, nil
	case 1:
		return list[0], nil
	}
	return ordered{{"type", "Sequence"}, {"pretokenizers", list}}, nil
}

func byteLevelStep(prefix, regex bool) ordered {
	return ordered{{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", regex}}
}

func (d *Definition) processorJSON() any {
	if len(d.Prefix)+len(d.Suffix) == 0 {
		return nil
	}
	special := ordered{}
	item := func(id int32) any {
		text := d.Tokens[id].Text
		if !slices.ContainsFunc(special, func(f field) bool { return f.key == text }) {
			special = append(special, field{text, ordered{{"id", text}, {"ids", []int32{id}}, {"tokens", []string{text}}}})
		}
		return ordered{{"SpecialToken", ordered{{"id", text}, {"type_id", 0}}}}
	}
	template := func(names ...string) []any {
		var out []any
		for _, name := range names {
			for _, id := range d.Prefix {
				out = append(out, item(id))
			}
			out = append(out, ordered{{"Sequence", ordered{{"id", name}, {"type_id", 0}}}})
			for _, id := range d.Suffix {
				out = append(out, item(id))
			}
		}
		return out
	}
	return ordered{{"type", "TemplateProcessing"}, {"single", template("A")}, {"pair", template("A", "B")}, {"special_tokens", special}}
}

func (d *Definition) decoderJSON() any {
	switch d.Model {
	case ByteLevel:
		return byteLevelStep(true, true)
	case WordPiece:
		return ordered{{"type", "WordPiece"}, {"prefix", d.Continuing}, {"cleanup", d.CleanUpSpaces}}
	}
	if d.StripToken {
		return ordered{{"type", "Sequence"}, {"decoders", []any{
			ordered{{"type", "ByteFallback"}}, ordered{{"type", "Metaspace"}, {"replacement", space}, {"prepend_scheme", "always"}, {"split", true}},
		}}}
	}
	steps := []any{
		ordered{{"type", "Replace"}, {"pattern", ordered{{"String", space}}}, {"content", " "}},
		ordered{{"type", "ByteFallback"}}, ordered{{"type", "Fuse"}},
	}
	if d.StripSpace {
		steps = append(steps, ordered{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}})
	}
	return ordered{{"type", "Sequence"}, {"decoders", steps}}
}
