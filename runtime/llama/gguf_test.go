package llama

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/arch"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/half"
)

// Types of the matrices of a block, so that products of the same input are of several.
var Types = map[string]ggml.Type{
	"attn_q": ggml.Q4_K, "attn_k": ggml.Q6_K, "attn_v": ggml.Q8_0, "attn_output": ggml.Q5_K,
	"ffn_gate": ggml.Q4_0, "ffn_up": ggml.Q2_K, "ffn_down": ggml.Q3_K, "output": ggml.Q6_K, "token_embd": ggml.Q4_1,
}

// MoreTypes are others.
var MoreTypes = map[string]ggml.Type{
	"attn_q": ggml.Q5_0, "attn_k": ggml.Q5_1, "attn_v": ggml.IQ4_XS, "attn_output": ggml.IQ4_NL,
	"ffn_gate": ggml.F16, "ffn_up": ggml.Q4_1, "ffn_down": ggml.F32, "output": ggml.Q4_1, "token_embd": ggml.Q6_K,
}

// Quantized writes a GGUF model of random blocks.
func Quantized(t *testing.T, types map[string]ggml.Type) string {
	t.Helper()
	c := &arch.Config{
		Architecture: arch.Llama, Vocab: 90, Hidden: 256, Intermediate: 512, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 64, RotaryDim: 64,
		MaxPositions: 256, NormEps: 1e-5, AttnScale: 0.125, Activation: arch.SiLU, Rope: arch.Rope{Theta: 10000},
	}
	m := &gguf.Metadata{}
	_, err := c.SetGGUF(m)
	require.NoError(t, err)
	infos := []gguf.TensorInfo{{Name: "token_embd.weight", Shape: []int{90, 256}}, {Name: "output_norm.weight", Shape: []int{256}}, {Name: "output.weight", Shape: []int{90, 256}}}
	for _, layer := range []string{"blk.0.", "blk.1."} {
		for _, w := range []gguf.TensorInfo{
			{Name: "attn_norm", Shape: []int{256}}, {Name: "ffn_norm", Shape: []int{256}},
			{Name: "attn_q", Shape: []int{256, 256}}, {Name: "attn_k", Shape: []int{128, 256}}, {Name: "attn_v", Shape: []int{128, 256}}, {Name: "attn_output", Shape: []int{256, 256}},
			{Name: "ffn_gate", Shape: []int{512, 256}}, {Name: "ffn_up", Shape: []int{512, 256}}, {Name: "ffn_down", Shape: []int{256, 512}},
		} {
			w.Name = layer + w.Name + ".weight"
			infos = append(infos, w)
		}
	}
	for i := range infos {
		parts := strings.Split(infos[i].Name, ".")
		infos[i].Type = types[parts[len(parts)-2]]
	}
	l, err := gguf.Plan(m, infos)
	require.NoError(t, err)
	data := make([]byte, l.Size)
	copy(data, l.Header)
	r := rand.New(rand.NewPCG(3, 4))
	for _, w := range l.Tensors {
		fill(data[w.Offset:w.Offset+w.Size], w.Type, r)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// fill draws codes, and scales that keep weights around 1/16.
func fill(data []byte, typ ggml.Type, r *rand.Rand) {
	switch typ {
	case ggml.F32:
		for ; len(data) > 0; data = data[4:] {
			binary.LittleEndian.PutUint32(data, 0x3d800000+r.Uint32()>>10) // 1/16 and more
		}
		return
	case ggml.F16:
		for ; len(data) > 0; data = data[2:] {
			binary.LittleEndian.PutUint16(data, half.F32ToF16(float32(r.NormFloat64())/16))
		}
		return
	}
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	// Of each type where the half-precision numbers of a block are, and how large weights are beside them.
	at, size := []int{0}, float32(8)
	switch typ {
	case ggml.Q8_0, ggml.IQ4_NL:
		size = 80
	case ggml.Q5_0:
		size = 16
	case ggml.Q4_1, ggml.Q5_1:
		at = []int{0, 2}
	case ggml.Q4_K, ggml.Q5_K:
		at, size = []int{0, 2}, 400
	case ggml.Q2_K:
		at, size = []int{80, 82}, 20
	case ggml.Q3_K:
		at, size = []int{108}, 60
	case ggml.Q6_K:
		at, size = []int{208}, 1200
	case ggml.IQ4_XS:
		size = 1200
	}
	for ; len(data) > 0; data = data[typ.BlockBytes():] {
		for _, p := range at {
			binary.LittleEndian.PutUint16(data[p:], half.F32ToF16((1+r.Float32())/16/size))
		}
	}
}
