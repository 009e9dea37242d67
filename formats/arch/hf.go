package arch

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// FromHF reads a Hugging Face config.json. file is its path for error messages.
//
// Keys that are absent take the default of transformers' configuration class of the family; the
// five sizes that no two models share must be there. A key that would change the model's result
// in a way qtool does not compute is an error that names it; a key that qtool does not know is
// listed in Config.Warnings. Errors match formats.ErrMalformed or formats.ErrUnsupported.
func FromHF(config []byte, file string) (*Config, error) {
	root, err := strictjson.Parse(config, strictjson.Options{File: file})
	if err != nil {
		return nil, err
	}
	if root.Kind != strictjson.Object {
		return nil, formats.Malformed(file, "", "expected a JSON object, found %s", kindName(root))
	}
	o := &object{file: file, value: root}
	name := o.text("model_type", "")
	if o.err != nil {
		return nil, o.err
	}
	f, ok := familyOf(name)
	if !ok {
		return nil, unknownFamily(o, name)
	}
	c := &Config{}
	f.fixed(c)
	o.architectures(f)
	o.sizes(f, c)
	o.refuseUnknown(f, c)
	if o.err != nil {
		return nil, o.err
	}
	o.attention(f, c)
	o.activation(f, c)
	o.tokens(c)
	o.rope(f, c)
	if o.err != nil {
		return nil, o.err
	}
	if err := c.check(); err != nil {
		return nil, formats.Malformed(file, "", "%s", err)
	}
	return c, nil
}

// unknownFamily is the error for a model_type outside the table.
func unknownFamily(o *object, name string) error {
	if name == "" {
		return formats.Malformed(o.file, "model_type", "is missing").WithHint("expected one of %s", strings.Join(Families(), ", "))
	}
	err := formats.Unsupported(o.file, "model_type", "model type %q is not supported", name)
	if name == "gemma3" {
		return err.WithHint("the text part alone, gemma3_text, is")
	}
	return err.WithHint("supported are %s", strings.Join(Families(), ", "))
}

// architectures refuses a class of another model that shares the family's model_type: a
// classifier, or a variant with code of its own.
func (o *object) architectures(f family) {
	v, ok := o.get("architectures")
	if !ok || v.Kind == strictjson.Null {
		return
	}
	names, err := v.Strings()
	if err != nil {
		o.fail(v, "architectures", "expected an array of strings, found %s", kindName(v))
		return
	}
	for _, name := range names {
		if !strings.EqualFold(name, f.class) {
			o.refuse(v, "architectures", "class %q of model type %q is not supported, expected %q", name, f.name, f.class)
		}
	}
}

// sizes reads the dimensions and the flags that shape the tensors.
func (o *object) sizes(f family, c *Config) {
	c.Vocab = o.size("vocab_size", maxVocab, refused, refused)
	c.Hidden = o.size("hidden_size", maxHidden, refused, refused)
	c.Intermediate = o.size("intermediate_size", maxIntermediate, refused, refused)
	c.Layers = o.size("num_hidden_layers", maxLayers, refused, refused)
	c.Heads = o.size("num_attention_heads", maxHeads, refused, refused)
	c.MaxPositions = o.size("max_position_embeddings", maxPositions, f.maxPositions, refused)
	if o.err != nil {
		return
	}
	whenNull := refused
	if f.kvHeadsNull {
		whenNull = c.Heads
	}
	whenAbsent := f.kvHeads
	if whenAbsent == 0 {
		whenAbsent = c.Heads
	}
	c.KVHeads = o.size("num_key_value_heads", maxHeads, whenAbsent, whenNull)

	switch {
	case f.headDim > 0:
		c.HeadDim = o.size("head_dim", maxHeadDim, f.headDim, refused)
	default:
		c.HeadDim = o.size("head_dim", maxHeadDim, 0, 0)
		if c.HeadDim == 0 && o.err == nil {
			if c.Hidden%c.Heads != 0 {
				v, _ := o.get("hidden_size")
				o.fail(v, "hidden_size", "%d is not a multiple of num_attention_heads %d, and head_dim is not given", c.Hidden, c.Heads)
				return
			}
			c.HeadDim = c.Hidden / c.Heads
		}
	}
	c.NormEps = o.number("rms_norm_eps", f.normEps, refused)
	c.TieEmbeddings = o.flag("tie_word_embeddings", f.tied)
	if f.attentionBiasKey {
		c.AttentionBias = o.flag("attention_bias", false)
		c.OutputBias = c.AttentionBias
	}
	if f.mlpBiasKey {
		c.MLPBias = o.flag("mlp_bias", false)
	}
}

// attention reads scales, caps and windows.
func (o *object) attention(f family, c *Config) {
	c.AttnScale = 1 / math.Sqrt(float64(c.HeadDim))
	if f.gemma {
		c.AttnScale = 1 / math.Sqrt(o.number("query_pre_attn_scalar", 256, refused))
		c.EmbedScale = math.Sqrt(float64(c.Hidden))
	}
	switch f.name {
	case Gemma2:
		c.AttnSoftcap = o.number("attn_logit_softcapping", 50, 0)
		c.FinalSoftcap = o.number("final_logit_softcapping", 30, 0)
	case Gemma3Text:
		c.FinalSoftcap = o.number("final_logit_softcapping", 0, 0)
	}
	window := 0
	if f.window > 0 || f.name == Phi3 {
		window = o.size("sliding_window", maxPositions, f.window, 0)
	}
	sliding := o.slidingLayers(f, c, window)
	if o.err != nil {
		return
	}
	c.LayerSliding = make([]bool, c.Layers)
	if slices.Contains(sliding, true) {
		c.SlidingWindow = window
		copy(c.LayerSliding, sliding)
	}
}

