package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/formats/checkpoint"
	"qtool/runtime/pool"
)

// convertReport is what `qtool convert --json` prints.
type convertReport struct {
	Model     string   `json:"model"`
	Output    string   `json:"output"`
	Files     []string `json:"files"`
	SizeBytes int64    `json:"size_bytes"`
	Changed   int      `json:"changed"`
	Clamped   int      `json:"clamped"`
	Warnings  []string `json:"warnings"`
}

func newConvert() *cobra.Command {
	var output, dtype string
	var threads int
	var shard int64
	var clamp, strict, asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "convert MODEL -o OUTPUT",
		Short: "Carry a model into another container or element type",
		Long: `convert writes the model as NAME.gguf, as a packed file NAME.qpk, or else as a folder with
safetensors, with every tensor, the configuration and the tokenizer; files that GGUF has
no keys for are kept under keys of their own and come back.

--dtype gives the matrices another type: f32, f16, bf16, and for GGUF also q8_0 and q4_0.
Without it every tensor keeps its type; one that the container cannot hold becomes f32,
which loses nothing. NaN and infinities are carried over as they are, but for packed
files, which have none: verify looks for them.`,
		Example: `  qtool convert model.gguf -o hf-dir
  qtool convert llama-7b -o llama-7b.gguf --dtype f16
  qtool convert llama-7b-w4.qpk -o llama-7b-w4.gguf`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if output == "" {
				return usagef("name the output with -o")
			}
			switch dtype {
			case "keep", "f32", "f16", "bf16", "q8_0", "q4_0":
			default:
				return usagef("--dtype %q: expected keep, f32, f16, bf16, q8_0 or q4_0", dtype)
			}
			if (dtype == "q8_0" || dtype == "q4_0") && strings.ToLower(filepath.Ext(output)) != ".gguf" {
				return usagef("--dtype %s is a type of GGUF files: name the output NAME.gguf, or make a packed file with qtool quantize", dtype)
			}
			path, err := find(args[0])
			if err != nil {
				return err
			}
			m, err := checkpoint.Open(path)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.Close()) }()
			if threads == 0 {
				threads = pool.Available()
			}
			progress, finish := lateProgress("convert", false, quiet)
			r, err := convert.Export(cmd.Context(), m, convert.ExportOptions{
				Output: output, Type: convert.Choice(dtype), Threads: threads, MaxShard: shard, Clamp: clamp, Version: release,
				Progress: progress,
			})
			finish()
			if err != nil {
				return err
			}
			warnings := append(append([]string{}, m.Warnings()...), r.Warnings...)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), convertReport{path, output, r.Files, r.Bytes, r.Changed, r.Clamped, warnings})
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", output, sizeText(r.Bytes))
				printWarnings(cmd.OutOrStdout(), warnings)
			}
			if err == nil && strict && (r.Changed > 0 || r.Clamped > 0) {
				err = fmt.Errorf("--strict: %d tensors have another type than was asked for, %d values were clamped", r.Changed, r.Clamped)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "", "NAME.gguf, NAME.qpk or a new folder")
	f.StringVar(&dtype, "dtype", "keep", "type of the matrices: keep, f32, f16, bf16, q8_0, q4_0")
	addThreads(f, &threads, "threads (0: one for each usable CPU)")
	f.Int64Var(&shard, "max-shard-size", 0, "bytes of one safetensors file (0: 5 GB)")
	f.BoolVar(&clamp, "clamp", false, "cut values beyond the range of the type instead of failing")
	f.BoolVar(&strict, "strict", false, "fail where a tensor could not have the type asked for, or values were clamped")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}
