package convert_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/testdata"
)

func open(t testing.TB, path string) *checkpoint.Model {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func plan(t testing.TB, m *checkpoint.Model, r convert.Recipe) *convert.Plan {
	t.Helper()
	p, err := convert.NewPlan(m, r)
	require.NoError(t, err)
	return p
}

func content(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// copyDir copies the files of a model to a folder of its own.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// TestSameBytes: neither the number of threads nor the folder changes a byte.
func TestSameBytes(t *testing.T) {
	source := testdata.Path("grammar-lm")
	for _, scheme := range []convert.Choice{"w4g32", "w8", "w4g128a", "keep", "f16"} {
		var first []byte
		for i, threads := range []int{1, 2, 7} {
			path := source
			if i == 2 {
				path = copyDir(t, source)
			}
			m := open(t, path)
			out := filepath.Join(t.TempDir(), "out.qpk")
			_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe(scheme)), convert.Options{Output: out, Threads: threads, Version: "test"})
			require.NoError(t, err)
			data := content(t, out)
			if i == 0 {
				first = data
			}
			require.Equal(t, first, data, "%s, %d threads", scheme, threads)
			require.NoDirExists(t, out+".work")
			p, err := packed.Open(out)
			require.NoError(t, err)
			require.NoError(t, p.Verify(nil))
			require.NoError(t, p.Close())
		}
	}
}

// TestResume stops a run after each tensor, takes it up, and compares with a run that was not stopped.
func TestResume(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	p := plan(t, m, convert.DefaultRecipe("w4g32"))
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.qpk")
	_, err := convert.Quantize(t.Context(), m, p, convert.Options{Output: whole, Threads: 2})
	require.NoError(t, err)
	want := content(t, whole)
	for stop := range len(p.Decisions) {
		out := filepath.Join(dir, "resumed.qpk")
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		last := ""
		_, err := convert.Quantize(ctx, m, p, convert.Options{Output: out, Threads: 2, Progress: func(_, _ int64, tensor string) {
			if tensor != last {
				last, seen = tensor, seen+1
			}
			if seen > stop {
				cancel()
			}
		}})
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		require.NoFileExists(t, out)
		result, err := convert.Quantize(t.Context(), m, p, convert.Options{Output: out, Threads: 2})
		require.NoError(t, err)
		require.False(t, result.Discarded)
		require.Equal(t, want, content(t, out))
		require.NoError(t, os.Remove(out))
	}
}

// TestResumeDistrustsWhatItFinds damages what a stopped run left: finished data, the end of the journal.
func TestResumeDistrustsWhatItFinds(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	p := plan(t, m, convert.DefaultRecipe("w4g32"))
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.qpk")
	_, err := convert.Quantize(t.Context(), m, p, convert.Options{Output: whole, Threads: 2})
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 1))
	for name, damage := range map[string]func(data, journal string){
		"data": func(data, _ string) {
			b := content(t, data)
			for range 100 {
				b[len(b)/8+r.IntN(len(b)/2)] ^= 0x55
			}
			require.NoError(t, os.WriteFile(data, b, 0o600))
		},
		"torn journal": func(_, journal string) {
			b := content(t, journal)
			require.NoError(t, os.Truncate(journal, int64(len(b)-9)))
		},
		"garbage journal": func(_, journal string) { require.NoError(t, os.WriteFile(journal, []byte("{]\n{]\n"), 0o600)) },
		"empty journal":   func(_, journal string) { require.NoError(t, os.Truncate(journal, 0)) },
		"short data":      func(data, _ string) { require.NoError(t, os.Truncate(data, 1000)) },
		"no data":         func(data, _ string) { require.NoError(t, os.Remove(data)) },
	} {
		out := filepath.Join(dir, "out.qpk")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := convert.Quantize(ctx, m, p, convert.Options{Output: out, Threads: 2, Progress: func(done, total int64, _ string) {
			if done > total*3/4 {
				cancel()
			}
		}})
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		damage(filepath.Join(out+".work", "data"), filepath.Join(out+".work", "journal"))
		_, err = convert.Quantize(t.Context(), m, p, convert.Options{Output: out, Threads: 2})
		require.NoError(t, err, name)
		require.Equal(t, content(t, whole), content(t, out), name)
	}
}

