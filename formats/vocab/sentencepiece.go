package vocab

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"qtool/formats"
)

// fromSentencePiece reads tokenizer.model, a protocol buffer by sentencepiece_model.proto of the
// SentencePiece project. Only its BPE models are supported.
func fromSentencePiece(data []byte, file string) (*Definition, error) {
	d := newDefinition(SentencePiece)
	p := &proto{data: data, file: file}
	model, prefix, squeeze := uint64(1), true, true // the format's defaults: unigram, both
	d.Unknown, d.BOS, d.EOS = 0, 1, 2
	d.FuseUnknown = true
	err := p.each(func(field int, v protoValue) error {
		switch field {
		case 1:
			t, err := p.piece(v)
			if err != nil {
				return err
			}
			if len(d.Tokens) == maxTokens {
				return p.fail("more than %d tokens", maxTokens)
			}
			d.Tokens = append(d.Tokens, t)
		case 2:
			return p.inside(v, func(field int, v protoValue) error {
				switch field {
				case 3:
					model = v.number
				case 24:
					if v.number != 0 {
						return formats.Unsupported(file, "treat_whitespace_as_suffix", "a tokenizer that puts spaces at the ends of words is not supported")
					}
				case 35:
					d.ByteFallback = v.number != 0
				case 40:
					d.Unknown = int32(v.number)
				case 41:
					d.BOS = int32(v.number)
				case 42:
					d.EOS = int32(v.number)
				case 43:
					d.PAD = int32(v.number)
				}
				return nil
			})
		case 5:
			return p.inside(v, func(field int, v protoValue) error {
				if field == 2 && len(v.bytes) > 0 {
					return formats.Unsupported(file, "denormalizer_spec", "the tokenizer changes decoded text by a table, which is not supported")
				}
				return nil
			})
		case 3:
			return p.inside(v, func(field int, v protoValue) error {
				switch field {
				case 2:
					if len(v.bytes) > 0 {
						return formats.Unsupported(file, "precompiled_charsmap", "the tokenizer normalizes characters by a table, which is not supported").
							WithHint("save the tokenizer as tokenizer.json")
					}
				case 3:
					prefix = v.number != 0
				case 4:
					squeeze = v.number != 0
				case 5:
					if v.number == 0 {
						return formats.Unsupported(file, "escape_whitespaces", "a tokenizer that keeps spaces as they are is not supported")
					}
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(d.Tokens) == 0 {
		return nil, formats.Malformed(file, "", "not a SentencePiece model: it has no tokens")
	}
	if model != 2 {
		name := map[uint64]string{1: "unigram", 3: "word", 4: "char"}[model]
		return nil, formats.Unsupported(file, "model_type", "SentencePiece models of type %q (%d) are not supported, only bpe is", name, model)
	}
	for _, id := range []*int32{&d.Unknown, &d.BOS, &d.EOS, &d.PAD} {
		if *id >= int32(len(d.Tokens)) {
			return nil, formats.Malformed(file, "", "special token %d is outside the %d tokens", *id, len(d.Tokens))
		}
		*id = max(*id, -1)
	}
	if text, ok := d.repeated(); ok {
		return nil, formats.Malformed(file, "", "token %q is there twice", text)
	}
	d.StripSpace = prefix || squeeze
	d.Normalizers = sentencePieceNormalizers(prefix)
	if squeeze {
		d.Normalizers = append([]Normalizer{{Op: Squeeze}}, d.Normalizers...)
	}
	(&ggufReader{}).special(d)
	for i := range d.Added { // what the user defined is part of the text, and what follows it no new one
		d.Added[i].Within = !d.Added[i].Special
	}
	if d.BOS >= 0 {
		d.Prefix = []int32{d.BOS} // what the models that use these files do; tokenizer_config.json may differ
	}
	return d, nil
}

// proto reads a protocol buffer.
type proto struct {
	data []byte
	file string
}

// protoValue is one field: a number for the fixed and variable widths, else bytes.
type protoValue struct {
	number uint64
	bytes  []byte
}

func (p *proto) fail(format string, args ...any) error {
	return formats.Malformed(p.file, "", "not a SentencePiece model: "+format, args...)
}

// inside reads the fields of a message within.
func (p *proto) inside(v protoValue, f func(field int, v protoValue) error) error {
	return (&proto{data: v.bytes, file: p.file}).each(f)
}

// each calls f for every field in order.
func (p *proto) each(f func(field int, v protoValue) error) error {
	rest := p.data
	for len(rest) > 0 {
		key, n := binary.Uvarint(rest)
		if n <= 0 || key>>3 == 0 || key>>3 > 1<<29 {
			return p.fail("a damaged field number at byte %d", len(p.data)-len(rest))
		}
		rest = rest[n:]
		var v protoValue
		size := 0
		switch key & 7 {
		case 0:
			v.number, size = binary.Uvarint(rest)
		case 1:
			if size = 8; len(rest) >= 8 {
				v.number = binary.LittleEndian.Uint64(rest)
			}
		case 5:
			if size = 4; len(rest) >= 4 {
				v.number = uint64(binary.LittleEndian.Uint32(rest))
			}
		case 2:
			length, n := binary.Uvarint(rest)
			if n <= 0 || length > uint64(len(rest)-n) {
				return p.fail("a field of %d bytes, %d are left", length, len(rest))
			}
			v.bytes, size = rest[n:n+int(length)], n+int(length)
		default:
			return p.fail("a field of wire type %d", key&7)
		}
		if size <= 0 || size > len(rest) {
			return p.fail("the file ends within a field")
		}
		rest = rest[size:]
		if err := f(int(key>>3), v); err != nil {
			return err
		}
	}
	return nil
}

// piece reads one token.
func (p *proto) piece(v protoValue) (Token, error) {
	t := Token{Kind: Normal}
	err := p.inside(v, func(field int, v protoValue) error {
		switch field {
		case 1:
			if !utf8.Valid(v.bytes) {
				return p.fail("a token that is not UTF-8")
			}
			t.Text = string(v.bytes)
		case 2:
			t.Score = math.Float32frombits(uint32(v.number))
		case 3:
			t.Kind = Kind(v.number)
		}
		return nil
	})
	switch {
	case err != nil:
	case t.Kind < Normal || t.Kind > Byte:
		err = p.fail("token %q has type %d", t.Text, t.Kind)
	case math.IsNaN(float64(t.Score)):
		err = p.fail("the score of token %q is no number", t.Text)
	}
	return t, err
}
