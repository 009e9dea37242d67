package convert_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/testdata"
)

// turned is a recipe with a rotation.
func turned(linear, embeddings, head convert.Choice) convert.Recipe {
	r := convert.DefaultRecipe(linear)
	r.Embeddings, r.Head = embeddings, head
	r.Rotation, r.RotationSeed = convert.Hadamard, convert.RotationSeed
	return r
}

// requireClose compares logits, relative to the largest.
func requireClose(t *testing.T, want, got []float32, limit float64) {
	t.Helper()
	require.Len(t, got, len(want))
	var scale, worst float64
	for i, v := range want {
		scale = max(scale, math.Abs(float64(v)))
		worst = max(worst, math.Abs(float64(v)-float64(got[i])))
	}
	require.Positive(t, scale)
	require.Less(t, worst/scale, limit)
}

// rotatable are models of all families that can be turned: with biases, rope scaling, attention windows, fused projections, tied heads, one and several
// heads of keys and values, and widths that are powers of two (64) and not (24, 48, 56).
func rotatable(t *testing.T) []string {
	t.Helper()
	sources := []string{testdata.Path("grammar-lm")}
	paths, err := filepath.Glob(testdata.Path("arch", "*", "config.json"))
	require.NoError(t, err)
	for _, p := range paths {
		if !strings.Contains(p, "gemma") {
			sources = append(sources, filepath.Dir(p))
		}
	}
	require.Greater(t, len(sources), 15)
	return sources
}

// requireTurned quantizes a model to f32 with a rotation, which must change every matrix and no logit.
func requireTurned(t *testing.T, source string) string {
	t.Helper()
	m, out := open(t, source), filepath.Join(t.TempDir(), "out.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, turned("f32", "f32", "f32")), convert.Options{Output: out, Threads: 2})
	require.NoError(t, err)
	requireClose(t, logits(t, source), logits(t, out), 1e-4)
	back := open(t, out)
	require.False(t, back.Config().TieEmbeddings)
	for _, x := range back.Tensors() {
		got := make([]float32, x.Elements())
		require.NoError(t, x.ReadAll(got))
		y, ok := m.Tensor(x.Name)
		if strings.HasSuffix(x.Name, "layernorm.weight") || x.Name == "model.norm.weight" {
			for _, v := range got {
				require.Equal(t, float32(1), v, x.Name)
			}
		} else if len(x.Shape) == 2 && ok {
			was := make([]float32, y.Elements())
			require.NoError(t, y.ReadAll(was))
			require.NotEqual(t, was, got, x.Name)
		}
	}
	return out
}

// TestRotationIsExact: the logits of a turned model are the source's.
func TestRotationIsExact(t *testing.T) {
	for _, source := range rotatable(t) {
		t.Run(filepath.Base(source), func(t *testing.T) { requireTurned(t, source) })
	}
}

// TestRotationOfGGUF: rows of queries and keys lie in another order there, and the configuration and the tie are made of metadata.
func TestRotationOfGGUF(t *testing.T) {
	for _, name := range []string{"llama", "llama-mqa-tied", "qwen2"} {
		path := filepath.Join(t.TempDir(), name+".gguf")
		source := testdata.Path("arch", name)
		full := copyDir(t, source)
		require.NoError(t, os.CopyFS(full, os.DirFS(testdata.Path("arch", "tokenizer"))))
		export(t, full, path, convert.ExportOptions{})
		out := requireTurned(t, path)
		requireClose(t, logits(t, source), logits(t, out), 1e-4)
		// And on to a GGUF file, whose head is then its own.
		again := filepath.Join(t.TempDir(), "again.gguf")
		export(t, out, again, convert.ExportOptions{})
		requireClose(t, logits(t, source), logits(t, again), 1e-4)
	}
}

// TestRotationOfRealModels: the same on trained weights.
func TestRotationOfRealModels(t *testing.T) {
	requireTurned(t, testdata.Shared(t, "models", "stories260k"))
	requireTurned(t, testdata.Shared(t, "models", "tinystories656k"))
	requireTurned(t, testdata.Shared(t, "models", "stories260k-f32.gguf"))
}

// TestRotationUnties: the configuration says so, and keeps everything else.
func TestRotationUnties(t *testing.T) {
	dir := copyDir(t, testdata.Path("arch", "llama-mqa-tied"))
	path := filepath.Join(dir, "config.json")
	var config map[string]any
	require.NoError(t, json.Unmarshal(content(t, path), &config))
	config["note"] = "\"tie_word_embeddings\": true"
	text, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	p := plan(t, open(t, dir), turned("w4g32", "keep", "w8"))
	require.Contains(t, strings.Join(p.Model.Warnings(), "\n"), "a head of its own")
	got, err := p.Model.ReadFile("config.json")
	require.NoError(t, err)
	var after map[string]any
	require.NoError(t, json.Unmarshal(got, &after))
	config["tie_word_embeddings"] = false
	require.Equal(t, config, after)
	last := p.Decisions[len(p.Decisions)-1]
	require.Equal(t, "lm_head.weight", last.Tensor.Name)
	require.Equal(t, "w8", last.Storage())
	require.Equal(t, "BF16", p.Decisions[0].Storage(), "what is kept keeps its type")
}

// TestRotationRefuses: what a rotation would change, and what was rounded before.
func TestRotationRefuses(t *testing.T) {
	refused := func(path, want string) {
		t.Helper()
		_, err := convert.NewPlan(open(t, path), turned("w8", "w8", "w8"))
		require.ErrorIs(t, err, formats.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	for _, name := range []string{"gemma2", "gemma3"} {
		refused(testdata.Path("arch", name), "norms after attention")
	}
	m, out := open(t, testdata.Path("arch", "llama")), filepath.Join(t.TempDir(), "out.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w8")), convert.Options{Output: out, Threads: 1})
	require.NoError(t, err)
	refused(out, "quantized already")

	bad := turned("w8", "w8", "w8")
	bad.Rotation = "givens"
	_, err = convert.NewPlan(m, bad)
	require.ErrorContains(t, err, "givens")
}

// TestRotationSameBytes: threads, resuming at any tensor and the way there change nothing, with and without calibration; the seed does.
func TestRotationSameBytes(t *testing.T) {
	calibrated := turned("w4g32", "w8", "w8")
	calibrated.Method, calibrated.Refine, calibrated.Damping = quant.GPTQ, 1, quant.DefaultDamping
	scaled := calibrated
	scaled.Scaling = quant.AWQ
	for name, recipe := range map[string]convert.Recipe{"rounded": turned("w4g32", "w8", "w8"), "calibrated": calibrated, "scaled": scaled} {
		for _, source := range []string{"grammar-lm", "arch/llama-mqa-tied", "arch/phi3", "arch/llama-bias"} {
			t.Run(name+"/"+source, func(t *testing.T) {
				m := open(t, testdata.Path(strings.Split(source, "/")...))
				var c *convert.Calibration
				if recipe.Method != "" {
					c = calibration(t, m, 3)
				}
				made := func(recipe convert.Recipe, threads int) []byte {
					out := filepath.Join(t.TempDir(), "out.qpk")
					_, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: threads, Calibration: c})
					require.NoError(t, err)
					return content(t, out)
				}
				want := made(recipe, 1)
				require.Equal(t, want, made(recipe, 2))
				other := recipe
				other.RotationSeed++
				require.NotEqual(t, want, made(other, 2))
				for _, stop := range []int{1, 4, 9} {
					out := filepath.Join(t.TempDir(), "out.qpk")
					ctx, cancel := context.WithCancel(t.Context())
					seen := 0
					_, err := convert.Quantize(ctx, m, plan(t, m, recipe), convert.Options{Output: out, Threads: 2, Calibration: c, Progress: func(int64, int64, string) {
						if seen++; seen == stop {
							cancel()
						}
					}})
					cancel()
					require.ErrorIs(t, err, context.Canceled)
					_, err = convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: 1, Calibration: c})
					require.NoError(t, err)
					require.Equal(t, want, content(t, out))
				}
			})
		}
	}
}

