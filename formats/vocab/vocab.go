// Package vocab describes tokenizers: their tokens, merges and rules, read from tokenizer.json,
// tokenizer.model or the keys of a GGUF file. It encodes nothing; runtime/tokenizer does.
package vocab

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"qtool/formats"
)

// Model is the algorithm that cuts a piece of text into tokens.
type Model string

const (
	// SentencePiece merges characters into tokens, by merges or by the scores of what they make.
	SentencePiece Model = "sentencepiece"
	// ByteLevel merges bytes, each written as a printable character, by merges.
	ByteLevel Model = "byte-level"
	// WordPiece takes the longest token that a word begins with, again and again.
	WordPiece Model = "wordpiece"
)

// Kind of a token, by GGUF's numbering, which is SentencePiece's.
type Kind int

// Kinds of tokens.
const (
	Normal      Kind = 1
	Unknown     Kind = 2
	Control     Kind = 3
	UserDefined Kind = 4
	Unused      Kind = 5
	Byte        Kind = 6
)

// Token is an entry of the vocabulary.
type Token struct {
	Text  string
	Kind  Kind
	Score float32 // of SentencePiece: the higher, the sooner it is made
}

// Merge makes one token of two neighbours. Merges are listed in the order of their rank.
type Merge struct{ Left, Right, Into int32 }

// Added is a token that is found in the text before anything else.
type Added struct {
	ID         int32
	Text       string
	Special    bool // found only where special tokens are asked for
	Normalized bool // looked for after normalization, itself normalized
	Within     bool // looked for after normalization, as it is
	SingleWord bool // only between characters that are no part of a word
	LStrip     bool // takes the white space before it
	RStrip     bool // takes the white space after it
}

// NormalizerOp is a step that changes the text.
type NormalizerOp string

// Steps of normalization.
const (
	Prepend   NormalizerOp = "prepend"   // Content before a text that is not empty
	Replace   NormalizerOp = "replace"   // Pattern by Content
	NFC       NormalizerOp = "nfc"       // Unicode's normalization forms
	NFD       NormalizerOp = "nfd"       //
	NFKC      NormalizerOp = "nfkc"      //
	NFKD      NormalizerOp = "nfkd"      //
	Lowercase NormalizerOp = "lowercase" //
	Accents   NormalizerOp = "accents"   // non-spacing marks are removed, as BERT does
	Marks     NormalizerOp = "marks"     // marks of every kind are removed
	BertClean NormalizerOp = "clean"     // control characters are removed, white space becomes spaces
	BertCJK   NormalizerOp = "cjk"       // spaces around Chinese characters
	Squeeze   NormalizerOp = "squeeze"   // spaces at the ends removed, runs of them made one
)

// Normalizer is one step of normalization.
type Normalizer struct {
	Op               NormalizerOp
	Pattern, Content string
}

// SplitOp is a step that cuts a text into pieces.
type SplitOp string

// Steps of pre-tokenization.
const (
	SplitPattern  SplitOp = "pattern"   // matches of Pattern, and what lies between them
	SplitBytes    SplitOp = "byte"      // a space before the text if PrependSpace
	SplitSpaces   SplitOp = "metaspace" // spaces become ▁, and with Cut pieces begin at them
	SplitBertWord SplitOp = "bert"      // at white space, and each punctuation character
)

// Split is one step of pre-tokenization.
type Split struct {
	Op           SplitOp
	Pattern      Pattern // of SplitPattern
	PrependSpace string  // "always", "first" (of the whole text) or "never"
	Cut          bool    // of SplitSpaces
}

// Definition is everything that encoding depends on.
type Definition struct {
	Model  Model
	Tokens []Token // by id
	Merges []Merge // empty for SentencePiece by scores
	Added  []Added

	Normalizers []Normalizer
	Splits      []Split

	Unknown       int32 // token for what the vocabulary lacks; -1 for none
	FuseUnknown   bool  // one for a run of them
	ByteFallback  bool  // bytes of what the vocabulary lacks become byte tokens
	IgnoreMerges  bool  // a piece that is a token needs no merging
	Continuing    string
	MaxWord       int  // of WordPiece: characters of a word, a longer one is unknown
	StripSpace    bool // decoding removes the space that encoding put first
	StripToken    bool // decoding removes every ▁ of the first token
	CleanUpSpaces bool // decoding of WordPiece joins punctuation

	BOS, EOS, PAD  int32   // -1 for none
	Ends           []int32 // tokens that end a text besides EOS, where the file names them
	Prefix, Suffix []int32 // put around a text by default
}

