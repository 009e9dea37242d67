package eval

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"qtool/runtime/llama"
)

// Report is the result of an evaluation as `qtool eval --json` prints it. Its keys are a
// contract: keys may be added, none renamed. Fields that compare with a baseline are null when
// there is none.
type Report struct {
	Model    string `json:"model"`
	Baseline string `json:"baseline,omitempty"`
	Data     string `json:"data"`
	DataKind string `json:"data_kind,omitempty"` // jsonl or tokens, where the data are no plain text
	// Documents of these, as far as they were read.
	Documents int `json:"documents,omitempty"`
	// Mismatch says in what the baseline is not comparable, though its vocabulary is the model's as far as the text goes.
	Mismatch string `json:"mismatch,omitempty"`
	Rule     string `json:"rule"`
	Context  int    `json:"context"`
	Stride   int    `json:"stride,omitempty"`
	Windows  int    `json:"windows"`
	Tokens   int    `json:"tokens"` // of the text
	Scored   int    `json:"scored"`

	Perplexity            float64  `json:"perplexity"`
	PerplexityErr         float64  `json:"perplexity_stderr"`
	BaselinePerplexity    *float64 `json:"baseline_perplexity"`
	BaselinePerplexityErr *float64 `json:"baseline_perplexity_stderr"`
	PerplexityRatio       *float64 `json:"perplexity_ratio"`
	PerplexityRatioErr    *float64 `json:"perplexity_ratio_stderr"`
	KLMean                *float64 `json:"kl_mean"`
	KLMeanErr             *float64 `json:"kl_mean_stderr"`
	KLMedian              *float64 `json:"kl_median"`
	KLP99                 *float64 `json:"kl_p99"`
	KLP999                *float64 `json:"kl_p999"`
	KLMax                 *float64 `json:"kl_max"`
	SameTop1              *float64 `json:"same_top1"`
	SameTop1Err           *float64 `json:"same_top1_stderr"`
	RMSDeltaP             *float64 `json:"rms_dp"`

	// Sizes are of the tensors, not of files.
	SizeBytes             int64    `json:"size_bytes"`
	BitsPerWeight         float64  `json:"bits_per_weight"`
	BaselineSizeBytes     *int64   `json:"baseline_size_bytes"`
	BaselineBitsPerWeight *float64 `json:"baseline_bits_per_weight"`

	Runtime  Runtime  `json:"runtime"`
	Seconds  float64  `json:"seconds"`
	Gates    []Gate   `json:"gates"`
	Warnings []string `json:"warnings"`
}

// Runtime says what the figures were measured with.
type Runtime struct {
	CPU     string `json:"cpu"`     // the kernels in use: generic, avx2 or avx512
	Threads int    `json:"threads"` // of the engine
	NUMA    string `json:"numa"`    // placement of threads and weights
	KV      string `json:"kv"`      // type of the model's keys and values; the baseline's are f32

	Activations   string          `json:"activations"`    // how the inputs of the model's matrices were rounded; the baseline's were not
	Weights       []llama.Weights `json:"weights"`        // how the matrices of each type were run
	RepackedBytes int64           `json:"repacked_bytes"` // memory for them beside the file
}

// setWeights says how matrices were run.
func (r *Runtime) setWeights(all []llama.Weights) {
	r.Weights = all
	r.Activations, r.RepackedBytes = llama.Roundings(all), 0
	for _, w := range all {
		r.RepackedBytes += w.RepackedBytes
	}
}

// set copies the figures into the report.
func (r *Report) set(f *Figures) {
	r.Windows, r.Tokens, r.Scored = f.Windows, f.Tokens, f.Scored
	r.Perplexity, r.PerplexityErr = f.Perplexity, f.PerplexityErr
	if !f.WithBaseline {
		return
	}
	for _, v := range []struct {
		field **float64
		value float64
	}{
		{&r.BaselinePerplexity, f.BaselinePerplexity}, {&r.BaselinePerplexityErr, f.BaselinePerplexityErr},
		{&r.PerplexityRatio, f.PerplexityRatio}, {&r.PerplexityRatioErr, f.PerplexityRatioErr},
		{&r.KLMean, f.KLMean}, {&r.KLMeanErr, f.KLMeanErr}, {&r.KLMedian, f.KLMedian},
		{&r.KLP99, f.KLP99}, {&r.KLP999, f.KLP999}, {&r.KLMax, f.KLMax},
		{&r.SameTop1, f.SameTop1}, {&r.SameTop1Err, f.SameTop1Err}, {&r.RMSDeltaP, f.RMSDeltaP},
	} {
		*v.field = &v.value
	}
}

// Gate is a limit that the report must keep.
type Gate struct {
	Name  string  `json:"name"`
	Limit float64 `json:"limit"`
	Value float64 `json:"value"`
	OK    bool    `json:"ok"`
}

// Limits are the gates to check; a nil limit is no gate.
type Limits struct {
	MaxPPLIncrease *float64 // of the perplexity over the baseline's, as a share: 0.01 is 1 %
	MaxKLD         *float64 // mean KL divergence, nats
	MinTop1        *float64 // share of positions with the baseline's first choice
}

// Any reports whether there is a gate at all.
func (l Limits) Any() bool {
	return l.MaxPPLIncrease != nil || l.MaxKLD != nil || l.MinTop1 != nil
}

// Check fills the report's gates and reports whether all of them hold. A figure that was not
// measured, for want of a baseline, or that is not a number fails its gate.
func (r *Report) Check(l Limits) bool {
	r.Gates = []Gate{}
	all := true
	add := func(name string, limit, value *float64, ok func(value, limit float64) bool) {
		if limit == nil {
			return
		}
		g := Gate{Name: name, Limit: *limit}
		if value != nil && !math.IsNaN(*value) && !math.IsInf(*value, 0) {
			g.Value, g.OK = *value, ok(*value, *limit)
		}
		all = all && g.OK
		r.Gates = append(r.Gates, g)
	}
	atMost := func(v, limit float64) bool { return v <= limit }
	var increase *float64
	if r.PerplexityRatio != nil {
		v := *r.PerplexityRatio - 1
		increase = &v
	}
	add("max-ppl-increase", l.MaxPPLIncrease, increase, atMost)
	add("max-kld", l.MaxKLD, r.KLMean, atMost)
	add("min-top1", l.MinTop1, r.SameTop1, func(v, limit float64) bool { return v >= limit })
	return all
}

// ParseShare reads a share written as a number (0.01) or as a percentage (1%).
func ParseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a share: expected a number such as 0.01, or 1%%", s)
	}
	if percent {
		v /= 100
	}
	return v, nil
}
