package document_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/document"
)

// read gives the documents of a text of JSON lines.
func read(text string, o document.Options) (docs []document.Document, n int64, err error) {
	n, err = document.Lines(strings.NewReader(text), o, func(d *document.Document) (bool, error) {
		docs = append(docs, *d)
		return true, nil
	})
	return docs, n, err
}

func TestLinesReadTextsAndTokens(t *testing.T) {
	texts := "\ufeff{\"text\": \"one\"}\n\n  \r\n{\"other\": 1, \"text\": \"\"}\n{\"text\":\"tw\\u00f6\"}"
	docs, n, err := read(texts, document.Options{File: "d.jsonl"})
	require.NoError(t, err)
	require.EqualValues(t, len(texts), n)
	require.Len(t, docs, 3)
	for i, want := range []string{"one", "", "twö"} {
		require.Equal(t, document.JSONLines, docs[i].Kind)
		require.Equal(t, want, docs[i].Text)
		require.Equal(t, want == "", docs[i].Empty())
	}

	docs, _, err = read("[1, 0]\n{\"ids\": [2]}\n[]\n", document.Options{File: "d.jsonl", Field: "ids", Vocab: 3})
	require.NoError(t, err)
	require.Len(t, docs, 3)
	require.Equal(t, []int32{1, 0}, docs[0].IDs)
	require.Equal(t, []int32{2}, docs[1].IDs)
	require.True(t, docs[2].Empty())
}

func TestLinesRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		o    document.Options
		want string
	}{
		"no JSON":           {"words\n", document.Options{}, "line 1: "},
		"a later line":      {"[1]\n[1\n", document.Options{Vocab: 2}, "line 2: "},
		"no field":          {`{"body": "x"}`, document.Options{}, `the object has no field "text"`},
		"a number":          {`{"text": 3}`, document.Options{}, `field "text": expected a text or an array of tokens, found`},
		"neither":           {`"text"`, document.Options{}, "expected an object or an array of tokens, found"},
		"kinds mixed":       {"[1]\n{\"text\": \"x\"}", document.Options{Vocab: 2}, "expected an array of tokens, found an object with a text"},
		"another kind":      {"[1]", document.Options{Kind: document.JSONLines, Vocab: 2}, "expected an object with a text, found an array of tokens"},
		"beyond vocabulary": {"[1, 2]", document.Options{Vocab: 2}, "token 1 has id 2, the vocabulary has 0 to 1"},
		"negative":          {"[-1]", document.Options{Vocab: 2}, "token 0 has id -1"},
		"no integer":        {"[0.5]", document.Options{Vocab: 2}, "line 1: token 0: "},
		"binary":            {"{\"text\": \"\x00\"}", document.Options{}, "a byte of 0, which no text has"},
		"UTF-16":            {"\xff\xfe[\x001\x00]\x00", document.Options{}, "byte order mark of UTF-16"},
		"a long line":       {"[" + strings.Repeat(" ", 16<<20) + "]", document.Options{}, "line 1: is longer than the 16777216 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.File = "d.jsonl"
			_, _, err := read(c.text, c.o)
			require.ErrorIs(t, err, formats.ErrMalformed)
			require.ErrorContains(t, err, "d.jsonl")
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestLinesStop: a function that wants no more, or fails, ends the reading; so does a reader that fails.
func TestLinesStop(t *testing.T) {
	calls := 0
	n, err := document.Lines(strings.NewReader("[0]\n[0]\nbroken"), document.Options{Vocab: 1}, func(*document.Document) (bool, error) {
		calls++
		return calls < 2, nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	require.EqualValues(t, 8, n)

	cause := errors.New("no more")
	_, err = document.Lines(strings.NewReader("[0]\n[0]"), document.Options{Vocab: 1}, func(*document.Document) (bool, error) { return true, cause })
	require.ErrorIs(t, err, cause)
	_, err = document.Lines(io.MultiReader(strings.NewReader("[0]\n"), failing{cause}), document.Options{Vocab: 1}, func(*document.Document) (bool, error) { return true, nil })
	require.ErrorIs(t, err, cause)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestCheckText(t *testing.T) {
	for text, want := range map[string]string{
		"":             "",
		"plain, ünd £": "",
		"a\x00b":       "a byte of 0",
		"ok \xc3(":     "byte 0xc3 is not UTF-8",
		"\xfe\xff\x00": "UTF-16",
	} {
		err := document.CheckText("t.txt", []byte(text))
		if want == "" {
			require.NoError(t, err, "%q", text)
			continue
		}
		require.ErrorIs(t, err, formats.ErrMalformed, "%q", text)
		require.ErrorContains(t, err, want)
	}
}

func TestKindByName(t *testing.T) {
	require.Equal(t, document.Text, document.Auto.For("a.txt"))
	require.Equal(t, document.Auto, document.Auto.For("a.JSONL"))
	require.Equal(t, document.Auto, document.Auto.For("a.json"))
	require.Equal(t, document.Tokens, document.Tokens.For("a.txt"))
	require.False(t, document.Kind("csv").Valid())
}

// FuzzLines: whatever a file holds, it is read or refused, and what is read keeps what Document promises.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{"{\"text\": \"a\"}\n", "[1,2]\n[]", "\ufeff[1]", "{\"text\": [1]}", "[1e3]", "\"\"", "{\"text\": \"\\ud800\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		kind := document.Auto
		n, err := document.Lines(strings.NewReader(string(data)), document.Options{File: "d", Vocab: 10}, func(d *document.Document) (bool, error) {
			if kind == document.Auto {
				kind = d.Kind
			}
			require.Equal(t, kind, d.Kind)
			for _, id := range d.IDs {
				require.True(t, id >= 0 && id < 10)
			}
			return true, nil
		})
		require.LessOrEqual(t, n, int64(len(data)))
		if err != nil {
			require.ErrorIs(t, err, formats.ErrMalformed)
		}
	})
}