// maxTokens bounds a vocabulary, a few times over the largest known.
const maxTokens = 1 << 22

// newDefinition has no special tokens.
func newDefinition(m Model) *Definition {
	return &Definition{Model: m, Unknown: -1, BOS: -1, EOS: -1, PAD: -1}
}

// FromFiles reads the tokenizer of a model from its files: tokenizer.json, else tokenizer.model with the tokens
// that added_tokens.json and tokenizer_config.json add to it. Which tokens are special is said by
// tokenizer_config.json, and by special_tokens_map.json where that is silent. read gives the content of a file and an error
// that matches fs.ErrNotExist where there is none; name is that of the folder, for messages. Errors
// match formats.ErrMalformed or formats.ErrUnsupported.
func FromFiles(read func(name string) ([]byte, error), name string) (*Definition, error) {
	var d *Definition
	data, err := read("tokenizer.json")
	isJSON := err == nil
	switch {
	case err == nil:
		d, err = fromJSON(data, name+"/tokenizer.json")
	case errors.Is(err, fs.ErrNotExist):
		data, err = read("tokenizer.model")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, formats.Malformed(name, "", "the model has no tokenizer: neither tokenizer.json nor tokenizer.model")
		}
		if err == nil {
			d, err = fromSentencePiece(data, name+"/tokenizer.model")
		}
	}
	if err != nil {
		return nil, err
	}
	s := &sideFiles{read: read, name: name}
	if err := s.apply(d, !isJSON); err != nil {
		return nil, err
	}
	// What is put around a text says which tokens begin and end it, where no file names them.
	if d.BOS < 0 && len(d.Prefix) > 0 {
		d.BOS = d.Prefix[0]
	}
	if d.EOS < 0 && len(d.Suffix) > 0 {
		d.EOS = d.Suffix[0]
	}
	return d, nil
}

// find gives the id of a token, -1 where there is none.
func (d *Definition) find(text string) int32 {
	for i, t := range d.Tokens {
		if t.Text == text {
			return int32(i)
		}
	}
	return -1
}

// index maps texts to ids; of equal texts the first counts.
func (d *Definition) index() map[string]int32 {
	ids := make(map[string]int32, len(d.Tokens))
	for i, t := range d.Tokens {
		if _, ok := ids[t.Text]; !ok {
			ids[t.Text] = int32(i)
		}
	}
	return ids
}

// repeated gives a text that two tokens have, and false where there is none.
func (d *Definition) repeated() (string, bool) {
	seen := make(map[string]bool, len(d.Tokens))
	for _, t := range d.Tokens {
		if seen[t.Text] && t.Text != "" {
			return t.Text, true
		}
		seen[t.Text] = true
	}
	return "", false
}

// endings are the texts of control tokens that end a turn in models whose EOS ends the document.
var endings = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "<|eom_id|>",
	"<｜end▁of▁sentence｜>", "<end_of_utterance>",
}

// EndTokens lists the tokens after which nothing more is generated.
func (d *Definition) EndTokens() []int32 {
	var out []int32
	if d.EOS >= 0 {
		out = append(out, d.EOS)
	}
	for _, id := range d.Ends {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	for _, text := range endings {
		if id := d.find(text); id >= 0 && d.Tokens[id].Kind == Control && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// byteToken is the text of the token for a byte.
func byteToken(b int) string { return fmt.Sprintf("<0x%02X>", b) }

// space is the character that SentencePiece writes for a space.
const space = "▁"

// sentencePieceNormalizers puts a space first, if asked to, and writes spaces visibly.
func sentencePieceNormalizers(prefix bool) []Normalizer {
	var out []Normalizer
	if prefix {
		out = append(out, Normalizer{Op: Prepend, Content: space})
	}
	return append(out, Normalizer{Op: Replace, Pattern: " ", Content: space})
}
