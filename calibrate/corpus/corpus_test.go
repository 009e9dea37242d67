package corpus

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/vocab"
	"qtool/runtime/tokenizer"
	"qtool/testdata"
)

// grammar is the tokenizer of the model in testdata: 512 tokens, BOS is 1 and put first.
func grammar(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	dir := testdata.Path("grammar-lm")
	d, err := vocab.FromFiles(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }, dir)
	require.NoError(t, err)
	tok, err := tokenizer.New(d)
	require.NoError(t, err)
	require.True(t, tok.AddsBOS())
	return tok
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// windows cuts tokens by the rule, written another way.
func windows(ids []int32, context int, bos int32) (ws [][]int32) {
	for w := range slices.Chunk(slices.Clone(ids), context) {
		if len(w) == context {
			if bos >= 0 {
				w[0] = bos
			}
			ws = append(ws, slices.Clip(w))
		}
	}
	return ws
}

func TestText(t *testing.T) {
	tok := grammar(t)
	path := testdata.Path("grammar-lm", "calib.txt")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	ids := tok.Encode(string(data), tokenizer.Options{AddSpecial: true})
	require.Equal(t, int32(1), ids[0])

	s, err := Read(path, tok, Options{Context: 256, BOS: 77})
	require.NoError(t, err)
	require.Equal(t, windows(ids, 256, 1), s.Windows, "the tokenizer's BOS counts, not that of the options")
	require.Equal(t, Text, s.Kind)
	require.Equal(t, len(ids)/256*256, s.Tokens)
	require.Equal(t, len(ids)%256, s.Dropped)
	require.Positive(t, s.Dropped)
	require.Equal(t, 1, s.Documents)
	require.False(t, s.Limited)

	few, err := Read(path, tok, Options{Context: 256, MaxSequences: 3})
	require.NoError(t, err)
	require.Equal(t, s.Windows[:3], few.Windows)
	require.Equal(t, []int{768, len(ids) - 768}, []int{few.Tokens, few.Dropped})
	require.True(t, few.Limited)
}

// TestJSONLines joins documents, each with BOS first, and passes over what is empty.
func TestJSONLines(t *testing.T) {
	tok := grammar(t)
	texts := []string{"Hugo wrote down: map.", "Ada, \"bell\"\nand rope", "There was rain at the mill, so everything was wet."}
	var ids []int32
	var b strings.Builder
	for _, text := range texts {
		ids = append(ids, tok.Encode(text, tokenizer.Options{AddSpecial: true})...)
		fmt.Fprintf(&b, "{\"text\": %q, \"other\": [1]}\r\n\n", text)
	}
	b.WriteString(`{"text": ""}` + "\n" + `{"text": ""}`) // no line end
	for _, kind := range []Kind{Auto, JSONLines} {
		s, err := Read(write(t, "a.jsonl", b.String()), tok, Options{Kind: kind, Context: 5})
		require.NoError(t, err)
		require.Equal(t, windows(ids, 5, 1), s.Windows)
		require.Equal(t, []int{3, 2, len(ids) % 5}, []int{s.Documents, s.Empty, s.Dropped})
		require.Equal(t, JSONLines, s.Kind)
	}
	named, err := Read(write(t, "a.JSON", strings.ReplaceAll(b.String(), `"text"`, `"content"`)), tok, Options{Field: "content", Context: 5})
	require.NoError(t, err)
	require.Equal(t, windows(ids, 5, 1), named.Windows)

	// What comes after enough sequences is not looked at.
	s, err := Read(write(t, "a.jsonl", b.String()+"\nno JSON"), tok, Options{Context: 5, MaxSequences: 2})
	require.NoError(t, err)
	require.Equal(t, windows(ids, 5, 1)[:2], s.Windows)
	require.True(t, s.Limited)
	require.Equal(t, 1, s.Documents)
}

