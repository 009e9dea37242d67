package arch

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/gguf"
)

// seeds are configurations that must be refused.
var seeds = []string{
	``, `[]`, `null`, `{`, `{"model_type":"llama"}`, `{"model_type":1}`, `{"model_type":"llama","model_type":"llama"}`,
	`{"model_type":"llama","vocab_size":-1,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":1e3,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":96.0,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":"96","hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":null,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":9223372036854775807,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":99999999,"num_attention_heads":6}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":5}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":4}`,
	`{"model_type":"llama","Vocab_Size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6}`,
	"{\"model_type\":\"ll\xffama\"}",
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6,"rope_scaling":{"rope_type":"dynamic","factor":2.0}}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6,"rms_norm_eps":-1}`,
	`{"model_type":"llama","vocab_size":96,"hidden_size":48,"intermediate_size":44,"num_hidden_layers":2,"num_attention_heads":6,"rope_theta":0}`,
}

func TestRefusesConfigurations(t *testing.T) {
	for _, s := range seeds {
		_, err := FromHF([]byte(s), "config.json")
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%s: %v", s, err)
		require.ErrorContains(t, err, "config.json")
	}
}

// FuzzFromHF: no input makes it panic; what it accepts can be written and read again, and computed with.
func FuzzFromHF(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	for _, name := range Families() {
		f.Add(sizes(name).json(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := FromHF(data, "config.json")
		if err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
			return
		}
		frequencies, factor := c.Rope.Frequencies(c.RotaryDim, c.MaxPositions)
		for _, x := range append(frequencies, factor) {
			require.False(t, math.IsNaN(x) || math.IsInf(x, 0) || x < 0, "%v", x)
		}
		require.NotEmpty(t, c.Tensors())
		_, _ = c.SetGGUF(&gguf.Metadata{}) // an error where GGUF cannot say it
	})
}

// ggufTensors are the tensors of a model without biases.
type ggufTensors struct{ shape []int }

func (g ggufTensors) Has(name string) bool {
	return name == "token_embd.weight" || name == "output.weight"
}
func (g ggufTensors) Shape(name string) []int {
	if g.Has(name) {
		return g.shape
	}
	return nil
}
func (g ggufTensors) Float32s(string) ([]float32, error) { return nil, errors.New("none") }

func TestRefusesGGUF(t *testing.T) {
	good := func() *gguf.Metadata {
		m := &gguf.Metadata{}
		c := read(t, sizes(Llama))
		_, err := c.SetGGUF(m)
		require.NoError(t, err)
		return m
	}
	tensors := ggufTensors{[]int{96, 48}}
	_, err := FromGGUF(good(), tensors, "m.gguf")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		key   string
		value gguf.Value
		kind  error
	}{
		"architecture":      {"general.architecture", gguf.String("mamba"), formats.ErrUnsupported},
		"no text":           {"general.architecture", gguf.Uint32(1), formats.ErrMalformed},
		"no layers":         {"llama.block_count", gguf.Uint32(0), formats.ErrMalformed},
		"too many layers":   {"llama.block_count", gguf.Uint32(1 << 31), formats.ErrMalformed},
		"width as text":     {"llama.embedding_length", gguf.String("48"), formats.ErrMalformed},
		"width as a float":  {"llama.embedding_length", gguf.Float32(48), formats.ErrMalformed},
		"heads by layer":    {"llama.attention.head_count", gguf.Array([]int32{6, 6, 6, 2}), formats.ErrUnsupported},
		"heads of 3 layers": {"llama.attention.head_count", gguf.Array([]int32{6, 6, 6}), formats.ErrMalformed},
		"heads do not fit":  {"llama.attention.head_count_kv", gguf.Uint32(4), formats.ErrMalformed},
		"epsilon NaN":       {"llama.attention.layer_norm_rms_epsilon", gguf.Float32(float32(math.NaN())), formats.ErrMalformed},
		"experts":           {"llama.expert_count", gguf.Uint32(8), formats.ErrUnsupported},
		"vocab":             {"llama.vocab_size", gguf.Uint32(97), formats.ErrMalformed},
		"too many tokens":   {"tokenizer.ggml.tokens", gguf.Strings(make([]string, 97)), formats.ErrMalformed},
		"scaling":           {"llama.rope.scaling.type", gguf.String("spiral"), formats.ErrUnsupported},
		"odd rotation":      {"llama.rope.dimension_count", gguf.Uint32(7), formats.ErrMalformed},
		"rotation too long": {"llama.rope.dimension_count", gguf.Uint32(64), formats.ErrMalformed},
		"values of 5":       {"llama.attention.value_length", gguf.Uint32(5), formats.ErrUnsupported},
		"scaled logits":     {"llama.logit_scale", gguf.Float32(0.5), formats.ErrUnsupported},
		"base of 0":         {"llama.rope.freq_base", gguf.Float32(0), formats.ErrMalformed},
	} {
		m := good()
		m.Set(c.key, c.value)
		_, err := FromGGUF(m, tensors, "m.gguf")
		require.ErrorIs(t, err, c.kind, name)
	}
	for _, key := range []string{"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"} {
		m := good()
		m.Remove(key)
		_, err := FromGGUF(m, tensors, "m.gguf")
		require.ErrorIs(t, err, formats.ErrMalformed, key)
		require.ErrorContains(t, err, key)
	}
	_, err = FromGGUF(good(), ggufTensors{[]int{96}}, "m.gguf")
	require.ErrorContains(t, err, "token_embd.weight")
}
