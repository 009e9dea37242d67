package vocab

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/gguf"
)

// files reads from a map.
func files(m map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if s, ok := m[name]; ok {
			return []byte(s), nil
		}
		return nil, fs.ErrNotExist
	}
}

// tokenizer makes a tokenizer.json of a model and further members.
func tokenizer(model string, more ...string) string {
	return `{"model":` + model + strings.Join(append([]string{""}, more...), ",") + `}`
}

const bpe = `{"type":"BPE","unk_token":"<unk>","vocab":{"<unk>":0,"a":1,"b":2,"ab":3},"merges":["a b"]}`

func TestAccepts(t *testing.T) {
	d, err := FromFiles(files(map[string]string{
		"tokenizer.json":        tokenizer(bpe, `"added_tokens":[{"id":4,"content":"</s>","special":true}]`),
		"tokenizer_config.json": `{"eos_token":{"content":"</s>"},"add_eos_token":true}`,
	}), "m")
	require.NoError(t, err)
	require.Equal(t, []Merge{{1, 2, 3}}, d.Merges)
	require.Equal(t, int32(4), d.EOS)
	require.Equal(t, []int32{4}, d.Suffix)
	require.Equal(t, []int32{4}, d.EndTokens())
	require.Equal(t, Control, d.Tokens[4].Kind)
}