func TestTokens(t *testing.T) {
	const content = "[5, 6,7]\n[]\n{\"ids\":[8]}\n[9,10,511]"
	for name, o := range map[string]Options{
		"a.jsonl": {Context: 3, Vocab: 512, BOS: -1, Field: "ids"},
		"a.ids":   {Context: 3, Vocab: 512, BOS: -1, Field: "ids", Kind: Tokens},
	} {
		s, err := Read(write(t, name, content), nil, o)
		require.NoError(t, err)
		require.Equal(t, [][]int32{{5, 6, 7}, {8, 9, 10}}, s.Windows)
		require.Equal(t, []int{6, 3, 1, 1}, []int{s.Tokens, s.Documents, s.Empty, s.Dropped})
		require.Equal(t, Tokens, s.Kind)
	}
	s, err := Read(write(t, "a.jsonl", content), nil, Options{Context: 3, Vocab: 512, BOS: 2, Field: "ids"})
	require.NoError(t, err)
	require.Equal(t, [][]int32{{2, 6, 7}, {2, 9, 10}}, s.Windows)
	s, err = Read(write(t, "a.jsonl", content), grammar(t), Options{Context: 3, BOS: 2, Field: "ids"})
	require.NoError(t, err)
	require.Equal(t, [][]int32{{1, 6, 7}, {1, 9, 10}}, s.Windows)
}

// TestDigest: it depends on the tokens, on how they are cut and on what they came from, and on nothing else.
func TestDigest(t *testing.T) {
	read := func(content string, context int) string {
		s, err := Read(write(t, "a.jsonl", content), nil, Options{Context: context, Vocab: 20, BOS: -1})
		require.NoError(t, err)
		return s.Digest.String()
	}
	first := read("[1,2,3,4]", 2)
	require.Equal(t, first, read("[1]\n[2,3,4,5]\n", 2), "neither documents nor the tail count")
	for _, other := range []string{read("[1,2,3,5]", 2), read("[1,2,3,4]", 4), read("[1,2]", 2), read("[1,2,3,4,5,6]", 2)} {
		require.NotEqual(t, first, other)
	}
	require.NotEqual(t, digest(Text, 2, [][]int32{{1, 2}}), digest(Tokens, 2, [][]int32{{1, 2}}))
	// By the xxhash package of Python: xxh3_128 of b"tokens\0" + struct.pack("<Q4i", 2, 1, 2, 3, 4).
	require.Equal(t, "5d5762cc257cd3679c0c99f4dd3661d7", first)
}

