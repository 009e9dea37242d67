package convert_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/gguf"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/runtime/llama"
	"qtool/testdata"
)

func export(t *testing.T, from, to string, o convert.ExportOptions) *convert.ExportResult {
	t.Helper()
	m := open(t, from)
	o.Output, o.Threads = to, 2
	if o.Type == "" {
		o.Type = convert.Keep
	}
	r, err := convert.Export(t.Context(), m, o)
	require.NoError(t, err)
	return r
}

// logits runs a model on a few tokens.
func logits(t *testing.T, path string) []float32 {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	e, err := llama.New(m, llama.Options{Threads: 1})
	require.NoError(t, err)
	defer e.Close()
	var out []float32
	require.NoError(t, e.NewSession(64).Forward([]int32{1, 5, 9, 30, 31, 8, 3, 44, 12, 13, 14, 15, 16}, 0, func(_ int, l []float32) error {
		out = append(out, l...)
		return nil
	}))
	return out
}

// requireSame compares values, types and files of two models.
func requireSame(t *testing.T, a, b string) {
	t.Helper()
	x, y := open(t, a), open(t, b)
	require.Equal(t, x.Config(), y.Config())
	require.Len(t, y.Tensors(), len(x.Tensors()))
	for i, u := range x.Tensors() {
		v := y.Tensors()[i]
		require.Equal(t, u.Name, v.Name)
		p, q := make([]float32, u.Elements()), make([]float32, v.Elements())
		require.NoError(t, u.ReadAll(p))
		require.NoError(t, v.ReadAll(q))
		require.Equal(t, p, q, u.Name)
	}
}

// TestThroughEveryContainer carries each architecture through all containers and back: the same values, the
// same files, the same logits.
func TestThroughEveryContainer(t *testing.T) {
	entries, err := os.ReadDir(testdata.Path("arch"))
	require.NoError(t, err)
	for _, e := range entries {
		source := testdata.Path("arch", e.Name())
		if _, err := os.Stat(filepath.Join(source, "config.json")); err != nil {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			dir := t.TempDir()
			// The tiny models have no tokenizer of their own; GGUF wants one.
			model := filepath.Join(dir, "model")
			require.NoError(t, os.CopyFS(model, os.DirFS(source)))
			for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
				require.NoError(t, os.WriteFile(filepath.Join(model, name), content(t, testdata.Path("arch", "tokenizer", name)), 0o600))
			}
			packed, back := filepath.Join(dir, "a.qpk"), filepath.Join(dir, "back")
			export(t, model, packed, convert.ExportOptions{})
			export(t, packed, back, convert.ExportOptions{MaxShard: 20_000})
			requireSame(t, model, back)
			require.Equal(t, content(t, filepath.Join(model, "config.json")), content(t, filepath.Join(back, "config.json")))
			require.Equal(t, content(t, filepath.Join(model, "tokenizer.json")), content(t, filepath.Join(back, "tokenizer.json")))
			require.Equal(t, logits(t, model), logits(t, back))
			if e.Name() == "qwen2-sliding" {
				return // llama.cpp knows no qwen2 with a window
			}
			file, home, again := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "home"), filepath.Join(dir, "again.gguf")
			export(t, model, file, convert.ExportOptions{})
			export(t, file, home, convert.ExportOptions{})
			require.Equal(t, content(t, filepath.Join(model, "config.json")), content(t, filepath.Join(home, "config.json")))
			x, y := open(t, model), open(t, home)
			require.Len(t, y.Tensors(), len(x.Tensors()))
			require.Equal(t, x.Config(), y.Config())
			want, got := logits(t, model), logits(t, file)
			require.InDeltaSlice(t, want, got, 2e-5, "from the GGUF file itself")
			require.InDeltaSlice(t, want, logits(t, home), 2e-5)
			export(t, home, again, convert.ExportOptions{})
			require.Equal(t, logits(t, file), logits(t, again))
		})
	}
}

// TestPackedToGGUF: schemes that GGUF has a twin of are carried over code by code.
func TestPackedToGGUF(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	dir := t.TempDir()
	for _, scheme := range []convert.Choice{"w4g32", "w8g32"} {
		recipe := convert.DefaultRecipe(scheme)
		recipe.Embeddings = scheme
		out, file := filepath.Join(dir, string(scheme)+".qpk"), filepath.Join(dir, string(scheme)+".gguf")
		_, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: 2})
		require.NoError(t, err)
		r := export(t, out, file, convert.ExportOptions{})
		require.Equal(t, 3, r.Changed, "down_proj, whose rows of 164 no block type holds")
		requireSame(t, out, file)
		x := open(t, file)
		q, ok := x.Tensor("model.layers.0.self_attn.q_proj.weight")
		require.True(t, ok)
		require.Equal(t, map[convert.Choice]string{"w4g32": "Q4_0", "w8g32": "Q8_0"}[scheme], q.Storage())
	}
}

