package convert_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats/packed"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// TestTargets: layers that aim at the source's outputs bring predictions closer to the source's on sequences that were not calibrated on; the first
// ones, whose inputs are the source's, are as they were.
func TestTargets(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	all := calibration(t, m, 60)
	c, other := &convert.Calibration{Sequences: all.Sequences[:40]}, all.Sequences[40:]
	source := predictions(t, m.Path(), other)
	var divergences []float64
	var first [][]byte
	for _, targets := range []convert.Targets{convert.OwnOutputs, convert.SourceOutputs} {
		r := convert.DefaultRecipe("w3g32")
		r.Method, r.Targets, r.Embeddings, r.Head = quant.GPTQ, targets, "keep", "keep"
		out := filepath.Join(t.TempDir(), "out.qpk")
		_, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: out, Threads: 2, Calibration: c})
		require.NoError(t, err)
		p, err := packed.Open(out)
		require.NoError(t, err)
		for _, tensor := range p.Tensors() {
			if tensor.Name == "model.layers.0.self_attn.q_proj.weight" {
				first = append(first, append([]byte(nil), p.Data(tensor)...))
			}
		}
		require.NoError(t, p.Close())
		divergences = append(divergences, divergence(source, predictions(t, out, other)))
	}
	require.Len(t, first, 2)
	require.Equal(t, first[0], first[1])
	require.Less(t, divergences[1], 0.9*divergences[0])
}

// predictions are the log probabilities after each token of the sequences.
func predictions(t testing.TB, path string, sequences [][]int32) [][]float64 {
	t.Helper()
	e, err := llama.New(open(t, path), llama.Options{Threads: 2})
	require.NoError(t, err)
	defer e.Close()
	var out [][]float64
	for _, tokens := range sequences {
		require.NoError(t, e.NewSession(len(tokens)).Forward(tokens, 0, func(_ int, logits []float32) error {
			out = append(out, logProbabilities(logits))
			return nil
		}))
	}
	return out
}

func logProbabilities(logits []float32) []float64 {
	var most, sum float64
	for i, l := range logits {
		if i == 0 || float64(l) > most {
			most = float64(l)
		}
	}
	out := make([]float64, len(logits))
	for _, l := range logits {
		sum += math.Exp(float64(l) - most)
	}
	for i, l := range logits {
		out[i] = float64(l) - most - math.Log(sum)
	}
	return out
}

// divergence is the mean of what q diverges from p, in nats.
func divergence(p, q [][]float64) (mean float64) {
	for i := range p {
		for k, l := range p[i] {
			mean += math.Exp(l) * (l - q[i][k]) / float64(len(p))
		}
	}
	return mean
}