// TestTornJournal: a line that a crash left unfinished costs its own tensor and no other, one that was damaged what follows it too, however often the run is stopped.
func TestTornJournal(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	p := plan(t, m, convert.DefaultRecipe("w4g32"))
	out := filepath.Join(t.TempDir(), "out.qpk")
	journal := filepath.Join(out+".work", "journal")
	stopAt := func(share float64) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := convert.Quantize(ctx, m, p, convert.Options{Output: out, Threads: 2, Progress: func(done, total int64, _ string) {
			if float64(done) > share*float64(total) {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
	}
	stopAt(0.3)
	b := content(t, journal)
	require.NoError(t, os.Truncate(journal, int64(len(b)-9)))
	stopAt(0.7)
	lines := strings.Split(strings.TrimSpace(string(content(t, journal))), "\n")
	require.Greater(t, len(lines), 10)
	for _, l := range lines {
		sum, text, _ := strings.Cut(l, " ")
		require.True(t, json.Valid([]byte(text)), l)
		require.Equal(t, packed.Sum([]byte(text)).String(), sum)
	}
	at := strings.Index(lines[3], `"source":"`) + len(`"source":"`) // a digit of it: still JSON, and of data that are right
	digit := "0"
	if lines[3][at] == '0' {
		digit = "1"
	}
	lines[3] = lines[3][:at] + digit + lines[3][at+1:]
	require.NoError(t, os.WriteFile(journal, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	result, err := convert.Quantize(t.Context(), m, p, convert.Options{Output: out, Threads: 2})
	require.NoError(t, err)
	require.Equal(t, 2, result.Resumed, "what stands before the damaged line")
	require.True(t, result.Damaged)

	// The first line damaged: all is made again, and that is why.
	require.NoError(t, os.Remove(out))
	stopAt(0.5)
	b = content(t, journal)
	b[40] ^= 1
	require.NoError(t, os.WriteFile(journal, b, 0o600))
	result, err = convert.Quantize(t.Context(), m, p, convert.Options{Output: out, Threads: 2})
	require.NoError(t, err)
	require.Zero(t, result.Resumed)
	require.True(t, result.Damaged)
	require.False(t, result.Discarded)
	whole := filepath.Join(t.TempDir(), "whole.qpk")
	_, err = convert.Quantize(t.Context(), m, p, convert.Options{Output: whole, Threads: 2})
	require.NoError(t, err)
	require.Equal(t, content(t, whole), content(t, out))
}

// TestAnotherPlanStartsAnew: what a run with another recipe left is not used.
func TestAnotherPlanStartsAnew(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	out := filepath.Join(t.TempDir(), "out.qpk")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := convert.Quantize(ctx, m, plan(t, m, convert.DefaultRecipe("w8")), convert.Options{Output: out, Threads: 1, Progress: func(int64, int64, string) { cancel() }})
	cancel()
	require.ErrorIs(t, err, context.Canceled)
	result, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g64")), convert.Options{Output: out, Threads: 1})
	require.NoError(t, err)
	require.True(t, result.Discarded)
	require.Zero(t, result.Resumed)
}

// TestOutputIsNeverTheSource: by the same path, a link of either kind, or one to its folder.
func TestOutputIsNeverTheSource(t *testing.T) {
	dir := copyDir(t, testdata.Path("arch", "llama"))
	weights := filepath.Join(dir, "model.safetensors")
	hard, soft := filepath.Join(dir, "hard.qpk"), filepath.Join(dir, "soft.qpk")
	require.NoError(t, os.Link(weights, hard))
	require.NoError(t, os.Symlink("model.safetensors", soft))
	before := content(t, weights)
	m := open(t, weights)
	for _, out := range []string{weights, hard, soft, filepath.Join(dir, "config.json")} {
		_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w8")), convert.Options{Output: out, Threads: 1})
		require.ErrorContains(t, err, "same file as the source", out)
		require.Equal(t, before, content(t, weights))
	}
	pipe := filepath.Join(dir, "pipe.qpk")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, out := range []string{dir, pipe, filepath.Join(dir, "absent", "x.qpk"), filepath.Join(weights, "x.qpk")} {
		_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w8")), convert.Options{Output: out, Threads: 1})
		require.ErrorContains(t, err, "output", out)
	}
}

// TestSourceCutShort: the weights lose their end while they are read; the old output stays.
func TestSourceCutShort(t *testing.T) {
	dir := copyDir(t, testdata.Path("grammar-lm"))
	m := open(t, dir)
	out := filepath.Join(t.TempDir(), "out.qpk")
	require.NoError(t, os.WriteFile(out, []byte("old"), 0o600))
	cut := false
	_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g32")), convert.Options{Output: out, Threads: 2, Progress: func(int64, int64, string) {
		if !cut {
			cut = true
			require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 50_000))
		}
	}})
	require.ErrorContains(t, err, "model.safetensors")
	require.Equal(t, "old", string(content(t, out)))
}

