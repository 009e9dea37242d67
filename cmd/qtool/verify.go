package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"qtool/calibrate/qcal"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/mapped"
)

// verification is what `qtool verify --json` prints.
type verification struct {
	Model     string `json:"model"`
	Container string `json:"container"`
	Tensors   int    `json:"tensors"`
	SizeBytes int64  `json:"size_bytes"` // of the tensors
	Digests   bool   `json:"digests"`    // the data were compared with digests
	// Note says that the tokenizer, whole as far as can be told, needs something that is not supported.
	Note string `json:"note,omitempty"`
}

func newVerify() *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "verify MODEL",
		Short: "Check that a model is whole",
		Long: `verify checks every header of a model as opening it does, and reads all data. Of a packed
file it compares the data of each tensor with the digest in the header; the other
containers have none. Of a .qcal file it compares the statistics with theirs. In what is not quantized it looks for values that are not finite
numbers, in any container. A tokenizer that came with the model must be readable.`,
		Example: `  qtool verify llama-7b-w4.qpk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := locate(args[0])
			if err != nil {
				return err
			}
			check := verify
			if isCalibration(path) {
				check = verifyStatistics
			}
			v, err := check(cmd.Context(), path, quiet)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			how := "every value is a number (this container has no digests)"
			if v.Digests {
				how = "all data have the digests of the header"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: whole, %s, %s of data; %s\n", v.Model, manyText(v.Tensors, "tensor"), sizeText(v.SizeBytes), how)
			if v.Note != "" {
				printWarnings(cmd.OutOrStdout(), []string{v.Note})
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func verify(ctx context.Context, path string, quiet bool) (v *verification, err error) {
	m, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	v = &verification{Model: path, Container: string(m.Container()), Tensors: len(m.Tensors())}
	v.SizeBytes, _ = m.Size()
	if m.Container() == checkpoint.Packed {
		v.Digests = true
		progress, finish := lateProgress("verify", true, quiet)
		err := m.Verify(func(done, total int64) error {
			progress(done, total, "")
			return ctx.Err()
		})
		finish()
		if err != nil {
			return nil, err
		}
	}
	if v.Note, err = verifyTokenizer(m); err != nil {
		return nil, err
	}
	bar := newProgress("verify", v.SizeBytes, true, quiet || v.Digests) // plain tensors of packed files are few
	defer bar.finish()
	var done int64
	for _, t := range m.Tensors() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if t.Packed() { // its scales are codes of finite numbers, and its digest is right
			continue
		}
		if err := finite(t); err != nil {
			return nil, err
		}
		done += t.Bytes()
		bar.set(done, "")
	}
	return v, nil
}

// verifyTokenizer reads the tokenizer, where the model has one: weights alone are whole too. One that needs something qtool does not do is noted.
func verifyTokenizer(m *checkpoint.Model) (note string, err error) {
	_, broken := tokenizerOf(m)
	if broken == nil {
		return "", nil
	}
	if errors.Is(broken, formats.ErrUnsupported) {
		return fmt.Sprintf("the model cannot be run on text: %v", broken), nil
	}
	names, err := m.Files()
	if err != nil {
		return "", err
	}
	metadata, err := m.Metadata()
	if err != nil {
		return "", err
	}
	if slices.Contains(names, "tokenizer.json") || slices.Contains(names, "tokenizer.model") || metadata != nil && metadata.Has("tokenizer.ggml.model") {
		return "", fmt.Errorf("the tokenizer is broken: %w", broken)
	}
	return "", nil
}

// verifyStatistics compares the data of a file of statistics with its digests.
func verifyStatistics(ctx context.Context, path string, quiet bool) (v *verification, err error) {
	f, err := qcal.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	v = &verification{Model: path, Container: "qcal", Digests: true}
	for _, in := range f.Header().Inputs {
		v.Tensors += len(in.Parts())
	}
	progress, finish := lateProgress("verify", true, quiet)
	err = f.Verify(func(done, total int64) error {
		v.SizeBytes = total
		progress(done, total, "")
		return ctx.Err()
	})
	finish()
	return v, err
}

// finite reads a tensor and says where it holds something that is no number.
func finite(t *checkpoint.Tensor) error {
	if err := t.CanRead(); err != nil {
		return err
	}
	return mapped.Guard(func() error {
		var r checkpoint.Reader
		row := make([]float32, t.Cols())
		for i := range t.Rows() {
			if err := t.ReadRows(row, i, 1, &r); err != nil {
				return err
			}
			for k, v := range row {
				if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
					return fmt.Errorf("%s: tensor %q: the value at row %d, column %d is %g", t.Path(), t.Name, i, k, v)
				}
			}
		}
		return nil
	})
}
