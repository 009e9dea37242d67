package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/runtime/eval"
	"qtool/runtime/pool"
)

// quantizeOptions are the flags of quantize.
type quantizeOptions struct {
	eval evalOptions

	bits             int
	group            int
	asymmetric       bool
	scheme           string
	embeddings, head string
	rule             string
	rotation         string
	calibration      calibrationOptions
	recipeFile       string
	printRecipe      bool
	overrides        []string
	output           string
	clamp            bool
	dryRun, noEval   bool
	strict           bool
	asJSON, quiet    bool

	reads []string // files that the output must not be
}

func newQuantize() *cobra.Command {
	var o quantizeOptions
	cmd := &cobra.Command{
		Use:   "quantize MODEL",
		Short: "Quantize a model into one packed file and measure what accuracy is left",
		Long: `quantize reads a model tensor by tensor, writes a packed file (.qpk), and then runs
that file and the source on a text and prints the accuracy table.

With --calib the model is run on a text block by block, and codes are chosen by
what each layer computes from it (GPTQ, then coordinate descent), each block on
what the quantized ones before it make of the text. A .qcal file (qtool calibrate) has
the source's own statistics in place of a text; an imatrix of llama.cpp has importance
alone, by which weights are rounded to nearest. --bits 4 then stands for
w4g16nlk, --bits 3 for w3g16nlk. Without, weights are rounded to nearest, scales searched for least
squared error.

Schemes: w3, w4, w8 with groups of 32, 64, 128 or 256 weights (w4g32), then a for
asymmetric, nl for a codebook fitted to the tensor, k for 6-bit scales in groups
of 16 or 32, -s8 for calibrated ranges of activations: w4g128a, w4g32nl, w4g16nlk,
w8-s8. Embedding and head get 8 bits unless told otherwise, norms stay as they are.

With --calib, --target-bpw, --target-size, or --max-kld where no scheme is named,
give each tensor a scheme of its own, by how much its quantization alone changes
the predictions of the calibration text. --max-kld is a gate all the same: another
text may diverge more.

A run that is stopped, even killed, is taken up where it was by the same command.
The same source, data and flags give the same bytes; with calibration, on the same
level of instructions (QTOOL_CPU).`,
		Example: `  qtool quantize --bits 4 llama-7b
  qtool quantize --bits 4 --calib text.txt llama-7b
  qtool quantize --bits 4 --calib llama-7b.qcal llama-7b     # statistics by qtool calibrate: nothing is run
  qtool quantize --target-bpw 4.25 --calib text.txt --data wiki.test.raw llama-7b
  qtool quantize --scheme w4g128 --head w4g32 llama-7b -o small.qpk --data wiki.test.raw
  qtool quantize --bits 4 --tensor 'model.layers.0.**=w8' --dry-run llama-7b
  qtool quantize --bits 4 llama-7b --max-ppl-increase 2% --json   # for a CI job: exit status 3 if not met`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runQuantize(cmd, &o, args[0]) },
	}
	o.eval.addFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&o.bits, "bits", 4, "bits of the linear layers' weights: 3, 4 or 8")
	f.IntVar(&o.group, "group", 0, "weights that share a scale: 32, 64, 128, 256 (default: 32 at 3 and 4 bits, 128 at 8)")
	f.BoolVar(&o.asymmetric, "asymmetric", false, "a zero point for each group")
	f.StringVar(&o.scheme, "scheme", "", "scheme of the linear layers, in place of --bits, --group, --asymmetric: w4g128a, w8, …")
	f.StringVar(&o.embeddings, "embeddings", "w8", "scheme or type of the token embedding: w8, w4g32, f16, keep, …")
	f.StringVar(&o.head, "head", "w8", "scheme or type of the output projection; where it is the embedding, --embeddings decides")
	f.StringVar(&o.rule, "scale-rule", string(quant.Search), "how scales are chosen: search, or absmax (the plain rule, faster)")
	f.StringVar(&o.rotation, "rotate", "none", "turn the model first so that no channel stands out, without changing what it computes: hadamard, or none")
	o.calibration.addFlags(cmd)
	f.StringVar(&o.recipeFile, "recipe", "", "file with every choice that decides the bytes, in place of the flags for these: see --print-recipe")
	f.BoolVar(&o.printRecipe, "print-recipe", false, "print the recipe that the flags stand for, as such a file, and stop")
	f.StringArrayVar(&o.overrides, "tensor", nil, "PATTERN=SCHEME for tensors by name; * matches within dots, ** anything; the last match counts")
	f.StringVarP(&o.output, "output", "o", "", "packed file to write (default: MODEL-w4.qpk, or MODEL-4.25bpw.qpk, MODEL-mixed.qpk with a budget, in the current folder)")
	f.BoolVar(&o.clamp, "clamp", false, "cut values beyond the range of a plain type instead of failing")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and stop; only headers are read, but for a budget, which is measured and kept beside the output for the run itself")
	f.BoolVar(&o.noEval, "no-eval", false, "do not measure the result")
	f.BoolVar(&o.strict, "strict", false, "fail where the result is less than what was asked for: values clamped, weights quantized twice, what calibration could not do")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress")
	return cmd
}

