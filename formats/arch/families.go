package arch

import "slices"

// Bounds on what a configuration may ask for. They are far above any published model and keep
// every product of two sizes inside an int.
const (
	maxVocab        = 1 << 24
	maxHidden       = 1 << 20
	maxIntermediate = 1 << 22
	maxLayers       = 1 << 12
	maxHeads        = 1 << 14
	maxHeadDim      = 1 << 14
	maxPositions    = 1 << 30
)

// family is what qtool knows about a model_type.
type family struct {
	name  string // model_type
	class string // entry of architectures in config.json
	gguf  string // general.architecture in GGUF

	// Values of keys that config.json may leave out, as transformers' configuration classes
	// set them. kvHeads 0 stands for as many as heads, headDim 0 for hidden/heads.
	kvHeads      int
	kvHeadsNull  bool // num_key_value_heads may be null, for as many as heads
	headDim      int
	maxPositions int
	normEps      float64
	tied         bool
	window       int // sliding_window; 0 for none

	attentionBiasKey bool // attention_bias gives q, k, v and o a bias
	qkvBias          bool // q, k and v always have a bias
	mlpBiasKey       bool // mlp_bias gives the feed-forward block biases
	activationKey    string
	activation       Activation

	gemma   bool // norms of 1+weight, norms after each block, scaled embedding
	qkNorm  bool
	fused   bool // qkv and gate_up in one matrix each; partial rotation
	permute bool // GGUF interleaves the halves of q and k rows
}

// families lists what qtool runs, by model_type in alphabetical order.
var families = []family{
	{
		name: Gemma2, class: "Gemma2ForCausalLM", gguf: "gemma2",
		kvHeads: 4, headDim: 256, maxPositions: 8192, normEps: 1e-6, tied: true, window: 4096,
		attentionBiasKey: true, activationKey: "hidden_activation", activation: GELUTanh, gemma: true,
	},
	{
		name: Gemma3Text, class: "Gemma3ForCausalLM", gguf: "gemma3",
		kvHeads: 4, headDim: 256, maxPositions: 131072, normEps: 1e-6, tied: true, window: 4096,
		attentionBiasKey: true, activationKey: "hidden_activation", activation: GELUTanh, gemma: true, qkNorm: true,
	},
	{
		name: Llama, class: "LlamaForCausalLM", gguf: "llama",
		kvHeadsNull: true, maxPositions: 2048, normEps: 1e-6,
		attentionBiasKey: true, mlpBiasKey: true, activationKey: "hidden_act", activation: SiLU, permute: true,
	},
	{
		name: Mistral, class: "MistralForCausalLM", gguf: "llama",
		kvHeads: 8, kvHeadsNull: true, maxPositions: 131072, normEps: 1e-6, window: 4096,
		activationKey: "hidden_act", activation: SiLU, permute: true,
	},
	{
		name: Phi3, class: "Phi3ForCausalLM", gguf: "phi3",
		kvHeadsNull: true, maxPositions: 4096, normEps: 1e-5,
		activationKey: "hidden_act", activation: SiLU, fused: true,
	},
	{
		name: Qwen2, class: "Qwen2ForCausalLM", gguf: "qwen2",
		kvHeads: 32, kvHeadsNull: true, maxPositions: 32768, normEps: 1e-6, window: 4096,
		qkvBias: true, activationKey: "hidden_act", activation: SiLU,
	},
	{
		name: Qwen3, class: "Qwen3ForCausalLM", gguf: "qwen3",
		kvHeads: 32, kvHeadsNull: true, headDim: 128, maxPositions: 32768, normEps: 1e-6, window: 4096,
		attentionBiasKey: true, activationKey: "hidden_act", activation: SiLU, qkNorm: true,
	},
}

// familyOf returns the family of a model_type.
func familyOf(name string) (family, bool) {
	i := slices.IndexFunc(families, func(f family) bool { return f.name == name })
	if i < 0 {
		return family{}, false
	}
	return families[i], true
}

// Families returns the model_type of every family that qtool runs, sorted.
func Families() []string {
	names := make([]string, len(families))
	for i, f := range families {
		names[i] = f.name
	}
	return names
}

// fixed sets what every model of the family has in common.
func (f family) fixed(c *Config) {
	c.Architecture = f.name
	c.EmbedScale = 1
	c.QKNorm = f.qkNorm
	c.NormPlusOne, c.PostNorms = f.gemma, f.gemma
	c.FusedQKV, c.FusedGateUp = f.fused, f.fused
	if f.qkvBias {
		c.AttentionBias = true
	}
}
