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
	c.AttnScale = 1 / math.Sqrt(float64(c.HeadDim))
	if s := r.number("attention.scale", 0); s != 0 {
		c.AttnScale = s
	}
	if r.family.gemma {
		c.EmbedScale = math.Sqrt(float64(c.Hidden))
		// The converter does not store query_pre_attn_scalar. Of the published models the largest of
		// either family alone differs from the length of a head: it has hidden/heads.
		large := map[string]int{Gemma2: 46, Gemma3Text: 62}[r.family.name]
		if c.Layers == large && !r.m.Has(r.prefix+"attention.scale") {
			c.AttnScale = 1 / math.Sqrt(float64(c.Hidden)/float64(c.Heads))
		}
	}
	if r.family.name == Gemma2 {
		c.AttnSoftcap = r.number("attn_logit_softcapping", 50)
		c.FinalSoftcap = r.number("final_logit_softcapping", 30)
	} else if r.family.gemma {
		c.FinalSoftcap = r.number("final_logit_softcapping", 0)
	}
	c.LayerSliding = make([]bool, c.Layers)
	window := 0
	if v, ok := r.m.Get(r.prefix + "attention.sliding_window"); ok {
		if n, isInt := v.Int(); !isInt || n < 0 || n > maxPositions {
			r.fail(r.prefix+"attention.sliding_window", "expected 0 to %d", maxPositions)
		} else {
			window = int(n)
		}
	}
	if window == 0 || r.err != nil {
		return
	}
	r.slidingLayers(c, window)
}

// slidingLayers says which layers attend to the window: by a key with a flag a layer or a period,
// else by the rule of the family.
func (r *ggufReader) slidingLayers(c *Config, window int) {
	period := 0
	switch r.family.name {
	case Gemma2:
		period = 2
	case Gemma3Text:
		period = 6
	case Llama:
		// llama.cpp knows Mistral by no other name; a llama has no window.
		f, _ := familyOf(Mistral)
		f.fixed(c)
	}
	key := r.prefix + "attention.sliding_window_pattern"
	if v, ok := r.m.Get(key); ok {
		if flags, isFlags := v.Bools(); isFlags {
			if len(flags) != c.Layers {
				r.fail(key, "%d flags, the model has %d layers", len(flags), c.Layers)
				return
			}
			copy(c.LayerSliding, flags)
			if slices.Contains(flags, true) {
				c.SlidingWindow = window
			}
			return
		}
		period = r.size("attention.sliding_window_pattern", maxLayers, refused)
	}
	c.SlidingWindow = window
	for i := range c.LayerSliding {
		c.LayerSliding[i] = period == 0 || (i+1)%period != 0
	}
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
}

// ropes reads the rotary parameters.
func (r *ggufReader) ropes(c *Config) {
	c.RotaryDim = r.size("rope.dimension_count", maxHeadDim, c.HeadDim)
	base := 10000.0
	if r.family.name == Gemma3Text {
		base = 1e6
		c.LocalRope = &Rope{Kind: RopeDefault, Theta: r.number("rope.freq_base_swa", 10000)}
	}
	c.Rope = Rope{Kind: RopeDefault, Theta: r.number("rope.freq_base", base)}
	if r.err != nil {
		return
	}
	kind := "none"
	if key := r.prefix + "rope.scaling.type"; r.m.Has(key) {
		var err error
		if kind, err = r.m.Str(key); err != nil {
			r.err = err
			return
		}
	}
	factor := r.number("rope.scaling.factor", 0)
	if old := r.number("rope.scale_linear", 0); old != 0 && kind == "none" {
		kind, factor = "linear", old // as files of 2023 call it
	}
	context := r.size("rope.scaling.original_context_length", maxPositions, c.MaxPositions)
	switch kind {
	case "none", "":
	case "linear":
		if factor != 0 && factor != 1 {
			c.Rope.Kind, c.Rope.Factor = RopeLinear, factor
		}
	case "yarn":
		c.Rope.Kind, c.Rope.Factor, c.Rope.OriginalContext = RopeYarn, factor, context
		c.Rope.BetaFast = r.number("rope.scaling.yarn_beta_fast", 32)
		c.Rope.BetaSlow = r.number("rope.scaling.yarn_beta_slow", 1)
		c.Rope.AttentionFactor = r.number("rope.scaling.yarn_attn_factor", 0)
		// llama.cpp rounds the bounds of the ramp; it has no key for not doing so.
		c.Rope.Truncate = true
		if x := r.number("rope.scaling.yarn_log_multiplier", 0); x != 0 && r.err == nil {
			r.err = formats.Unsupported(r.file, r.prefix+"rope.scaling.yarn_log_multiplier", "is not supported")
		}
	case "longrope":
	default:
		r.err = formats.Unsupported(r.file, r.prefix+"rope.scaling.type", "%q is not supported", kind)
	}
	r.divisors(c, context)
}

