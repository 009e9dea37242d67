package tokenizer

import ("testing";"strings";"time";"os";"qtool/formats/vocab";"qtool/formats/gguf";"path/filepath")

func TestZZAdv(t *testing.T) {
	texts := map[string]string{
		"spaces+a": strings.Repeat(" ", 200000)+"a", "a": strings.Repeat("a", 400000), "tabs": strings.Repeat("\t", 200000)+"a",
		"'": strings.Repeat("'", 200000), "nl": strings.Repeat("\n ", 100000)+"a", "<": strings.Repeat("<", 400000), "cjk": strings.Repeat("你", 100000),
		"spa\n": strings.Repeat(strings.Repeat(" ", 1000)+"a\n", 200), "u2003": strings.Repeat("\u2003", 100000)+"a", "<s":strings.Repeat("<|end", 50000), "mark":strings.Repeat("\u0301",100000), "hangul":strings.Repeat("각",50000),
	}
	paths, _ := filepath.Glob("/work/shared/tokenizers/*.gguf")
	for _, p := range paths {
		f, err := gguf.Open(p); if err != nil { t.Fatal(err) }
		d, err := vocab.FromGGUF(f.Metadata()); if err != nil { t.Fatal(err) }
		tok, _ := New(d)
		for n, s := range texts {
			at := time.Now(); ids := tok.Encode(s, Options{ParseSpecial: true})
			if e := time.Since(at); e > 300*time.Millisecond { t.Log(filepath.Base(p), n, len(ids), e) }
		}
		w, _ := os.ReadFile("/work/shared/data/wikitext2/wiki.test.raw")
		at := time.Now(); ids := tok.Encode(string(w), Options{}); t.Log(filepath.Base(p), "wiki", len(ids), time.Since(at))
		f.Close()
	}
	for _, n := range []string{"deepseek-llm","default","qwen2", "llama-bpe"} {
		tok, _ := New(byName(t, n))
		for k, s := range texts {
			at := time.Now(); ids := tok.Encode(s, Options{ParseSpecial: true})
			if e := time.Since(at); e > 300*time.Millisecond { t.Log(n, k, len(ids), e) }
		}
	}
}