func TestRefuses(t *testing.T) {
	tok := grammar(t)
	for _, tc := range []struct {
		name, file, content string
		o                   Options
		bare                bool // without a tokenizer
		kind                error
		want                string
	}{
		{"empty text", "a.txt", "", Options{Context: 8}, false, ErrTooShort, "empty (0 bytes), one window needs 8"},
		{"white text", "a.txt", " \n\t", Options{Context: 8}, false, ErrTooShort, "empty (3 bytes), one window needs 8"},
		{"short text", "a.txt", "Hugo", Options{Context: 512}, false, ErrTooShort, "tokens in 1 document, one window needs 512"},
		{"one token", "a.jsonl", "[7]", Options{Context: 2}, false, ErrTooShort, "1 token in 1 document, one window needs 2"},
		{"empty lines", "a.jsonl", "", Options{Context: 8}, false, ErrTooShort, "no document in 0 bytes, one window needs 8"},
		{"empty documents", "a.jsonl", "{\"text\":\"\"}\n\n[]", Options{Context: 8}, false, formats.ErrMalformed, "line 3: expected an object with a text, found an array"},
		{"only empty", "a.jsonl", "{\"text\":\"\"}\n\n", Options{Context: 8}, false, ErrTooShort, "no document in 13 bytes"},
		{"bytes", "a.txt", "ab\xc3\xa4\xff", Options{Context: 8}, false, formats.ErrMalformed, "at byte 4: byte 0xff is not UTF-8"},
		{"cut character", "a.txt", "ab\xc3", Options{Context: 8}, false, formats.ErrMalformed, "at byte 2: byte 0xc3 is not UTF-8"},
		{"bytes in JSON", "a.jsonl", "[1]\n{\"text\":\"\xff\"}", Options{Context: 8}, false, formats.ErrMalformed, "at byte 13: line 2: JSON: byte 0xff is not UTF-8"},
		{"zero byte", "a.txt", "ab\x00c", Options{Context: 2}, false, formats.ErrMalformed, "at byte 2: a byte of 0, which no text has: looks like a binary file"},
		{"zero byte in JSON", "a.jsonl", "[1]\n\x00", Options{Context: 2}, false, formats.ErrMalformed, "at byte 4: a byte of 0, which no text has: looks like a binary file"},
		{"UTF-16", "a.txt", "\xff\xfea\x00", Options{Context: 2}, false, formats.ErrMalformed, "byte order mark of UTF-16, expected UTF-8"},
		{"UTF-16 in JSON", "a.jsonl", "\xfe\xff\x00[", Options{Context: 2}, false, formats.ErrMalformed, "byte order mark of UTF-16, expected UTF-8"},
		{"mark and broken", "a.jsonl", "\ufeff[1, 2", Options{Context: 2}, false, formats.ErrMalformed, "at byte 8: line 1"},
		{"mark later", "a.jsonl", "[1]\n\ufeff[1]", Options{Context: 2}, false, formats.ErrMalformed, "line 2"},
		{"broken line", "a.jsonl", "{\"text\":\"a\"}\n\n{\"text\":", Options{Context: 2}, false, formats.ErrMalformed, "line 3: JSON: the text ends"},
		{"JSON over lines", "a.json", "[\n1,2]", Options{Context: 2}, false, formats.ErrMalformed, "one JSON value a line"},
		{"two values", "a.jsonl", "[1] [2]", Options{Context: 2}, false, formats.ErrMalformed, "line 1: JSON: more text"},
		{"key twice", "a.jsonl", `{"text":"a","text":"b"}`, Options{Context: 2}, false, formats.ErrMalformed, "given twice"},
		{"no field", "a.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"a\"}", Options{Context: 2}, false, formats.ErrMalformed, `line 2: the object has no field "text"`},
		{"number in field", "a.jsonl", `{"text":1}`, Options{Context: 2}, false, formats.ErrMalformed, `line 1: field "text": expected a text or an array of tokens, found a number`},
		{"bare string", "a.jsonl", `"a"`, Options{Context: 2}, false, formats.ErrMalformed, "line 1: expected an object or an array of tokens, found a string"},
		{"mixed", "a.jsonl", "[1]\n{\"text\":\"a\"}", Options{Context: 2}, false, formats.ErrMalformed, "line 2: expected an array of tokens, found an object with a text"},
		{"text for tokens", "a.jsonl", `{"text":"a"}`, Options{Context: 2, Kind: Tokens}, false, formats.ErrMalformed, "line 1: expected an array of tokens"},
		{"tokens for text", "a.jsonl", `[1]`, Options{Context: 2, Kind: JSONLines}, false, formats.ErrMalformed, "line 1: expected an object with a text"},
		{"token too large", "a.jsonl", "[1]\n[1,512]", Options{Context: 2}, false, formats.ErrMalformed, "line 2: token 1 has id 512, the vocabulary has 0 to 511"},
		{"token negative", "a.jsonl", "[-1]", Options{Context: 2}, false, formats.ErrMalformed, "line 1: token 0 has id -1, the vocabulary has 0 to 511"},
		{"token of 65 bits", "a.jsonl", "[1,36893488147419103232]", Options{Context: 2}, false, formats.ErrMalformed, "line 1: token 1: expected an integer of 64 bits"},
		{"token with fraction", "a.jsonl", "[1.0]", Options{Context: 2}, false, formats.ErrMalformed, "line 1: token 0: expected an integer"},
		{"model knows fewer, text", "a.txt", "Hugo wrote", Options{Context: 2, Vocab: 9}, false, nil, "is outside the vocabulary of 9 tokens"},
		{"model knows fewer, line", "a.jsonl", `{"text":"Hugo"}`, Options{Context: 2, Vocab: 9}, false, formats.ErrMalformed, "line 1: token"},
		{"context 1", "a.txt", "a", Options{Context: 1}, false, nil, "windows of 1 tokens: at least 2"},
		{"negative limit", "a.txt", "a", Options{Context: 2, MaxSequences: -1}, false, nil, "-1 calibration sequences"},
		{"kind", "a.txt", "a", Options{Context: 2, Kind: "pdf"}, false, nil, `"pdf" are not known`},
		{"text without tokenizer", "a.txt", "a", Options{Context: 2, Vocab: 9}, true, nil, "needs a tokenizer"},
		{"line without tokenizer", "a.jsonl", `{"text":"a"}`, Options{Context: 2, Vocab: 9}, true, nil, "needs a tokenizer"},
		{"no vocabulary", "a.jsonl", `[1]`, Options{Context: 2}, true, nil, "size of the vocabulary is not known"},
		{"BOS", "a.jsonl", `[1]`, Options{Context: 2, Vocab: 3, BOS: 3}, true, nil, "token 3, which begins a text, is outside"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			use := tok
			if tc.bare {
				use = nil
			}
			_, err := Read(write(t, tc.file, tc.content), use, tc.o)
			require.ErrorContains(t, err, tc.want)
			if tc.kind != nil {
				require.ErrorIs(t, err, tc.kind)
			}
		})
	}
	_, err := Read(filepath.Join(t.TempDir(), "none"), tok, Options{Context: 2})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Read(t.TempDir(), tok, Options{Context: 2})
	require.ErrorContains(t, err, "not a regular file")
}