// divisors reads the tensors that rotary frequencies are divided by.
func (r *ggufReader) divisors(c *Config, context int) {
	read := func(name string) []float64 {
		if r.err != nil || !r.tensors.Has(name) {
			return nil
		}
		if n := r.tensors.Shape(name); len(n) != 1 || n[0] != c.RotaryDim/2 {
			r.fail(name, "has shape %v, expected half the rotated elements of a head, [%d]", n, c.RotaryDim/2)
			return nil
		}
		values, err := r.tensors.Float32s(name)
		if err != nil {
			r.err = err
			return nil
		}
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = shortest(float64(v))
		}
		return out
	}
	short, long := read(ropeShortName), read(ropeLongName)
	if (short == nil) != (long == nil) {
		r.fail(ropeShortName, "the short and the long divisors must both be there")
	}
	if short != nil && long != nil {
		c.Rope.Kind, c.Rope.ShortFactors, c.Rope.LongFactors = RopeLongrope, short, long
		c.Rope.OriginalContext = context
		c.Rope.Factor = float64(c.MaxPositions) / float64(context)
		c.Rope.AttentionFactor = r.number("rope.scaling.attn_factor", 0)
		return
	}
	if d := read(ropeFreqsName); d != nil {
		c.Rope.fromDivisors(d, c)
	}
}

// fromDivisors makes a rope of fixed divisors: Llama 3.1's where its formula gives the same ones, else
// they stand as they are.
func (r *Rope) fromDivisors(d []float64, c *Config) {
	if slices.IndexFunc(d, func(v float64) bool { return v != 1 }) < 0 {
		return
	}
	// The published models have these, and the divisors tell the stretch: the slowest pair has it.
	for _, context := range []int{8192, 4096, 2048, c.MaxPositions} {
		try := Rope{
			Kind: RopeLlama3, Theta: r.Theta, Factor: d[len(d)-1], OriginalContext: context, LowFreqFactor: 1, HighFreqFactor: 4,
		}
		if try.Factor > 1 && try.matches(d, c.RotaryDim) {
			*r = try
			return
		}
	}
	// With equal sets for short and long sequences LongRoPE is a set of fixed divisors.
	*r = Rope{
		Kind: RopeLongrope, Theta: r.Theta, Factor: 1, OriginalContext: max(c.MaxPositions, 2), AttentionFactor: 1,
		ShortFactors: d, LongFactors: d,
	}
}

// matches reports whether the frequencies are the default ones by these divisors, as singles.
func (r Rope) matches(d []float64, rotaryDim int) bool {
	plain, _ := Rope{Kind: RopeDefault, Theta: r.Theta}.Frequencies(rotaryDim, 0)
	stretched, _ := r.Frequencies(rotaryDim, 0)
	for i := range d {
		if math.Abs(plain[i]/stretched[i]/d[i]-1) > 1e-5 {
			return false
		}
	}
	return true
}

// specialKeys hold the ids of the tokens that begin, end and pad a sequence.
var specialKeys = [3]string{"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.padding_token_id"}

// tokens reads the ids of special tokens.
func (r *ggufReader) tokens(c *Config) {
	for i, list := range []*[]int{&c.BOS, &c.EOS, &c.PAD} {
		key := specialKeys[i]
		v, ok := r.m.Get(key)
		if !ok || r.err != nil {
			continue
		}
		id, isInt := v.Int()
		switch {
		case !isInt:
			r.fail(key, "expected an integer, found %s", v.TypeName())
		case id >= 0 && id < int64(c.Vocab):
			*list = []int{int(id)}
		}
	}
}

// GGUFTensor is a small tensor that GGUF stores in place of a key.
type GGUFTensor struct {
	Name   string
	Values []float32
}