// badTokenizers are tokenizer.json files that must be refused, with a part of the error.
var badTokenizers = []struct{ text, want string }{
	{``, "ends"}, {`[]`, "model"}, {`{}`, "model"}, {`{"model":null}`, "model"}, {tokenizer(`{"type":"Bigram","vocab":{}}`), "Bigram"},
	{tokenizer(`{"type":"Unigram","vocab":[]}`), "Unigram"}, {tokenizer(`{"type":"WordLevel","vocab":{}}`), "WordLevel"},
	{tokenizer(`{"type":"BPE","vocab":{},"merges":[]}`), "vocab"}, {tokenizer(`{"type":"BPE","vocab":[],"merges":[]}`), "vocab"},
	{tokenizer(`{"type":"BPE","vocab":{"a":-1},"merges":[]}`), "token id -1"}, {tokenizer(`{"type":"BPE","vocab":{"a":4294967296},"merges":[]}`), "token id 4294967296"},
	{tokenizer(`{"type":"BPE","vocab":{"a":1.5},"merges":[]}`), "integer"}, {tokenizer(`{"type":"BPE","vocab":{"a":"0"},"merges":[]}`), "integer"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}`), "too"}, {tokenizer(`{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}`), "twice"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0,"b":2},"merges":[]}`), "no token has id 1"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":["a c"]}`), "not in the vocabulary"}, {tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":["a a"]}`), "not in the vocabulary"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":["aa"]}`), "expected two tokens"}, {tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}`), "expected two tokens"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}`), "expected two tokens"}, {tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":{}}`), "array"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"x"}`), "not in the vocabulary"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}`), "dropout"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}`), "end_of_word_suffix"},
	{tokenizer(`{"type":"WordPiece","vocab":{"a":0}}`), "max_input_chars_per_word"},
	{tokenizer(bpe, `"added_tokens":[{"id":4}]`), "content"}, {tokenizer(bpe, `"added_tokens":[{"id":9,"content":"x"}]`), "no token has id 4"},
	{tokenizer(bpe, `"added_tokens":[{"id":1,"content":"x"}]`), "too"}, {tokenizer(bpe, `"added_tokens":{}`), "array"},
	{tokenizer(bpe, `"normalizer":{"type":"Precompiled"}`), "Precompiled"}, {tokenizer(bpe, `"normalizer":{"type":"Replace","pattern":{"Regex":"x"},"content":""}`), "regular expression"},
	{tokenizer(bpe, `"normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"}]}`), "Nmt"},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Whitespace"}`), "Whitespace"}, {tokenizer(bpe, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated"}`), `\\w+`},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{N}"},"behavior":"Removed"}`), "Removed"},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Metaspace","replacement":"_"}`), `"_"`},
	{tokenizer(bpe, `"decoder":{"type":"CTC"}`), "CTC"}, {tokenizer(bpe, `"decoder":{"type":"Strip","content":"x","start":1}`), "stripping"},
	{tokenizer(bpe, `"post_processor":{"type":"Magic"}`), "Magic"},
	{tokenizer(bpe, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<x>"}}]}`), "<x>"},
	{tokenizer(bpe, `"post_processor":{"type":"BertProcessing","cls":1}`), "cls"},
	{tokenizer(bpe, `"normalizer":{"type":"Sequence","normalizers":[`+strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, 11)+`{"type":"NFC"}]}`), "1024 times"},
	{tokenizer(bpe, `"normalizer":{"type":"Sequence","normalizers":[`+strings.Repeat(`{"type":"NFC"},`, 70)+`{"type":"NFD"}]}`), "64 steps"},
	{tokenizer(bpe, `"normalizer":{"type":"Prepend","prepend":"`+strings.Repeat("a", 2000)+`"}`), "1024 times"},
	{tokenizer(bpe, `"normalizer":{"type":"Replace","pattern":{"String":""},"content":"x"}`), "nothing"}, {tokenizer(bpe, `"normalizer":"NFC"`), "step"}, {tokenizer(bpe, `"normalizer":[]`), "step"},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+strings.Repeat(`{"type":"Digits"},`, 70)+`{"type":"Digits"}]}`), "64 steps"},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious"}`), "MergedWithPrevious"}, {tokenizer(bpe, `"pre_tokenizer":7`), "step"},
	{tokenizer(bpe, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"last"}`), "last"},
	{tokenizer(bpe, `"decoder":{"type":"Metaspace","replacement":"_"}`), `"_"`}, {tokenizer(bpe, `"decoder":{"type":"Sequence","decoders":[{"type":"BPEDecoder"}]}`), "BPEDecoder"},
	{tokenizer(bpe, `"post_processor":{"type":"TemplateProcessing","single":[`+strings.Repeat(`{"SpecialToken":{"id":"a"}},`, 70)+`{"Sequence":{"id":"A"}}]}`), "64 tokens"},
	{tokenizer(bpe, `"post_processor":{"type":"TemplateProcessing","single":[{}]}`), "special token"}, {tokenizer(bpe, `"post_processor":{"type":"Sequence","processors":[{"type":"Other"}]}`), "Other"},
	{tokenizer(bpe, `"post_processor":{"type":"BertProcessing","cls":[1,2],"sep":["a",1]}`), "cls"},
	{tokenizer(bpe, `"added_tokens":[{"id":-1,"content":"x"}]`), "token id -1"}, {tokenizer(bpe, `"added_tokens":[{"id":1e3,"content":"x"}]`), "integer"}, {tokenizer(bpe, `"added_tokens":[{"content":"x"}]`), "integer"},
	{tokenizer(bpe, `"added_tokens":[{"id":4,"content":""}]`), "content"}, {tokenizer(bpe, `"added_tokens":[7]`), "content"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[7]}`), "expected two tokens"}, {tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[["a",7]]}`), "expected two tokens"}, {tokenizer(`{"type":"BPE","vocab":{"a":0}}`), "array"},
	{tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[],"continuing_subword_prefix":"@@"}`), "@@"}, {tokenizer(`{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":"x"}`), "dropout"},
	{tokenizer(`{"type":"WordPiece","vocab":{"a":0},"max_input_chars_per_word":0}`), "positive"}, {tokenizer(`{"type":7,"vocab":{}}`), "not known"}, {tokenizer(`[]`), "object"},
	{tokenizer(`{"type":"BPE","vocab":{"\ud800":0},"merges":[]}`), "tokenizer.json"}, {tokenizer(`{"type":"BPE","vocab":{"a":99999999999999999999},"merges":[]}`), "token id"},
	{tokenizer(bpe) + "x", "tokenizer.json"}, {"\xef\xbb\xbf" + tokenizer(bpe), "tokenizer.json"}, {tokenizer(bpe)[:40], "without end"},
	{strings.Repeat(`{"model":`, 100_000), "deep"},
}