// slidingLayers says which layers attend to a window, by the rule of each family and by
// layer_types where the family reads it.
func (o *object) slidingLayers(f family, c *Config, window int) []bool {
	sliding := make([]bool, c.Layers)
	switch f.name {
	case Mistral, Phi3:
		for i := range sliding {
			sliding[i] = window > 0
		}
	case Qwen2, Qwen3:
		if !o.flag("use_sliding_window", false) {
			window = 0
		}
		first := o.count("max_window_layers", maxPositions, 28)
		for i := range sliding {
			sliding[i] = window > 0 && i >= first
		}
	case Gemma2:
		for i := range sliding {
			sliding[i] = i%2 == 0
		}
	case Gemma3Text:
		pattern := o.size("sliding_window_pattern", maxPositions, 6, refused)
		for i := range sliding {
			sliding[i] = pattern > 0 && (i+1)%pattern != 0
		}
	}
	if v, ok := o.get("layer_types"); ok && v.Kind != strictjson.Null {
		types := o.layerTypes(v, c.Layers)
		if o.err != nil {
			return nil
		}
		switch f.name {
		case Llama, Mistral, Phi3:
			if !slices.Equal(types, sliding) {
				o.refuse(v, "layer_types", "attention that differs from layer to layer is not part of model type %q", f.name)
			}
		}
		sliding = types
	}
	if slices.Contains(sliding, true) && window == 0 {
		v, ok := o.get("sliding_window")
		if !ok {
			v = o.value
		}
		o.fail(v, "sliding_window", "layers are declared to have a window, but its size is not")
	}
	return sliding
}

// layerTypes reads layer_types, one entry a layer.
func (o *object) layerTypes(v strictjson.Value, layers int) []bool {
	names, err := v.Strings()
	if err != nil {
		o.fail(v, "layer_types", "expected an array of strings, found %s", kindName(v))
		return nil
	}
	if len(names) != layers {
		o.fail(v, "layer_types", "has %d entries, num_hidden_layers is %d", len(names), layers)
		return nil
	}
	sliding := make([]bool, layers)
	for i, name := range names {
		switch name {
		case "full_attention":
		case "sliding_attention":
			sliding[i] = true
		default:
			o.refuse(v, "layer_types", "layer %d has attention of type %q, supported are full_attention and sliding_attention", i, name)
		}
	}
	return sliding
}

// activation reads the feed-forward block's non-linearity.
func (o *object) activation(f family, c *Config) {
	c.Activation = f.activation
	v, ok := o.get(f.activationKey)
	if !ok {
		return
	}
	switch name := o.text(f.activationKey, ""); name {
	case "silu", "swish":
		c.Activation = SiLU
	case "gelu_pytorch_tanh":
		c.Activation = GELUTanh
	default:
		o.refuse(v, f.activationKey, "activation %q is not supported, supported are silu and gelu_pytorch_tanh", name)
	}
}

// tokens reads the special token ids. An id outside the vocabulary is left out with a warning:
// such configurations are in use, and the tokenizer's own files decide anyway.
func (o *object) tokens(c *Config) {
	for _, t := range []struct {
		key string
		ids *[]int
	}{{"bos_token_id", &c.BOS}, {"eos_token_id", &c.EOS}, {"pad_token_id", &c.PAD}} {
		v, ok := o.get(t.key)
		if !ok || v.Kind == strictjson.Null {
			continue
		}
		list := []strictjson.Value{v}
		if v.Kind == strictjson.Array {
			list = v.Elements
		}
		for _, e := range list {
			id, err := e.Int()
			switch {
			case err != nil:
				o.fail(e, t.key, "expected a token id, found %s", kindName(e))
				return
			case id < 0 || id >= int64(c.Vocab):
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s %d is outside the vocabulary of %d and was left out", t.key, id, c.Vocab))
			default:
				*t.ids = append(*t.ids, int(id))
			}
		}
	}
}

// check validates what no single key decides. The configuration is safe to compute with when it
// returns nil.
func (c *Config) check() error {
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.RotaryDim%2 != 0:
		return fmt.Errorf("the rotated part of a head has %d elements, expected an even number", c.RotaryDim)
	case c.RotaryDim < 2 || c.RotaryDim > c.HeadDim:
		return fmt.Errorf("the rotated part of a head has %d elements, expected 2 to head_dim %d", c.RotaryDim, c.HeadDim)
	case !(c.NormEps > 0 && c.NormEps < 1):
		return fmt.Errorf("rms_norm_eps is %v, expected a number between 0 and 1", c.NormEps)
	case !(c.AttnScale > 0 && c.AttnScale <= 1e6):
		return fmt.Errorf("the factor on attention scores is %v, expected a positive number", c.AttnScale)
	case !(c.AttnSoftcap >= 0 && c.AttnSoftcap <= 1e9 && c.FinalSoftcap >= 0 && c.FinalSoftcap <= 1e9):
		return fmt.Errorf("soft caps are %v and %v, expected positive numbers", c.AttnSoftcap, c.FinalSoftcap)
	case c.QDim() > maxHidden || c.KVDim() > maxHidden:
		return fmt.Errorf("%d heads of %d elements are more than %d", c.Heads, c.HeadDim, maxHidden)
	}
	if err := c.Rope.check(c.RotaryDim); err != nil {
		return err
	}
	if c.LocalRope != nil {
		return c.LocalRope.check(c.RotaryDim)
	}
	return nil
}
