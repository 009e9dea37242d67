package arch

import (
	"fmt"
	"strings"
)

// Role says what a tensor does, which decides how it may be compressed.
type Role int

// Roles of tensors.
const (
	Embedding Role = iota // token embedding [vocab, hidden]
	Head                  // output projection [vocab, hidden]
	Linear                // weight of a linear layer [out, in]
	Norm                  // weight of an RMS norm [n]
	Bias                  // bias of a linear layer [out]
)

// String gives the role's name in lower case.
func (r Role) String() string {
	switch r {
	case Embedding:
		return "embedding"
	case Head:
		return "head"
	case Linear:
		return "linear"
	case Norm:
		return "norm"
	case Bias:
		return "bias"
	}
	return "unknown"
}

// Names of the tensors outside the layers.
const (
	EmbeddingName = "model.embed_tokens.weight"
	HeadName      = "lm_head.weight"
	FinalNormName = "model.norm.weight"
)

// TensorSpec is one tensor that a model of a given configuration has.
type TensorSpec struct {
	Name  string // Hugging Face's name
	GGUF  string // name in a GGUF file
	Shape []int  // row-major, output features first
	Role  Role
	Layer int // layer index, -1 for embedding, final norm and head

	// Permute is the number of heads whose rows GGUF stores with the two halves of each head
	// interleaved (q and k of llama and mistral); 0 when both containers agree.
	Permute int
	// NormPlusOne marks a norm whose weight GGUF stores with 1 added (gemma).
	NormPlusOne bool
	// Optional marks a tensor that a valid file may leave out (a tied head).
	Optional bool
}

// part is a tensor of a layer: its name below the layer in both containers, and its shape.
type part struct {
	hf, gguf  string
	rows, in  int // in is 0 for a vector
	role      Role
	permute   int
	normShift bool
}

// Tensors lists the tensors of a model in the order in which a forward pass meets them:
// embedding, the layers, final norm, head. The head of a tied model is listed as optional.
// GGUF names are those of the gguf Python package's tensor table.
func (c *Config) Tensors() []TensorSpec {
	parts := c.layerParts()
	specs := make([]TensorSpec, 0, 3+c.Layers*len(parts))
	specs = append(specs, TensorSpec{
		Name: EmbeddingName, GGUF: "token_embd.weight", Shape: []int{c.Vocab, c.Hidden}, Role: Embedding, Layer: -1,
	})
	for layer := range c.Layers {
		for _, p := range parts {
			shape := []int{p.rows}
			if p.in > 0 {
				shape = []int{p.rows, p.in}
			}
			specs = append(specs, TensorSpec{
				Name:  fmt.Sprintf("model.layers.%d.%s", layer, p.hf),
				GGUF:  fmt.Sprintf("blk.%d.%s", layer, p.gguf),
				Shape: shape, Role: p.role, Layer: layer, Permute: p.permute, NormPlusOne: p.normShift,
			})
		}
	}
	return append(specs,
		TensorSpec{
			Name: FinalNormName, GGUF: "output_norm.weight", Shape: []int{c.Hidden}, Role: Norm, Layer: -1, NormPlusOne: c.NormPlusOne,
		},
		TensorSpec{
			Name: HeadName, GGUF: "output.weight", Shape: []int{c.Vocab, c.Hidden}, Role: Head, Layer: -1, Optional: c.TieEmbeddings,
		})
}

// layerParts lists the tensors that every layer has.
func (c *Config) layerParts() []part {
	f, _ := familyOf(c.Architecture)
	var parts []part
	norm := func(hf, gguf string, n int) {
		parts = append(parts, part{hf: hf + ".weight", gguf: gguf + ".weight", rows: n, role: Norm, normShift: c.NormPlusOne})
	}
	linear := func(hf, gguf string, rows, in int, bias bool, heads int) {
		if !f.permute {
			heads = 0
		}
		parts = append(parts, part{hf: hf + ".weight", gguf: gguf + ".weight", rows: rows, in: in, role: Linear, permute: heads})
		if bias {
			parts = append(parts, part{hf: hf + ".bias", gguf: gguf + ".bias", rows: rows, role: Bias, permute: heads})
		}
	}

	norm("input_layernorm", "attn_norm", c.Hidden)
	if c.FusedQKV {
		linear("self_attn.qkv_proj", "attn_qkv", c.QDim()+2*c.KVDim(), c.Hidden, c.AttentionBias, 0)
	} else {
		linear("self_attn.q_proj", "attn_q", c.QDim(), c.Hidden, c.AttentionBias, c.Heads)
		linear("self_attn.k_proj", "attn_k", c.KVDim(), c.Hidden, c.AttentionBias, c.KVHeads)
		linear("self_attn.v_proj", "attn_v", c.KVDim(), c.Hidden, c.AttentionBias, 0)
	}
	if c.QKNorm {
		norm("self_attn.q_norm", "attn_q_norm", c.HeadDim)
		norm("self_attn.k_norm", "attn_k_norm", c.HeadDim)
	}
	linear("self_attn.o_proj", "attn_output", c.Hidden, c.QDim(), c.OutputBias, 0)
	if c.PostNorms {
		norm("post_attention_layernorm", "post_attention_norm", c.Hidden)
		norm("pre_feedforward_layernorm", "ffn_norm", c.Hidden)
	} else {
		norm("post_attention_layernorm", "ffn_norm", c.Hidden)
	}
	if c.FusedGateUp {
		linear("mlp.gate_up_proj", "ffn_up", 2*c.Intermediate, c.Hidden, c.MLPBias, 0)
	} else {
		linear("mlp.gate_proj", "ffn_gate", c.Intermediate, c.Hidden, c.MLPBias, 0)
		linear("mlp.up_proj", "ffn_up", c.Intermediate, c.Hidden, c.MLPBias, 0)
	}
	linear("mlp.down_proj", "ffn_down", c.Hidden, c.Intermediate, c.MLPBias, 0)
	if c.PostNorms {
		norm("post_feedforward_layernorm", "post_ffw_norm", c.Hidden)
	}
	return parts
}

// Droppable reports whether a stored tensor may be left out: buffers that the configuration
// determines, and counters of training.
func Droppable(name string) bool {
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "inv_freq":
		return strings.HasSuffix(name, "rotary_emb.inv_freq")
	case "position_ids", "num_batches_tracked":
		return true
	case "bias":
		// The causal mask that early conversions stored as a buffer.
		return strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".self_attn.bias")
	}
	return false
}

// GGUFDroppable reports whether a tensor of a GGUF file carries nothing but rotary frequencies:
// FromGGUF has read those that matter, and attn_rot_embd is a copy of the default ones.
func GGUFDroppable(name string) bool {
	switch name {
	case ropeFreqsName, ropeLongName, ropeShortName:
		return true
	}
	return strings.HasPrefix(name, "blk.") && strings.HasSuffix(name, ".attn_rot_embd.weight")
}

// Names of the divisors of rotary frequencies in a GGUF file.
const (
	ropeFreqsName = "rope_freqs.weight"
	ropeLongName  = "rope_factors_long.weight"
	ropeShortName = "rope_factors_short.weight"
)