func runQuantize(cmd *cobra.Command, o *quantizeOptions, model string) (err error) {
	recipe, err := o.recipe(cmd)
	if err != nil {
		return err
	}
	if err := o.settle(cmd, model, &recipe); err != nil {
		return err
	}
	if o.printRecipe {
		text, err := recipe.YAML()
		if err == nil {
			_, err = cmd.OutOrStdout().Write(text)
		}
		return err
	}
	request, err := o.eval.request(cmd)
	if err != nil {
		return err
	}
	if o.noEval || o.dryRun {
		gates := request.Limits
		if o.recipeFile == "" && recipe.Budget != nil && recipe.Budget.Divergence > 0 {
			gates.MaxKLD = nil // it has chosen the schemes; whether it is met is not asked
		}
		if gates.Any() {
			return usagef("gates need the evaluation, which --no-eval and --dry-run leave out")
		}
	}
	path, err := find(model)
	if err != nil {
		return err
	}
	if !o.dryRun && !o.noEval {
		// Quantizing may take hours: what the evaluation will read must be there first.
		text, err := eval.FindText(o.eval.data, path)
		if err != nil {
			return err
		}
		text.Kind, text.Field = request.DataKind, request.DataField
		if err := fits(request.Rule, path); err != nil {
			return err
		}
		if err := text.Check(o.eval.maxTokens); err != nil {
			return err
		}
		if !text.BuiltIn {
			o.reads = append(o.reads, text.Name)
		}
	}
	if ext := strings.ToLower(filepath.Ext(o.output)); ext == ".gguf" || ext == ".safetensors" {
		return usagef("-o %s: quantize writes packed files (.qpk); convert makes %s of one", o.output, ext)
	}
	if o.output == "" {
		o.output = convert.OutputName(path, recipe)
	}
	o.reads = append(o.reads, o.eval.data, o.calibration.data, o.recipeFile)
	report, err := quantizeModel(cmd.Context(), path, recipe, o)
	if errors.Is(err, convert.ErrNoMatch) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	met := true
	if !o.dryRun && !o.noEval {
		if !o.asJSON {
			if err := printQuantized(cmd.OutOrStdout(), report); err != nil {
				return err
			}
		}
		request.Model, request.Baseline = o.output, path
		if report.Eval, met, err = evaluate(cmd.Context(), request, o.quiet); err != nil {
			return fmt.Errorf("%s is written, but could not be evaluated: %w", o.output, err)
		}
	}
	switch {
	case o.asJSON:
		err = writeJSON(cmd.OutOrStdout(), report)
	case o.dryRun:
		err = printPlan(cmd.OutOrStdout(), report)
	case o.noEval:
		err = printQuantized(cmd.OutOrStdout(), report)
	default:
		fmt.Fprintln(cmd.OutOrStdout())
		err = printReport(cmd.OutOrStdout(), report.Eval)
	}
	if err != nil {
		return err
	}
	var short, gate error
	if o.strict && report.Fallbacks > 0 {
		short = fmt.Errorf("--strict: %s the result is less than what was asked for: %s", manyText(report.Fallbacks, "time"), strings.Join(report.shortfalls, "; "))
	}
	if !met {
		gate = errGate
	}
	return errors.Join(short, gate)
}