// TestDamagedSource: a packed file whose data have not the digests of its header becomes nothing else, which would be whole by its own.
func TestDamagedSource(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	source := filepath.Join(t.TempDir(), "w4.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g32")), convert.Options{Output: source, Threads: 1})
	require.NoError(t, err)
	c := calibration(t, m, 2)
	const name = "model.layers.1.mlp.up_proj.weight"
	f, err := safetensors.Open(source)
	require.NoError(t, err)
	x, ok := f.Tensor(name)
	require.True(t, ok)
	require.NoError(t, f.Close())
	data := content(t, source)
	want := packed.Sum(data[x.Offset : x.Offset+x.Size])
	data[x.Offset+x.Size/2] ^= 1
	found := packed.Sum(data[x.Offset : x.Offset+x.Size])
	require.NoError(t, os.WriteFile(source, data, 0o600))
	m = open(t, source)
	dir := t.TempDir()
	message := fmt.Sprintf("%q: at byte %d: the data have digest %s, the header says %s", name, x.Offset, found, want)
	for _, out := range []string{"x.gguf", "x.qpk", "folder"} {
		_, err := convert.Export(t.Context(), m, convert.ExportOptions{Output: filepath.Join(dir, out), Type: convert.Keep, Threads: 1})
		require.ErrorIs(t, err, formats.ErrMalformed)
		require.ErrorContains(t, err, message, out)
	}
	calibrated := convert.DefaultRecipe("w8")
	calibrated.Method = quant.GPTQ
	for _, r := range []convert.Recipe{convert.DefaultRecipe("w4g32"), calibrated} {
		o := convert.Options{Output: filepath.Join(dir, "x.qpk"), Threads: 1}
		if r.Method != "" {
			o.Calibration = c
		}
		_, err := convert.Quantize(t.Context(), m, plan(t, m, r), o)
		require.ErrorContains(t, err, message)
	}
	r := budgeted(convert.Budget{BitsPerWeight: 6})
	_, err = convert.Mix(t.Context(), m, r, convert.Options{Output: filepath.Join(dir, "x.qpk"), Threads: 1, Calibration: c})
	require.ErrorContains(t, err, message)
	_, err = convert.Collect(t.Context(), m, convert.CollectOptions{Output: filepath.Join(dir, "x.qcal"), Threads: 1, Calibration: c})
	require.ErrorContains(t, err, message)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestExportRefuses(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	require.NoError(t, os.MkdirAll(full, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	for out, want := range map[string]string{
		full: "not empty", filepath.Join(dir, "x.safetensors"): "name a folder", filepath.Join(dir, "no", "dir"): "no such file", filepath.Join(dir, "no", "x.gguf"): "its folder",
	} {
		_, err := convert.Export(t.Context(), m, convert.ExportOptions{Output: out, Type: convert.Keep, Threads: 1})
		require.ErrorContains(t, err, want)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing unfinished is left")
}

// TestGGUFKeysSurvive carries a GGUF file to a folder and to a packed file and back: every key comes home with
// its type and value, and every tensor with its bits.
func TestGGUFKeysSurvive(t *testing.T) {
	source := testdata.Shared(t, "models", "stories260k-f32.gguf")
	dir := t.TempDir()
	for _, way := range []string{"folder", "file.qpk"} {
		there, home := filepath.Join(dir, way), filepath.Join(dir, way+".gguf")
		export(t, source, there, convert.ExportOptions{})
		export(t, there, home, convert.ExportOptions{})
		a, err := gguf.Open(source)
		require.NoError(t, err)
		b, err := gguf.Open(home)
		require.NoError(t, err)
		for _, key := range a.Metadata().Keys() {
			want, _ := a.Metadata().Get(key)
			got, ok := b.Metadata().Get(key)
			require.True(t, ok, key)
			require.True(t, want.Equal(got), key)
		}
		for _, x := range a.Tensors() {
			y, ok := b.Tensor(x.Name)
			require.True(t, ok, x.Name)
			require.Equal(t, a.Data(x), b.Data(y), x.Name)
		}
		require.NoError(t, errors.Join(a.Close(), b.Close()))
	}
}

// TestAnnotationsSurvive: what the metadata of safetensors files say of a model comes home from every container.
func TestAnnotationsSurvive(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	require.NoError(t, os.CopyFS(source, os.DirFS(testdata.Path("arch", "llama"))))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(source, name), content(t, testdata.Path("arch", "tokenizer", name)), 0o600))
	}
	path := filepath.Join(source, "model.safetensors")
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	pairs := []safetensors.Pair{{Key: "format", Value: "pt"}, {Key: "licence", Value: "none \"at all\""}, {Key: "trained on", Value: "näthing"}}
	l, err := safetensors.Plan(f.Tensors(), safetensors.LayoutOptions{Metadata: pairs})
	require.NoError(t, err)
	copied := filepath.Join(dir, "copy.safetensors")
	require.NoError(t, safetensors.Write(copied, l, func(i int, w io.Writer) error {
		x, _ := f.Tensor(l.Tensors[i].Name)
		_, err := w.Write(f.Data(x))
		return err
	}))
	require.NoError(t, f.Close())
	require.NoError(t, os.Rename(copied, path))
	for _, way := range []string{"a.qpk", "a.gguf", "folder"} {
		there, home := filepath.Join(dir, way), filepath.Join(dir, way+"-home")
		export(t, source, there, convert.ExportOptions{})
		export(t, there, home, convert.ExportOptions{})
		f, err := safetensors.Open(filepath.Join(home, "model.safetensors"))
		require.NoError(t, err)
		require.Equal(t, pairs, f.Metadata(), way)
		require.NoFileExists(t, filepath.Join(home, checkpoint.Annotations))
		require.NoError(t, f.Close())
	}
}
