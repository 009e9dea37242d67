package vocab

import "slices"

// Pattern names a regular expression that pieces of text match. The expressions are those of published
// tokenizer.json files and of llama.cpp's table of pre-tokenizers; runtime/tokenizer has a scanner for
// each.
type Pattern string

// Known patterns.
const (
	PatternGPT2        Pattern = "gpt-2"
	PatternLlama3      Pattern = "llama-3"
	PatternQwen2       Pattern = "qwen2"
	PatternNewline     Pattern = "newline"      // one line break
	PatternDigit       Pattern = "digit"        // one number character
	PatternDigits      Pattern = "digits"       // a run of number characters
	PatternThreeDigits Pattern = "three-digits" // exactly three ASCII digits
	PatternLetters     Pattern = "letters"      // letters after at most one white space
	PatternPunctuation Pattern = "punctuation"  // punctuation after at most one white space
	PatternFalcon      Pattern = "falcon"       // a run of punctuation and ASCII symbols
	PatternDefault     Pattern = "default"      // the same without the grave accent
	PatternCJK         Pattern = "cjk"          // a run of CJK characters
	PatternLatin       Pattern = "latin"        // cased letters after at most one white space
	PatternMarks       Pattern = "marks"        // ASCII, full-width and CJK punctuation after at most one white space
	PatternTrailing    Pattern = "trailing"     // white space at the end
)

const (
	gpt2Expression   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Expression = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Expression  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// As Llama 3's, spelled without the case flag.
	llama3Spelled = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Spelled  = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// DeepSeek's letters with case, told by what its list of them leaves out.
	latinExpression = `\s?[[\p{Lu}\p{Ll}\p{Lt}\x{295}]&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2d}\x{a790}-\x{ab6f}` +
		`\x{10570}-\x{10c7f}\x{10cf3}-\x{1189f}\x{118e0}-\x{1e8ff}\x{1e944}-\x{10ffff}]]+`
	cjkExpression   = `[一-龥ࠀ-一가-퟿]+`
	marksExpression = `\s?[!-/:-~！-／：-～‘-‟　-。]+`
)

// expressions finds the pattern of a regular expression by its exact text.
var expressions = map[string]Pattern{
	gpt2Expression: PatternGPT2, llama3Expression: PatternLlama3, qwen2Expression: PatternQwen2,
	llama3Spelled: PatternLlama3, qwen2Spelled: PatternQwen2,
	`[\r\n]`: PatternNewline, `\p{N}`: PatternDigit, `\p{N}+`: PatternDigits, `[0-9][0-9][0-9]`: PatternThreeDigits,
	`\s?\p{L}+`: PatternLetters, `\s?\p{P}+`: PatternPunctuation, "[\\p{P}\\$\\+<=>\\^~\\|`]+": PatternFalcon,
	"[\\p{P}\\$\\+<=>\\^~\\|]+": PatternDefault, latinExpression: PatternLatin,
	cjkExpression: PatternCJK, marksExpression: PatternMarks, `\s+$`: PatternTrailing,
}

// preset is the pre-tokenizer that a GGUF file names.
type preset struct {
	names        []string
	patterns     []Pattern
	ignoreMerges bool
	addBOS       bool
}

// presets are llama.cpp's names, with what they stand for there; the first of each entry is the one that
// is written.
var presets = []preset{
	{names: []string{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "a.x-4.0", "mellum", "exaone4", "olmo", "mpt", "trillion", "granite-docling"}, patterns: []Pattern{PatternGPT2}},
	{names: []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}, patterns: []Pattern{PatternLlama3}, ignoreMerges: true, addBOS: true},
	{names: []string{"dbrx", "smaug-bpe", "chameleon-bpe"}, patterns: []Pattern{PatternLlama3}},
	{names: []string{"qwen2", "stablelm2", "hunyuan", "deepseek-r1-qwen", "megrez", "solar-open"}, patterns: []Pattern{PatternQwen2}},
	{names: []string{"deepseek-llm"}, patterns: []Pattern{PatternNewline, PatternLatin, PatternMarks, PatternTrailing, PatternCJK, PatternDigits}},
	{names: []string{"deepseek-coder"}, patterns: []Pattern{PatternNewline, PatternLetters, PatternPunctuation, PatternCJK, PatternDigit}},
	{names: []string{"falcon"}, patterns: []Pattern{PatternFalcon, PatternGPT2, PatternThreeDigits}},
	{names: []string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}, patterns: []Pattern{PatternDigit, PatternGPT2}},
	{names: []string{"default"}, patterns: []Pattern{PatternDefault, PatternGPT2, PatternDigits, PatternThreeDigits}},
}

// presetOf finds a preset by a GGUF file's name of it.
func presetOf(name string) (preset, bool) {
	i := slices.IndexFunc(presets, func(p preset) bool { return slices.Contains(p.names, name) })
	if i < 0 {
		return preset{}, false
	}
	return presets[i], true
}

// splits gives the preset's steps.
func (p preset) splits() []Split {
	var out []Split
	for _, pattern := range p.patterns {
		out = append(out, Split{Op: SplitPattern, Pattern: pattern})
	}
	return append(out, Split{Op: SplitBytes, PrependSpace: "never"})
}

// presetFor finds the name under which llama.cpp does the same as d, and false where there is none.
func presetFor(d *Definition) (string, bool) {
	var patterns []Pattern
	for _, s := range d.Splits {
		switch {
		case s.Op == SplitPattern:
			patterns = append(patterns, s.Pattern)
		case s.Op == SplitBytes && s.PrependSpace == "never":
		default:
			return "", false
		}
	}
	for _, p := range presets {
		if slices.Equal(p.patterns, patterns) && p.ignoreMerges == d.IgnoreMerges {
			return p.names[0], true
		}
	}
	return "", false
}
