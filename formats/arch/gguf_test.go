package arch

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/gguf"
	"qtool/testdata"
)

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
		"odd rotation":      {"llama.rope.dimension_count", gguf.Uint32(7), formats.ErrUnsupported},
		"part of a head":    {"llama.rope.dimension_count", gguf.Uint32(4), formats.ErrUnsupported},
		"rotation too long": {"llama.rope.dimension_count", gguf.Uint32(1 << 20), formats.ErrMalformed},
		"an adapter":        {"general.type", gguf.String("adapter"), formats.ErrUnsupported},
		"type no text":      {"general.type", gguf.Uint32(1), formats.ErrUnsupported},
		"divisors missing":  {"llama.rope.scaling.type", gguf.String("longrope"), formats.ErrMalformed},
		"scaling no text":   {"llama.rope.scaling.type", gguf.Bool(true), formats.ErrMalformed},
		"factor infinite":   {"llama.rope.scaling.factor", gguf.Float32(float32(math.Inf(1))), formats.ErrMalformed},
		"factor negative":   {"llama.rope.scaling.factor", gguf.Float32(-2), formats.ErrMalformed},
		"window negative":   {"llama.attention.sliding_window", gguf.Int32(-1), formats.ErrMalformed},
		"scale":             {"llama.attention.scale", gguf.Float32(0.5), formats.ErrUnsupported},
		"token as text":     {"tokenizer.ggml.eos_token_id", gguf.String("2"), formats.ErrMalformed},
		"not causal":        {"llama.attention.causal", gguf.Bool(false), formats.ErrUnsupported},
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

// ggufModel has the tensors of a configuration, with values for those that SetGGUF returns.
type ggufModel struct {
	shapes map[string][]int
	values map[string][]float32
}

func (g ggufModel) Has(name string) bool                    { return g.shapes[name] != nil }
func (g ggufModel) Shape(name string) []int                 { return g.shapes[name] }
func (g ggufModel) Float32s(name string) ([]float32, error) { return g.values[name], nil }

func modelOf(c *Config, extra []GGUFTensor) ggufModel {
	g := ggufModel{make(map[string][]int), make(map[string][]float32)}
	for _, s := range c.Tensors() {
		if !s.Optional {
			g.shapes[s.GGUF] = s.Shape
		}
	}
	for _, e := range extra {
		g.shapes[e.Name], g.values[e.Name] = []int{len(e.Values)}, e.Values
	}
	return g
}

// throughGGUF writes c as GGUF keys and reads it back.
func throughGGUF(t testing.TB, c *Config) *Config {
	t.Helper()
	m := &gguf.Metadata{}
	extra, err := c.SetGGUF(m)
	require.NoError(t, err)
	back, err := FromGGUF(m, modelOf(c, extra), "m.gguf")
	require.NoError(t, err)
	return back
}

// requireThroughGGUF requires that c comes back equal, but for what GGUF has no key for and does not matter.
func requireThroughGGUF(t *testing.T, c *Config) {
	t.Helper()
	want := *c
	want.Warnings = nil
	if want.Architecture == Mistral && want.SlidingWindow == 0 {
		want.Architecture = Llama
	}
	require.Equal(t, &want, throughGGUF(t, c))
}

func TestModelsThroughGGUF(t *testing.T) {
	paths, err := filepath.Glob(testdata.Path("arch", "*", "config.json"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(paths), 15)
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(path))
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			c, err := FromHF(text, path)
			require.NoError(t, err)
			if name == "qwen2-sliding" {
				_, err := c.SetGGUF(&gguf.Metadata{})
				require.ErrorContains(t, err, "no GGUF form")
				return
			}
			requireThroughGGUF(t, c)
		})
	}
}

