package convert

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// ExportOptions say how a model is carried into another container.
type ExportOptions struct {
	Output string // NAME.gguf, NAME.qpk, or a folder for safetensors
	// Type of the matrices: keep, f32, f16 or bf16, and for GGUF also q8_0 and q4_0. Keep stands for the type
	// that a tensor has; one that the container cannot hold becomes f32, which loses nothing.
	Type     Choice
	Threads  int
	MaxShard int64 // bytes of a safetensors file; 0 stands for 5 GB
	Clamp    bool
	Version  string
	Progress func(done, total int64, tensor string)
}

// ExportResult says what was written.
type ExportResult struct {
	Files    []string
	Bytes    int64
	Clamped  int
	Changed  int // tensors that could not be kept in, or brought to, the type asked for
	Warnings []string
}

// Export writes a model into another container, with all tensors, files and the tokenizer. The output
// appears as a whole or not at all.
func Export(ctx context.Context, m *checkpoint.Model, o ExportOptions) (*ExportResult, error) {
	x := &export{model: m, options: o, result: &ExportResult{}}
	for _, t := range m.Tensors() {
		if err := t.CanRead(); err != nil {
			return nil, err
		}
		x.total += int64(t.Elements())
	}
	for _, name := range m.Dropped() {
		x.warn("%s carries nothing that is needed and was left out", name)
	}
	var err error
	switch strings.ToLower(filepath.Ext(o.Output)) {
	case ".gguf":
		if err = verify(ctx, m); err == nil {
			err = x.gguf(ctx)
		}
	case ".qpk":
		err = x.packed(ctx)
	case ".safetensors":
		err = errors.New("name a folder: a model is more than its weights")
	default:
		if err = verify(ctx, m); err == nil {
			err = x.directory(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("convert %s to %s: %w", m.Path(), o.Output, err)
	}
	if x.result.Clamped > 0 {
		x.warn("%d values were cut to the range of their type", x.result.Clamped)
	}
	return x.result, nil
}

// export is one run of Export.
type export struct {
	model       *checkpoint.Model
	options     ExportOptions
	result      *ExportResult
	total, done int64
}

func (x *export) warn(format string, args ...any) {
	x.result.Warnings = append(x.result.Warnings, fmt.Sprintf(format, args...))
}

// stream writes items to a file.
func (x *export) stream(ctx context.Context, out interface {
	WriteAt(p []byte, off int64) (int, error)
}, items []item) error {
	current := 0
	s := &streamer{
		out: out, threads: x.options.Threads,
		finished: func(i int, o outcome) error {
			x.result.Clamped += o.clamped
			current = i + 1
			return nil
		},
		progress: func(weights int64) {
			x.done += weights
			if x.options.Progress != nil {
				x.options.Progress(x.done, x.total, items[min(current, len(items)-1)].tensor.Name)
			}
		},
	}
	if err := s.run(ctx, items); err != nil {
		return err
	}
	return x.model.CheckSize()
}

// packed writes a packed file that keeps plain types.
func (x *export) packed(ctx context.Context) error {
	if x.options.Type == "q8_0" || x.options.Type == "q4_0" {
		return fmt.Errorf("%s is a type of GGUF; quantize into a packed file with: qtool quantize", x.options.Type)
	}
	plan, err := NewPlan(x.model, Recipe{Linear: x.options.Type, Embeddings: x.options.Type, Head: x.options.Type, Rule: "absmax", Clamp: x.options.Clamp})
	if err != nil {
		return err
	}
	r, err := Quantize(ctx, x.model, plan, Options{
		Output: x.options.Output, Threads: x.options.Threads, Version: x.options.Version, Progress: x.options.Progress,
	})
	if err != nil {
		return err
	}
	x.result.Files, x.result.Bytes, x.result.Clamped = []string{x.options.Output}, r.Bytes, r.Clamped
	x.result.Warnings = append(x.result.Warnings, r.Warnings...)
	return nil
}

// repackable reports whether a packed matrix has the same codes and scales in a type of ggml's.
func repackable(t *checkpoint.Tensor) bool {
	if !t.Packed() {
		return false
	}
	s := t.Matrix().Scheme
	return s.Group == packed.Block && !s.Asym && t.Cols()%packed.Block == 0
}
