package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/hfdir"
	"qtool/formats/strictjson"
	"qtool/runtime/linalg"
)

// Rotation says how the model is turned before it is quantized, so that no channel stands out. What it computes stays the same: Ashkboos, Mohtashami,
// Croci et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024, of which this is what needs no operation at run time.
type Rotation string

const (
	// NoRotation leaves the model as it is.
	NoRotation Rotation = ""
	// Hadamard turns the residual stream, and the values of each attention head, by randomized Hadamard matrices.
	Hadamard Rotation = "hadamard"
)

// RotationSeed is the seed that the signs of a rotation follow from unless a recipe has another.
const RotationSeed = 1

// headSeed sets the signs for heads apart from those for the residual stream.
const headSeed = 0x68656164

// ParseRotation reads the name of a rotation; "none" is NoRotation.
func ParseRotation(name string) (Rotation, error) {
	switch r := Rotation(name); r {
	case Hadamard:
		return r, nil
	case "none", NoRotation:
		return NoRotation, nil
	}
	return "", fmt.Errorf("rotation %q is unknown: expected none or %q", name, Hadamard)
}

// rotator makes the rotated view of a model. With Q for the residual stream and R for the values of a head, both orthogonal, rows of the embedding
// become E·Q; norms give their weights to the matrices that follow, W·diag(g)·Q, and have weights of 1, which a rotation passes through; matrices that
// add to the stream become Qᵀ·W, their biases b·Q. Values become those times R, head by head, and the output projection takes that back.
type rotator struct {
	model    *checkpoint.Model
	residual *linalg.Hadamard
	head     *linalg.Hadamard
	gains    map[string]func() ([]float32, error) // weights of norms, read when they are first needed
	whole    wholes
}

// rotated is a view of m that computes the same with tensors that are turned. Nothing is read but the configuration: tensors are turned when they are
// read, row by row, or for those that add to the stream and the values of heads, as a whole. Errors match formats.ErrUnsupported where a rotation would
// change what the model computes.
func rotated(m *checkpoint.Model, seed uint64) (*checkpoint.Model, error) {
	c := m.Config()
	fail := func(format string, args ...any) *formats.FileError {
		return formats.Unsupported(m.Path(), "rotation", format, args...)
	}
	if c.PostNorms {
		return nil, fail("a %s weighs what its blocks add to the residual stream channel by channel (norms after attention and after the feed-forward layer), which no rotation passes through", c.Architecture).
			WithHint("quantize it without --rotate")
	}
	for _, t := range m.Tensors() {
		if t.Packed() {
			return nil, fail("%s is quantized already (%s): turning it would round it again throughout", t.Name, t.Storage()).
				WithHint("rotate the model that it was made of")
		}
	}
	var err error
	r := &rotator{model: m, gains: make(map[string]func() ([]float32, error))}
	if r.residual, err = linalg.NewHadamard(c.Hidden, seed); err != nil {
		return nil, err
	}
	if r.residual.Block() < 4 {
		return nil, fail("no Hadamard matrix mixes %d channels, the width of the residual stream", c.Hidden).WithHint("quantize it without --rotate")
	}
	if r.head, err = linalg.NewHadamard(c.HeadDim, seed^headSeed); err != nil {
		return nil, err
	}
	changed := *c
	changed.TieEmbeddings = false
	files, warnings, err := r.untie()
	if err != nil {
		return nil, err
	}
	var tensors []*checkpoint.Tensor
	for _, spec := range changed.Tensors() {
		t, ok := m.Tensor(spec.Name)
		if !ok && spec.Role == arch.Head {
			t, ok = m.Tensor(arch.EmbeddingName)
		}
		if !ok {
			return nil, fmt.Errorf("%s: the model has no tensor %q", m.Path(), spec.Name)
		}
		tensors = append(tensors, r.tensor(spec, t))
	}
	return m.View(&changed, tensors, files, warnings...), nil
}

