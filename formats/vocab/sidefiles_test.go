package vocab

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/gguf"
)

// modelFile is a tokenizer.model of four tokens with further bytes.
func modelFile(more ...byte) string {
	b := append(append(piece("<unk>", 2), piece("<s>", 3)...), piece("</s>", 3)...)
	b = append(append(b, piece("a", 1)...), 0x12, 2, 0x18, 2)
	return string(append(b, more...))
}

func TestSideFiles(t *testing.T) {
	d, err := FromFiles(files(map[string]string{
		"tokenizer.model":         modelFile(),
		"added_tokens.json":       `{"<x>":5,"<pad>":4}`,
		"special_tokens_map.json": `{"eos_token":{"content":"<x>"},"bos_token":"</s>","pad_token":"<pad>"}`,
		"tokenizer_config.json": `{"bos_token":"<s>","add_bos_token":false,"add_eos_token":true,"added_tokens_decoder":{
			"1":{"content":"<s>","special":true,"rstrip":true},"5":{"content":"<x>","special":true,"lstrip":true}}}`,
	}), "m")
	require.NoError(t, err)
	require.Len(t, d.Tokens, 6)
	require.Equal(t, Token{Text: "<pad>", Kind: UserDefined}, d.Tokens[4])
	require.Equal(t, Token{Text: "<x>", Kind: Control}, d.Tokens[5])
	require.Equal(t, []int32{1, 5, 4}, []int32{d.BOS, d.EOS, d.PAD}, "tokenizer_config.json comes before special_tokens_map.json")
	require.Empty(t, d.Prefix)
	require.Equal(t, []int32{5}, d.Suffix)
	require.Contains(t, d.Added, Added{ID: 1, Text: "<s>", Special: true, RStrip: true})
	require.Contains(t, d.Added, Added{ID: 4, Text: "<pad>"})
	require.Contains(t, d.Added, Added{ID: 5, Text: "<x>", Special: true, LStrip: true})

	d, err = FromFiles(files(map[string]string{"tokenizer.json": tokenizer(bpe), "tokenizer_config.json": `{"pad_token":"[PAD]"}`}), "m")
	require.NoError(t, err)
	require.Equal(t, int32(-1), d.PAD)

	for file, cases := range map[string][][2]string{
		"added_tokens.json":       {{`{"x":9}`, "no token has id 4"}, {`{"x":3}`, `that of "a"`}, {`{"a":4}`, "vocabulary as 3"}, {`{"x":-1}`, "id from 0"}, {`{"x":281474976710656}`, "id from 0"}, {`{"x":"4"}`, "id from 0"}, {`{"":4}`, "id from 0"}, {`{"x":4,"x":4}`, "twice"}, {`{`, "ends"}},
		"tokenizer_config.json":   {{`{"bos_token":"x"}`, "bos_token"}, {`{"added_tokens_decoder":{"x":{"content":"y"}}}`, "id from 0"}, {`{"added_tokens_decoder":{"4":{}}}`, "id from 0"}, {`{"added_tokens_decoder":{"4":7}}`, "id from 0"}, {strings.Repeat(`{"a":`, 100), "deep"}},
		"special_tokens_map.json": {{`{"eos_token":"x"}`, "eos_token"}, {"\xff", "expected a value"}},
	} {
		for _, c := range cases {
			_, err := FromFiles(files(map[string]string{"tokenizer.model": modelFile(), file: c[0]}), "m")
			require.ErrorIs(t, err, formats.ErrMalformed, c[0])
			require.ErrorContains(t, err, c[1], c[0])
		}
	}
}

