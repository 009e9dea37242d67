package arch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// HFJSON returns the configuration as a Hugging Face config.json: keys sorted, two spaces of
// indentation, a final newline, the same bytes for the same configuration. Rotary parameters are
// spelled as rope_theta and rope_scaling, which transformers 4 and 5 both read, and as
// rope_parameters where the older spelling cannot say them. FromHF of the result gives an equal
// Config, but for Warnings.
func (c *Config) HFJSON() ([]byte, error) {
	f, ok := familyOf(c.Architecture)
	if !ok {
		return nil, fmt.Errorf("architecture %q has no config.json form", c.Architecture)
	}
	k := map[string]any{
		"architectures":           []string{f.class},
		"model_type":              f.name,
		"vocab_size":              c.Vocab,
		"hidden_size":             c.Hidden,
		"intermediate_size":       c.Intermediate,
		"num_hidden_layers":       c.Layers,
		"num_attention_heads":     c.Heads,
		"num_key_value_heads":     c.KVHeads,
		"max_position_embeddings": c.MaxPositions,
		"rms_norm_eps":            c.NormEps,
		"tie_word_embeddings":     c.TieEmbeddings,
		f.activationKey:           string(c.Activation),
		"bos_token_id":            ids(c.BOS),
		"eos_token_id":            ids(c.EOS),
		"pad_token_id":            ids(c.PAD),
	}
	if f.headDim > 0 || c.HeadDim*c.Heads != c.Hidden {
		k["head_dim"] = c.HeadDim
	}
	if f.attentionBiasKey {
		if c.AttentionBias != c.OutputBias {
			return nil, fmt.Errorf("a %s config.json has one flag for the biases of q, k, v and of o, and this model has only one of the two", f.name)
		}
		k["attention_bias"] = c.AttentionBias
	}
	if f.mlpBiasKey {
		k["mlp_bias"] = c.MLPBias
	}
	if f.gemma {
		k["query_pre_attn_scalar"] = scalar(1 / (c.AttnScale * c.AttnScale))
		k["final_logit_softcapping"] = softcap(c.FinalSoftcap)
	}
	if f.name == Gemma2 {
		k["attn_logit_softcapping"] = softcap(c.AttnSoftcap)
	}
	if err := c.windowKeys(f, k); err != nil {
		return nil, err
	}
	c.ropeKeys(f, k)
	return encode(k)
}

// windowKeys adds the keys that say which layers attend to a window.
func (c *Config) windowKeys(f family, k map[string]any) error {
	types := make([]string, c.Layers)
	for i, s := range c.LayerSliding {
		types[i] = fullAttention
		if s {
			types[i] = slidingAttention
		}
	}
	switch f.name {
	case Mistral, Phi3:
		if c.SlidingWindow > 0 && slices.Contains(c.LayerSliding, false) {
			return fmt.Errorf("a %s config.json has one window for all layers, and this model has it in some", f.name)
		}
		k["sliding_window"] = window(c.SlidingWindow)
	case Qwen2, Qwen3:
		k["use_sliding_window"] = c.SlidingWindow > 0
		k["sliding_window"] = window(c.SlidingWindow)
		k["max_window_layers"] = c.Layers
		if c.SlidingWindow > 0 {
			k["max_window_layers"] = slices.Index(c.LayerSliding, true)
		}
		k["layer_types"] = types
	case Gemma2, Gemma3Text:
		k["sliding_window"] = window(c.SlidingWindow)
		k["layer_types"] = types
	default:
		if c.SlidingWindow > 0 {
			return fmt.Errorf("a %s config.json has no attention window", f.name)
		}
	}
	return nil
}