// TestKeysThroughGGUF covers what the models of testdata do not have.
func TestKeysThroughGGUF(t *testing.T) {
	linear := keys{"rope_type": "linear", "factor": 2.5}
	yarn := keys{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3, "beta_fast": 24.0, "beta_slow": 2.0}
	llama3 := func(context int) keys {
		return keys{"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": context}
	}
	layers := func(sliding ...bool) []string {
		names := make([]string, len(sliding))
		for i, s := range sliding {
			names[i] = map[bool]string{false: fullAttention, true: slidingAttention}[s]
		}
		return names
	}
	for name, k := range map[string]keys{
		"llama":            sizes(Llama).with(keys{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}),
		"linear":           sizes(Llama).with(keys{"rope_scaling": linear}),
		"yarn":             sizes(Llama).with(keys{"rope_scaling": yarn}),
		"yarn in qwen2":    sizes(Qwen2).with(keys{"rope_scaling": yarn}),
		"llama3 of 8192":   sizes(Llama).with(keys{"rope_scaling": llama3(8192), "head_dim": 64, "rope_theta": 500000.0, "max_position_embeddings": 131072}),
		"llama3 of 64":     sizes(Llama).with(keys{"rope_scaling": llama3(64), "head_dim": 64}),
		"mistral":          sizes(Mistral).with(keys{"sliding_window": nil}),
		"mistral's window": sizes(Mistral).with(keys{"sliding_window": 16}),
		"phi3":             sizes(Phi3).with(keys{"partial_rotary_factor": 0.5, "sliding_window": 2047}),
		"longrope":         sizes(Llama).with(keys{"rope_scaling": keys{"rope_type": "longrope", "factor": 4.0, "attention_factor": 1.5, "original_max_position_embeddings": 64, "short_factor": []float64{1, 1, 1, 2}, "long_factor": []float64{1.1, 2, 3, 4}}}),
		"gemma2":           sizes(Gemma2),
		"gemma2 of 27B":    sizes(Gemma2).with(keys{"num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144}),
		"gemma2 by period": sizes(Gemma2).with(keys{"layer_types": layers(true, true, true, false)}),
		"gemma2 all full":  sizes(Gemma2).with(keys{"layer_types": layers(false, false, false, false)}),
		"gemma2's scalar":  sizes(Gemma2).with(keys{"query_pre_attn_scalar": 224}),
		"gemma3":           sizes(Gemma3Text).with(keys{"num_hidden_layers": 13, "rope_local_base_freq": 20000.0, "final_logit_softcapping": 20.0}),
		"gemma3 of 27B":    sizes(Gemma3Text).with(keys{"num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168}),
		"gemma3 by 2":      sizes(Gemma3Text).with(keys{"sliding_window_pattern": 2}),
		"gemma3 all full":  sizes(Gemma3Text).with(keys{"layer_types": layers(false, false, false, false)}),
		"gemma3 stretched": sizes(Gemma3Text).with(keys{"rope_parameters": keys{fullAttention: keys{"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, slidingAttention: keys{"rope_type": "default", "rope_theta": 1e4}}}),
	} {
		t.Run(name, func(t *testing.T) { requireThroughGGUF(t, read(t, k)) })
	}
	for name, k := range map[string]keys{
		"irregular windows":   sizes(Gemma3Text).with(keys{"layer_types": layers(true, false, false, true)}),
		"no soft caps":        sizes(Gemma2).with(keys{"attn_logit_softcapping": nil}),
		"GELU in a llama":     sizes(Llama).with(keys{"hidden_act": "gelu_pytorch_tanh"}),
		"llama3 in qwen2":     sizes(Qwen2).with(keys{"rope_scaling": llama3(64)}),
		"window in qwen3":     sizes(Qwen3).with(keys{"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2}),
		"YaRN not rounded":    sizes(Llama).with(keys{"rope_scaling": yarn.with(keys{"truncate": false})}),
		"gemma3's local rope": sizes(Gemma3Text).with(keys{"rope_parameters": keys{fullAttention: keys{"rope_type": "default", "rope_theta": 1e6}, slidingAttention: keys{"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}),
	} {
		_, err := read(t, k).SetGGUF(&gguf.Metadata{})
		require.ErrorContains(t, err, "no GGUF form", name)
	}
}

// TestFrequenciesThroughGGUF checks that every rope that GGUF can say rotates by the same angles.
func TestFrequenciesThroughGGUF(t *testing.T) {
	said := 0
	for _, tc := range ropeCases(t) {
		c, err := FromHF(tc.Config, "config.json")
		require.NoError(t, err)
		if _, err := c.SetGGUF(&gguf.Metadata{}); err != nil {
			require.ErrorContains(t, err, "no GGUF form", tc.Name)
			continue
		}
		said++
		back := throughGGUF(t, c)
		r, s := c.Rope, back.Rope
		if tc.LayerType == slidingAttention {
			r, s = *c.LocalRope, *back.LocalRope
		}
		want, factor := r.Frequencies(c.RotaryDim, tc.Length)
		got, gotFactor := s.Frequencies(back.RotaryDim, tc.Length)
		require.InEpsilonSlice(t, want, got, 1e-6, tc.Name)
		require.InEpsilon(t, factor, gotFactor, 1e-6, tc.Name)
	}
	require.Greater(t, said, len(ropeCases(t))/2)
}

// TestReadsGGUF covers keys that SetGGUF does not write.
func TestReadsGGUF(t *testing.T) {
	f32 := gguf.Float32
	for name, tc := range map[string]struct {
		model string
		set   map[string]gguf.Value // null values are removed
		extra []GGUFTensor
		check func(t *testing.T, c *Config)
	}{
		"a factor without a type": {Llama, map[string]gguf.Value{"llama.rope.scaling.factor": f32(2)}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, Rope{Kind: RopeLinear, Theta: 10000, Factor: 2}, c.Rope)
		}},
		"the old name of a factor": {Llama, map[string]gguf.Value{"llama.rope.scale_linear": f32(4)}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, Rope{Kind: RopeLinear, Theta: 10000, Factor: 4}, c.Rope)
		}},
		"type none": {Llama, map[string]gguf.Value{"llama.rope.scaling.factor": f32(2), "llama.rope.scaling.type": gguf.String("none")}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, RopeDefault, c.Rope.Kind)
		}},
		"heads by layer": {Llama, map[string]gguf.Value{"llama.attention.head_count_kv": gguf.Array([]int32{2, 2, 2, 2})}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, 2, c.KVHeads)
		}},
		"divisors of no formula": {Llama, nil, []GGUFTensor{{ropeFreqsName, []float32{1, 3, 2, 5}}}, func(t *testing.T, c *Config) {
			require.True(t, c.Rope.fixedDivisors())
			got, factor := c.Rope.Frequencies(8, 1)
			require.InEpsilonSlice(t, []float64{1, 0.1 / 3, 0.01 / 2, 0.001 / 5}, got, 1e-12)
			require.Equal(t, 1.0, factor)
			requireThroughGGUF(t, c)
		}},
		"divisors of 1": {Llama, nil, []GGUFTensor{{ropeFreqsName, []float32{1, 1, 1, 1}}}, func(t *testing.T, c *Config) {
			require.Equal(t, RopeDefault, c.Rope.Kind)
		}},
		"gemma2 without its window": {Gemma2, map[string]gguf.Value{"gemma2.attention.sliding_window": {}, "gemma2.final_logit_softcapping": {}}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, 4096, c.SlidingWindow)
			require.Equal(t, []bool{true, false, true, false}, c.LayerSliding)
			require.Equal(t, 30.0, c.FinalSoftcap)
		}},
		"flags of layers": {Gemma3Text, map[string]gguf.Value{"gemma3.attention.sliding_window_pattern": gguf.Array([]bool{true, false, false, true})}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, []bool{true, false, false, true}, c.LayerSliding)
		}},
		"a period of 1": {Gemma3Text, map[string]gguf.Value{"gemma3.attention.sliding_window_pattern": gguf.Uint32(1)}, nil, func(t *testing.T, c *Config) {
			require.Zero(t, c.SlidingWindow)
		}},
		"a window in qwen2": {Qwen2, map[string]gguf.Value{"qwen2.attention.sliding_window": gguf.Uint32(8)}, nil, func(t *testing.T, c *Config) {
			require.Zero(t, c.SlidingWindow)
			require.Len(t, c.Warnings, 1)
		}},
		"ends of turns": {Llama, map[string]gguf.Value{"tokenizer.ggml.eos_token_id": gguf.Uint32(2), "tokenizer.ggml.eot_token_id": gguf.Uint32(5), "tokenizer.ggml.eom_token_id": gguf.Uint32(2)}, nil, func(t *testing.T, c *Config) {
			require.Equal(t, []int{2, 5}, c.EOS)
		}},
		"no token": {Llama, map[string]gguf.Value{"tokenizer.ggml.padding_token_id": gguf.Uint32(math.MaxUint32)}, nil, func(t *testing.T, c *Config) {
			require.Empty(t, c.PAD)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := read(t, sizes(tc.model))
			m := &gguf.Metadata{}
			extra, err := c.SetGGUF(m)
			require.NoError(t, err)
			for key, v := range tc.set {
				if m.Set(key, v); v.Equal(gguf.Value{}) {
					m.Remove(key)
				}
			}
			back, err := FromGGUF(m, modelOf(c, append(extra, tc.extra...)), "m.gguf")
			require.NoError(t, err)
			tc.check(t, back)
		})
	}
}

func TestRefusesDivisors(t *testing.T) {
	c := read(t, sizes(Llama))
	for name, tc := range map[string]struct {
		extra []GGUFTensor
		kind  string
	}{
		"too few":        {[]GGUFTensor{{ropeFreqsName, []float32{1, 2}}}, ""},
		"of 0":           {[]GGUFTensor{{ropeFreqsName, []float32{1, 2, 0, 4}}}, ""},
		"NaN":            {[]GGUFTensor{{ropeFreqsName, []float32{1, 2, float32(math.NaN()), 4}}}, ""},
		"short alone":    {[]GGUFTensor{{ropeShortName, []float32{1, 2, 3, 4}}}, ""},
		"with a scaling": {[]GGUFTensor{{ropeFreqsName, []float32{1, 2, 3, 4}}}, "linear"},
	} {
		m := &gguf.Metadata{}
		_, err := c.SetGGUF(m)
		require.NoError(t, err)
		if tc.kind != "" {
			m.Set("llama.rope.scaling.type", gguf.String(tc.kind))
			m.Set("llama.rope.scaling.factor", gguf.Float32(2))
		}
		_, err = FromGGUF(m, modelOf(c, tc.extra), "m.gguf")
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%s: %v", name, err)
	}
}

// TestAlteredGGUF sets keys to values of any type and size: each result is an error or a sound configuration.
func TestAlteredGGUF(t *testing.T) {
	values := []gguf.Value{
		{}, gguf.Uint32(0), gguf.Uint32(1), gguf.Uint32(3), gguf.Uint32(8), gguf.Uint32(1 << 20), gguf.Uint32(math.MaxUint32),
		gguf.Uint64(math.MaxUint64), gguf.Int32(-1), gguf.Int64(math.MinInt64), gguf.Float32(0), gguf.Float32(-1), gguf.Float32(1e-30),
		gguf.Float32(1e30), gguf.Float32(float32(math.NaN())), gguf.Float64(math.Inf(-1)), gguf.Float64(1e300), gguf.Bool(true), gguf.String(""),
		gguf.String("yarn"), gguf.String("linear"), gguf.String("longrope"), gguf.Array([]int32{}), gguf.Array([]int32{2, 2, 2, 2}), gguf.Array([]bool{true, false, true, true}),
		gguf.Array([]float32{1}), gguf.Strings([]string{"a"}),
	}
	more := []string{
		"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
		"rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier", "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "expert_count",
	}
	random := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 6000 {
		name := Families()[random.IntN(len(Families()))]
		f, _ := familyOf(name)
		c := read(t, sizes(name))
		m := &gguf.Metadata{}
		extra, err := c.SetGGUF(m)
		require.NoError(t, err)
		all := m.Keys()[1:] // all but the architecture
		for _, key := range more {
			all = append(all, f.gguf+"."+key)
		}
		model := modelOf(c, extra)
		for range 1 + random.IntN(3) {
			m.Set(all[random.IntN(len(all))], values[random.IntN(len(values))])
		}
		accepted += requireSound(t, m, model)
	}
	require.Greater(t, accepted, 100)
}

// requireSound reads a configuration that is in order if there is no error, and returns whether there is none.
func requireSound(t *testing.T, m *gguf.Metadata, model GGUFTensors) int {
	t.Helper()
	c, err := FromGGUF(m, model, "m.gguf")
	if err != nil {
		require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
		return 0
	}
	for i := range min(c.Layers, 8) {
		frequencies, factor := c.LayerRope(i).Frequencies(c.RotaryDim, c.MaxPositions)
		for _, x := range append(frequencies, factor) {
			require.False(t, math.IsNaN(x) || math.IsInf(x, 0))
		}
		_ = c.LayerWindow(i)
	}
	require.Len(t, c.LayerSliding, c.Layers)
	require.Equal(t, c.SlidingWindow > 0, slices.Contains(c.LayerSliding, true))
	again := &gguf.Metadata{}
	extra, err := c.SetGGUF(again)
	if err == nil && c.Layers <= 64 {
		back, err := FromGGUF(again, modelOf(c, extra), "m.gguf")
		require.NoError(t, err)
		require.Equal(t, c.LayerSliding, back.LayerSliding)
	}
	return 1
}

// FuzzFromGGUF: no metadata makes it panic; what it accepts can be computed with, and written where GGUF can
// say it, and read again.
func FuzzFromGGUF(f *testing.F) {
	for _, name := range Families() {
		m := &gguf.Metadata{}
		_, err := read(f, sizes(name)).SetGGUF(m)
		require.NoError(f, err)
		text, err := m.MarshalTyped()
		require.NoError(f, err)
		f.Add(text, []byte{1, 2, 3, 4})
	}
	f.Fuzz(func(t *testing.T, text, divisors []byte) {
		m, err := gguf.ParseTyped(text, "keys")
		if err != nil {
			return
		}
		g := ggufModel{map[string][]int{"token_embd.weight": {96, 48}}, make(map[string][]float32)}
		if len(divisors) > 0 {
			name := []string{ropeFreqsName, "none"}[divisors[0]%2]
			for _, b := range divisors {
				g.values[name] = append(g.values[name], float32(b)/4)
			}
			g.shapes[name] = []int{len(divisors)}
		}
		requireSound(t, m, g)
	})
}
