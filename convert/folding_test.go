package convert

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/linalg"
	"qtool/runtime/llama"
	"qtool/runtime/pool"
	"qtool/testdata"
)

// folded runs a calibrated quantization that scales channels, and gives the model that it means before any code is chosen: norms as they were stored, the
// source's weights times the factors of their columns, by those of their rows.
func folded(t *testing.T, source *checkpoint.Model, r Recipe) (after *checkpoint.Model, run *calibrated, changed int) {
	t.Helper()
	p, err := NewPlan(source, r)
	require.NoError(t, err)
	c := &Calibration{}
	random := rand.New(rand.NewPCG(51, 52))
	for range 4 {
		tokens := make([]int32, 32)
		for i := range tokens {
			tokens[i] = int32(random.IntN(source.Config().Vocab))
		}
		c.Sequences = append(c.Sequences, tokens)
	}
	m := p.Model
	q := &quantization{model: m, plan: p, result: &Result{}, options: Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 2, Calibration: c}}
	for _, d := range p.Decisions {
		q.contents.Entries = append(q.contents.Entries, packed.Entry{Name: d.Tensor.Name, Shape: d.Tensor.Shape, Scheme: d.Scheme, DType: d.DType})
	}
	require.NoError(t, q.lay(packed.Digest{}, nil))
	q.work, err = openWork(q.options.Output, "key", q.layout.Size, func(string) (int64, int64, bool) { return 0, 0, false })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.work.close()) })
	set, err := kernel.Best()
	require.NoError(t, err)
	run = &calibrated{quantization: q, length: len(c.Sequences[0]), decisions: make(map[string]Decision), factors: make(map[string][]float32), divided: make(map[string]division), pool: pool.New(2)}
	t.Cleanup(run.pool.Close)
	for _, d := range p.Decisions {
		run.decisions[d.Tensor.Name] = d
	}
	run.engine, err = llama.New(m, llama.Options{Threads: 2, KV: llama.KVF32})
	require.NoError(t, err)
	t.Cleanup(run.engine.Close)
	run.solver, run.blocks = linalg.New(set, run.pool), run.engine.Blocks()
	require.NoError(t, run.run(t.Context()))

	var tensors []*checkpoint.Tensor
	for _, d := range p.Decisions {
		x := d.Tensor
		factors, ok := run.factors[x.Name]
		by := run.divided[x.Name]
		_, written := q.work.done[x.Name]
		switch {
		case ok:
			x = x.Derive(x.TensorSpec, formats.F32, func(dst []float32, first, n int, reader *checkpoint.Reader) error {
				if err := d.Tensor.ReadRows(dst, first, n, reader); err != nil {
					return err
				}
				for i := range dst {
					dst[i] *= factors[i%len(factors)]
					if row := first + i/len(factors) - by.first; row >= 0 && row < len(by.factors) {
						dst[i] /= by.factors[row]
					}
				}
				return nil
			})
		case len(x.Shape) == 1 && written:
			place := q.places[x.Name]
			raw := make([]byte, place.Size)
			_, err := q.work.data.ReadAt(raw, place.Offset)
			require.NoError(t, err)
			values := make([]float32, x.Elements())
			decodePlain(values, raw, d.DType)
			was := make([]float32, len(values))
			require.NoError(t, x.ReadAll(was))
			if x.Role == arch.Norm && !slices.Equal(was, values) {
				changed++ // AWQ may find that a layer is best left alone
			}
			x = x.Derive(x.TensorSpec, formats.F32, func(dst []float32, _, _ int, _ *checkpoint.Reader) error { copy(dst, values); return nil })
		}
		tensors = append(tensors, x)
	}
	return m.View(m.Config(), tensors, nil), run, changed
}

// logitsOf runs a model on a few tokens.
func logitsOf(t *testing.T, m *checkpoint.Model) []float32 {
	t.Helper()
	e, err := llama.New(m, llama.Options{Threads: 1, KV: llama.KVF32})
	require.NoError(t, err)
	defer e.Close()
	var out []float32
	require.NoError(t, e.NewSession(64).Forward([]int32{1, 5, 9, 30, 31, 8, 3, 44, 12, 13, 14, 15, 16, 40, 2, 33, 21, 22, 23}, 0, func(_ int, l []float32) error {
		out = append(out, l...)
		return nil
	}))
	return out
}