// quantizeModel plans, and writes the packed file unless only the plan is wanted.
func quantizeModel(ctx context.Context, path string, recipe convert.Recipe, o *quantizeOptions) (report *quantizeReport, err error) {
	start := time.Now()
	m, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if !o.dryRun {
		if err := convert.CheckOutput(o.output, m, o.reads); err != nil {
			return nil, err
		}
	}
	tokenizerNote, err := checkTokenizer(m, !o.dryRun && !o.noEval)
	if err != nil {
		return nil, err
	}
	calibration, data, err := o.calibration.read(m, &recipe)
	if err != nil {
		return nil, err
	}
	alone := o.calibration.settleTargets(&recipe, calibration)
	statistics, err := o.calibration.statistics(m, &recipe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, statistics.Close()) }()
	threads := o.eval.threads
	if threads == 0 {
		threads = pool.Available()
	}
	mixed, err := o.mix(ctx, m, &recipe, calibration, threads)
	if err != nil {
		return nil, err
	}
	plan, err := convert.NewPlan(m, recipe)
	if err != nil {
		return nil, err
	}
	job := convert.Options{
		Output: o.output, Reads: o.reads, Threads: threads, Version: release, Calibration: calibration, Statistics: statistics,
	}
	expected := plan.Expect(job)
	report = &quantizeReport{
		Mixed: mixed, Data: data,
		Output: o.output, SizeBytes: plan.Bytes(), TensorBytes: plan.Bytes(), BitsPerWeight: plan.BitsPerWeight(), Memory: expected.Memory, Expected: expected.Seconds,
		Warnings: append([]string{}, plan.Model.Warnings()...),
	}
	if tokenizerNote != "" {
		report.Warnings = append(report.Warnings, tokenizerNote)
	}
	if data != nil && data.Note != "" {
		report.Warnings = append(report.Warnings, data.Note)
	}
	if alone {
		report.Warnings = append(report.Warnings, "one calibration sequence cannot tell chance from what layers have to make up for: they meet the outputs of their own weights (--targets own); give more text")
	}
	report.fall(plan.Warnings...)
	if recipe.Method != "" {
		report.Targets, report.inputsOnly = recipe.Targets.String(), m.Config().PostNorms
	}
	if statistics != nil {
		report.Statistics = &statisticsReport{o.calibration.data, string(statistics.Source()), statistics.Digest().String(), statistics.Describe()}
	}
	for _, d := range plan.Decisions {
		report.Plan = append(report.Plan, planLine{
			Tensor: d.Tensor.Name, Shape: d.Tensor.Shape, Source: d.Tensor.Storage(), Scheme: d.Storage(), BitsPerWeight: d.BitsPerWeight(), Reason: d.Reason,
		})
	}
	if o.dryRun {
		return report, nil
	}
	progress, finish := lateProgress("quantize", false, o.quiet)
	job.Progress = progress
	result, err := convert.Quantize(ctx, m, plan, job)
	finish()
	if err != nil {
		return nil, resumable(ctx, err)
	}
	report.SizeBytes, report.Resumed = result.Bytes, result.Resumed
	report.Warnings = append(report.Warnings, result.Warnings...)
	report.fall(result.Shortfalls()...)
	for i := range report.Plan {
		if f, ok := result.Calibrated[report.Plan[i].Tensor]; ok {
			report.Plan[i].Calibration = &f
			report.Calibrated++
		}
	}
	if calibration == nil && statistics == nil && plan.Quantizes() {
		report.Warnings = append(report.Warnings, "not calibrated: weights were rounded to the nearest value that can be stored; --calib TEXT chooses them by what the layers compute, which cuts the divergence by about a third to a half")
	}
	if o.noEval && recipe.Budget != nil && recipe.Budget.Divergence > 0 {
		report.Warnings = append(report.Warnings, "the divergence that the schemes were chosen for was not measured (--no-eval): each tensor's own was, on its own; whether --max-kld is kept was not checked")
	}
	if result.Damaged {
		report.Warnings = append(report.Warnings, "the journal of what an earlier run had finished is damaged: what follows its first bad line was made again")
	}
	if result.Discarded {
		fmt.Fprintln(os.Stderr, "qtool: an unfinished file of another plan or source was discarded")
	}
	report.Seconds = time.Since(start).Seconds()
	return report, nil
}

// checkTokenizer looks at the tokenizer that the packed file will carry: it must be whole where there is one, and there must be one where the result is
// measured. One that needs something qtool does not do is noted.
func checkTokenizer(m *checkpoint.Model, needed bool) (note string, err error) {
	_, broken := tokenizerOf(m)
	if broken == nil {
		return "", nil
	}
	if note, err = carried(m, broken); err != nil {
		return "", err
	}
	if needed { // nothing else is in the way
		return "", fmt.Errorf("%w; without it the result cannot be measured: give --no-eval", broken)
	}
	return note, nil
}

// carried says what becomes of a tokenizer that cannot be used, in a packed file that is not measured.
func carried(m *checkpoint.Model, broken error) (note string, err error) {
	names, err := m.Files()
	if err != nil {
		return "", err
	}
	if m.Container() == checkpoint.GGUF {
		if _, _, err := convert.Files(m); err != nil { // its files are made
			return "", fmt.Errorf("the packed file would carry a broken tokenizer: %w", err)
		}
	}
	if !slices.Contains(names, "tokenizer.json") && !slices.Contains(names, "tokenizer.model") {
		return "", nil // weights alone
	}
	if errors.Is(broken, formats.ErrUnsupported) {
		return fmt.Sprintf("the tokenizer is carried along, but the packed file cannot be run on text: %v", broken), nil
	}
	advice := ""
	if m.Container() == checkpoint.HuggingFace {
		advice = "; put a whole one in its place, or take it away and give --no-eval: then the file has weights alone"
	}
	return "", fmt.Errorf("the packed file would carry a broken tokenizer: %w%s", broken, advice)
}

// mix chooses schemes where the recipe has a budget.
func (o *quantizeOptions) mix(ctx context.Context, m *checkpoint.Model, r *convert.Recipe, c *convert.Calibration, threads int) (*mixedReport, error) {
	if r.Budget == nil {
		return nil, nil
	}
	progress, finish := lateProgress("measure sensitivity", false, o.quiet)
	mixed, err := convert.Mix(ctx, m, r, convert.Options{
		Output: o.output, Reads: o.reads, Threads: threads, Version: release, Calibration: c, Progress: progress,
	})
	finish()
	if err != nil {
		return nil, resumable(ctx, err)
	}
	if mixed.Discarded {
		fmt.Fprintln(os.Stderr, "qtool: measurements of another plan, source or text were discarded")
	}
	return &mixedReport{mixed.Predicted, mixed.Bound, r.Budget.Divergence, mixed.Tokens, mixed.Resumed, mixed.Damaged, mixed.Sensitivities}, nil
}
