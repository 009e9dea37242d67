package tokenizer
import ("testing";"os";"encoding/json";"path/filepath";"qtool/formats/vocab";"slices")
func TestZZSpm(t *testing.T) {
	paths, _ := filepath.Glob("/tmp/tk/spm/*/want.json")
	for _, p := range paths {
		dir := filepath.Dir(p)
		var w struct{ Texts []string; Ids [][]int32; Decoded []string }
		b, _ := os.ReadFile(p); json.Unmarshal(b, &w)
		d, err := vocab.FromFiles(func(n string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, n)) }, dir)
		if err != nil { t.Log(dir, err); continue }
		tok, _ := New(d)
		bad, badDec := 0, 0
		for i, s := range w.Texts {
			got := tok.Encode(s, Options{})
			if !slices.Equal(got, w.Ids[i]) { if bad < 3 { t.Logf("%s %q\n got %v\nwant %v", dir, s, got, w.Ids[i]) }; bad++ }
			if x := tok.Decode(w.Ids[i], true); x != w.Decoded[i] { if badDec < 3 { t.Logf("%s dec %q\nwant %q", dir, x, w.Decoded[i]) }; badDec++ }
		}
		t.Log(dir, bad, badDec, len(w.Texts))
	}
}
