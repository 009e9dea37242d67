// Command model writes a LLaMA of random weights as a Hugging Face folder: large enough that each node has many pages of
// each matrix. The tokenizer is that of the model in testdata.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"qtool/formats"
	"qtool/formats/half"
	"qtool/formats/safetensors"
)

const (
	layers, hidden, intermediate = 4, 1024, 2816
	heads, kvHeads, headDim      = 16, 8, 64
	vocab                        = 512
)

const config = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": %d, "hidden_size": %d,
"intermediate_size": %d, "num_hidden_layers": %d, "num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": %d,
"max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: model TOKENIZER-FOLDER OUTPUT-FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func write(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(config, vocab, hidden, intermediate, layers, heads, kvHeads, headDim)
	if err := os.WriteFile(filepath.Join(to, "config.json"), []byte(text), 0o644); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	add := func(name string, shape ...int) {
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: formats.BF16, Shape: shape})
	}
	add("model.embed_tokens.weight", vocab, hidden)
	add("model.norm.weight", hidden)
	add("lm_head.weight", vocab, hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", hidden)
		add(p+"post_attention_layernorm.weight", hidden)
		add(p+"self_attn.q_proj.weight", heads*headDim, hidden)
		add(p+"self_attn.k_proj.weight", kvHeads*headDim, hidden)
		add(p+"self_attn.v_proj.weight", kvHeads*headDim, hidden)
		add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
		add(p+"mlp.gate_proj.weight", intermediate, hidden)
		add(p+"mlp.up_proj.weight", intermediate, hidden)
		add(p+"mlp.down_proj.weight", hidden, intermediate)
	}
	layout, err := safetensors.Plan(tensors, safetensors.LayoutOptions{})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	return safetensors.Write(filepath.Join(to, "model.safetensors"), layout, func(i int, w io.Writer) error {
		t := tensors[i]
		data := make([]byte, layout.Tensors[i].Size)
		for k := 0; k < len(data); k += 2 {
			v := float32(1) // of a norm
			if len(t.Shape) > 1 {
				v = float32(r.NormFloat64() / math.Sqrt(float64(t.Shape[1])))
			}
			binary.LittleEndian.PutUint16(data[k:], half.F32ToBF16(v))
		}
		_, err := w.Write(data)
		return err
	})
}