// untie gives the configuration's file for a head of its own, where the model's is its embedding: what follows the final norm has that norm's weights
// in it, and the embedding does not.
func (r *rotator) untie() (files map[string][]byte, warnings []string, err error) {
	m := r.model
	if !m.Config().TieEmbeddings {
		return nil, nil, nil
	}
	warnings = []string{fmt.Sprintf("rotation gives the model a head of its own, %d more weights: the embedding is no longer the same matrix once the final norm is part of the head",
		m.Config().Vocab*m.Config().Hidden)}
	text, err := m.ReadFile(hfdir.ConfigName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, warnings, nil // a GGUF file, whose configuration is made from the view's
	}
	if err != nil {
		return nil, nil, err
	}
	root, err := strictjson.Parse(text, strictjson.Options{File: m.Path() + ": " + hfdir.ConfigName})
	if err != nil {
		return nil, nil, err
	}
	at, end, value := root.Offset+1, root.Offset+1, `"tie_word_embeddings": false, `
	if v, ok := root.Get("tie_word_embeddings"); ok {
		at, end, value = v.Offset, v.Offset+len("true"), "false"
	}
	return map[string][]byte{hfdir.ConfigName: []byte(string(text[:at]) + value + string(text[end:]))}, warnings, nil
}

// tensor gives the view's tensor of that specification, made of t.
func (r *rotator) tensor(spec arch.TensorSpec, t *checkpoint.Tensor) *checkpoint.Tensor {
	c := r.model.Config()
	kept := formats.F32 // values are no longer those of a narrow type; matrices keep it all the same
	if d, ok := t.DType(); ok && len(spec.Shape) == 2 && (d == formats.F16 || d == formats.BF16) {
		kept = d
	}
	w := &turned{tensor: t, rotator: r}
	part := spec.Name[strings.LastIndexByte(spec.Name[:strings.LastIndexByte(spec.Name, '.')], '.')+1:]
	prefix := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(spec.Name, part), "self_attn."), "mlp.")
	values := c.KVDim()
	switch {
	case spec.Role == arch.Embedding:
		w.in = r.residual
	case spec.Role == arch.Head:
		w.in, w.gain = r.residual, r.gain(arch.FinalNormName)
	case spec.Role == arch.Norm && strings.HasSuffix(part, "_norm.weight"):
		return t // of queries and keys
	case spec.Role == arch.Norm:
		return r.one(spec, t)
	case part == "o_proj.weight":
		w.in, w.out = r.head, r.residual
	case part == "down_proj.weight":
		w.out = r.residual
	case part == "o_proj.bias" || part == "down_proj.bias":
		w.in = r.residual
	case part == "v_proj.bias" || part == "qkv_proj.bias":
		w.in, w.inFrom = r.head, t.Cols()-values
	case spec.Role == arch.Bias:
		return t // of queries and keys, and inside the feed-forward layer
	case part == "v_proj.weight" || part == "qkv_proj.weight":
		w.in, w.gain = r.residual, r.gain(prefix+"input_layernorm.weight")
		w.out, w.outFrom = r.head, t.Rows()-values
	case part == "q_proj.weight" || part == "k_proj.weight":
		w.in, w.gain = r.residual, r.gain(prefix+"input_layernorm.weight")
	default: // gate and up
		w.in, w.gain = r.residual, r.gain(prefix+"post_attention_layernorm.weight")
	}
	return t.Derive(spec, kept, w.read)
}

// one is a norm without weights of its own.
func (r *rotator) one(spec arch.TensorSpec, t *checkpoint.Tensor) *checkpoint.Tensor {
	kept, ok := t.DType()
	if !ok || kept != formats.F16 && kept != formats.BF16 {
		kept = formats.F32
	}
	one := float32(1)
	if r.model.Config().NormPlusOne {
		one = 0
	}
	return t.Derive(spec, kept, func(dst []float32, _, _ int, _ *checkpoint.Reader) error {
		for i := range dst {
			dst[i] = one
		}
		return nil
	})
}

