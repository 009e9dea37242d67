package arch

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
)

// keys is a config.json under construction; absent as a value removes the key.
type keys map[string]any

type absentKey struct{}

var absent absentKey

// sizes are the keys that every configuration must have.
func sizes(model string) keys {
	return keys{
		"model_type": model, "vocab_size": 96, "hidden_size": 48, "intermediate_size": 44,
		"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
	}
}

// with returns the union of k and more.
func (k keys) with(more keys) keys {
	u := maps.Clone(k)
	maps.Copy(u, more)
	maps.DeleteFunc(u, func(_ string, v any) bool { return v == absent })
	return u
}

func (k keys) json(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(k)
	require.NoError(t, err)
	return text
}

func read(t testing.TB, k keys) *Config {
	t.Helper()
	c, err := FromHF(k.json(t), "config.json")
	require.NoError(t, err)
	return c
}

func TestFromHFDefaults(t *testing.T) {
	base := Config{
		Hidden: 48, Intermediate: 44, Layers: 4, Heads: 6, KVHeads: 2, HeadDim: 8, Vocab: 96, MaxPositions: 256,
		NormEps: 1e-6, Rope: Rope{Kind: RopeDefault, Theta: 10000}, RotaryDim: 8,
		LayerSliding: make([]bool, 4), Activation: SiLU, AttnScale: 1 / math.Sqrt(8), EmbedScale: 1,
	}
	gemma := func(c *Config) {
		c.HeadDim, c.RotaryDim = 256, 256
		c.AttnScale, c.EmbedScale = 1.0/16, math.Sqrt(48)
		c.TieEmbeddings, c.NormPlusOne, c.PostNorms = true, true, true
		c.Activation = GELUTanh
		c.SlidingWindow = 4096
	}
	for model, adjust := range map[string]func(*Config){
		Llama: func(*Config) {},
		Mistral: func(c *Config) {
			c.SlidingWindow, c.LayerSliding = 4096, []bool{true, true, true, true}
		},
		Qwen2: func(c *Config) { c.AttentionBias = true },
		Qwen3: func(c *Config) {
			c.HeadDim, c.RotaryDim, c.AttnScale, c.QKNorm = 128, 128, 1/math.Sqrt(128), true
		},
		Phi3: func(c *Config) { c.NormEps, c.FusedQKV, c.FusedGateUp = 1e-5, true, true },
		Gemma2: func(c *Config) {
			gemma(c)
			c.AttnSoftcap, c.FinalSoftcap = 50, 30
			c.LayerSliding = []bool{true, false, true, false}
		},
		Gemma3Text: func(c *Config) {
			gemma(c)
			c.QKNorm = true
			c.Rope.Theta, c.LocalRope = 1e6, &Rope{Kind: RopeDefault, Theta: 10000}
			c.LayerSliding = []bool{true, true, true, true}
		},
	} {
		t.Run(model, func(t *testing.T) {
			want := base
			want.Architecture = model
			adjust(&want)
			c := read(t, sizes(model))
			require.Equal(t, &want, c)
			requireRoundTrip(t, c)
		})
	}
}

func TestFamilies(t *testing.T) {
	require.True(t, slices.IsSorted(Families()))
	require.Len(t, Families(), 7)
}