// TestFoldingIsExact: scaling channels, alone and after a rotation, leaves the logits what they were, whatever the type that a norm's weights are rounded
// to.
func TestFoldingIsExact(t *testing.T) {
	sources := map[string]string{"grammar-lm": testdata.Path("grammar-lm")}
	for _, name := range []string{"llama", "llama-bias", "llama-mqa-tied", "llama-yarn", "mistral", "qwen2", "qwen3", "phi3", "phi3-longrope", "gemma2", "gemma3"} {
		sources[name] = testdata.Path("arch", name)
	}
	for name, path := range sources {
		for _, scaling := range []quant.Scaling{quant.AWQ, quant.SmoothQuant} {
			for _, rotation := range []Rotation{NoRotation, Hadamard} {
				if rotation == Hadamard && strings.HasPrefix(name, "gemma") {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, scaling, rotation), func(t *testing.T) {
					requireFolded(t, path, scaling, rotation)
				})
			}
		}
	}
}

// TestFoldingOfZeros: a norm may silence channels, which then have nothing to be scaled.
func TestFoldingOfZeros(t *testing.T) {
	for name, zero := range map[string]float32{"llama": 0, "gemma2": -1} {
		dir := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.CopyFS(dir, os.DirFS(testdata.Path("arch", name))))
		m, err := checkpoint.Open(dir)
		require.NoError(t, err)
		weights := m.Paths()[0]
		data, err := os.ReadFile(weights)
		require.NoError(t, err)
		silenced := 0
		for _, x := range m.Tensors() {
			if x.Role != arch.Norm || !strings.Contains(x.Name, "layers.") {
				continue
			}
			dtype, ok := x.DType()
			require.True(t, ok)
			at := bytes.Index(data, x.Raw())
			require.Positive(t, at)
			copy(data[at:], encodePlain([]float32{zero}, dtype))
			silenced++
		}
		require.Positive(t, silenced)
		require.NoError(t, m.Close())
		require.NoError(t, os.WriteFile(weights, data, 0o600))
		for _, scaling := range []quant.Scaling{quant.AWQ, quant.SmoothQuant} {
			requireFolded(t, dir, scaling, NoRotation)
		}
	}
}

// TestFoldingOfRealModel: the same on trained weights.
func TestFoldingOfRealModel(t *testing.T) {
	path := testdata.Shared(t, "models", "stories260k")
	for _, scaling := range []quant.Scaling{quant.AWQ, quant.SmoothQuant} {
		for _, rotation := range []Rotation{NoRotation, Hadamard} {
			requireFolded(t, path, scaling, rotation)
		}
	}
}

func requireFolded(t *testing.T, path string, scaling quant.Scaling, rotation Rotation) {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	r := DefaultRecipe("w4g32")
	r.Method, r.Damping, r.Scaling, r.Rotation = quant.RTN, quant.DefaultDamping, scaling, rotation
	if scaling == quant.SmoothQuant {
		r.Linear, r.Ranges = "w8-s8", calibrate.MSE
	}
	after, run, changed := folded(t, m, r)
	for _, x := range m.Tensors() {
		if x.Role == arch.Linear {
			require.Contains(t, run.factors, x.Name)
		}
	}
	require.Len(t, run.divided, 2*m.Config().Layers)
	requireMostFactors(t, run)
	require.Empty(t, run.result.Unscaled)
	require.Positive(t, changed)
	require.True(t, slices.ContainsFunc(slices.Collect(maps.Values(run.divided)), func(d division) bool {
		return slices.Max(d.factors) > 1.01*slices.Min(d.factors)
	}), "rows are divided")
	want, got := logitsOf(t, m), logitsOf(t, after)
	var scale, worst float64
	for i, v := range want {
		scale = max(scale, math.Abs(float64(v)))
		worst = max(worst, math.Abs(float64(v)-float64(got[i])))
	}
	require.Less(t, worst, 1e-4*scale)
}

// requireMostFactors: what rows may be divided by counts in what their columns were multiplied by.
func requireMostFactors(t *testing.T, run *calibrated) {
	t.Helper()
	changed := 0
	for layer := range run.blocks.Count() {
		for _, half := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
			rows := run.blocks.RowsBefore(layer, half)
			most, err := run.mostFactors(rows)
			require.NoError(t, err)
			d := run.decisions[rows.Weight]
			w := make([]float32, d.Tensor.Elements())
			require.NoError(t, d.Tensor.ReadAll(w))
			for r := range most {
				var plain, scaled float32
				for i, v := range w[(rows.First+r)*d.Tensor.Cols() : (rows.First+r+1)*d.Tensor.Cols()] {
					plain, scaled = max(plain, v, -v), max(scaled, v*run.factors[rows.Weight][i], -v*run.factors[rows.Weight][i])
				}
				require.Equal(t, max(1, quant.LeastScale(*d.Scheme, scaled)/leastScale), most[r])
				if plain != scaled {
					changed++
				}
			}
		}
	}
	require.Positive(t, changed)
}