// gain gives the weights of a norm as they are multiplied with.
func (r *rotator) gain(name string) func() ([]float32, error) {
	if r.gains[name] == nil {
		r.gains[name] = sync.OnceValues(func() ([]float32, error) {
			t, ok := r.model.Tensor(name)
			if !ok {
				return nil, fmt.Errorf("%s: the model has no tensor %q", r.model.Path(), name)
			}
			g := make([]float32, t.Elements())
			if err := t.ReadAll(g); err != nil {
				return nil, err
			}
			if r.model.Config().NormPlusOne {
				for i := range g {
					g[i]++
				}
			}
			return g, nil
		})
	}
	return r.gains[name]
}

// turned is a tensor that is turned.
type turned struct {
	tensor  *checkpoint.Tensor
	rotator *rotator
	gain    func() ([]float32, error) // of the columns; nil for none
	// in turns columns, from inFrom on, as many at a time as its order is; out turns rows.
	in, out         *linalg.Hadamard
	inFrom, outFrom int
}

func (w *turned) read(dst []float32, first, n int, reader *checkpoint.Reader) error {
	if w.out == nil {
		return w.columns(dst, first, n, reader)
	}
	values, err := w.rotator.whole.get(w)
	if err != nil {
		return err
	}
	copy(dst, values[first*w.tensor.Cols():(first+n)*w.tensor.Cols()])
	return nil
}

// columns reads rows and turns their columns.
func (w *turned) columns(dst []float32, first, n int, reader *checkpoint.Reader) error {
	if err := w.tensor.ReadRows(dst, first, n, reader); err != nil {
		return err
	}
	cols := w.tensor.Cols()
	for i, v := range dst[:n*cols] {
		if v-v != 0 { // it would be everywhere
			return rowError(w.tensor, first+i/cols, fmt.Errorf("column %d: %w", i%cols, quant.ErrNotFinite))
		}
	}
	if w.gain != nil {
		gain, err := w.gain()
		if err != nil {
			return err
		}
		for r := range n {
			row := dst[r*cols : (r+1)*cols]
			for i, g := range gain {
				row[i] *= g
			}
		}
	}
	if w.in != nil {
		scratch := make([]float32, w.in.Scratch(1))
		for r := range n {
			w.in.MulCols(dst[r*cols+w.inFrom:(r+1)*cols], scratch)
		}
	}
	return nil
}

// stripe is how many columns are turned along their rows together: few enough that these stay in the cache.
const stripe = 32

// all computes the whole matrix.
func (w *turned) all() ([]float32, error) {
	rows, cols := w.tensor.Rows(), w.tensor.Cols()
	values := make([]float32, rows*cols)
	if err := w.columns(values, 0, rows, &checkpoint.Reader{}); err != nil {
		return nil, err
	}
	order := w.out.Order()
	part, scratch := make([]float32, order*stripe), make([]float32, w.out.Scratch(stripe))
	for first := w.outFrom; first < rows; first += order {
		for at := 0; at < cols; at += stripe {
			width := min(stripe, cols-at)
			for r := range order {
				copy(part[r*width:(r+1)*width], values[(first+r)*cols+at:])
			}
			w.out.MulRows(part[:order*width], width, scratch)
			for r := range order {
				copy(values[(first+r)*cols+at:], part[r*width:(r+1)*width])
			}
		}
	}
	return values, nil
}

// wholes keeps the matrices that were computed last: rows are read a few at a time, by several threads, which are at two neighbours at most.
type wholes struct {
	mu   sync.Mutex
	kept [2]struct {
		of     *turned
		values []float32
	}
}

// get gives a matrix, which must not be changed.
func (k *wholes) get(w *turned) ([]float32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[0].of == w {
		return k.kept[0].values, nil
	}
	k.kept[0], k.kept[1] = k.kept[1], k.kept[0]
	if k.kept[0].of != w {
		k.kept[0].of, k.kept[0].values = nil, nil
		values, err := w.all()
		if err != nil {
			return nil, err
		}
		k.kept[0].of, k.kept[0].values = w, values
	}
	return k.kept[0].values, nil
}