func TestFromHFReads(t *testing.T) {
	for _, tc := range []struct {
		name  string
		model string
		keys  keys
		check func(t *testing.T, c *Config)
	}{
		{"biases", Llama, keys{"attention_bias": true, "mlp_bias": true}, func(t *testing.T, c *Config) {
			require.True(t, c.AttentionBias && c.OutputBias && c.MLPBias)
		}},
		{"as many KV heads as heads by null", Llama, keys{"num_key_value_heads": nil}, func(t *testing.T, c *Config) { require.Equal(t, 6, c.KVHeads) }},
		{"as many KV heads as heads by absence", Llama, keys{"num_key_value_heads": absent}, func(t *testing.T, c *Config) { require.Equal(t, 6, c.KVHeads) }},
		{"one KV head", Llama, keys{"num_key_value_heads": 1}, func(t *testing.T, c *Config) { require.Equal(t, 8, c.KVDim()) }},
		{"explicit head_dim", Llama, keys{"head_dim": 10, "hidden_size": 50}, func(t *testing.T, c *Config) {
			require.Equal(t, []int{10, 60, 20}, []int{c.HeadDim, c.QDim(), c.KVDim()})
		}},
		{"null head_dim", Mistral, keys{"head_dim": nil}, func(t *testing.T, c *Config) { require.Equal(t, 8, c.HeadDim) }},
		{"token lists", Llama, keys{"bos_token_id": 1, "eos_token_id": []int{2, 3}, "pad_token_id": nil}, func(t *testing.T, c *Config) {
			require.Equal(t, [][]int{{1}, {2, 3}, nil}, [][]int{c.BOS, c.EOS, c.PAD})
		}},
		{"token outside the vocabulary", Llama, keys{"eos_token_id": 96, "pad_token_id": -1}, func(t *testing.T, c *Config) {
			require.Empty(t, c.EOS)
			require.Len(t, c.Warnings, 2)
			c.Warnings = nil
		}},
		{"swish", Llama, keys{"hidden_act": "swish"}, func(t *testing.T, c *Config) { require.Equal(t, SiLU, c.Activation) }},
		{"tanh GELU in llama", Llama, keys{"hidden_act": "gelu_pytorch_tanh"}, func(t *testing.T, c *Config) { require.Equal(t, GELUTanh, c.Activation) }},
		{"gemma's unread hidden_act", Gemma2, keys{"hidden_act": "gelu"}, func(t *testing.T, c *Config) { require.Equal(t, GELUTanh, c.Activation) }},
		{"no window", Mistral, keys{"sliding_window": nil}, func(t *testing.T, c *Config) {
			require.Zero(t, c.SlidingWindow)
			require.Zero(t, c.LayerWindow(0))
		}},
		{"window", Mistral, keys{"sliding_window": 16}, func(t *testing.T, c *Config) { require.Equal(t, 16, c.LayerWindow(3)) }},
		{"phi3 window", Phi3, keys{"sliding_window": 16}, func(t *testing.T, c *Config) { require.Equal(t, 16, c.LayerWindow(0)) }},
		{"qwen2 window not used", Qwen2, keys{"sliding_window": 16, "use_sliding_window": false, "max_window_layers": 1}, func(t *testing.T, c *Config) {
			require.Zero(t, c.SlidingWindow)
		}},
		{"qwen2 window in upper layers", Qwen2, keys{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 3}, func(t *testing.T, c *Config) {
			require.Equal(t, []bool{false, false, false, true}, c.LayerSliding)
			require.Equal(t, 16, c.LayerWindow(3))
			require.Zero(t, c.LayerWindow(2))
		}},
		{"qwen2 window past the last layer", Qwen2, keys{"sliding_window": 16, "use_sliding_window": true}, func(t *testing.T, c *Config) {
			require.Zero(t, c.SlidingWindow)
		}},
		{"qwen3 layer_types", Qwen3, keys{
			"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 4,
			"layer_types": []string{"sliding_attention", "full_attention", "full_attention", "sliding_attention"},
		}, func(t *testing.T, c *Config) { require.Equal(t, []bool{true, false, false, true}, c.LayerSliding) }},
		{"gemma2 without caps", Gemma2, keys{"attn_logit_softcapping": nil, "final_logit_softcapping": nil, "query_pre_attn_scalar": 144}, func(t *testing.T, c *Config) {
			require.Zero(t, c.AttnSoftcap)
			require.Zero(t, c.FinalSoftcap)
			require.Equal(t, 1.0/12, c.AttnScale)
		}},
		{"gemma3 pattern", Gemma3Text, keys{"sliding_window_pattern": 2, "final_logit_softcapping": 30}, func(t *testing.T, c *Config) {
			require.Equal(t, []bool{true, false, true, false}, c.LayerSliding)
			require.Equal(t, 30.0, c.FinalSoftcap)
			require.Equal(t, 1e6, c.LayerRope(1).Theta)
			require.Equal(t, 1e4, c.LayerRope(0).Theta)
		}},
		{"gemma3 local base", Gemma3Text, keys{"rope_theta": 5e5, "rope_local_base_freq": 2e4}, func(t *testing.T, c *Config) {
			require.Equal(t, []float64{5e5, 2e4}, []float64{c.Rope.Theta, c.LocalRope.Theta})
		}},
		{"gemma3 by layer type", Gemma3Text, keys{"rope_parameters": keys{
			"full_attention": keys{"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": keys{"rope_type": "default", "rope_theta": 1e4},
		}, "_sliding_window_pattern": 6, "layer_types": []string{"full_attention", "sliding_attention", "full_attention", "full_attention"}}, func(t *testing.T, c *Config) {
			require.Equal(t, Rope{Kind: RopeLinear, Theta: 1e6, Factor: 8}, c.Rope)
			require.Equal(t, []bool{false, true, false, false}, c.LayerSliding)
		}},
		{"partial rotation", Phi3, keys{"partial_rotary_factor": 0.5}, func(t *testing.T, c *Config) { require.Equal(t, 4, c.RotaryDim) }},
		{"partial rotation of 1", Llama, keys{"partial_rotary_factor": 1.0}, func(t *testing.T, c *Config) { require.Equal(t, 8, c.RotaryDim) }},
		{"both spellings that agree", Llama, keys{
			"rope_theta": 5000, "rope_scaling": keys{"type": "linear", "factor": 2}, "rope_parameters": keys{"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
		}, func(t *testing.T, c *Config) {
			require.Equal(t, Rope{Kind: RopeLinear, Theta: 5000, Factor: 2}, c.Rope)
		}},
		{"empty rope_scaling", Llama, keys{"rope_scaling": keys{}}, func(t *testing.T, c *Config) { require.Equal(t, RopeDefault, c.Rope.Kind) }},
		{"yarn defaults", Llama, keys{"rope_scaling": keys{"rope_type": "yarn", "factor": nil, "original_max_position_embeddings": 64, "attention_factor": nil}}, func(t *testing.T, c *Config) {
			require.Equal(t, Rope{Kind: RopeYarn, Theta: 10000, Factor: 4, OriginalContext: 64, BetaFast: 32, BetaSlow: 1, Truncate: true}, c.Rope)
		}},
		{"original context from the top level", Llama, keys{
			"original_max_position_embeddings": 128, "rope_scaling": keys{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
		}, func(t *testing.T, c *Config) { require.Equal(t, 128, c.Rope.OriginalContext) }},
		{"original context from the longest sequence", Llama, keys{
			"rope_scaling": keys{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
		}, func(t *testing.T, c *Config) { require.Equal(t, 256, c.Rope.OriginalContext) }},
		{"phi3's old name of longrope", Phi3, keys{"original_max_position_embeddings": 64, "rope_scaling": keys{
			"type": "su", "short_factor": []float64{1, 1, 1, 2}, "long_factor": []float64{1, 2, 3, 4},
		}}, func(t *testing.T, c *Config) {
			require.Equal(t, RopeLongrope, c.Rope.Kind)
			require.Equal(t, 4.0, c.Rope.Factor)
		}},
		{"longrope in llama", Llama, keys{"rope_scaling": keys{
			"rope_type": "longrope", "factor": 2.0, "attention_factor": 1, "original_max_position_embeddings": 64, "short_factor": []float64{1, 1, 1, 2}, "long_factor": []float64{1, 2, 3, 4},
		}}, func(t *testing.T, c *Config) { require.Equal(t, 1.0, c.Rope.AttentionFactor) }},
		{"parameter without effect", Llama, keys{"rope_scaling": keys{"rope_type": "linear", "factor": 2, "beta_fast": 3}}, func(t *testing.T, c *Config) {
			require.Len(t, c.Warnings, 1)
			require.Contains(t, c.Warnings[0], "beta_fast")
		}},
		{"harmless keys", Llama, keys{"torch_dtype": "bfloat16", "use_cache": true, "architectures": []string{"LLaMAForCausalLM"}, "num_experts": 0, "sliding_window": nil, "embedding_multiplier": 1.0, "is_causal": true},
			func(t *testing.T, c *Config) { require.Empty(t, c.Warnings) }},
		{"unknown key", Llama, keys{"moon_phase": 3}, func(t *testing.T, c *Config) {
			require.Equal(t, []string{`config.json key "moon_phase" is not known and was ignored`}, c.Warnings)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := read(t, sizes(tc.model).with(tc.keys))
			tc.check(t, c)
			requireRoundTrip(t, c)
		})
	}
}

func TestFromHFRefuses(t *testing.T) {
	yarn := func(more keys) keys {
		return keys{"rope_scaling": keys{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}.with(more)}
	}
	for _, tc := range []struct {
		name  string
		model string
		keys  keys
		kind  error
		want  string
	}{
		{"no model_type", Llama, keys{"model_type": absent}, formats.ErrMalformed, "model_type"},
		{"model_type of another kind", Llama, keys{"model_type": 1}, formats.ErrMalformed, "expected a string, found a number"},
		{"unknown model_type", Llama, keys{"model_type": "rwkv"}, formats.ErrUnsupported, "supported are gemma2,"},
		{"gemma3 with a vision tower", Llama, keys{"model_type": "gemma3"}, formats.ErrUnsupported, "gemma3_text"},
		{"a classifier", Llama, keys{"architectures": []string{"LlamaForSequenceClassification"}}, formats.ErrUnsupported, "LlamaForSequenceClassification"},
		{"architectures no list", Llama, keys{"architectures": "x"}, formats.ErrMalformed, "expected an array of strings"},
		{"no vocab_size", Llama, keys{"vocab_size": absent}, formats.ErrMalformed, `"vocab_size": is missing`},
		{"null hidden_size", Llama, keys{"hidden_size": nil}, formats.ErrMalformed, "expected an integer, found null"},
		{"string for an integer", Llama, keys{"hidden_size": "48"}, formats.ErrMalformed, "expected an integer, found a string"},
		{"zero heads", Llama, keys{"num_attention_heads": 0}, formats.ErrMalformed, "is 0, expected 1 to"},
		{"negative layers", Llama, keys{"num_hidden_layers": -1}, formats.ErrMalformed, "is -1, expected 1 to"},
		{"absurd vocabulary", Llama, keys{"vocab_size": 1 << 40}, formats.ErrMalformed, "vocab_size"},
		{"absurd heads", Llama, keys{"num_attention_heads": 16384, "num_key_value_heads": 1, "head_dim": 16384}, formats.ErrMalformed, "heads of 16384 elements"},
		{"heads that do not divide", Llama, keys{"num_key_value_heads": 4}, formats.ErrMalformed, "6 is not a multiple of num_key_value_heads 4"},
		{"more KV heads than heads", Llama, keys{"num_key_value_heads": 12}, formats.ErrMalformed, "not a multiple"},
		{"hidden size that does not divide", Llama, keys{"hidden_size": 50}, formats.ErrMalformed, "50 is not a multiple of num_attention_heads 6"},
		{"odd head", Llama, keys{"head_dim": 7}, formats.ErrMalformed, "7 elements, expected an even number"},
		{"odd rotation", Phi3, keys{"partial_rotary_factor": 0.4}, formats.ErrMalformed, "3 elements, expected an even number"},
		{"rotation of nothing", Phi3, keys{"partial_rotary_factor": 0.01}, formats.ErrMalformed, "0 elements"},
		{"rotation of more than a head", Phi3, keys{"partial_rotary_factor": 1.5}, formats.ErrMalformed, "12 elements, expected 2 to head_dim 8"},
		{"null KV heads in gemma", Gemma2, keys{"num_key_value_heads": nil}, formats.ErrMalformed, "found null"},
		{"null head_dim in qwen3", Qwen3, keys{"head_dim": nil}, formats.ErrMalformed, "found null"},
		{"null epsilon", Llama, keys{"rms_norm_eps": nil}, formats.ErrMalformed, "rms_norm_eps"},
		{"string epsilon", Llama, keys{"rms_norm_eps": "1e-5"}, formats.ErrMalformed, "expected a number, found a string"},
		{"epsilon of 0", Llama, keys{"rms_norm_eps": 0}, formats.ErrMalformed, "expected a positive number"},
		{"huge epsilon", Llama, keys{"rms_norm_eps": 2}, formats.ErrMalformed, "rms_norm_eps is 2"},
		{"tie flag no bool", Llama, keys{"tie_word_embeddings": 1}, formats.ErrMalformed, "expected true or false"},
		{"tie flag null", Llama, keys{"tie_word_embeddings": nil}, formats.ErrMalformed, "expected true or false, found null"},
		{"erf GELU", Llama, keys{"hidden_act": "gelu"}, formats.ErrUnsupported, `activation "gelu"`},
		{"null activation", Llama, keys{"hidden_act": nil}, formats.ErrMalformed, "hidden_act"},
		{"float token id", Llama, keys{"eos_token_id": 1.5}, formats.ErrMalformed, "eos_token_id"},
		{"string token id", Llama, keys{"eos_token_id": []string{"x"}}, formats.ErrMalformed, "found a string"},
		{"window of 0", Mistral, keys{"sliding_window": 0}, formats.ErrMalformed, "sliding_window"},
		{"window in llama", Llama, keys{"sliding_window": 16}, formats.ErrUnsupported, "sliding_window"},
		{"layer types without a window", Qwen2, keys{"layer_types": []string{"sliding_attention", "full_attention", "full_attention", "full_attention"}}, formats.ErrMalformed, "its size is not"},
		{"gemma2 without its window", Gemma2, keys{"sliding_window": nil}, formats.ErrMalformed, "its size is not"},
		{"too few layer types", Gemma2, keys{"layer_types": []string{"full_attention"}}, formats.ErrMalformed, "has 1 entries, num_hidden_layers is 4"},
		{"unknown layer type", Gemma2, keys{"layer_types": []string{"full_attention", "linear_attention", "", ""}}, formats.ErrUnsupported, "linear_attention"},
		{"layer types in mistral", Mistral, keys{"layer_types": []string{"full_attention", "sliding_attention", "full_attention", "full_attention"}}, formats.ErrUnsupported, "layer_types"},
		{"gemma3 hidden pattern alone", Gemma3Text, keys{"_sliding_window_pattern": 3}, formats.ErrUnsupported, "_sliding_window_pattern"},
		{"gemma3 pattern of 0", Gemma3Text, keys{"sliding_window_pattern": 0}, formats.ErrMalformed, "sliding_window_pattern"},
		{"attention caps in gemma3", Gemma3Text, keys{"attn_logit_softcapping": 50}, formats.ErrUnsupported, "attn_logit_softcapping"},
		{"negative cap", Gemma2, keys{"final_logit_softcapping": -1}, formats.ErrMalformed, "final_logit_softcapping"},
		{"attention multiplier", Llama, keys{"attention_multiplier": 0.5}, formats.ErrUnsupported, "attention_multiplier"},
		{"attention multiplier of 1", Llama, keys{"attention_multiplier": 1.0}, formats.ErrUnsupported, "attention_multiplier"},
		{"embedding multiplier", Llama, keys{"embedding_multiplier": 12}, formats.ErrUnsupported, "embedding_multiplier"},
		{"multiplier of 0", Llama, keys{"residual_multiplier": 0}, formats.ErrUnsupported, "residual_multiplier"},
		{"experts", Mistral, keys{"num_local_experts": 8}, formats.ErrUnsupported, "num_local_experts"},
		{"not causal", Llama, keys{"is_causal": false}, formats.ErrUnsupported, "is_causal"},
		{"bidirectional gemma", Gemma3Text, keys{"use_bidirectional_attention": true}, formats.ErrUnsupported, "use_bidirectional_attention"},
		{"qwen2 without biases", Qwen2, keys{"attention_bias": false}, formats.ErrUnsupported, "always has biases"},
		{"biases in mistral", Mistral, keys{"attention_bias": true}, formats.ErrUnsupported, "attention_bias"},
		{"quantized weights", Llama, keys{"quantization_config": keys{"quant_method": "gptq"}}, formats.ErrUnsupported, `quantized by "gptq"`},
		{"scaling no object", Llama, keys{"rope_scaling": 2}, formats.ErrMalformed, "expected an object"},
		{"dynamic rope", Llama, keys{"rope_scaling": keys{"type": "dynamic", "factor": 2}}, formats.ErrUnsupported, `"dynamic" is not supported`},
		{"proportional rope", Llama, keys{"rope_parameters": keys{"rope_type": "proportional"}}, formats.ErrUnsupported, "proportional"},
		{"types that differ", Llama, keys{"rope_scaling": keys{"type": "linear", "rope_type": "yarn", "factor": 2}}, formats.ErrMalformed, `is "linear", rope_type is "yarn"`},
		{"linear without factor", Llama, keys{"rope_scaling": keys{"type": "linear"}}, formats.ErrMalformed, `"rope_scaling.factor": is missing`},
		{"factor of 0", Llama, keys{"rope_scaling": keys{"type": "linear", "factor": 0}}, formats.ErrMalformed, "rope_scaling.factor"},
		{"yarn without factor", Llama, yarn(keys{"factor": absent}), formats.ErrMalformed, "rope_scaling.factor"},
		{"yarn betas reversed", Llama, yarn(keys{"beta_fast": 1, "beta_slow": 32}), formats.ErrMalformed, "slow ≤ fast"},
		{"yarn fractional context", Llama, yarn(keys{"original_max_position_embeddings": 64.5}), formats.ErrMalformed, "expected an integer"},
		{"yarn negative mscale", Llama, yarn(keys{"mscale": -1}), formats.ErrMalformed, "mscale"},
		{"yarn truncate no bool", Llama, yarn(keys{"truncate": 1}), formats.ErrMalformed, "truncate"},
		{"contexts that differ", Llama, yarn(keys{}).with(keys{"original_max_position_embeddings": 128}), formats.ErrMalformed, "the top level is 128"},
		{"llama3 bounds equal", Llama, keys{"rope_scaling": keys{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}, formats.ErrMalformed, "low < high"},
		{"unknown rope key", Llama, yarn(keys{"mrope_section": []int{1}}), formats.ErrUnsupported, "mrope_section"},
		{"theta of 1", Llama, keys{"rope_theta": 1}, formats.ErrMalformed, "rope_theta is 1"},
		{"thetas that differ", Llama, keys{"rope_theta": 5000, "rope_parameters": keys{"rope_theta": 10000}}, formats.ErrMalformed, "top level is 5000"},
		{"spellings that differ", Llama, keys{"rope_scaling": keys{"type": "linear", "factor": 2}, "rope_parameters": keys{"rope_type": "default"}}, formats.ErrMalformed, "differs from rope_parameters"},
		{"rope by layer type in qwen3", Qwen3, keys{"rope_parameters": keys{"full_attention": keys{"rope_type": "default"}}}, formats.ErrUnsupported, "full_attention"},
		{"flat rope in gemma3", Gemma3Text, keys{"rope_parameters": keys{"rope_type": "default"}}, formats.ErrUnsupported, "rope_type"},
		{"gemma3 scaling by its old key", Gemma3Text, keys{"rope_scaling": keys{"type": "linear", "factor": 8}}, formats.ErrUnsupported, "no rope_type"},
		{"partial rotation in llama", Llama, keys{"partial_rotary_factor": 0.5}, formats.ErrUnsupported, "rotates whole heads"},
		{"phi3 linear", Phi3, keys{"rope_scaling": keys{"type": "linear", "factor": 2}}, formats.ErrUnsupported, `"linear" is not supported for phi3`},
		{"phi3 yarn", Phi3, keys{"rope_scaling": keys{"type": "yarn", "short_factor": []float64{1}, "long_factor": []float64{1}}}, formats.ErrUnsupported, `"yarn" is not supported for phi3`},
		{"longrope of the wrong length", Phi3, keys{"rope_scaling": keys{"type": "longrope", "short_factor": []float64{1, 1}, "long_factor": []float64{1, 1, 1, 1}}}, formats.ErrMalformed, "short_factor has 2 numbers"},
		{"longrope divisor of 0", Phi3, keys{"rope_scaling": keys{"type": "longrope", "short_factor": []float64{1, 1, 1, 1}, "long_factor": []float64{1, 1, 0, 1}}}, formats.ErrMalformed, "long_factor[2] is 0"},
		{"longrope divisor no number", Phi3, keys{"rope_scaling": keys{"type": "longrope", "short_factor": []any{1, "1"}, "long_factor": nil}}, formats.ErrMalformed, "short_factor[1]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := FromHF(sizes(tc.model).with(tc.keys).json(t), "dir/config.json")
			require.Error(t, err)
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, "dir/config.json")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestFromHFRefusesText(t *testing.T) {
	whole := string(sizes(Llama).json(t))
	for name, text := range map[string]string{
		"empty":               "",
		"no object":           "[1]",
		"null":                "null",
		"cut off":             whole[:len(whole)/2],
		"trailing data":       whole + "{}",
		"duplicate key":       strings.Replace(whole, "{", `{"hidden_size":48,`, 1),
		"float for a size":    strings.Replace(whole, `"hidden_size":48`, `"hidden_size":48.0`, 1),
		"exponent for a size": strings.Replace(whole, `"hidden_size":48`, `"hidden_size":48e0`, 1),
		"size beyond int64":   strings.Replace(whole, `"hidden_size":48`, `"hidden_size":99999999999999999999`, 1),
		"infinite number":     strings.Replace(whole, `{`, `{"rope_theta":1e999,`, 1),
		"deep nesting":        strings.Replace(whole, `{`, `{"x":`+strings.Repeat("[", 100000)+strings.Repeat("]", 100000)+",", 1),
		"a web page":          "<!DOCTYPE html><html></html>",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FromHF([]byte(text), "config.json")
			require.ErrorIs(t, err, formats.ErrMalformed)
			require.Less(t, len(fmt.Sprint(err)), 500)
		})
	}
}

// TestFromHFKeyOrder checks that the order of keys decides nothing.
func TestFromHFKeyOrder(t *testing.T) {
	k := sizes(Gemma3Text).with(keys{"rope_theta": 5e5, "a": 1, "b": 2})
	text := string(k.json(t))
	parts := strings.Split(strings.Trim(text, "{}"), ",")
	slices.Reverse(parts)
	reversed, err := FromHF([]byte("{"+strings.Join(parts, ",")+"}"), "config.json")
	require.NoError(t, err)
	c := read(t, k)
	slices.Sort(c.Warnings)
	slices.Sort(reversed.Warnings)
	require.Equal(t, c, reversed)
}

func FuzzConfig(f *testing.F) {
	for _, family := range Families() {
		f.Add(sizes(family).json(f))
	}
	for _, tc := range ropeCases(f) {
		f.Add([]byte(tc.Config))
	}
	f.Add([]byte(`{"model_type":"llama","model_type":"llama"}`))
	f.Add([]byte(`{"model_type":"llama","vocab_size":1e9,"hidden_size":-1}`))
	f.Add([]byte(`[[[[[[[[`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := FromHF(text, "config.json")
		if err != nil {
			require.Nil(t, c)
			return
		}
		requireRoundTrip(t, c)
		specs := c.Tensors()
		require.NotEmpty(t, specs)
		for _, s := range specs {
			_, err := formats.Elements(s.Shape)
			require.NoError(t, err)
		}
		for _, length := range []int{1, c.MaxPositions} {
			frequencies, factor := c.Rope.Frequencies(c.RotaryDim, length)
			for _, x := range append(frequencies, factor) {
				require.False(t, math.IsNaN(x) || math.IsInf(x, 0))
			}
		}
	})
}
