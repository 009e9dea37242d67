package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"qtool/formats/checkpoint"
	"qtool/formats/document"
	"qtool/runtime/eval"
	"qtool/runtime/llama"
)

// evalOptions are the flags that say how a model is measured.
type evalOptions struct {
	data      string
	kind      string // of the data
	field     string
	context   int
	rule      string
	stride    int
	maxTokens int
	threads   int
	placement placement
	kv        string
	rounding  string // of activations

	maxPPL, minTop1 string
	maxKLD          float64
}

// addFlags declares the flags on a command.
func (o *evalOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "text, or documents in JSON lines, to evaluate on (default: eval.txt beside the model, else a short built-in text)")
	f.StringVar(&o.kind, "data-kind", "", "what --data is: text, jsonl or tokens (default: by the name and the first line)")
	f.StringVar(&o.field, "data-field", document.DefaultField, "field of a JSON line of --data that holds the text or the tokens")
	f.IntVarP(&o.context, "context", "c", 0, "tokens of a window (default: 512, or what the model was made for where that is less)")
	f.StringVar(&o.rule, "rule", string(eval.RuleLlamaCpp), "perplexity rule: llama.cpp (second half of each window) or sliding (Hugging Face's)")
	f.IntVar(&o.stride, "stride", 0, "tokens between windows of the sliding rule (default: half a window)")
	f.IntVar(&o.maxTokens, "max-tokens", 0, "use only so many tokens of the text (0: all)")
	addThreads(f, &o.threads, "threads (0: as many as can work at once)")
	o.placement.numa = numaAuto // where a command has no flag for it
	addKV(cmd, &o.kv)
	addActivations(cmd, &o.rounding)
	f.StringVar(&o.maxPPL, "max-ppl-increase", "", "gate: largest increase of perplexity over the baseline, such as 1% or 0.01")
	f.Float64Var(&o.maxKLD, "max-kld", 0, "gate: largest mean KL divergence from the baseline, nats")
	f.StringVar(&o.minTop1, "min-top1", "", "gate: least share of positions with the baseline's first choice, such as 0.97 or 97%")
}

// addKV declares the flag for the type of keys and values.
func addKV(cmd *cobra.Command, kv *string) {
	cmd.Flags().StringVar(kv, "kv", string(llama.KVF16), "type that keys and values are kept in: f32, f16 or int8")
}

// addActivations declares the flag for the rounding of activations.
func addActivations(cmd *cobra.Command, rounding *string) {
	cmd.Flags().StringVar(rounding, "activations", string(llama.ActivationsAuto),
		"how inputs of quantized matrices, of packed and of GGUF files, are rounded: int8, int16, f32 for not at all (slow), or auto: int8, finer where weights have 8 bits")
}

// weightsText says how matrices are run.
func weightsText(all []llama.Weights) string {
	var parts []string
	repacked := int64(0)
	for _, w := range all {
		parts = append(parts, w.String())
		repacked += w.RepackedBytes
	}
	text := strings.Join(parts, "; ")
	if repacked > 0 {
		text += fmt.Sprintf(" (%s of memory beside the file)", sizeText(repacked))
	}
	return text
}