// SetGGUF sets the keys that llama.cpp reads a configuration from, and returns the tensors that go with
// them. It is an error where GGUF has no way to say something.
func (c *Config) SetGGUF(m *gguf.Metadata) ([]GGUFTensor, error) {
	f, ok := familyOf(c.Architecture)
	if !ok {
		return nil, fmt.Errorf("architecture %q has no GGUF form", c.Architecture)
	}
	m.Set(keyArchitecture, gguf.String(f.gguf))
	u32 := func(key string, n int) { m.Set(f.gguf+"."+key, gguf.Uint32(uint32(n))) }
	f32 := func(key string, x float64) { m.Set(f.gguf+"."+key, gguf.Float32(float32(x))) }
	u32("block_count", c.Layers)
	u32("context_length", c.MaxPositions)
	u32("embedding_length", c.Hidden)
	u32("feed_forward_length", c.Intermediate)
	u32("attention.head_count", c.Heads)
	u32("attention.head_count_kv", c.KVHeads)
	u32("attention.key_length", c.HeadDim)
	u32("attention.value_length", c.HeadDim)
	f32("attention.layer_norm_rms_epsilon", c.NormEps)
	u32("vocab_size", c.Vocab)
	u32("rope.dimension_count", c.RotaryDim)
	f32("rope.freq_base", c.Rope.Theta)
	if err := c.setWindow(f, m); err != nil {
		return nil, err
	}
	if f.name == Gemma2 {
		f32("attn_logit_softcapping", c.AttnSoftcap)
	}
	if f.gemma && c.FinalSoftcap != 0 {
		f32("final_logit_softcapping", c.FinalSoftcap)
	}
	if f.gemma && c.AttnScale != 1/math.Sqrt(float64(c.HeadDim)) {
		f32("attention.scale", c.AttnScale)
	}
	for i, list := range [][]int{c.BOS, c.EOS, c.PAD} {
		if len(list) > 0 && !m.Has(specialKeys[i]) {
			m.Set(specialKeys[i], gguf.Uint32(uint32(list[0])))
		}
	}
	return c.setRope(f, m)
}

// setWindow sets the keys of the attention window.
func (c *Config) setWindow(f family, m *gguf.Metadata) error {
	if c.SlidingWindow == 0 {
		return nil
	}
	switch f.name {
	case Qwen2, Qwen3:
		return fmt.Errorf("a %s with an attention window has no GGUF form", f.name)
	}
	m.Set(f.gguf+".attention.sliding_window", gguf.Uint32(uint32(c.SlidingWindow)))
	if f.gemma {
		m.Set(f.gguf+".attention.sliding_window_pattern", gguf.Array(c.LayerSliding))
	}
	return nil
}

// setRope sets the keys of the rotary parameters and returns the divisors that are tensors.
func (c *Config) setRope(f family, m *gguf.Metadata) ([]GGUFTensor, error) {
	r, prefix := c.Rope, f.gguf+".rope."
	f32 := func(key string, x float64) { m.Set(prefix+key, gguf.Float32(float32(x))) }
	if c.LocalRope != nil {
		if c.LocalRope.Kind != RopeDefault {
			return nil, fmt.Errorf("rotary parameters of kind %s for sliding layers have no GGUF form", c.LocalRope.Kind)
		}
		f32("freq_base_swa", c.LocalRope.Theta)
	}
	switch r.Kind {
	case RopeLinear:
		m.Set(prefix+"scaling.type", gguf.String("linear"))
		f32("scaling.factor", r.Factor)
	case RopeYarn:
		if !r.Truncate || r.MScale != 0 || r.MScaleAllDim != 0 {
			return nil, errors.New("these parameters of YaRN have no GGUF form")
		}
		m.Set(prefix+"scaling.type", gguf.String("yarn"))
		f32("scaling.factor", r.Factor)
		m.Set(prefix+"scaling.original_context_length", gguf.Uint32(uint32(r.OriginalContext)))
		if r.BetaFast != 32 || r.BetaSlow != 1 {
			f32("scaling.yarn_beta_fast", r.BetaFast)
			f32("scaling.yarn_beta_slow", r.BetaSlow)
		}
		if r.AttentionFactor != 0 {
			f32("scaling.yarn_attn_factor", r.AttentionFactor)
		}
	case RopeLlama3:
		d := make([]float32, c.RotaryDim/2)
		plain, _ := Rope{Kind: RopeDefault, Theta: r.Theta}.Frequencies(c.RotaryDim, 0)
		stretched, _ := r.Frequencies(c.RotaryDim, 0)
		for i := range d {
			d[i] = float32(plain[i] / stretched[i])
		}
		return []GGUFTensor{{ropeFreqsName, d}}, nil
	case RopeLongrope:
		m.Set(prefix+"scaling.type", gguf.String("longrope"))
		m.Set(prefix+"scaling.original_context_length", gguf.Uint32(uint32(r.OriginalContext)))
		f32("scaling.attn_factor", r.attentionFactor())
		return []GGUFTensor{{ropeLongName, singles(r.LongFactors)}, {ropeShortName, singles(r.ShortFactors)}}, nil
	}
	return nil, nil
}

func singles(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