// TestValuesThatCannotBe: NaN and infinities in weights, and values beyond half precision.
func TestValuesThatCannotBe(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		value  float32
		choice convert.Choice
		clamp  bool
		want   error
	}{
		{"NaN", nan, "w4g32", false, quant.ErrNotFinite}, {"Inf", inf, "w8", false, quant.ErrNotFinite}, {"-Inf", -inf, "w4g32a", false, quant.ErrNotFinite}, {"NaN under a codebook", nan, "w4g32nl", false, quant.ErrNotFinite},
		{"1e6 in f16", 1e6, "f16", false, convert.ErrOverflow}, {"1e6 in f16, clamped", 1e6, "f16", true, nil},
		{"1e38", 1e38, "w8", false, quant.ErrScaleRange}, {"subnormal", 1e-40, "w4g32", false, nil}, {"-0", float32(math.Copysign(0, -1)), "w8", false, nil},
	} {
		dir := copyDir(t, testdata.Path("arch", "llama"))
		path := filepath.Join(dir, "model.safetensors")
		f, err := safetensors.Open(path)
		require.NoError(t, err)
		const name = "model.layers.1.mlp.up_proj.weight"
		x, ok := f.Tensor(name)
		require.True(t, ok)
		require.NoError(t, f.Close())
		data := content(t, path)
		bits := math.Float32bits(c.value)
		copy(data[x.Offset+4*(3*48+7):], []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
		require.NoError(t, os.WriteFile(path, data, 0o600))
		m := open(t, dir)
		recipe := convert.DefaultRecipe(c.choice)
		recipe.Clamp = c.clamp
		out := filepath.Join(t.TempDir(), "out.qpk")
		result, err := convert.Quantize(t.Context(), m, plan(t, m, recipe), convert.Options{Output: out, Threads: 1})
		if c.want == nil {
			require.NoError(t, err, c.name)
			if c.clamp {
				require.Equal(t, 1, result.Clamped)
			}
			continue
		}
		require.ErrorIs(t, err, c.want, c.name)
		require.ErrorContains(t, err, name, c.name)
		require.ErrorContains(t, err, "row 3", c.name)
		require.NoFileExists(t, out)
	}
}

func TestPlan(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	r := convert.DefaultRecipe("w4g32")
	r.Overrides = []convert.Override{
		{Pattern: "model.layers.*.mlp.down_proj.weight", Choice: "w8g32"}, {Pattern: "model.layers.0.**", Choice: "keep"},
	}
	p := plan(t, m, r)
	schemes := make(map[string]string)
	for _, d := range p.Decisions {
		schemes[d.Tensor.Name] = d.Storage()
		require.NotEmpty(t, d.Reason)
	}
	require.Equal(t, "w8", schemes["model.embed_tokens.weight"])
	require.Equal(t, "BF16", schemes["model.norm.weight"])
	require.Equal(t, "w4g32", schemes["model.layers.1.mlp.up_proj.weight"])
	require.Equal(t, "w8g32", schemes["model.layers.1.mlp.down_proj.weight"])
	require.Equal(t, "BF16", schemes["model.layers.0.mlp.down_proj.weight"])
	require.Less(t, p.BitsPerWeight(), 16.0)

	r.Overrides = []convert.Override{{Pattern: "no.such.*", Choice: "w8"}}
	_, err := convert.NewPlan(m, r)
	require.ErrorContains(t, err, "no.such.*")
	r.Overrides = []convert.Override{{Pattern: "model.norm.weight", Choice: "w8"}}
	_, err = convert.NewPlan(m, r)
	require.ErrorContains(t, err, "needs a matrix")
	for _, bad := range []string{"x", "=w8", "a[=w8", "a=w5", "a="} {
		_, err := convert.ParseOverride(bad)
		require.Error(t, err, bad)
	}
}

