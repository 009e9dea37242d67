package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/formats/checkpoint"
	"qtool/runtime/pool"
)

// calibrateReport is what `qtool calibrate --json` prints. Keys may be added, none renamed.
type calibrateReport struct {
	Model     string      `json:"model"`
	Output    string      `json:"output"`
	SizeBytes int64       `json:"size_bytes"`
	Data      string      `json:"data"`
	Digest    string      `json:"data_digest"`
	Context   int         `json:"context"`
	Sequences int         `json:"sequences"`
	Tokens    int         `json:"tokens"`
	Found     *dataReport `json:"calibration_data"`
	Inputs    int         `json:"inputs"`
	Resumed   int         `json:"resumed"` // blocks
	Seconds   float64     `json:"seconds"`
	Warnings  []string    `json:"warnings"`
}

func newCalibrate() *cobra.Command {
	var o dataOptions
	var output string
	var threads int
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "calibrate MODEL --calib DATA",
		Short: "Run a model on a text and keep the statistics of its layers' inputs as a file",
		Long: `calibrate runs the model block by block on a text and writes what quantizers need to
know of the inputs of every linear layer: Hessians, sums of squares, ranges, histograms
and percentiles by channel. quantize --calib NAME.qcal then needs no text and runs
nothing, for any number of schemes.

The statistics are of the model's own inputs. quantize --calib TEXT instead follows what
the quantized blocks make of the text, which is closer to what the result computes.

A run that is stopped, even killed, is taken up after the last finished block by the same
command. The same model, data and context give the same bytes, on the same level of
instructions (QTOOL_CPU).`,
		Example: `  qtool calibrate llama-7b --calib text.txt -o llama-7b.qcal
  qtool quantize --bits 4 --calib llama-7b.qcal llama-7b
  qtool calibrate llama-7b --calib chats.jsonl --calib-field content -c 2048 --calib-samples 64 --max-memory 8GB`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.data == "" {
				return usagef("name the data with --calib")
			}
			if err := errors.Join(o.check(), o.checkField(cmd)); err != nil {
				return err
			}
			if threads == 0 {
				threads = pool.Available()
			}
			path, err := find(args[0])
			if err != nil {
				return err
			}
			if output == "" {
				output = convert.StatisticsName(path)
			}
			report, err := calibrateModel(cmd.Context(), path, output, threads, &o, quiet)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			printCalibrate(cmd.OutOrStdout(), report)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "calib", "", "data to run the model on: a text, documents in JSON lines, or arrays of token ids in JSON lines")
	o.addFlags(f, "c")
	f.StringVarP(&output, "output", "o", "", "file to write (default: MODEL.qcal in the current folder)")
	addThreads(f, &threads, "threads (0: as many as can work at once)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

// calibrateModel opens the model, reads the data and collects.
func calibrateModel(ctx context.Context, path, output string, threads int, o *dataOptions, quiet bool) (report *calibrateReport, err error) {
	start := time.Now()
	m, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, data, err := o.sequences(m, contextFor(m, o.context), o.samples)
	if err != nil {
		return nil, err
	}
	progress, finish := lateProgress("calibrate", false, quiet)
	r, err := convert.Collect(ctx, m, convert.CollectOptions{
		Output: output, Reads: []string{o.data}, Threads: threads, Version: release, Data: s.Digest, Calibration: &convert.Calibration{Sequences: s.Windows, MaxMemory: o.maxMemory},
		Progress: progress,
	})
	finish()
	if err != nil {
		return nil, resumable(ctx, err)
	}
	if r.Discarded {
		fmt.Fprintln(os.Stderr, "qtool: unfinished statistics of another model, data or context were discarded")
	}
	report = &calibrateReport{
		Model: path, Output: output, SizeBytes: r.Bytes, Data: o.data, Digest: s.Digest.String(), Context: data.Context, Sequences: len(s.Windows), Tokens: r.Tokens, Found: data,
		Inputs: r.Inputs, Resumed: r.Resumed, Seconds: time.Since(start).Seconds(), Warnings: append([]string{}, m.Warnings()...),
	}
	if data.Note != "" {
		report.Warnings = append(report.Warnings, data.Note)
	}
	if r.TooLong != "" {
		report.Warnings = append(report.Warnings, r.TooLong)
	}
	return report, nil
}

func printCalibrate(w io.Writer, r *calibrateReport) {
	fmt.Fprintf(w, "%s: %s, inputs of %d kinds, in %s\n", r.Output, sizeText(r.SizeBytes), r.Inputs, durationText(r.Seconds))
	printData(w, r.Found)
	if r.Resumed > 0 {
		fmt.Fprintf(w, "  %s finished by an earlier run\n", wereText(r.Resumed, "block"))
	}
	printWarnings(w, r.Warnings)
}