func TestRefusesTokenizerJSON(t *testing.T) {
	for _, c := range badTokenizers {
		_, err := FromFiles(files(map[string]string{"tokenizer.json": c.text}), "m")
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%.90s: %v", c.text, err)
		require.ErrorContains(t, err, c.want, "%.90s", c.text)
		require.ErrorContains(t, err, "m/tokenizer.json")
	}
	_, err := FromFiles(files(nil), "m")
	require.ErrorContains(t, err, "no tokenizer")
	_, err = FromFiles(files(map[string]string{"tokenizer.json": tokenizer(bpe), "tokenizer_config.json": `{"bos_token":"<s>"}`}), "m")
	require.ErrorContains(t, err, "<s>")
	broken := errors.New("disk failed")
	_, err = FromFiles(func(string) ([]byte, error) { return nil, broken }, "m")
	require.ErrorIs(t, err, broken)
}

// piece makes a field 1 of a SentencePiece model.
func piece(text string, kind byte) []byte {
	inner := append([]byte{0x0a, byte(len(text))}, text...)
	inner = append(inner, 0x18, kind)
	return append([]byte{0x0a, byte(len(inner))}, inner...)
}

func TestSentencePieceFile(t *testing.T) {
	good := append(append(piece("<unk>", 2), piece("<s>", 3)...), piece("</s>", 3)...)
	isBPE := []byte{0x12, 2, 0x18, 2}
	d, err := fromSentencePiece(append(append([]byte{}, good...), isBPE...), "t.model")
	require.NoError(t, err)
	require.Len(t, d.Tokens, 3)
	require.Equal(t, int32(1), d.BOS)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":           {nil, "no tokens"},
		"unigram":         {good, "unigram"},
		"cut":             {append(append([]byte{}, good...), 0x0a, 9, 1), "field of 9 bytes"},
		"length 2^63":     {binary.AppendUvarint(append(append([]byte{}, good...), 0x0a), 1<<63), "field of 9223372036854775808 bytes"},
		"endless number":  {append(append([]byte{}, good...), 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "ends within a field"},
		"field 0":         {append(append([]byte{}, good...), 0x02, 0), "field number"},
		"wire type 7":     {append(append([]byte{}, good...), 0x0f), "wire type"},
		"kind 9":          {append(append(append([]byte{}, good...), piece("x", 9)...), isBPE...), "type 9"},
		"bad UTF-8":       {append(append(append([]byte{}, good...), piece("\xff", 1)...), isBPE...), "UTF-8"},
		"normalizer rule": {append(append(append([]byte{}, good...), isBPE...), 0x1a, 3, 0x12, 1, 7), "table"},
		"bos outside":     {append(append([]byte{}, good...), 0x12, 5, 0x18, 2, 0xc8, 2, 99), "outside"},
		"web page":        {[]byte("<!DOCTYPE html>"), "not a SentencePiece model"},
	} {
		_, err := fromSentencePiece(c.data, "t.model")
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%s: %v", name, err)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestRefusesGGUF(t *testing.T) {
	good := func() *gguf.Metadata {
		m := &gguf.Metadata{}
		m.Set(keyModel, gguf.String("llama"))
		m.Set(keyTokens, gguf.Strings([]string{"<unk>", "<s>", "a"}))
		m.Set(keyScores, gguf.Array([]float32{0, 0, -1}))
		m.Set(keyTypes, gguf.Array([]int32{2, 3, 1}))
		return m
	}
	_, err := FromGGUF(good())
	require.NoError(t, err)
	for name, change := range map[string]func(m *gguf.Metadata){
		"rwkv":             func(m *gguf.Metadata) { m.Set(keyModel, gguf.String("rwkv")) },
		"t5":               func(m *gguf.Metadata) { m.Set(keyModel, gguf.String("t5")) },
		"tokens":           func(m *gguf.Metadata) { m.Remove(keyTokens) },
		"0 tokens":         func(m *gguf.Metadata) { m.Set(keyTokens, gguf.Strings(nil)) },
		"array of strings": func(m *gguf.Metadata) { m.Set(keyTokens, gguf.Array([]int32{1})) },
		"2 scores":         func(m *gguf.Metadata) { m.Set(keyScores, gguf.Array([]float32{0, 0})) },
		"4 types":          func(m *gguf.Metadata) { m.Set(keyTypes, gguf.Array([]int32{1, 1, 1, 1})) },
		"pre-tokenizer":    func(m *gguf.Metadata) { m.Set(keyModel, gguf.String("gpt2")); m.Set(keyPre, gguf.String("new")) },
		"merges":           func(m *gguf.Metadata) { m.Set(keyModel, gguf.String("gpt2")); m.Set(keyPre, gguf.String("gpt-2")) },
		"expected two token": func(m *gguf.Metadata) {
			m.Set(keyModel, gguf.String("gpt2"))
			m.Set(keyMerges, gguf.Strings([]string{"ab"}))
		},
		"boolean": func(m *gguf.Metadata) { m.Set(keyAddBOS, gguf.Uint32(1)) },
	} {
		m := good()
		change(m)
		_, err := FromGGUF(m)
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%s: %v", name, err)
		require.ErrorContains(t, err, name)
	}
}

// FuzzTokenizerJSON: no input makes it panic; what it accepts can be written and read again.
func FuzzTokenizerJSON(f *testing.F) {
	for _, c := range badTokenizers {
		if len(c.text) < 2000 {
			f.Add([]byte(c.text))
		}
	}
	f.Add([]byte(tokenizer(bpe)))
	f.Add([]byte(tokenizer(`{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1,"##a":2}}`,
		`"normalizer":{"type":"BertNormalizer","lowercase":true}`, `"pre_tokenizer":{"type":"BertPreTokenizer"}`, `"decoder":{"type":"WordPiece","prefix":"##","cleanup":true}`,
		`"post_processor":{"type":"BertProcessing","cls":["a",1],"sep":["##a",2]}`)))
	f.Add([]byte(tokenizer(bpe, `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true}`, `"decoder":{"type":"ByteLevel"}`, `"added_tokens":[{"id":4,"content":"x","lstrip":true}]`)))
	f.Add([]byte(tokenizer(bpe, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, `"decoder":{"type":"Metaspace","replacement":"▁"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := fromJSON(data, "tokenizer.json")
		if err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
			return
		}
		_ = d.SetGGUF(&gguf.Metadata{}) // an error where GGUF cannot say it
		if text, _, err := d.TokenizerJSON(); err == nil {
			again, err := fromJSON(text, "tokenizer.json")
			require.NoError(t, err)
			require.Equal(t, d.Tokens, again.Tokens)
			require.Equal(t, d.Added, again.Added)
			require.Equal(t, d.Merges, again.Merges)
			require.Equal(t, d.Splits, again.Splits)
			require.Equal(t, d.Normalizers, again.Normalizers)
			require.Equal(t, [][]int32{d.Prefix, d.Suffix}, [][]int32{again.Prefix, again.Suffix})
		}
	})
}

// FuzzTokenizerModel: no input makes it panic.
func FuzzTokenizerModel(f *testing.F) {
	f.Add(append(piece("<unk>", 2), 0x12, 2, 0x18, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := fromSentencePiece(data, "tokenizer.model"); err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
		}
	})
}
