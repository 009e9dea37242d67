package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/formats/checkpoint"
)

// statisticsReport says what file of statistics was quantized by.
type statisticsReport struct {
	File   string `json:"file"`
	Kind   string `json:"kind"` // qcal or imatrix
	Digest string `json:"digest"`
	What   string `json:"what"`
}

// printStatistics says what a file of statistics means for the result.
func printStatistics(w io.Writer, s *statisticsReport) {
	if s != nil {
		fmt.Fprintf(w, "  by %s: %s\n", s.File, s.What)
	}
}

// sourceText names what calibration stands on.
func sourceText(s convert.Source) string {
	switch s {
	case convert.FromQcal:
		return "a .qcal file"
	case convert.FromImatrix:
		return "an imatrix"
	}
	return "a text"
}

// detect finds what the data are, by their content.
func (o *calibrationOptions) detect() error {
	if o.data == "" {
		return nil
	}
	var err error
	o.source, err = convert.DetectStatistics(o.data)
	if errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(o.data, ".qcal") && !strings.HasSuffix(o.data, ".gguf") {
		return nil // whoever reads it says so
	}
	if err != nil {
		return fmt.Errorf("calibration data: %w", err)
	}
	return nil
}

// textFlags say how a text is read and run on.
var textFlags = []string{"calib-kind", "calib-field", "calib-context", "calib-samples", "max-memory"}

// unusedText refuses flags that say how a text is read, where there is a file of statistics.
func (o *calibrationOptions) unusedText(cmd *cobra.Command) error {
	for _, flag := range textFlags {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s says how a text is read: %s is %s", flag, o.data, sourceText(o.source))
		}
	}
	return nil
}

// checkSource refuses flags that a file of statistics leaves nothing to do for, and sets those that it decides.
func (o *calibrationOptions) checkSource(cmd *cobra.Command) error {
	if err := o.unusedText(cmd); err != nil {
		return err
	}
	if o.source != convert.FromImatrix {
		return nil
	}
	if cmd.Flags().Changed("method") && o.method == "gptq" {
		return usagef("--method gptq needs Hessians, which an imatrix does not have: it has the importance of single channels, for --method rtn; qtool calibrate gives a file that has them")
	}
	if cmd.Flags().Changed("refine") && o.refine > 0 {
		return usagef("--refine lowers the error of outputs, which needs Hessians: an imatrix has none")
	}
	for _, flag := range []string{"damping", "in-order", "scaling", "activation-range"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s needs Hessians or ranges, which an imatrix does not have", flag)
		}
	}
	o.method, o.refine = "rtn", 0
	return nil
}

// statistics opens a file of statistics, holds it against the model and notes its digest in the recipe; nil where the data are a text.
func (o *calibrationOptions) statistics(m *checkpoint.Model, r *convert.Recipe) (*convert.Statistics, error) {
	if o.data == "" || o.source == convert.FromText {
		return nil, nil
	}
	s, err := convert.OpenStatistics(o.data, o.source)
	if err != nil {
		return nil, err
	}
	err = s.Check(m)
	if found := s.Digest().String(); err == nil && r.Calibration != "" && r.Calibration != found {
		err = fmt.Errorf("statistics %s have digest %s, the recipe asks for those of %s", o.data, found, r.Calibration)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	r.Calibration = s.Digest().String()
	return s, nil
}
