package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"qtool/calibrate"
	"qtool/calibrate/imatrix"
	"qtool/calibrate/qcal"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/llama"
)

// Source says what calibration stands on.
type Source string

// Sources of calibration.
const (
	FromText    Source = ""        // the model is run on it while it is quantized
	FromQcal    Source = "qcal"    // statistics of the source's inputs
	FromImatrix Source = "imatrix" // importance alone
)

// Statistics are what a file knows of the inputs of a model's linear layers, in the place of a text.
type Statistics struct {
	path    string
	qcal    *qcal.File
	imatrix *imatrix.File
}

// DetectStatistics tells by its content whether a file holds statistics: FromText where it holds anything else.
func DetectStatistics(path string) (source Source, err error) {
	// Not to hang on a named pipe, look before opening.
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return FromText, err
	}
	f, err := os.Open(path)
	if err != nil {
		return FromText, err
	}
	start := make([]byte, 16)
	n, err := io.ReadFull(f, start)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return FromText, err
	}
	start = start[:n]
	switch {
	case strings.HasPrefix(string(start), "GGUF"), imatrix.IsBinary(start):
		return FromImatrix, nil
	case len(start) > 8 && start[8] == '{' && start[7] == 0, strings.HasSuffix(path, ".qcal"):
		return FromQcal, nil // a safetensors file: what else it may be, opening it says
	}
	return FromText, nil
}

