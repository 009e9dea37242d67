package main

import (
	"fmt"
	"io"
	"time"

	"qtool/convert"
	"qtool/runtime/eval"
)

// quantizeReport is what `qtool quantize --json` prints. Keys may be added, none renamed.
type quantizeReport struct {
	Plan          []planLine   `json:"plan"`
	Output        string       `json:"output"`
	SizeBytes     int64        `json:"size_bytes"`   // of the file; of a plan, of its tensors, as tensor_bytes
	TensorBytes   int64        `json:"tensor_bytes"` // without header, tokenizer and configuration
	BitsPerWeight float64      `json:"bits_per_weight"`
	Seconds       float64      `json:"seconds"`
	Resumed       int          `json:"resumed"`
	Fallbacks     int          `json:"fallbacks"`
	Calibrated    int          `json:"calibrated"` // tensors quantized by their inputs
	Targets       string       `json:"targets,omitempty"`
	Mixed         *mixedReport `json:"mixed,omitempty"`
	// Statistics are what was quantized by in the place of a text.
	Statistics *statisticsReport `json:"statistics,omitempty"`
	Data       *dataReport       `json:"calibration_data,omitempty"`
	Warnings   []string          `json:"warnings"`
	Memory     int64             `json:"memory_bytes_expected"`
	Expected   float64           `json:"seconds_expected"`
	Eval       *eval.Report      `json:"eval"`

	inputsOnly bool     // no layer is compared by the hidden states after it
	shortfalls []string // those of the warnings that --strict does not accept
}

// fall adds warnings of a result that is less than what was asked for.
func (r *quantizeReport) fall(warnings ...string) {
	r.Warnings, r.shortfalls = append(r.Warnings, warnings...), append(r.shortfalls, warnings...)
	r.Fallbacks = len(r.shortfalls)
}

type planLine struct {
	Tensor        string  `json:"tensor"`
	Shape         []int   `json:"shape"`
	Source        string  `json:"source"`
	Scheme        string  `json:"scheme"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	Reason        string  `json:"reason"`

	Calibration *convert.CalibrationFigures `json:"calibration,omitempty"`
}

// mixedReport says what mixed precision was chosen by.
type mixedReport struct {
	Predicted     float64               `json:"predicted_kld"`
	Bound         float64               `json:"bound"`
	Divergence    float64               `json:"divergence_limit,omitempty"` // where that is the budget, and the bound is of bytes
	Tokens        int                   `json:"tokens"`
	Resumed       int                   `json:"resumed"` // tensors that an earlier run had measured
	Damaged       bool                  `json:"journal_damaged,omitempty"`
	Sensitivities []convert.Sensitivity `json:"sensitivities"`
}

// printCalibrated says how quantizing by inputs went: the worst layers, and how many were less than asked for.
func printCalibrated(w io.Writer, r *quantizeReport) {
	if r.Calibrated == 0 {
		return
	}
	var worst *planLine
	for i, l := range r.Plan {
		if l.Calibration != nil && (worst == nil || l.Calibration.Error > worst.Calibration.Error) {
			worst = &r.Plan[i]
		}
	}
	fmt.Fprintf(w, "  %s quantized by their inputs, %s; largest error of a layer's output, to that of the weights it was to have, %.2f %% (%s)\n",
		manyText(r.Calibrated, "tensor"), manyText(r.Fallbacks, "shortfall"), 100*worst.Calibration.RMSError, worst.Tensor)
	if r.Targets == convert.SourceOutputs.String() {
		text := "outputs were to meet those of the source (--targets source): these weights make up for the layers before"
		if r.inputsOnly {
			text += "; a norm follows each half of a block, so its last layer was compared by its inputs, as the others, not by the hidden states"
		}
		fmt.Fprintf(w, "  %s\n", text)
	} else {
		fmt.Fprintln(w, "  outputs were to meet those of a layer's own weights (--targets own)")
	}
}

// manyText counts things.
func manyText(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%s %ss", countText(int64(n)), what)
}

// wereText is manyText as the beginning of what happened to them.
func wereText(n int, what string) string {
	if n == 1 {
		return manyText(n, what) + " was"
	}
	return manyText(n, what) + " were"
}

// printMixed says what a choice by budget is expected to cost.
func printMixed(w io.Writer, m *mixedReport) {
	if m == nil {
		return
	}
	bound := fmt.Sprintf("less than %.3g", m.Bound)
	if m.Divergence > 0 {
		bound = fmt.Sprintf("less than %s in these tensors within %.3g", sizeText(int64(m.Bound)), m.Divergence)
	}
	fmt.Fprintf(w, "  mixed by the divergence that each tensor's own quantization costs on %s tokens: %.3g nats together by rounding to nearest; no choice could have %s\n",
		countText(int64(m.Tokens)), m.Predicted, bound)
	if m.Resumed > 0 {
		fmt.Fprintf(w, "  %s measured by an earlier run\n", wereText(m.Resumed, "tensor"))
	}
	if m.Damaged {
		fmt.Fprintln(w, "  the journal of what an earlier run had measured is damaged: what follows its first bad line was measured again")
	}
}

// printPlan prints the decision for each tensor and what to expect.
func printPlan(w io.Writer, r *quantizeReport) error {
	t := newTable(w)
	fmt.Fprintln(t, "tensor\tshape\tstored as\twill be\tbits per weight\twhy")
	for _, l := range r.Plan {
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%.3f\t%s\n", l.Tensor, l.Shape, l.Source, l.Scheme, l.BitsPerWeight, l.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	printMixed(w, r.Mixed)
	printData(w, r.Data)
	printStatistics(w, r.Statistics)
	fmt.Fprintf(w, "\n%s, %.3f bits per weight: %s of tensors on disk, to which header and tokenizer come; about %s of memory, about %s\n", r.Output, r.BitsPerWeight,
		sizeText(r.SizeBytes), sizeText(r.Memory), durationText(r.Expected))
	printWarnings(w, r.Warnings)
	return nil
}

// printQuantized prints what was written, scheme by scheme.
func printQuantized(w io.Writer, r *quantizeReport) error {
	type total struct {
		tensors int
		weights int64
	}
	totals := make(map[string]*total)
	var order []string
	for _, l := range r.Plan {
		n := int64(1)
		for _, d := range l.Shape {
			n *= int64(d)
		}
		if totals[l.Scheme] == nil {
			totals[l.Scheme] = &total{}
			order = append(order, l.Scheme)
		}
		totals[l.Scheme].tensors++
		totals[l.Scheme].weights += n
	}
	fmt.Fprintf(w, "%s: a file of %s, %s of it tensors, %.3f bits per weight, in %s\n", r.Output, sizeText(r.SizeBytes), sizeText(r.TensorBytes), r.BitsPerWeight, durationText(r.Seconds))
	t := newTable(w)
	for _, name := range order {
		fmt.Fprintf(t, "  %s\t%s\t%s weights\n", name, manyText(totals[name].tensors, "tensor"), countText(totals[name].weights))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	printMixed(w, r.Mixed)
	printData(w, r.Data)
	printStatistics(w, r.Statistics)
	printCalibrated(w, r)
	if r.Resumed > 0 {
		fmt.Fprintf(w, "  %s finished by an earlier run\n", wereText(r.Resumed, "tensor"))
	}
	printWarnings(w, r.Warnings)
	return nil
}

func printWarnings(w io.Writer, warnings []string) {
	for _, s := range warnings {
		fmt.Fprintln(w, "note:", s)
	}
}

// durationText gives seconds as a person reads them.
func durationText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", seconds)
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", seconds)
	}
	return d.Round(time.Second).String()
}
