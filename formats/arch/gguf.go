package arch

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/gguf"
)

// Keys of GGUF that stand for themselves; all others begin with the architecture.
const (
	keyArchitecture = "general.architecture"
	keyKind         = "general.type"
	keyTokens       = "tokenizer.ggml.tokens"
)

// GGUFTensors lets FromGGUF look at the tensors of a file: some properties of a model are in no key.
type GGUFTensors interface {
	// Has reports whether there is a tensor of this name.
	Has(name string) bool
	// Shape gives a tensor's shape, row-major; nil where there is none.
	Shape(name string) []int
	// Float32s decodes a tensor.
	Float32s(name string) ([]float32, error)
}

// FromGGUF reads the configuration of a GGUF file, whose path is for error messages. Keys are those of
// the GGUF specification and of llama.cpp's converter. Errors match formats.ErrMalformed or
// formats.ErrUnsupported.
func FromGGUF(m *gguf.Metadata, tensors GGUFTensors, file string) (*Config, error) {
	name, err := m.Str(keyArchitecture)
	if err != nil {
		return nil, err
	}
	if kind, ok := m.Get(keyKind); ok {
		if text, _ := kind.Str(); text != "model" {
			return nil, formats.Unsupported(file, keyKind, "the file holds no model but what GGUF calls %q", text)
		}
	}
	f, ok := ggufFamily(name)
	if !ok {
		return nil, formats.Unsupported(file, keyArchitecture, "architecture %q is not supported", name).
			WithHint("supported are %s", strings.Join(ggufNames(), ", "))
	}
	r := &ggufReader{m: m, tensors: tensors, file: file, prefix: name + ".", family: f}
	c := &Config{}
	f.fixed(c)
	r.sizes(c)
	if r.err == nil {
		r.attention(c)
		r.refuse()
	}
	if r.err == nil {
		r.ropes(c)
	}
	r.tokens(c)
	if r.err != nil {
		return nil, r.err
	}
	if err := c.check(); err != nil {
		return nil, formats.Malformed(file, "", "%s", err)
	}
	return c, nil
}

// ggufFamily returns the family that GGUF calls by this name. Mistral has none of its own.
func ggufFamily(name string) (family, bool) {
	i := slices.IndexFunc(families, func(f family) bool { return f.gguf == name })
	if i < 0 {
		return family{}, false
	}
	return families[i], true
}

func ggufNames() []string {
	var names []string
	for _, f := range families {
		if !slices.Contains(names, f.gguf) {
			names = append(names, f.gguf)
		}
	}
	return names
}

// ggufReader reads typed keys and keeps the first error.
type ggufReader struct {
	m       *gguf.Metadata
	tensors GGUFTensors
	file    string
	prefix  string
	family  family
	err     error
}

func (r *ggufReader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = formats.Malformed(r.file, key, format, args...)
	}
}

// size reads an integer from 1 to limit; absent is its value where the key is not there.
func (r *ggufReader) size(key string, limit, absent int) int {
	key = r.prefix + key
	if r.err != nil {
		return 0
	}
	if !r.m.Has(key) {
		if absent == refused {
			r.fail(key, "the metadata lacks this key")
		}
		return absent
	}
	n, err := r.m.Int(key)
	switch {
	case err != nil:
		r.err = err
	case n < 1 || n > int64(limit):
		r.fail(key, "is %d, expected 1 to %d", n, limit)
	}
	return int(n)
}

// layerSize is size for a key that may have a value a layer, which must then all be the same.
func (r *ggufReader) layerSize(key string, limit, absent, layers int) int {
	v, ok := r.m.Get(r.prefix + key)
	if !ok || v.Type != gguf.TypeArray || r.err != nil {
		return r.size(key, limit, absent)
	}
	list, ok := v.Ints()
	if !ok || len(list) != layers {
		r.fail(r.prefix+key, "expected an integer, or one for each of %d layers", layers)
		return 0
	}
	for _, n := range list {
		if n != list[0] {
			r.err = formats.Unsupported(r.file, r.prefix+key, "differs from layer to layer, which is not supported")
			return 0
		}
	}
	if list[0] < 1 || list[0] > int64(limit) {
		r.fail(r.prefix+key, "is %d, expected 1 to %d", list[0], limit)
	}
	return int(list[0])
}

// number reads a floating-point number.
func (r *ggufReader) number(key string, absent float64) float64 {
	key = r.prefix + key
	if r.err != nil {
		return 0
	}
	x, err := r.m.Float(key)
	switch {
	case errors.Is(err, gguf.ErrNoKey) && absent != refused:
		return absent
	case err != nil:
		r.err = err
	case math.IsNaN(x) || math.IsInf(x, 0):
		r.fail(key, "is %v, expected a finite number", x)
	}
	return shortest(x)
}

