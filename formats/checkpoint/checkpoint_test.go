package checkpoint_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/safetensors"
	"qtool/testdata"
)

// edited copies the tiny llama to a folder of its own with another configuration and other tensors.
func edited(t *testing.T, config func(map[string]any), tensors func(map[string]safetensors.Tensor, map[string][]byte)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	source := testdata.Path("arch", "llama")
	require.NoError(t, os.CopyFS(dir, os.DirFS(source)))
	if config != nil {
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		var c map[string]any
		require.NoError(t, json.Unmarshal(text, &c))
		config(c)
		text, err = json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	}
	if tensors == nil {
		return dir
	}
	f, err := safetensors.Open(filepath.Join(source, "model.safetensors"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	all, data := make(map[string]safetensors.Tensor), make(map[string][]byte)
	for _, x := range f.Tensors() {
		all[x.Name], data[x.Name] = x, append([]byte(nil), f.Data(x)...)
	}
	tensors(all, data)
	var list []safetensors.Tensor
	for name, x := range all {
		x.Name = name
		list = append(list, x)
	}
	l, err := safetensors.Plan(list, safetensors.LayoutOptions{})
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), l, func(i int, w io.Writer) error {
		_, err := w.Write(data[l.Tensors[i].Name])
		return err
	}))
	return dir
}

const (
	embedding = "model.embed_tokens.weight"
	head      = "lm_head.weight"
)

// TestTies goes through the flag and the stored tensors in every combination.
func TestTies(t *testing.T) {
	remove := func(name string) func(map[string]safetensors.Tensor, map[string][]byte) {
		return func(x map[string]safetensors.Tensor, _ map[string][]byte) { delete(x, name) }
	}
	both := func(x map[string]safetensors.Tensor, d map[string][]byte) { d[head] = d[embedding] }
	for _, c := range []struct {
		name    string
		tied    any
		tensors func(map[string]safetensors.Tensor, map[string][]byte)
		want    string // part of the error, empty for none
		head    bool   // the model has a head of its own
	}{
		{"untied, both", false, nil, "", true},
		{"untied by default, both", nil, nil, "", true},
		{"untied, no head", false, remove(head), head, false},
		{"untied, no embedding", false, remove(embedding), embedding, false},
		{"tied, no head", true, remove(head), "", false},
		{"tied, no embedding", true, remove(embedding), "", false},
		{"tied, both the same", true, both, "", false},
		{"tied, both and different", true, nil, "differs from", false},
		{"tied, neither", true, func(x map[string]safetensors.Tensor, _ map[string][]byte) { delete(x, head); delete(x, embedding) }, embedding, false},
	} {
		dir := edited(t, func(m map[string]any) {
			m["tie_word_embeddings"] = c.tied
			if c.tied == nil {
				delete(m, "tie_word_embeddings")
			}
		}, c.tensors)
		m, err := checkpoint.Open(dir)
		if c.want != "" {
			require.ErrorIs(t, err, formats.ErrMalformed, c.name)
			require.ErrorContains(t, err, c.want, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		_, ok := m.Tensor(embedding)
		require.True(t, ok, c.name)
		_, ok = m.Tensor(head)
		require.Equal(t, c.head, ok, c.name)
		require.NoError(t, m.Close())
	}
}

func TestModelsThatDoNotFit(t *testing.T) {
	set := func(key string, v any) func(map[string]any) { return func(m map[string]any) { m[key] = v } }
	for name, c := range map[string]struct {
		config  func(map[string]any)
		tensors func(map[string]safetensors.Tensor, map[string][]byte)
		want    string
		kind    error
	}{
		"heads do not divide":      {config: set("num_key_value_heads", 4), want: "not a multiple", kind: formats.ErrMalformed},
		"no heads":                 {config: set("num_attention_heads", 0), want: "num_attention_heads", kind: formats.ErrMalformed},
		"vocab larger":             {config: set("vocab_size", 68), want: "expected shape [68 48]", kind: formats.ErrMalformed},
		"vocab smaller":            {config: set("vocab_size", 66), want: "expected shape [66 48]", kind: formats.ErrMalformed},
		"more layers than weights": {config: set("num_hidden_layers", 3), want: "model.layers.2.", kind: formats.ErrMalformed},
		"fewer layers":             {config: set("num_hidden_layers", 1), want: "has no such tensor", kind: formats.ErrUnsupported},
		"other width":              {config: set("intermediate_size", 45), want: "mlp.gate_proj.weight", kind: formats.ErrMalformed},
		"a bias nobody asked for": {tensors: func(x map[string]safetensors.Tensor, d map[string][]byte) {
			x["model.layers.0.self_attn.q_proj.bias"], d["model.layers.0.self_attn.q_proj.bias"] = safetensors.Tensor{DType: formats.F32, Shape: []int{1}}, make([]byte, 4)
		}, want: "q_proj.bias", kind: formats.ErrUnsupported},
		"quantized elsewhere": {config: set("quantization_config", map[string]any{"quant_method": "gptq"}), want: "quantization_config", kind: formats.ErrUnsupported},
		"experts":             {config: set("num_local_experts", 8), want: "num_local_experts", kind: formats.ErrUnsupported},
	} {
		m, err := checkpoint.Open(edited(t, c.config, c.tensors))
		require.ErrorIs(t, err, c.kind, name)
		require.ErrorContains(t, err, c.want, name)
		require.Nil(t, m)
	}
	// Buffers that carry nothing are left aside, and named.
	m, err := checkpoint.Open(edited(t, nil, func(x map[string]safetensors.Tensor, d map[string][]byte) {
		const name = "model.layers.0.self_attn.rotary_emb.inv_freq"
		x[name], d[name] = safetensors.Tensor{DType: formats.F32, Shape: []int{4}}, make([]byte, 16)
	}))
	require.NoError(t, err)
	require.Equal(t, []string{"model.layers.0.self_attn.rotary_emb.inv_freq"}, m.Dropped())
	require.NoError(t, m.Close())
}

// TestTypesThatAreNoWeights: integers are refused when they are to be read, by name.
func TestTypesThatAreNoWeights(t *testing.T) {
	m, err := checkpoint.Open(edited(t, nil, func(x map[string]safetensors.Tensor, d map[string][]byte) {
		e := x[embedding]
		e.DType = formats.I32
		x[embedding] = e
	}))
	require.NoError(t, err)
	x, ok := m.Tensor(embedding)
	require.True(t, ok)
	require.ErrorIs(t, x.CanRead(), formats.ErrUnsupported)
	require.ErrorContains(t, x.CanRead(), "I32")
	require.NoError(t, m.Close())
}

// TestF8Weights: 8-bit floats are read as what they are.
func TestF8Weights(t *testing.T) {
	const name = "model.norm.weight"
	m, err := checkpoint.Open(edited(t, nil, func(x map[string]safetensors.Tensor, d map[string][]byte) {
		n := x[name]
		n.DType = formats.F8E4M3
		x[name] = n
		d[name] = make([]byte, 48)
		for i := range d[name] {
			d[name][i] = 0x38
		}
	}))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	x, _ := m.Tensor(name)
	got := make([]float32, 48)
	require.NoError(t, x.ReadAll(got))
	require.Equal(t, float32(1), got[0])
}
