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
