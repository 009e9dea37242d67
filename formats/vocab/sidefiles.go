package vocab

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// sideFiles are the files beside a tokenizer's own that say more about it.
type sideFiles struct {
	read func(name string) ([]byte, error)
	name string // of the folder
}

// apply takes what they say. Tokens are added only to those of tokenizer.model: tokenizer.json lists its own.
func (s *sideFiles) apply(d *Definition, addTokens bool) error {
	config, err := s.parse("tokenizer_config.json")
	if err != nil {
		return err
	}
	if addTokens {
		list, err := s.added(config)
		if err == nil {
			err = s.add(d, list)
		}
		if err != nil {
			return err
		}
	}
	specials, err := s.parse("special_tokens_map.json")
	if err != nil {
		return err
	}
	for _, t := range []struct {
		key string
		id  *int32
	}{{"bos_token", &d.BOS}, {"cls_token", &d.BOS}, {"eos_token", &d.EOS}, {"sep_token", &d.EOS}, {"pad_token", &d.PAD}} {
		file, v, name := "tokenizer_config.json", member(config, t.key), ""
		if name = tokenName(v); name == "" {
			file, v = "special_tokens_map.json", member(specials, t.key)
			name = tokenName(v)
		}
		id := d.find(name)
		switch {
		case name == "":
		case id < 0 && t.key == "pad_token": // put only beside texts, which nothing here does
		case id < 0:
			return formats.Malformed(s.name+"/"+file, t.key, "token %q is not in the vocabulary", name).At(int64(v.Offset))
		default:
			*t.id = id
		}
	}
	s.around(d, config)
	return nil
}

// around takes whether BOS and EOS are put around a text. The post-processor of tokenizer.json is what is run; the
// flags decide for models that have none, and may take BOS away.
func (s *sideFiles) around(d *Definition, config strictjson.Value) {
	if want, err := member(config, "add_bos_token").BoolValue(); err == nil {
		switch {
		case !want && len(d.Prefix) > 0 && d.Prefix[0] == d.BOS:
			d.Prefix = d.Prefix[1:]
		case want && len(d.Prefix) == 0 && d.BOS >= 0:
			d.Prefix = []int32{d.BOS}
		}
	}
	if want, err := member(config, "add_eos_token").BoolValue(); err == nil && want && len(d.Suffix) == 0 && d.EOS >= 0 {
		d.Suffix = []int32{d.EOS}
	}
}

// parse reads a file; one that is not there counts as null.
func (s *sideFiles) parse(file string) (strictjson.Value, error) {
	data, err := s.read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return strictjson.Value{}, nil
	}
	if err != nil {
		return strictjson.Value{}, err
	}
	return strictjson.Parse(data, strictjson.Options{File: s.name + "/" + file})
}

// member gives a member of an object, null where there is none.
func member(v strictjson.Value, key string) strictjson.Value {
	m, _ := v.Get(key)
	return m
}

// tokenName reads a token: its text, or an object with flags, as older versions write it.
func tokenName(v strictjson.Value) string {
	if name, err := v.Str(); err == nil {
		return name
	}
	return text(v, "content")
}

// added lists the tokens that added_tokens.json, a map from texts to ids, and the map from ids to tokens in
// tokenizer_config.json name, by id; of one in both, the latter counts.
func (s *sideFiles) added(config strictjson.Value) ([]Added, error) {
	const file = "added_tokens.json"
	byText, err := s.parse(file)
	if err != nil {
		return nil, err
	}
	tokens := make(map[int32]Added)
	note := func(file, key string, id int64, err error, a Added) error {
		if err != nil || id < 0 || id >= maxTokens || a.Text == "" {
			return formats.Malformed(s.name+"/"+file, key, "expected a token with a text and an id from 0 to %d", maxTokens-1)
		}
		a.ID = int32(id)
		tokens[a.ID] = a
		return nil
	}
	for _, m := range byText.Members {
		id, err := m.Value.Int()
		if err := note(file, m.Key, id, err, Added{Text: m.Key}); err != nil {
			return nil, err
		}
	}
	for _, m := range member(config, "added_tokens_decoder").Members {
		id, err := strconv.ParseInt(m.Key, 10, 32)
		v := m.Value
		a := Added{
			Text: text(v, "content"), Special: flag(v, "special", false),
			SingleWord: flag(v, "single_word", false), LStrip: flag(v, "lstrip", false), RStrip: flag(v, "rstrip", false),
		}
		if err := note("tokenizer_config.json", m.Key, id, err, a); err != nil {
			return nil, err
		}
	}
	list := make([]Added, 0, len(tokens))
	for _, a := range tokens {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Added) int { return int(a.ID) - int(b.ID) })
	return list, nil
}

// add adds tokens, in the order of their ids, or takes the flags of tokens that are there.
func (s *sideFiles) add(d *Definition, list []Added) error {
	ids := d.index()
	at := make(map[int32]int, len(d.Added)) // in d.Added
	for i, a := range d.Added {
		at[a.ID] = i
	}
	for _, a := range list {
		known, ok := ids[a.Text]
		switch n := int32(len(d.Tokens)); {
		case a.ID > n:
			return formats.Malformed(s.name, a.Text, "the added token has id %d, but no token has id %d", a.ID, n)
		case a.ID == n && ok:
			return formats.Malformed(s.name, a.Text, "the added token has id %d, but is in the vocabulary as %d", a.ID, known)
		case a.ID == n:
			d.Tokens = append(d.Tokens, Token{Text: a.Text})
			ids[a.Text] = n
		case d.Tokens[a.ID].Text != a.Text:
			return formats.Malformed(s.name, a.Text, "the added token has id %d, which is that of %q", a.ID, d.Tokens[a.ID].Text)
		}
		t := &d.Tokens[a.ID]
		switch {
		case t.Kind == Unknown || t.Kind == Control: // whatever the flag says
			a.Special = true
		case a.Special:
			t.Kind = Control
		default:
			t.Kind = UserDefined
		}
		if i, ok := at[a.ID]; ok {
			d.Added[i] = a
		} else {
			d.Added = append(d.Added, a)
		}
	}
	return nil
}