// OpenStatistics opens a file that holds statistics.
func OpenStatistics(path string, source Source) (s *Statistics, err error) {
	s = &Statistics{path: path}
	switch source {
	case FromQcal:
		s.qcal, err = qcal.Open(path)
	case FromImatrix:
		s.imatrix, err = imatrix.Read(path)
	default:
		err = fmt.Errorf("%s holds no statistics", path)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close closes the file.
func (s *Statistics) Close() error {
	if s == nil || s.qcal == nil {
		return nil
	}
	return s.qcal.Close()
}

// Source tells what kind they are.
func (s *Statistics) Source() Source {
	if s.qcal != nil {
		return FromQcal
	}
	return FromImatrix
}

// Digest is the file's.
func (s *Statistics) Digest() packed.Digest {
	if s.qcal != nil {
		return s.qcal.Digest()
	}
	return s.imatrix.Digest
}

// Describe says what the statistics are of, and what that means for the result.
func (s *Statistics) Describe() string {
	if s.qcal != nil {
		h := s.qcal.Header()
		return fmt.Sprintf("statistics of the source's inputs, %d sequences of %d tokens: what quantized blocks make of a text was not followed", h.Sequences, h.Context)
	}
	return fmt.Sprintf("importance alone (imatrix, %s form): codes rounded to nearest, scales and codebooks weighted by it; no GPTQ, no refinement", s.imatrix.Form)
}

// ggufNames are the names that a tensor may have in an imatrix: that of a tied embedding is the head's.
func ggufNames(m *checkpoint.Model, t *checkpoint.Tensor) []string {
	names := []string{t.GGUF}
	if t.Name == headOf(m) && t.GGUF != "output.weight" {
		names = append(names, "output.weight")
	}
	return names
}

// headOf names the matrix that gives the logits.
func headOf(m *checkpoint.Model) string {
	last := m.Tensors()[len(m.Tensors())-1]
	if m.Config().TieEmbeddings {
		last = m.Tensors()[0]
	}
	return last.Name
}

// Check holds names and shapes against those of a model.
func (s *Statistics) Check(m *checkpoint.Model) error {
	if s.imatrix != nil {
		return s.checkImatrix(m)
	}
	h := s.qcal.Header()
	if len(h.Model) != len(m.Tensors()) {
		return formats.Malformed(s.path, "model", "is of a model with %d tensors, this one has %d", len(h.Model), len(m.Tensors())).WithHint("calibrate this model")
	}
	for _, t := range h.Model {
		own, ok := m.Tensor(t.Name)
		if !ok {
			return formats.Malformed(s.path, t.Name, "the model has no such tensor").WithHint("the statistics are of another model")
		}
		if !slices.Equal(own.Shape, t.Shape) {
			return formats.Malformed(s.path, t.Name, "is of shape %v, the model's is %v", t.Shape, own.Shape).WithHint("the statistics are of another model")
		}
	}
	return nil
}

func (s *Statistics) checkImatrix(m *checkpoint.Model) error {
	known := make(map[string]*checkpoint.Tensor)
	for _, t := range m.Tensors() {
		for _, n := range ggufNames(m, t) {
			known[n] = t
		}
	}
	for _, e := range s.imatrix.Entries {
		t := known[e.Name]
		if t == nil || len(t.Shape) != 2 {
			return formats.Malformed(s.path, e.Name, "the model has no such matrix").WithHint("the imatrix is of another model")
		}
		if e.Importance != nil && len(e.Importance) != t.Cols() {
			return formats.Malformed(s.path, e.Name, "has %d channels, %s has %d", len(e.Importance), t.Name, t.Cols()).WithHint("the imatrix is of another model")
		}
	}
	return nil
}

// verify holds the values of a tensor against those that the statistics are of.
func (s *Statistics) verify(name string, found packed.Digest) error {
	if s.qcal == nil {
		return nil // an imatrix does not say
	}
	for _, t := range s.qcal.Header().Model {
		if t.Name == name && t.Digest != found.String() {
			return formats.Malformed(s.path, name, "is of values with digest %s, the model's have %s", t.Digest, found).WithHint("the statistics are of another model: calibrate this one")
		}
	}
	return nil
}

// importance gives that of a matrix; nil where the file has none.
func (s *Statistics) importance(m *checkpoint.Model, t *checkpoint.Tensor) []float32 {
	for _, n := range ggufNames(m, t) {
		for _, e := range s.imatrix.Entries {
			if e.Name == n && slices.ContainsFunc(e.Importance, func(v float32) bool { return v > 0 }) {
				return e.Importance
			}
		}
	}
	return nil
}

// byStatistics quantizes linear layers and the head by a file in the place of a text.
func (c *calibrated) byStatistics(ctx context.Context) error {
	s := c.options.Statistics
	for _, d := range c.plan.Decisions {
		// The others are held against theirs when they are read to be quantized.
		if d.Scheme != nil && !d.Tensor.Packed() && c.knows(d) || s.qcal == nil {
			continue
		}
		sum, err := valuesDigest(ctx, d.Tensor)
		if err != nil {
			return err
		}
		if err := s.verify(d.Tensor.Name, sum); err != nil {
			return err
		}
	}
	for layer := range c.blocks.Count() {
		for i, group := range c.blocks.Linears(layer) {
			half := llama.Half(i / 2)
			if i%2 == 0 {
				if err := c.scale(ctx, layer, half); err != nil {
					return err
				}
			}
			if err := c.group(ctx, layer, half, group); err != nil {
				return err
			}
		}
	}
	d, ok := c.decisions[c.blocks.Head()]
	if _, done := c.work.done[d.Tensor.Name]; !ok || done || d.Scheme == nil || d.Tensor.Packed() {
		return nil
	}
	return c.known(ctx, []Decision{d})
}

// knows reports whether there are statistics of a matrix's input.
func (c *calibrated) knows(d Decision) bool {
	s := c.options.Statistics
	if s.imatrix != nil {
		return s.importance(c.model, d.Tensor) != nil
	}
	_, ok := s.qcal.Header().Find(d.Tensor.Name)
	return ok
}

// known quantizes matrices that share an input by what the file knows of it. Those that it knows nothing of are left to be rounded, which counts as a shortfall.
func (c *calibrated) known(ctx context.Context, open []Decision) error {
	var rest []Decision
	for _, d := range open {
		if c.knows(d) {
			rest = append(rest, d)
		} else if d.Scheme.Static {
			return fmt.Errorf("tensor %q: %s has no statistics of its input, which %s needs", d.Tensor.Name, c.options.Statistics.path, d.Scheme)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	if s := c.options.Statistics; s.imatrix != nil {
		for _, d := range rest {
			in, err := quant.NewImportance(s.importance(c.model, d.Tensor))
			if err != nil {
				return fmt.Errorf("inputs of %q: %w", d.Tensor.Name, err)
			}
			if err := c.matrices(ctx, []Decision{d}, in, nil, 0); err != nil {
				return err
			}
		}
		return nil
	}
	st, limit, err := c.recallGram(rest[0].Tensor.Name, static(rest))
	if err != nil {
		return err
	}
	if st.Count == 0 {
		if static(rest) {
			return fmt.Errorf("inputs of %q: %w", rest[0].Tensor.Name, calibrate.ErrNoData)
		}
		return nil // rounded
	}
	c.seen = st.Count
	h := st.Mean()
	if rest[0].Tensor.Name == c.engine.EmbeddingName() {
		addIdentity(h, st.Cols, embeddingShare)
	}
	in, err := c.prepare(h, st.Cols)
	if err != nil {
		return fmt.Errorf("inputs of %q: %w", rest[0].Tensor.Name, err)
	}
	return c.matrices(ctx, rest, in, nil, limit)
}

// recallGram reads the statistics of a layer's input from the file, divided by the factors that what gives it was divided by, and the range of activations.
func (c *calibrated) recallGram(layer string, withRange bool) (*calibrate.Gram, float32, error) {
	in, ok := c.options.Statistics.qcal.Header().Find(layer)
	if !ok {
		return nil, 0, fmt.Errorf("%s has no statistics of the input of %q", c.options.Statistics.path, layer)
	}
	s, err := c.options.Statistics.qcal.Read(in)
	if err != nil {
		return nil, 0, err
	}
	g := calibrate.NewGram(c.solver, in.Channels)
	g.Count, g.Max = int(s.Count), s.Magnitudes()
	factors := c.factors[layer]
	at := 0
	for i := range in.Channels {
		if factors != nil {
			g.Max[i] /= max(factors[i], -factors[i])
		}
		for j := i; j < in.Channels; j++ {
			v := s.Hessian[at]
			if factors != nil {
				v /= factors[i] * factors[j]
			}
			g.Sum[i*in.Channels+j] = v
			at++
		}
	}
	var limit float32
	switch {
	case !withRange:
	case factors == nil:
		limit = s.Histogram.Range(c.plan.Recipe.Ranges)
	case c.plan.Recipe.Ranges == calibrate.MinMax:
		limit = slices.Max(g.Max)
	default:
		return nil, 0, fmt.Errorf("the range %s of scaled channels is not in a file of statistics: only %s is", c.plan.Recipe.Ranges, calibrate.MinMax)
	}
	return g, limit, nil
}

// sourceCheck says what a recipe asks for that its source of calibration cannot give.
func (r Recipe) sourceCheck() error {
	if r.Source != FromText && r.Rotation != NoRotation {
		return errors.New("a rotation needs a text: statistics are of inputs that were not turned")
	}
	if r.Source != FromText && r.Targets != OwnOutputs {
		return errors.New("the source's outputs as targets need a text, to run it on")
	}
	switch r.Source {
	case FromText:
		return nil
	case FromQcal:
		if r.Budget != nil {
			return errors.New("a budget needs a text: what a tensor's quantization costs is measured by running the model")
		}
	case FromImatrix:
		switch {
		case r.Budget != nil:
			return errors.New("a budget needs a text: what a tensor's quantization costs is measured by running the model")
		case r.Method == quant.GPTQ:
			return errors.New("method gptq needs Hessians, which an imatrix does not have: it has the importance of single channels; use rtn, or a .qcal file or a text")
		case r.Refine > 0:
			return errors.New("refinement needs Hessians, which an imatrix does not have")
		case r.Scaling != quant.NoScaling:
			return errors.New("scaling of channels needs Hessians and ranges, which an imatrix does not have")
		}
	default:
		return fmt.Errorf("source %q is unknown: expected text, %q or %q", r.Source, FromQcal, FromImatrix)
	}
	return nil
}

// adopt holds the statistics against a model and a plan, and notes them in its recipe.
func (s *Statistics) adopt(m *checkpoint.Model, p *Plan, text *Calibration) error {
	if text != nil {
		return errors.New("calibration by a text and by statistics at once")
	}
	if err := s.Check(m); err != nil {
		return err
	}
	p.Recipe.Source = s.Source()
	if s.imatrix != nil {
		for _, d := range p.Decisions {
			if d.Scheme != nil && d.Scheme.Static && !d.Tensor.Packed() {
				return fmt.Errorf("tensor %q: %s needs ranges of activations, which an imatrix does not have", d.Tensor.Name, d.Scheme)
			}
		}
	}
	digest := s.Digest().String()
	if p.Recipe.Calibration != "" && p.Recipe.Calibration != digest {
		return fmt.Errorf("statistics %s have digest %s, the recipe asks for those of %s", s.path, digest, p.Recipe.Calibration)
	}
	p.Recipe.Calibration = digest
	return p.Recipe.Validate()
}