// TestHeadOfTiedModel: where the head is the embedding, a recipe that asks for something else is noted, unless the rotation gives it one of its own.
func TestHeadOfTiedModel(t *testing.T) {
	m, untied := open(t, testdata.Path("grammar-lm")), open(t, testdata.Path("arch", "llama"))
	for _, c := range []struct {
		embeddings, head convert.Choice
		rotation         convert.Rotation
		unused           bool
	}{
		{"w8", "w8", "", false}, {"w8", "w4g32", "", true}, {"w8", "f16", "", true}, {"w8", "keep", "", true}, {"w4g32", "w8", "", true},
		{"keep", "bf16", "", false}, {"w8", "w8g128", "", false}, {"w8", "w4g32", convert.Hadamard, false},
	} {
		r := convert.DefaultRecipe("w4g32")
		r.Embeddings, r.Head, r.Rotation = c.embeddings, c.head, c.rotation
		p := plan(t, m, r)
		if c.unused {
			require.Len(t, p.Warnings, 1, "%v", c)
			require.Contains(t, p.Warnings[0], "the head of this model is its embedding, model.embed_tokens.weight")
			require.Contains(t, p.Warnings[0], "not the one for the head, "+string(c.head))
		} else {
			require.Empty(t, p.Warnings, "%v", c)
		}
		require.Empty(t, plan(t, untied, r).Warnings, "%v", c)
	}
}

// TestQuantizedTwice: what is packed otherwise than it was is said in one warning; what is copied is not.
func TestQuantizedTwice(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	require.Empty(t, plan(t, m, convert.DefaultRecipe("w4g32")).Warnings)
	out := filepath.Join(t.TempDir(), "a.qpk")
	_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g32")), convert.Options{Output: out, Threads: 2})
	require.NoError(t, err)
	again := open(t, out)
	for _, same := range []convert.Choice{"w4g32", "keep", "f16"} {
		require.Empty(t, plan(t, again, convert.DefaultRecipe(same)).Warnings, same)
	}
	r := convert.DefaultRecipe("w4g32")
	r.Embeddings, r.Head = "w4g32", "w4g32"
	require.Equal(t, []string{"model.embed_tokens.weight (w8): quantized already, accuracy is lost twice; quantize the original instead"}, plan(t, again, r).Warnings)
	require.Equal(t, []string{"model.layers.0.self_attn.q_proj.weight (w4g32) and 20 more: quantized already, accuracy is lost twice; quantize the original instead"},
		plan(t, again, convert.DefaultRecipe("w8")).Warnings)
}

// TestShortfalls: one line a fact, however many layers it is of.
func TestShortfalls(t *testing.T) {
	require.Empty(t, (&convert.Result{Calibrated: map[string]convert.CalibrationFigures{"a": {Inputs: 9, Channels: 8}}}).Shortfalls())
	r := convert.Result{
		Clamped: 3, RoundedOnly: []string{"x"}, ZeroInputs: []string{"p", "r"}, Unscaled: map[convert.Unscaled][]string{
			convert.BiasBeyondType: {"z"}, convert.SharedAsIs: {"u", "v", "w"}, convert.MadeAsIs: {"o"}, convert.InputUnknown: {"i"}, convert.MakerUnknown: {"m"},
		}, Calibrated: map[string]convert.CalibrationFigures{
			"k": {DampingRaised: true, Damping: 0.1, DeadInputs: 2, Inputs: 4, Channels: 8}, "q": {DampingRaised: true, Damping: 0.01, DeadInputs: 2, Inputs: 4, Channels: 8},
			"v": {DeadInputs: 5, Inputs: 4, Channels: 4},
		},
	}
	require.Equal(t, []string{
		"3 values were cut to the range of their type",
		"x: rounded to nearest, nothing is known of the input",
		"p and 1 more: rounded to nearest, all inputs were zero throughout the calibration data, as behind a layer that was pruned away",
		"u and 2 more: the input is not scaled, since a layer that shares it is not quantized here",
		"o: the input is not scaled, since the layer that makes it is not quantized here",
		"i: the input is not scaled, since the file has no statistics of it, or it saw no data",
		"m: the input is not scaled, since the file has no statistics of what the layer that makes it takes in, or it saw no data",
		"z: the input is not scaled, since the bias of the layer that makes it is beyond the range of its type",
		"k and 1 more: the Hessian needed more damping than was asked for, at most 0.1 of the mean diagonal",
		"k and 2 more: input channels were zero throughout the calibration data, at most 5 of a layer",
		"k and 1 more: more input channels than the 4 inputs that were seen, too few to tell channels apart; give more text",
	}, r.Shortfalls())
}