// TestLongLine: a line is read up to the limit, and refused beyond it without being read whole.
func TestLongLine(t *testing.T) {
	const maxLine = 16 << 20
	line := `{"text":"` + strings.Repeat(" ", maxLine-len(`{"text":""}`)) + `"}`
	require.Len(t, line, maxLine)
	_, err := Read(write(t, "a.jsonl", "[1]\n"+line), grammar(t), Options{Context: 8, Field: "text", Vocab: 512, Kind: Tokens})
	require.ErrorContains(t, err, "line 2: expected an array of tokens")
	_, err = Read(write(t, "a.jsonl", "[1]\n"+line+" \n"), grammar(t), Options{Context: 8, Kind: Tokens})
	require.ErrorIs(t, err, formats.ErrMalformed)
	require.ErrorContains(t, err, "at byte 4: line 2: is longer than the 16777216 bytes")
}

// FuzzLines: whatever a file of JSON lines holds, the result is windows of known tokens or an error that says what is wrong.
func FuzzLines(f *testing.F) {
	for _, s := range []string{
		"", "[1,2,3]\n[4]", `{"text":"Hugo wrote down"}`, "{\"text\":[1,2]}\n{\"text\":[]}", `{"text":"\ud800"}`, "[1e3]", "[[[[", "\xff", "{\"text\":\"a\"}\n[1]", "null\n",
	} {
		f.Add(s, 2, 0, int32(1))
		f.Add(s, 3, 1, int32(-1))
	}
	tok := grammar(f)
	f.Fuzz(func(t *testing.T, content string, context, limit int, bos int32) {
		path := write(t, "a.jsonl", content)
		for _, use := range []*tokenizer.Tokenizer{nil, tok} {
			s, err := Read(path, use, Options{Context: context, MaxSequences: limit, Vocab: 512, BOS: bos})
			if err != nil {
				require.NotEmpty(t, err.Error())
				continue
			}
			require.Equal(t, len(s.Windows)*context, s.Tokens)
			require.NotEmpty(t, s.Windows)
			require.True(t, limit == 0 || len(s.Windows) <= limit)
			require.True(t, s.Limited || s.Dropped < context)
			for _, w := range s.Windows {
				require.Len(t, w, context)
				for _, id := range w {
					require.True(t, id >= 0 && id < 512)
				}
			}
		}
	})
}

// TestByteOrderMark: some editors put one before JSON in UTF-8; it changes nothing.
func TestByteOrderMark(t *testing.T) {
	const lines = "[1, 2, 3]\n[4]\n"
	plain, err := Read(write(t, "a.jsonl", lines), nil, Options{Context: 2, Vocab: 9, BOS: -1})
	require.NoError(t, err)
	marked, err := Read(write(t, "b.jsonl", "\ufeff"+lines), nil, Options{Context: 2, Vocab: 9, BOS: -1})
	require.NoError(t, err)
	require.Equal(t, plain, marked)
}

// TestLargeText: of a text only so much is read as the windows need, with the windows of all of it; where all is needed there is a limit.
func TestLargeText(t *testing.T) {
	tok := grammar(t)
	text := strings.Repeat("Hugo wrote down: bell, rope and map. There was rain at the mill.\n", 40_000)
	path := write(t, "a.txt", text)
	all, err := Read(path, tok, Options{Context: 64})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, maxText+1)) // zeros that take no space
	few, err := Read(path, tok, Options{Context: 64, MaxSequences: 30})
	require.NoError(t, err)
	require.Equal(t, all.Windows[:30], few.Windows)
	require.True(t, few.Limited)
	require.Less(t, few.Dropped, all.Tokens*3/4)
	_, err = Read(path, tok, Options{Context: 64})
	require.ErrorContains(t, err, "of which all are needed: text too large: at most 1073741824 bytes are read; give a part of it")
	// What is no text is found where it is read.
	require.NoError(t, os.Truncate(path, int64(len(text)+1)))
	_, err = Read(path, tok, Options{Context: 64})
	require.ErrorContains(t, err, fmt.Sprintf("at byte %d: a byte of 0", len(text)))
}
