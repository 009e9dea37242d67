package tokenizer_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"qtool/runtime/tokenizer"
)

// TestStream: a text shown token by token is whole characters at every step, and the whole text at the end.
func TestStream(t *testing.T) {
	g := readGolden(t, "testdata")
	for _, name := range []string{"gpt2", "spm", "spm-first", "bert"} {
		tok := encoder(t, fromDir(t, filepath.Join("testdata", name)))
		for i, ids := range g.Vocabularies[name].IDs {
			text := g.Texts[i]
			s := tok.Stream(true)
			var b strings.Builder
			for _, id := range ids {
				part := s.Next(id)
				require.True(t, utf8.ValidString(part))
				if utf8.ValidString(text) && !strings.Contains(text, "\ufffd") {
					require.NotContains(t, part, "\ufffd", "%q", text)
				}
				b.WriteString(part)
			}
			b.WriteString(s.Flush())
			require.Equal(t, tok.Decode(ids, true), b.String())
		}
	}
}

func TestStreamParts(t *testing.T) {
	tok := encoder(t, fromDir(t, filepath.Join("testdata", "spm")))
	ids := tok.Encode("a 🏁", tokenizer.Options{})
	s := tok.Stream(true)
	var parts []string
	for _, id := range ids {
		parts = append(parts, s.Next(id))
	}
	require.Equal(t, "a ", strings.Join(parts[:len(parts)-4], ""))
	require.Equal(t, []string{"", "", "", "🏁"}, parts[len(parts)-4:], "four bytes of one character")
	// Cut within the character.
	s = tok.Stream(true)
	for _, id := range ids[:len(ids)-1] {
		s.Next(id)
	}
	require.Equal(t, "\ufffd", s.Flush())
	require.Empty(t, s.Flush())
	// The space before a text is its own if it goes on from another.
	s = tok.Stream(true)
	s.Continue()
	first := s.Next(ids[0])
	require.True(t, strings.HasPrefix(first, " "), "%q", first)
	for _, id := range []int32{-1, int32(tok.Size()), 1 << 30} {
		require.Empty(t, tok.Decode([]int32{id}, false))
	}
}

func TestSpecialTokens(t *testing.T) {
	d := fromDir(t, filepath.Join("testdata", "spm"))
	tok := encoder(t, d)
	require.Equal(t, 600, tok.Size())
	require.Equal(t, int32(1), tok.BOS())
	require.True(t, tok.AddsBOS())
	require.False(t, tok.EndsText(1))
	require.Equal(t, []int32{1}, tok.Encode("", tokenizer.Options{AddSpecial: true}))
	require.Empty(t, tok.Encode("", tokenizer.Options{}))
	require.Equal(t, []int32{2}, tok.Encode("</s>", tokenizer.Options{ParseSpecial: true}))
	plain := tok.Encode("</s>", tokenizer.Options{})
	require.NotContains(t, plain, int32(2), "the text of a special token is text unless asked for")
	require.Equal(t, "</s>", tok.Decode(plain, true))
	require.Equal(t, "</s>", tok.Decode([]int32{2}, false))
	require.Empty(t, tok.Decode([]int32{2}, true))
	d.EOS = 2
	require.True(t, encoder(t, d).EndsText(2))
	require.False(t, encoder(t, fromDir(t, filepath.Join("testdata", "gpt2"))).AddsBOS())
}

// TestConcurrent: several goroutines share a tokenizer (run with -race).
func TestConcurrent(t *testing.T) {
	g := readGolden(t, "testdata")
	tok := encoder(t, fromDir(t, filepath.Join("testdata", "llama3")))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i, want := range g.Vocabularies["llama3"].IDs {
				assert.Equal(t, want, some(tok.Encode(g.Texts[i], tokenizer.Options{ParseSpecial: true})))
			}
		})
	}
	wg.Wait()
}