// shortest gives the double whose decimal digits are the fewest that make the same single: what the
// configuration that a GGUF key was made from had.
func shortest(x float64) float64 {
	if float64(float32(x)) != x {
		return x
	}
	var y float64
	if _, err := fmt.Sscan(fmt.Sprint(float32(x)), &y); err != nil {
		return x
	}
	return y
}

func (r *ggufReader) sizes(c *Config) {
	c.Layers = r.size("block_count", maxLayers, refused)
	c.Hidden = r.size("embedding_length", maxHidden, refused)
	c.MaxPositions = r.size("context_length", maxPositions, refused)
	c.Intermediate = r.layerSize("feed_forward_length", maxIntermediate, refused, c.Layers)
	c.Heads = r.layerSize("attention.head_count", maxHeads, refused, c.Layers)
	c.KVHeads = r.layerSize("attention.head_count_kv", maxHeads, c.Heads, c.Layers)
	c.HeadDim = r.size("attention.key_length", maxHeadDim, 0)
	if r.err != nil {
		return
	}
	if c.HeadDim == 0 {
		if c.Hidden%c.Heads != 0 {
			r.fail(r.prefix+"embedding_length", "%d is not a multiple of the number of heads, %d, and the length of a key is not given", c.Hidden, c.Heads)
			return
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	if v := r.size("attention.value_length", maxHeadDim, c.HeadDim); v != c.HeadDim && r.err == nil {
		r.err = formats.Unsupported(r.file, r.prefix+"attention.value_length", "values of %d and keys of %d elements", v, c.HeadDim)
	}
	c.NormEps = r.number("attention.layer_norm_rms_epsilon", refused)
	r.vocab(c)
	c.TieEmbeddings = !r.tensors.Has("output.weight")
	c.AttentionBias = r.tensors.Has("blk.0.attn_q.bias") || r.tensors.Has("blk.0.attn_qkv.bias")
	c.OutputBias = r.tensors.Has("blk.0.attn_output.bias")
	c.MLPBias = r.tensors.Has("blk.0.ffn_down.bias")
	c.Activation = r.family.activation
}

// vocab takes the number of tokens from the embedding, which decides, and holds what else the file says
// against it.
func (r *ggufReader) vocab(c *Config) {
	const name = "token_embd.weight"
	shape := r.tensors.Shape(name)
	if len(shape) != 2 {
		r.fail(name, "the model has no token embedding of two dimensions")
		return
	}
	c.Vocab = shape[0]
	if c.Vocab < 1 || c.Vocab > maxVocab {
		r.fail(name, "%d tokens, expected 1 to %d", c.Vocab, maxVocab)
	}
	if n := r.size("vocab_size", maxVocab, c.Vocab); n != c.Vocab {
		r.fail(r.prefix+"vocab_size", "is %d, the embedding has %d rows", n, c.Vocab)
	}
	if v, ok := r.m.Get(keyTokens); ok && v.Len() > c.Vocab {
		r.fail(keyTokens, "the tokenizer has %d tokens, the embedding %d rows", v.Len(), c.Vocab)
	}
}

func (r *ggufReader) attention(c *Config) {
	c.AttnScale = r.family.ggufScale(c)
	if r.family.gemma {
		c.EmbedScale = math.Sqrt(float64(c.Hidden))
		if s := r.number("attention.scale", 0); s != 0 {
			c.AttnScale = exactScale(s)
		}
	}
	switch r.family.name {
	case Gemma2:
		c.AttnSoftcap = r.number("attn_logit_softcapping", 50)
		c.FinalSoftcap = r.number("final_logit_softcapping", 30)
	case Gemma3Text:
		c.FinalSoftcap = r.number("final_logit_softcapping", 0)
	}
	c.LayerSliding = make([]bool, c.Layers)
	window := 0
	if r.family.name == Gemma2 {
		window = r.family.window
	}
	if v, ok := r.m.Get(r.prefix + "attention.sliding_window"); ok {
		n, isInt := v.Int()
		if !isInt || n < 0 || n > maxPositions {
			r.fail(r.prefix+"attention.sliding_window", "expected 0 to %d", maxPositions)
		}
		window = int(n)
	}
	if window == 0 || r.err != nil {
		return
	}
	if r.family.name == Qwen2 || r.family.name == Qwen3 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("GGUF key %q was ignored: no program gives this architecture an attention window", r.prefix+"attention.sliding_window"))
		return
	}
	sliding := r.slidingLayers(c)
	if r.err == nil && slices.Contains(sliding, true) {
		c.SlidingWindow, c.LayerSliding = window, sliding
	}
	if c.SlidingWindow > 0 && r.family.name == Llama {
		// llama.cpp knows Mistral by no other name; a llama has no window.
		f, _ := familyOf(Mistral)
		f.fixed(c)
	}
}