func TestSentencePieceSettings(t *testing.T) {
	for want, more := range map[string][]byte{
		"treat_whitespace_as_suffix": {0x12, 3, 0xc0, 1, 1},
		"denormalizer_spec":          {0x2a, 3, 0x12, 1, 7},
		"escape_whitespaces":         {0x1a, 2, 0x28, 0},
	} {
		_, err := fromSentencePiece([]byte(modelFile(more...)), "t.model")
		require.ErrorIs(t, err, formats.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	_, err := fromSentencePiece([]byte(modelFile(piece("a", 1)...)), "t.model")
	require.ErrorContains(t, err, `"a" is there twice`)
	inner := []byte{0x0a, 1, 'b', 0x15, 0, 0, 0xc0, 0x7f}
	_, err = fromSentencePiece([]byte(modelFile(append([]byte{0x0a, byte(len(inner))}, inner...)...)), "t.model")
	require.ErrorContains(t, err, "no number")

	d, err := fromSentencePiece([]byte(modelFile(piece("<tool>", 4)...)), "t.model")
	require.NoError(t, err)
	require.Contains(t, d.Added, Added{ID: 4, Text: "<tool>", Within: true})
	require.False(t, d.ExactGGUF())
	_, _, err = d.TokenizerJSON()
	require.ErrorIs(t, err, formats.ErrUnsupported)
}

// keys makes the metadata of a tokenizer.
func keys(model string, texts []string, kinds []int32) *gguf.Metadata {
	m := &gguf.Metadata{}
	m.Set(keyModel, gguf.String(model))
	m.Set(keyTokens, gguf.Strings(texts))
	m.Set(keyScores, gguf.Array(make([]float32, len(texts))))
	m.Set(keyTypes, gguf.Array(kinds))
	return m
}

func TestGGUFSpecialTokens(t *testing.T) {
	m := keys("llama", []string{"<unk>", "<s>", "</s>", "a", "<|end|>", "<x>"}, []int32{2, 3, 3, 1, 1, 4})
	d, err := FromGGUF(m)
	require.NoError(t, err)
	require.Equal(t, []int32{0, 1, 2}, []int32{d.Unknown, d.BOS, d.EOS}, "those of Llama where the file names none")
	require.Equal(t, Control, d.Tokens[4].Kind, "by its text")
	require.Equal(t, []int32{2, 4}, d.EndTokens())
	for _, a := range d.Added {
		require.False(t, a.RStrip)
	}
	m.Set("general.name", gguf.String("Phi-3 mini"))
	m.Set(keyEOT, gguf.Uint32(5))
	m.Set(keyEOM, gguf.Uint32(99))
	m.Set(keyBOS, gguf.Uint32(99))
	d, err = FromGGUF(m)
	require.NoError(t, err)
	require.Equal(t, int32(1), d.BOS, "one outside the vocabulary counts as absent")
	require.Equal(t, []int32{2, 5, 4}, d.EndTokens())
	for _, a := range d.Added {
		require.Equal(t, a.ID >= 2, a.RStrip, a.Text)
	}
	for want, change := range map[string]func(){
		`"a" is there twice`: func() { m.Set(keyTokens, gguf.Strings([]string{"<unk>", "<s>", "</s>", "a", "a", "<x>"})) },
		"no number":          func() { m.Set(keyScores, gguf.Array([]float32{0, 0, 0, float32(math.NaN()), 0, 0})) },
	} {
		m = keys("llama", []string{"<unk>", "<s>", "</s>", "a", "", ""}, []int32{2, 3, 3, 1, 1, 4})
		_, err = FromGGUF(m)
		require.NoError(t, err)
		change()
		_, err = FromGGUF(m)
		require.ErrorIs(t, err, formats.ErrMalformed)
		require.ErrorContains(t, err, want)
	}
}

func TestWordPieceGGUF(t *testing.T) {
	read := func(vocab, normalizer string) *Definition {
		d, err := FromFiles(files(map[string]string{"tokenizer.json": tokenizer(
			`{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":`+vocab+`}`,
			`"normalizer":`+normalizer, `"pre_tokenizer":{"type":"BertPreTokenizer"}`,
			`"added_tokens":[{"id":0,"content":"[UNK]","special":true},{"id":1,"content":"[CLS]","special":true},{"id":2,"content":"[SEP]","special":true}]`,
			`"post_processor":{"type":"BertProcessing","cls":["[CLS]",1],"sep":["[SEP]",2]}`)}), "m")
		require.NoError(t, err)
		return d
	}
	const base = `"[UNK]":0,"[CLS]":1,"[SEP]":2,"[unused]":3`
	for _, normalizer := range []string{
		`{"type":"BertNormalizer"}`, `{"type":"BertNormalizer","lowercase":false}`, `{"type":"BertNormalizer","lowercase":true,"strip_accents":false}`,
	} {
		d := read(`{`+base+`,"a":4,"##a":5,"##":6,"▁":7}`, normalizer)
		m := &gguf.Metadata{}
		require.NoError(t, d.SetGGUF(m))
		texts, err := m.Strings(keyTokens)
		require.NoError(t, err)
		require.Equal(t, []string{"[UNK]", "[CLS]", "[SEP]", "[unused]", "▁a", "a", "", "▁▁"}, texts)
		again, err := FromGGUF(m)
		require.NoError(t, err)
		require.Equal(t, d.Tokens, again.Tokens)
		require.Equal(t, d.Normalizers, again.Normalizers)
		require.Equal(t, [][]int32{d.Prefix, d.Suffix}, [][]int32{again.Prefix, again.Suffix})
		require.True(t, d.ExactGGUF())
	}
	for _, c := range [][2]string{
		{`{` + base + `,"##▁":4}`, `{"type":"BertNormalizer"}`}, {`{` + base + `,"##[x]":4}`, `{"type":"BertNormalizer"}`},
		{`{` + base + `,"a":4}`, `{"type":"NFC"}`}, {`{` + base + `,"a":4}`, `{"type":"BertNormalizer","clean_text":false}`},
	} {
		require.ErrorIs(t, read(c[0], c[1]).SetGGUF(&gguf.Metadata{}), formats.ErrUnsupported, c)
	}
}

func TestExactGGUF(t *testing.T) {
	exact := func() *Definition {
		d, err := FromGGUF(keys("llama", []string{"<unk>", "<s>", "</s>", "a"}, []int32{2, 3, 3, 1}))
		require.NoError(t, err)
		require.True(t, d.ExactGGUF())
		return d
	}
	for name, change := range map[string]func(d *Definition){
		"squeeze":  func(d *Definition) { d.Normalizers = append([]Normalizer{{Op: Squeeze}}, d.Normalizers...) },
		"NFKC":     func(d *Definition) { d.Normalizers = append(d.Normalizers, Normalizer{Op: NFKC}) },
		"splits":   func(d *Definition) { d.Splits = []Split{{Op: SplitSpaces, PrependSpace: "first"}} },
		"fallback": func(d *Definition) { d.ByteFallback = false },
		"prefix":   func(d *Definition) { d.Prefix = []int32{1, 3} },
		"suffix":   func(d *Definition) { d.Suffix = []int32{3} },
		"strip":    func(d *Definition) { d.Added = append(d.Added, Added{ID: 3, Text: "a", RStrip: true}) },
	} {
		d := exact()
		change(d)
		require.False(t, d.ExactGGUF(), name)
	}
}