// TestRotationKeepsTheSourceDigest: provenance is of the source, whatever was done to it and however.
func TestRotationKeepsTheSourceDigest(t *testing.T) {
	for _, source := range []string{"llama", "llama-mqa-tied", "phi3", "llama-bias"} {
		m := open(t, testdata.Path("arch", source))
		digest := func(r convert.Recipe, c *convert.Calibration) string {
			out := filepath.Join(t.TempDir(), "out.qpk")
			_, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: out, Threads: 2, Calibration: c})
			require.NoError(t, err)
			p, err := packed.Open(out)
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			var of struct {
				Source string `json:"source"`
			}
			require.NoError(t, json.Unmarshal(p.Provenance(), &of))
			require.Len(t, of.Source, 32)
			return of.Source
		}
		want := digest(convert.DefaultRecipe("w4g32"), nil)
		require.Equal(t, want, digest(turned("w4g32", "w8", "w8"), nil), source)
		r := turned("w4g32", "w8", "w8")
		r.Method, r.Damping, r.Scaling = quant.GPTQ, quant.DefaultDamping, quant.AWQ
		require.Equal(t, want, digest(r, calibration(t, m, 3)), source)
	}
}

// TestRotationNamesBadValues: a value that is no number is found where it stands, not where it is spread to.
func TestRotationNamesBadValues(t *testing.T) {
	for _, name := range []string{"model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"} {
		dir := copyDir(t, testdata.Path("arch", "llama"))
		path := filepath.Join(dir, "model.safetensors")
		f, err := safetensors.Open(path)
		require.NoError(t, err)
		x, ok := f.Tensor(name)
		require.True(t, ok)
		require.NoError(t, f.Close())
		data := content(t, path)
		copy(data[int(x.Offset)+4*(3*x.Shape[1]+7):], []byte{0, 0, 0xc0, 0x7f})
		require.NoError(t, os.WriteFile(path, data, 0o600))
		m := open(t, dir)
		_, err = convert.Quantize(t.Context(), m, plan(t, m, turned("f32", "w8", "w8")), convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 2})
		require.ErrorIs(t, err, quant.ErrNotFinite)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "row 3: column 7")
	}
}
