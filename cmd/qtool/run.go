package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"qtool/formats/checkpoint"
	"qtool/runtime/llama"
	"qtool/runtime/tokenizer"
)

// runOptions are the flags of run.
type runOptions struct {
	prompt     string
	promptFile string
	max        int
	context    int
	threads    int
	placement  placement
	kv         string
	rounding   string // of activations
	sampling   llama.Sampling
	raw, stats bool
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run MODEL",
		Short: "Continue a text with a model",
		Long: `run continues the prompt with the model, a packed file, a GGUF file or a Hugging Face
directory alike, and prints the text as it is generated. The default takes the most
probable token each time; with --temperature tokens are drawn, the same for the same
seed.`,
		Example: `  qtool run llama-7b-w4.qpk -p "Once upon a time"
  qtool run llama-7b-w4.qpk -p "The capital of France is" -n 20 --temperature 0.8 --top-p 0.95 --seed 7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runRun(cmd, &o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.prompt, "prompt", "p", "", "text to continue")
	f.StringVar(&o.promptFile, "prompt-file", "", "file with the text to continue, - for standard input")
	f.IntVarP(&o.max, "tokens", "n", 256, "tokens to generate at most")
	f.IntVarP(&o.context, "context", "c", 0, "tokens of prompt and continuation at most (0: what the model was made for, at most 4096)")
	addThreads(f, &o.threads, "threads (0: one for each core that may be used)")
	addPlacement(cmd, &o.placement)
	addKV(cmd, &o.kv)
	addActivations(cmd, &o.rounding)
	f.Float64Var(&o.sampling.Temperature, "temperature", 0, "0 takes the most probable token, 1 draws by the model's probabilities")
	f.Float64Var(&o.sampling.TopP, "top-p", 1, "draw from the most probable tokens that together have this share")
	f.Uint64Var(&o.sampling.Seed, "seed", 0, "seed of the draw")
	f.BoolVar(&o.raw, "raw", false, "do not put the tokens around the prompt that the vocabulary says (BOS)")
	f.BoolVar(&o.stats, "stats", false, "print tokens per second and what runs how to standard error")
	return cmd
}

// text gives the prompt.
func (o *runOptions) text() (string, error) {
	switch {
	case o.prompt != "" && o.promptFile != "":
		return "", usagef("--prompt and --prompt-file say the same thing: give one")
	case o.promptFile == "":
		return o.prompt, nil
	case o.promptFile == "-":
		o.promptFile = "/dev/stdin"
	}
	data, err := os.ReadFile(o.promptFile)
	return string(data), err
}

func runRun(cmd *cobra.Command, o *runOptions, model string) (err error) {
	s := o.sampling
	if !(s.Temperature >= 0 && s.Temperature <= 1e6) || !(s.TopP > 0 && s.TopP <= 1) || o.max < 1 || o.context < 0 {
		return usagef("expected 0 ≤ --temperature ≤ 1,000,000, 0 < --top-p ≤ 1, --tokens ≥ 1, --context ≥ 0")
	}
	for _, flag := range []string{"top-p", "seed"} {
		if s.Temperature == 0 && cmd.Flags().Changed(flag) {
			return usagef("--%s says how tokens are drawn: give --temperature, without which the most probable is taken", flag)
		}
	}
	kv, err := llama.ParseKVType(o.kv)
	if err != nil {
		return usagef("--kv: %w", err)
	}
	rounding, err := llama.ParseActivations(o.rounding)
	if err != nil {
		return usagef("--activations: %w", err)
	}
	cpus, nodes, err := o.placement.parse(cmd)
	if err != nil {
		return err
	}
	text, err := o.text()
	if err != nil {
		return err
	}
	path, err := find(model)
	if err != nil {
		return err
	}
	m, err := checkpoint.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	d, err := m.Vocabulary()
	if err != nil {
		return err
	}
	tok, err := tokenizer.New(d)
	if err != nil {
		return err
	}
	engine, err := llama.New(m, llama.Options{Threads: o.threads, CPUs: cpus, NUMA: nodes, KV: kv, Repack: true, Activations: rounding})
	if err != nil {
		return err
	}
	defer engine.Close()
	ends := make(map[int32]bool)
	for _, id := range m.Config().EOS {
		ends[int32(id)] = true
	}
	context := o.context
	if context == 0 {
		context = min(m.Config().MaxPositions, 4096)
	}
	prompt := tok.Encode(text, tokenizer.Options{AddSpecial: !o.raw, ParseSpecial: true})
	if len(prompt) > context {
		return fmt.Errorf("the prompt has %d tokens, the context %d; give --context", len(prompt), context)
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	stream := tok.Stream(true)
	write := func(s string) error {
		if _, err := out.WriteString(s); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := write(text); err != nil {
		return err
	}
	if text != "" {
		stream.Continue()
	}
	start, first, ended := time.Now(), time.Time{}, false
	n, err := llama.Generation{
		Session: engine.NewSession(context), Prompt: prompt, Max: o.max, Sampling: o.sampling,
		Stop: func(id int32) bool {
			ended = tok.EndsText(id) || ends[id]
			return ended
		},
		Token: func(id int32) error {
			if first.IsZero() {
				first = time.Now()
			}
			return write(stream.Next(id))
		},
	}.Generate(cmd.Context())
	if err := errors.Join(err, write(stream.Flush()+"\n")); err != nil {
		return err
	}
	if n < o.max && len(prompt)+n >= context && !ended {
		fmt.Fprintf(os.Stderr, "qtool: stopped at the end of the context of %d tokens: --context gives more, as far as the model was made for it\n", context)
	}
	if o.stats && n > 1 {
		fmt.Fprintf(os.Stderr, "prompt: %d tokens, %.1f a second; generated: %d tokens, %.1f a second (%s kernels, %s, NUMA %s)\nruns as: %s\n",
			len(prompt), float64(len(prompt))/first.Sub(start).Seconds(), n, float64(n-1)/time.Since(first).Seconds(), engine.CPU(), manyText(engine.Threads(), "thread"), engine.NUMA(),
			weightsText(engine.Weights()))
	}
	return nil
}