// request checks the flags and makes a request of them, without the models.
func (o *evalOptions) request(cmd *cobra.Command) (eval.Request, error) {
	r := eval.Request{Data: o.data, Threads: o.threads, MaxTokens: o.maxTokens, Rule: eval.Rule{Kind: eval.RuleKind(o.rule), Context: o.context}}
	if r.Rule.Kind == eval.RuleSliding {
		r.Rule.Stride = o.stride
	} else if o.stride != 0 {
		return r, usagef("--stride belongs to --rule sliding")
	}
	if o.maxTokens < 0 || o.context < 0 || o.stride < 0 {
		return r, usagef("--max-tokens, --context and --stride must not be negative")
	}
	// A stride is measured by the context, which only the model may say: see fits.
	if err := r.Rule.WithDefaults(max(eval.DefaultContext, o.stride)).Validate(); err != nil {
		return r, usageError{err}
	}
	err := o.reading(cmd, &r)
	if err != nil {
		return r, err
	}
	if r.CPUs, r.NUMA, err = o.placement.parse(cmd); err != nil {
		return r, err
	}
	if r.KV, err = llama.ParseKVType(o.kv); err != nil {
		return r, usagef("--kv: %w", err)
	}
	if r.Activations, err = llama.ParseActivations(o.rounding); err != nil {
		return r, usagef("--activations: %w", err)
	}
	for _, g := range []struct {
		flag, value string
		limit       **float64
	}{{"max-ppl-increase", o.maxPPL, &r.Limits.MaxPPLIncrease}, {"min-top1", o.minTop1, &r.Limits.MinTop1}} {
		if !cmd.Flags().Changed(g.flag) {
			continue
		}
		v, err := eval.ParseShare(g.value)
		if err != nil {
			return r, usagef("--%s: %w", g.flag, err)
		}
		*g.limit = &v
	}
	if r.Limits.MinTop1 != nil && (*r.Limits.MinTop1 < 0 || *r.Limits.MinTop1 > 1) {
		return r, usagef("--min-top1 %s: expected a share from 0 to 1, or 0%% to 100%%", o.minTop1)
	}
	if cmd.Flags().Changed("max-kld") {
		if !(o.maxKLD >= 0) || math.IsInf(o.maxKLD, 0) {
			return r, usagef("--max-kld %g: expected a finite divergence of 0 or more", o.maxKLD)
		}
		r.Limits.MaxKLD = &o.maxKLD
	}
	return r, nil
}

// reading checks the flags that say how the data are read, and puts them into the request.
func (o *evalOptions) reading(cmd *cobra.Command, r *eval.Request) error {
	kind := document.Kind(o.kind)
	if !kind.Valid() {
		return usagef("--data-kind %s: expected text, jsonl or tokens", o.kind)
	}
	for _, flag := range []string{"data-kind", "data-field"} {
		if o.data == "" && cmd.Flags().Changed(flag) {
			return usagef("--%s says how --data is read: give it", flag)
		}
	}
	if cmd.Flags().Changed("data-field") && kind.For(o.data) == document.Text {
		return usagef("--data-field names a field of JSON lines: %s is read as a plain text (--data-kind jsonl or tokens says otherwise)", o.data)
	}
	r.DataKind, r.DataField = kind, o.field
	return nil
}

// fits refuses a rule that does not fit the windows of a model, where the context is for the model to say.
func fits(rule eval.Rule, model string) error {
	if rule.Context != 0 || rule.Stride == 0 {
		return nil
	}
	m, err := checkpoint.Open(model)
	if err != nil {
		return err
	}
	err = rule.WithDefaults(min(eval.DefaultContext, m.Config().MaxPositions)).Validate()
	if err != nil {
		err = usageError{err}
	}
	return errors.Join(err, m.Close())
}

