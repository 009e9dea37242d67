package llama_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/half"
	"qtool/runtime/eval"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
)

// types of the matrices of a block, so that products of the same input are of several.
var types = map[string]ggml.Type{
	"attn_q": ggml.Q4_K, "attn_k": ggml.Q6_K, "attn_v": ggml.Q8_0, "attn_output": ggml.Q5_K,
	"ffn_gate": ggml.Q4_0, "ffn_up": ggml.Q2_K, "ffn_down": ggml.Q3_K, "output": ggml.Q6_K, "token_embd": ggml.Q4_1,
}

var moreTypes = map[string]ggml.Type{
	"attn_q": ggml.Q5_0, "attn_k": ggml.Q5_1, "attn_v": ggml.IQ4_XS, "attn_output": ggml.IQ4_NL,
	"ffn_gate": ggml.F16, "ffn_up": ggml.Q4_1, "ffn_down": ggml.F32, "output": ggml.Q4_1, "token_embd": ggml.Q6_K,
}

// quantized writes a GGUF model of random blocks.
func quantized(t *testing.T, types map[string]ggml.Type) string {
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

// engineOf opens a model and an engine.
func engineOf(t *testing.T, path string, o llama.Options) *llama.Engine {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	o.Threads, o.KV = 2, llama.KVF32
	e, err := llama.New(m, o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// logitsOf runs some tokens.
func logitsOf(t *testing.T, e *llama.Engine) [][]float32 {
	t.Helper()
	var all [][]float32
	require.NoError(t, e.NewSession(64).Forward(made(50, 3, e.Vocab()), 0, func(_ int, l []float32) error {
		all = append(all, slices.Clone(l))
		return nil
	}))
	return all
}

// TestRepacked: what is repacked predicts as what is decoded does, but for the rounding of activations.
func TestRepacked(t *testing.T) {
	for _, model := range []map[string]ggml.Type{types, moreTypes} {
		path := quantized(t, model)
		exact := engineOf(t, path, llama.Options{Repack: true, Activations: llama.ActivationsF32})
		require.Equal(t, "f32", llama.Roundings(exact.Weights()))
		want := logitsOf(t, exact)
		require.Equal(t, want, logitsOf(t, engineOf(t, path, llama.Options{})), "nothing is repacked unasked")
		for _, set := range kernel.Available() {
			t.Setenv(kernel.EnvLevel, set.Name)
			mean := make(map[llama.Activations]float64)
			for _, a := range []llama.Activations{llama.ActivationsAuto, llama.ActivationsInt8, llama.ActivationsInt16} {
				got := logitsOf(t, engineOf(t, path, llama.Options{Repack: true, Activations: a}))
				for i := range want {
					d, err := eval.Divergence(want[i], got[i])
					require.NoError(t, err)
					mean[a] += d / float64(len(want))
				}
			}
			t.Logf("%s: %v", set.Name, mean)
			require.Less(t, mean[llama.ActivationsInt8], 1e-5)
			require.Positive(t, mean[llama.ActivationsInt8])
			require.Less(t, mean[llama.ActivationsInt16], mean[llama.ActivationsInt8]/1000)
		}
	}
}

// TestWeightsSaysHowTheyRun: every matrix is counted, those that cannot be repacked by name.
func TestWeightsSaysHowTheyRun(t *testing.T) {
	e := engineOf(t, quantized(t, types), llama.Options{Repack: true})
	var lines []string
	for _, w := range e.Weights() {
		lines = append(lines, w.String())
		require.Equal(t, strings.HasPrefix(w.Form, "repacked"), w.RepackedBytes > 0)
		require.Positive(t, w.Bytes)
	}
	fine := "int12"
	if e.CPU() == "avx512" {
		fine = "int16"
	}
	require.Equal(t, []string{
		"2 tensors Q4_K repacked, 4 bits, activations in int8", "3 tensors Q6_K repacked, 6 bits, activations in int8",
		"2 tensors Q8_0 repacked, 8 bits, activations in " + fine, "2 tensors Q5_K repacked, 5 bits, activations in int8",
		"2 tensors Q4_0 repacked, 4 bits, activations in int8", "2 tensors Q2_K decoded to f32, activations in f32",
		"2 tensors Q3_K repacked, 3 bits, activations in int8",
	}, lines)
	require.Equal(t, "f32 and "+fine+" and int8", llama.Roundings(e.Weights()))
	more := engineOf(t, quantized(t, moreTypes), llama.Options{Repack: true}).Weights()
	require.Contains(t, more, llama.Weights{Type: "F32", Tensors: 2, Form: "as stored", Activations: "f32", Bytes: 2 * 4 * 256 * 512})
	_, err := llama.New(nil, llama.Options{Activations: "int4"})
	require.ErrorContains(t, err, "int4")
}

// TestRepackedSteps generates for several sequences together the same bits as for each alone, without taking memory.
func TestRepackedSteps(t *testing.T) {
	for _, model := range []map[string]ggml.Type{types, moreTypes} {
		path := quantized(t, model)
		for _, set := range kernel.Available() {
			t.Setenv(kernel.EnvLevel, set.Name)
			for _, a := range []llama.Activations{llama.ActivationsAuto, llama.ActivationsInt16} {
				e := engineOf(t, path, llama.Options{Repack: true, Activations: a})
				testStep(t, e)
				var together []*llama.Session
				tokens := []int32{1, 2, 3, 4, 5, 6, 7}
				for range tokens {
					together = append(together, e.NewSession(9))
				}
				again := func() {
					for _, s := range together {
						s.Reset()
					}
					if err := e.Step(together, tokens, func(int, []float32) error { return nil }); err != nil {
						t.Fatal(err)
					}
				}
				again()
				if info, ok := debug.ReadBuildInfo(); ok && !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
					require.Zero(t, testing.AllocsPerRun(10, again), "%s %s", set.Name, a)
				}
			}
		}
	}
}