// ggufScale is the factor on q·k where no key gives it. The converter does not store query_pre_attn_scalar:
// of the published gemmas the largest of either family alone differs from the length of a head and has
// hidden/heads.
func (f family) ggufScale(c *Config) float64 {
	if f.name == Gemma2 && c.Layers == 46 || f.name == Gemma3Text && c.Layers == 62 {
		return 1 / math.Sqrt(float64(c.Hidden/c.Heads))
	}
	return 1 / math.Sqrt(float64(c.HeadDim))
}

// exactScale gives 1/√n where s is it as a single.
func exactScale(s float64) float64 {
	n := math.Round(1 / (s * s))
	if n >= 1 && math.Abs(s*s*n-1) < 1e-6 {
		return 1 / math.Sqrt(n)
	}
	return s
}

// slidingLayers says which layers attend to the window: by a key with a flag a layer or a period,
// else by the rule of the family.
func (r *ggufReader) slidingLayers(c *Config) []bool {
	key := r.prefix + "attention.sliding_window_pattern"
	if v, ok := r.m.Get(key); ok {
		flags, isFlags := v.Bools()
		switch {
		case isFlags && len(flags) != c.Layers:
			r.fail(key, "%d flags, the model has %d layers", len(flags), c.Layers)
			return nil
		case isFlags:
			return flags
		}
		return slidingByPeriod(c.Layers, r.size("attention.sliding_window_pattern", maxPositions, refused))
	}
	return slidingByPeriod(c.Layers, r.family.ggufPeriod())
}

// ggufPeriod is the period of layers with a window where no key gives it, 0 where all have it.
func (f family) ggufPeriod() int {
	switch f.name {
	case Gemma2:
		return 2
	case Gemma3Text:
		return 6
	}
	return 0
}

// slidingByPeriod gives all layers a window but each whose number, from 1, is a multiple of period.
func slidingByPeriod(layers, period int) []bool {
	sliding := make([]bool, layers)
	for i := range sliding {
		sliding[i] = period == 0 || (i+1)%period != 0
	}
	return sliding
}

// refuse names what would change the result in a way that is not computed.
func (r *ggufReader) refuse() {
	for _, key := range []string{"expert_count", "attention.causal", "use_parallel_residual", "attention.max_alibi_bias", "attention.clamp_kqv", "ssm.state_size"} {
		v, ok := r.m.Get(r.prefix + key)
		if !ok {
			continue
		}
		n, isInt := v.Int()
		x, isFloat := v.Float()
		b, isBool := v.Bool()
		harmless := isInt && n == 0 || isFloat && x == 0 || isBool && b == (key == "attention.causal")
		if !harmless && r.err == nil {
			r.err = formats.Unsupported(r.file, r.prefix+key, "this property is not supported")
		}
	}
	for _, key := range []string{"logit_scale", "embedding_scale", "residual_scale"} {
		if x := r.number(key, 1); x != 1 && x != 0 && r.err == nil {
			r.err = formats.Unsupported(r.file, r.prefix+key, "is %v, only 1 is supported", x)
		}
	}
	if key := "attention.scale"; !r.family.gemma && r.m.Has(r.prefix+key) && r.err == nil {
		r.err = formats.Unsupported(r.file, r.prefix+key, "is not part of this architecture")
	}
}

// specialKeys hold the ids of the tokens that begin, end and pad a sequence; turnKeys those of more that end one,
// in chats.
var (
	specialKeys = [3]string{"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.padding_token_id"}
	turnKeys    = [2]string{"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}
)

// tokens reads the ids of special tokens. One outside the vocabulary says that there is none.
func (r *ggufReader) tokens(c *Config) {
	read := func(key string, list *[]int) {
		v, ok := r.m.Get(key)
		if !ok || r.err != nil {
			return
		}
		id, isInt := v.Int()
		switch {
		case !isInt:
			r.fail(key, "expected an integer, found %s", v.TypeName())
		case id >= 0 && id < int64(c.Vocab) && !slices.Contains(*list, int(id)):
			*list = append(*list, int(id))
		}
	}
	for i, list := range []*[]int{&c.BOS, &c.EOS, &c.PAD} {
		read(specialKeys[i], list)
	}
	for _, key := range turnKeys {
		read(key, &c.EOS)
	}
}
