package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"qtool/runtime/bench"
	"qtool/runtime/llama"
)

func newBench() *cobra.Command {
	var o bench.Options
	var kv, activations string
	var place placement
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "bench MODEL",
		Short: "Measure how fast a model runs on this machine",
		Long: `bench reads a prompt and generates tokens, several times, and prints tokens per second
with their standard deviation, the read bandwidth of the memory that it measures itself,
and the share of it that reading the weights for generating takes. With --batch
several sequences are generated together, and the tokens of all of them count.

Quantized GGUF files run as they are, repacked in memory for the loops: the report
says which types were, what else was done with others, and the memory for it.`,
		Example: `  qtool bench llama-7b-w4.qpk
  qtool bench llama-7b-w4.qpk -t 1,2 --prefill 128 --decode 64 --depth 0,4096 --batch 1,4,16 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Prefill < 0 || o.Decode < 0 || o.Repeat < 1 || o.Prefill+o.Decode == 0 {
				return usagef("expected --prefill and --decode ≥ 0, not both 0, and --repeat ≥ 1")
			}
			for _, list := range []struct {
				flag   string
				values []int
				least  int
			}{{"batch", o.Batch, 1}, {"depth", o.Depth, 0}} {
				if len(list.values) > 0 && slices.Min(list.values) < list.least {
					return usagef("--%s: expected numbers of at least %d", list.flag, list.least)
				}
			}
			for _, n := range o.Threads {
				if err := checkThreads(n, 1); err != nil {
					return usagef("--threads: %w", err)
				}
			}
			if o.CPUs, o.NUMA, err = place.parse(cmd); err != nil {
				return err
			}
			if o.KV, err = llama.ParseKVType(kv); err != nil {
				return usagef("--kv: %w", err)
			}
			if o.Activations, err = llama.ParseActivations(activations); err != nil {
				return usagef("--activations: %w", err)
			}
			if o.Model, err = find(args[0]); err != nil {
				return err
			}
			if !quiet {
				o.Progress = func(what string) { fmt.Fprintln(os.Stderr, "bench:", what) }
			}
			r, err := bench.Measure(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return printBench(cmd.OutOrStdout(), r)
		},
	}
	f := cmd.Flags()
	f.IntSliceVarP(&o.Threads, "threads", "t", nil, "numbers of threads to measure with (default: one for each core that may be used)")
	addPlacement(cmd, &place)
	f.IntVar(&o.Prefill, "prefill", 128, "tokens of the prompt; 0: none")
	f.IntVar(&o.Decode, "decode", 32, "tokens to generate; 0: none")
	f.IntSliceVar(&o.Depth, "depth", []int{0}, "tokens in the context before generating; several to measure with each")
	f.IntSliceVar(&o.Batch, "batch", []int{1}, "sequences that are generated together; several to measure with each")
	addKV(cmd, &kv)
	addActivations(cmd, &activations)
	f.IntVar(&o.Repeat, "repeat", 3, "runs of each kind, besides one to warm up")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func printBench(w io.Writer, r *bench.Report) error {
	fmt.Fprintf(w, "%s: %s, %s kernels, NUMA %s, keys and values in %s\n", r.Model, sizeText(r.SizeBytes), r.CPU, r.NUMA, r.KV)
	fmt.Fprintf(w, "loaded in %.2f s, runs as: %s\n", r.LoadSeconds, weightsText(r.Weights))
	t := newTable(w)
	fmt.Fprintln(t, "what\tthreads\tsequences\ttokens\tafter\ttokens/s\tread bandwidth\tshare of it")
	beyond := false
	for _, x := range r.Runs {
		share, after := "", strconv.Itoa(x.Context)
		if x.Beyond {
			after, beyond = after+" *", true
		}
		if x.BusShare > 0 {
			share = percentText(x.BusShare)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%.2f ± %.2f\t%.1f GB/s\t%s\n", x.Kind, x.Threads, x.Batch, x.Tokens, after, x.PerSec, x.StdDev, r.Bandwidth[strconv.Itoa(x.Threads)], share)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if beyond {
		fmt.Fprintln(w, "* beyond the context that the model is made for")
	}
	return nil
}
