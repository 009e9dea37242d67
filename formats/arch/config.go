// Package arch describes the decoder-only transformer families that qtool knows: what their
// configuration says in Hugging Face's config.json and in GGUF keys, which tensors they have
// under both names, and how their rotary frequencies are computed. It holds no weights.
package arch

// Model families, by the model_type of Hugging Face's config.json.
const (
	Llama      = "llama"
	Mistral    = "mistral"
	Qwen2      = "qwen2"
	Qwen3      = "qwen3"
	Phi3       = "phi3"
	Gemma2     = "gemma2"
	Gemma3Text = "gemma3_text"
)

// Activation is the non-linearity on the gate of the feed-forward block.
type Activation string

const (
	// SiLU is x·sigmoid(x).
	SiLU Activation = "silu"
	// GELUTanh is the tanh approximation of GELU, gelu_pytorch_tanh in config.json.
	GELUTanh Activation = "gelu_pytorch_tanh"
)

// Config is everything that the computation of a model depends on besides its weights. All sizes
// are in elements. FromHF and FromGGUF return only validated values: sizes are positive and
// bounded, Heads is a multiple of KVHeads, RotaryDim is even and at most HeadDim, LayerSliding
// has Layers entries.
type Config struct {
	Architecture string // Llama, Mistral, ...
	Hidden       int    // width of the residual stream
	Intermediate int    // width of the feed-forward block
	Layers       int
	Heads        int
	KVHeads      int
	HeadDim      int
	Vocab        int // rows of the embedding; 0 where a GGUF file leaves it to the tensor
	MaxPositions int // longest sequence the model was made for

	NormEps float64 // epsilon of every RMS norm

	Rope      Rope  // of every layer, or of the full-attention layers where LocalRope is set
	LocalRope *Rope // of the sliding layers (gemma3_text), else nil
	RotaryDim int   // leading elements of a head that are rotated; the rest pass through

	TieEmbeddings bool // the head is the embedding matrix
	AttentionBias bool // q, k and v have a bias
	OutputBias    bool // o has a bias
	MLPBias       bool // gate, up and down have a bias
	QKNorm        bool // RMS norm over each head of q and k, before the rotation

	// SlidingWindow is the number of positions, the query's own included, that a sliding layer
	// attends to; 0 when no layer slides. LayerSliding says which layers do.
	SlidingWindow int
	LayerSliding  []bool

	Activation Activation

	AttnScale    float64 // factor on q·k
	AttnSoftcap  float64 // c·tanh(x/c) on the scaled scores, before the mask; 0 for none
	FinalSoftcap float64 // the same on the logits; 0 for none
	EmbedScale   float64 // factor on the embedding's output; 1 for none
	NormPlusOne  bool    // norms multiply by 1 + weight (as Hugging Face stores gemma's)
	PostNorms    bool    // norms also after attention and after the feed-forward block (gemma)
	FusedQKV     bool    // q, k and v are the rows of one matrix, in this order (phi3)
	FusedGateUp  bool    // gate and up are the rows of one matrix, in this order (phi3)

	BOS []int // token ids as the configuration lists them; empty when it does not
	EOS []int
	PAD []int

	// Warnings says what the reader met and left aside: keys it does not know.
	Warnings []string
}

// QDim is the number of rows of the query projection.
func (c *Config) QDim() int { return c.Heads * c.HeadDim }

// KVDim is the number of rows of the key projection, and of the value projection.
func (c *Config) KVDim() int { return c.KVHeads * c.HeadDim }

// LayerRope returns the rotary parameters of layer i.
func (c *Config) LayerRope(i int) Rope {
	if c.LocalRope != nil && c.LayerSliding[i] {
		return *c.LocalRope
	}
	return c.Rope
}

// LayerWindow returns the attention window of layer i, 0 for full causal attention.
func (c *Config) LayerWindow(i int) int {
	if c.SlidingWindow > 0 && c.LayerSliding[i] {
		return c.SlidingWindow
	}
	return 0
}