// ropeKeys adds the rotary parameters.
func (c *Config) ropeKeys(f family, k map[string]any) {
	if f.fused && c.RotaryDim != c.HeadDim {
		fraction := float64(c.RotaryDim) / float64(c.HeadDim)
		for int(float64(c.HeadDim)*fraction) < c.RotaryDim { // readers truncate the product
			fraction = math.Nextafter(fraction, 1)
		}
		k["partial_rotary_factor"] = fraction
	}
	if f.name == Phi3 {
		k["original_max_position_embeddings"] = c.MaxPositions
		if c.Rope.Kind == RopeLongrope {
			k["original_max_position_embeddings"] = c.Rope.OriginalContext
		}
	}
	if c.LocalRope != nil && c.LocalRope.Kind != RopeDefault {
		k["rope_parameters"] = map[string]any{
			fullAttention:    c.Rope.withTheta(c),
			slidingAttention: c.LocalRope.withTheta(c),
		}
		return
	}
	k["rope_theta"] = c.Rope.Theta
	k["rope_scaling"] = nil
	if c.Rope.Kind != RopeDefault {
		k["rope_scaling"] = c.Rope.keys(c)
	}
	if c.LocalRope != nil {
		k["rope_local_base_freq"] = c.LocalRope.Theta
	}
}

// withTheta is keys with the base, as an entry of rope_parameters.
func (r Rope) withTheta(c *Config) map[string]any {
	k := r.keys(c)
	k["rope_theta"] = r.Theta
	return k
}

// keys returns the parameters as an object of config.json without rope_theta. What follows from
// other keys is left out, since older readers refuse what they do not expect.
func (r Rope) keys(c *Config) map[string]any {
	k := map[string]any{"rope_type": string(r.Kind)}
	if r.Kind == RopeDefault {
		return k
	}
	derived := r.Kind == RopeLongrope && r.Factor == float64(c.MaxPositions)/float64(r.OriginalContext)
	if !derived {
		k["factor"] = r.Factor
	}
	if r.Kind == RopeLinear {
		return k
	}
	if c.Architecture != Phi3 {
		k["original_max_position_embeddings"] = r.OriginalContext
	}
	if r.AttentionFactor != 0 {
		k["attention_factor"] = r.AttentionFactor
	}
	switch r.Kind {
	case RopeLlama3:
		k["low_freq_factor"], k["high_freq_factor"] = r.LowFreqFactor, r.HighFreqFactor
	case RopeYarn:
		k["beta_fast"], k["beta_slow"] = r.BetaFast, r.BetaSlow
		if r.MScale != 0 {
			k["mscale"] = r.MScale
		}
		if r.MScaleAllDim != 0 {
			k["mscale_all_dim"] = r.MScaleAllDim
		}
		if !r.Truncate {
			k["truncate"] = false
		}
	case RopeLongrope:
		if c.Architecture == Phi3 {
			k["type"] = string(r.Kind) // transformers before 4.45 reads only this
		}
		k["short_factor"], k["long_factor"] = r.ShortFactors, r.LongFactors
	}
	return k
}

// ids returns null, one id, or a list, as config.json spells special tokens.
func ids(list []int) any {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list
}

// softcap returns null for no cap.
func softcap(x float64) any {
	if x == 0 {
		return nil
	}
	return x
}

// window returns null for no window.
func window(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

// scalar returns x as an integer when it is one but for the rounding of a square root's square,
// because transformers wants an integer there.
func scalar(x float64) any {
	n := int(x + 0.5)
	if d := x - float64(n); d < 1e-9*x && d > -1e-9*x {
		return n
	}
	return x
}

// encode writes JSON with sorted keys. A float is written with a point or an exponent, so that
// strict readers do not take it for an integer.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := encodeValue(&b, v, ""); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

func encodeValue(b *bytes.Buffer, v any, indent string) error {
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b.WriteString("{\n")
		for i, name := range names {
			fmt.Fprintf(b, "%s  %q: ", indent, name)
			if err := encodeValue(b, v[name], indent+"  "); err != nil {
				return err
			}
			if i < len(names)-1 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
		}
		b.WriteString(indent + "}")
	case float64:
		b.WriteString(float(v))
	case []float64:
		list := make([]string, len(v))
		for i, x := range v {
			list[i] = float(x)
		}
		b.WriteString("[" + strings.Join(list, ", ") + "]")
	default:
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b.Write(text)
	}
	return nil
}

// float formats x in the shortest form that reads back as x.
func float(x float64) string {
	s := strconv.FormatFloat(x, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}