func newEval() *cobra.Command {
	var o evalOptions
	var baseline string
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "eval MODEL",
		Short: "Measure what a model predicts, and how far it is from a baseline",
		Long: `eval runs the model and prints its perplexity on a text, with the standard error.
--data is a plain text, or a file of JSON lines (.jsonl, .json, --data-kind), read
document by document as --calib of quantize reads it.

With --baseline it also runs the model that this one was made from on the same
tokens, and prints how far their predictions are apart: KL divergence, rate of
equal first choices, change of the true token's probability.

Quantized matrices are multiplied as they are stored, packed ones and those of
GGUF files alike, with activations rounded to 8 bits (12 or 16 for weights of 8
bits). The few GGUF types that no loop multiplies are rounded to f16, or decoded
for each product where memory does not suffice: the report says what runs how.
--activations f32 rounds nothing, so that weights alone are compared. The
baseline is always run so.

Gates (--max-ppl-increase, --max-kld, --min-top1) make it exit with status 3
when they are not met; they need --baseline.`,
		Example: `  qtool eval llama-7b-w4.qpk --baseline llama-7b
  qtool eval llama-7b-w4.qpk --baseline llama-7b --data wiki.test.raw --max-ppl-increase 1% --min-top1 0.97
  qtool eval model.gguf --data text.txt -c 2048 --rule sliding --stride 512 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := o.request(cmd)
			if err != nil {
				return err
			}
			if r.Limits.Any() && baseline == "" {
				return usagef("gates compare with a baseline: give --baseline")
			}
			if r.Model, err = find(args[0]); err != nil {
				return err
			}
			if err := fits(r.Rule, r.Model); err != nil {
				return err
			}
			if baseline != "" {
				if r.Baseline, err = find(baseline); err != nil {
					return err
				}
			}
			report, ok, err := evaluate(cmd.Context(), r, quiet)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = printReport(cmd.OutOrStdout(), report)
			}
			if err == nil && !ok {
				err = errGate
			}
			return err
		},
	}
	o.addFlags(cmd)
	addPlacement(cmd, &o.placement)
	cmd.Flags().StringVar(&baseline, "baseline", "", "model to compare with, normally the source")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

// evaluate measures with a progress display.
func evaluate(ctx context.Context, r eval.Request, quiet bool) (*eval.Report, bool, error) {
	progress, finish := lateProgress("evaluate", false, quiet)
	r.Progress = func(s eval.Progress) {
		progress(int64(s.Window), int64(s.Windows), fmt.Sprintf("perplexity %.4f", s.Perplexity))
	}
	report, ok, err := eval.Run(ctx, r)
	finish()
	return report, ok, err
}

// printReport prints the accuracy table.
func printReport(w io.Writer, r *eval.Report) error {
	t := newTable(w)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("model", "%s (%s of tensors, %.3f bits per weight)", r.Model, sizeText(r.SizeBytes), r.BitsPerWeight)
	if r.BaselineSizeBytes != nil {
		line("baseline", "%s (%s of tensors, %.3f bits per weight)", r.Baseline, sizeText(*r.BaselineSizeBytes), *r.BaselineBitsPerWeight)
	}
	if r.Mismatch != "" {
		line("NOTE", "%s", r.Mismatch)
	}
	documents := ""
	if r.DataKind != "" {
		documents = manyText(r.Documents, "document") + ", "
	}
	line("text", "%s, %s%s tokens", r.Data, documents, countText(int64(r.Tokens)))
	rule := r.Rule
	if r.Stride > 0 {
		rule = fmt.Sprintf("%s, stride %d", rule, r.Stride)
	}
	line("rule", "%s, windows of %d: %d, %s tokens scored", rule, r.Context, r.Windows, countText(int64(r.Scored)))
	line("perplexity", "%.4f ± %.4f", r.Perplexity, r.PerplexityErr)
	if r.BaselinePerplexity != nil {
		line("baseline perplexity", "%.4f ± %.4f", *r.BaselinePerplexity, *r.BaselinePerplexityErr)
		line("change", "%+.3f %% ± %.3f %%", 100*(*r.PerplexityRatio-1), 100**r.PerplexityRatioErr)
		line("KL divergence, mean", "%.6f ± %.6f nats", *r.KLMean, *r.KLMeanErr)
		line("  median · 99 % · 99.9 % · max", "%.6f · %.5f · %.5f · %.5f", *r.KLMedian, *r.KLP99, *r.KLP999, *r.KLMax)
		line("same first choice", "%s ± %s", percentText(*r.SameTop1), percentText(*r.SameTop1Err))
		line("RMS change of p(true token)", "%s", percentText(*r.RMSDeltaP))
	}
	line("run with", "%s kernels, %s, NUMA %s, activations in %s, keys and values in %s, %.1f s", r.Runtime.CPU, manyText(r.Runtime.Threads, "thread"), r.Runtime.NUMA,
		r.Runtime.Activations, r.Runtime.KV, r.Seconds)
	line("runs as", "%s", weightsText(r.Runtime.Weights))
	for _, g := range r.Gates {
		state := "met"
		if !g.OK {
			state = "NOT MET"
		}
		line("gate "+g.Name, "%s: %.6g, limit %.6g", state, g.Value, g.Limit)
	}
	for _, warning := range r.Warnings {
		line("note", "%s", warning)
	}
	return t.Flush()
}