func TestOutputName(t *testing.T) {
	for model, want := range map[string]string{
		"llama-7b": "llama-7b-w4.qpk", "dir/llama-7b/": "llama-7b-w4.qpk", "x/model.gguf": "model-w4.qpk",
		"/c/hub/models--meta--Llama-7B/snapshots/abc": "Llama-7B-w4.qpk", "/backup/snapshots/llama-7b": "llama-7b-w4.qpk",
		"Llama-3.1-8B": "Llama-3.1-8B-w4.qpk", "x/Llama-3.1-8B.gguf": "Llama-3.1-8B-w4.qpk", "/m/model.safetensors.index.json": "model-w4.qpk",
	} {
		require.Equal(t, want, convert.OutputName(model, convert.DefaultRecipe("w4g32")))
		require.Equal(t, strings.Replace(want, "-w4.qpk", ".qcal", 1), convert.StatisticsName(model))
	}
	require.Equal(t, "m-f16.qpk", convert.OutputName("m", convert.DefaultRecipe("f16")))
	for want, b := range map[string]convert.Budget{"m-3.7bpw.qpk": {BitsPerWeight: 3.7}, "m-4bpw.qpk": {BitsPerWeight: 4}, "m-mixed.qpk": {Bytes: 1 << 30}} {
		r := convert.DefaultRecipe("w4g32")
		r.Budget = &b
		require.Equal(t, want, convert.OutputName("m", r))
	}
}

// spoil puts a value into a tensor of a model's F32 weights.
func spoil(t testing.TB, dir, name string, at int, value float32) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	x, ok := f.Tensor(name)
	require.True(t, ok)
	require.NoError(t, f.Close())
	data := content(t, path)
	binary.LittleEndian.PutUint32(data[int(x.Offset)+4*at:], math.Float32bits(value))
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// TestPlainValuesAreFinite: norms and embeddings that are kept must be numbers as quantized weights must, with calibration before anything is run; a
// copy into another container is one.
func TestPlainValuesAreFinite(t *testing.T) {
	for name, at := range map[string]int{"model.layers.1.input_layernorm.weight": 5, "model.embed_tokens.weight": 2*48 + 5} {
		for _, value := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
			dir := copyDir(t, testdata.Path("arch", "llama"))
			spoil(t, dir, name, at, value)
			m := open(t, dir)
			for _, choice := range []convert.Choice{convert.Keep, "f16"} {
				r := convert.DefaultRecipe("w4g32")
				r.Embeddings, r.Clamp = choice, true
				o := convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 1}
				_, err := convert.Quantize(t.Context(), m, plan(t, m, r), o)
				require.ErrorIs(t, err, quant.ErrNotFinite)
				require.ErrorContains(t, err, fmt.Sprintf("%s: tensor %q, row %d: column 5", filepath.Join(dir, "model.safetensors"), name, at/48))
				require.NoFileExists(t, o.Output)
			}
			_, err := convert.Export(t.Context(), m, convert.ExportOptions{Output: filepath.Join(t.TempDir(), "out"), Type: convert.Keep, Threads: 1})
			require.NoError(t, err)
			_, err = convert.Export(t.Context(), m, convert.ExportOptions{Output: filepath.Join(t.TempDir(), "out.qpk"), Type: convert.Keep, Threads: 1})
			require.ErrorIs(t, err, quant.ErrNotFinite)
			if at > 48 {
				continue
			}
			r := convert.DefaultRecipe("w4g32")
			r.Method = quant.GPTQ
			o := convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 1, Calibration: calibration(t, m, 2)}
			_, err = convert.Quantize(t.Context(), m, plan(t, m, r), o)
			require.ErrorIs(t, err, quant.ErrNotFinite)
			require.ErrorContains(t, err, fmt.Sprintf("tensor %q, row 0: column 5", name))
		}
	}
}

// TestNotFiniteBehindTheHead: with a head that is the embedding too, all blocks run before anything is quantized: the tensor that has the value is
// named, not the one whose inputs showed it.
func TestNotFiniteBehindTheHead(t *testing.T) {
	for name, cols := range map[string]int{"model.embed_tokens.weight": 48, "model.layers.1.mlp.up_proj.weight": 48} {
		dir := copyDir(t, testdata.Path("arch", "gemma2"))
		m := open(t, testdata.Path("arch", "gemma2"))
		c := calibration(t, m, 2)
		row := 3
		if name == "model.embed_tokens.weight" {
			row = int(c.Sequences[0][7])
		}
		spoil(t, dir, name, row*cols+5, float32(math.NaN()))
		m = open(t, dir)
		r := convert.DefaultRecipe("w4g32")
		r.Method = quant.GPTQ
		_, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: filepath.Join(t.TempDir(), "out.qpk"), Threads: 1, Calibration: c})
		require.ErrorIs(t, err, quant.ErrNotFinite)
		require.ErrorContains(t, err, fmt.Sprintf("%s: tensor %q, row %d: column 5: NaN is not a finite number; it was seen in this: inputs of the head, \"model.embed_tokens.weight\": input ",
			filepath.Join(dir, "model.safetensors"), name, row))
	}
}
