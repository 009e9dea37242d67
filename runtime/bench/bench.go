// Package bench measures how fast a model runs: reading a prompt, generating, and how much of the
// memory's bandwidth generating takes.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"qtool/formats/checkpoint"
	"qtool/runtime/llama"
	"qtool/runtime/numa"
	"qtool/runtime/pool"
)

// Options of a measurement.
type Options struct {
	Model   string
	Threads []int    // counts to measure with; empty: the engine's default
	CPUs    numa.Set // see llama.Options, as the next
	NUMA    numa.Selection
	Prefill int          // tokens of the prompt; 0 for none
	Decode  int          // tokens to generate; 0 for none
	Depth   []int        // tokens in the context before generating; empty: none
	Batch   []int        // sequences that are generated together; empty: one
	KV      llama.KVType // how keys and values are kept; empty for llama.KVF32
	// Activations is how inputs of matrices are rounded; empty for llama.ActivationsAuto, by which quantized matrices of GGUF files
	// run by the integer kernels too.
	Activations llama.Activations
	Repeat      int // runs of each kind
	// Progress, if set, is told each run before it starts.
	Progress func(what string)
}

// Report is what `qtool bench --json` prints. Keys may be added, none renamed.
type Report struct {
	Model         string             `json:"model"`
	SizeBytes     int64              `json:"size_bytes"`
	CPU           string             `json:"cpu"`
	Threads       []int              `json:"threads"`
	NUMA          string             `json:"numa"`           // where threads ran and weights were, of each count of threads
	KV            string             `json:"kv"`             // type of keys and values
	Bandwidth     map[string]float64 `json:"bandwidth_gbps"` // read by that many threads
	Activations   string             `json:"activations"`    // how the inputs of matrices were rounded
	Weights       []llama.Weights    `json:"weights"`        // how the matrices of each type were run
	RepackedBytes int64              `json:"repacked_bytes"` // memory for them beside the file
	LoadSeconds   float64            `json:"load_seconds"`   // to make the engine, repacking included, the last time
	Runs          []Run              `json:"runs"`
}

// Run is one kind of measurement.
type Run struct {
	Kind    string  `json:"kind"`    // prefill or decode
	Tokens  int     `json:"tokens"`  // of a sequence
	Context int     `json:"context"` // tokens before
	Batch   int     `json:"batch"`   // sequences
	Threads int     `json:"threads"`
	NUMA    string  `json:"numa"`
	PerSec  float64 `json:"tokens_per_s"` // of all sequences together
	StdDev  float64 `json:"stddev"`
	Beyond  bool    `json:"beyond_context"` // of what the model is made for: it runs as fast, but its text would be worth nothing
	// BusShare is the share of the weights read a second in the bandwidth just before and after, on the mean; decode only.
	BusShare float64 `json:"bandwidth_share"`
}

// Measure runs the model. Tokens are made up: speed does not depend on them.
func Measure(ctx context.Context, o Options) (report *Report, err error) {
	m, err := checkpoint.Open(o.Model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if len(o.Threads) == 0 {
		o.Threads = []int{0}
	}
	if len(o.Depth) == 0 {
		o.Depth = []int{0}
	}
	if len(o.Batch) == 0 {
		o.Batch = []int{1}
	}
	report = &Report{Model: o.Model, Bandwidth: make(map[string]float64)}
	var places []string
	report.SizeBytes, _ = m.Size()
	for _, threads := range o.Threads {
		p, err := pool.Place(numa.Options{Threads: threads, CPUs: o.CPUs, NUMA: o.NUMA})
		if err != nil {
			return nil, err
		}
		threads = p.Threads()
		say := func(what string) {
			if o.Progress != nil {
				o.Progress(fmt.Sprintf("%s, %d threads", what, threads))
			}
		}
		say("bandwidth")
		b, err := newBus(p)
		if err != nil {
			p.Close()
			return nil, err
		}
		b.measure(5)
		report.Threads = append(report.Threads, threads)
		start := time.Now()
		e, err := llama.New(m, llama.Options{Threads: threads, CPUs: o.CPUs, NUMA: o.NUMA, KV: o.KV, Repack: true, Activations: o.Activations})
		if err != nil {
			p.Close()
			return nil, err
		}
		report.LoadSeconds = time.Since(start).Seconds()
		report.Weights = e.Weights()
		report.Activations, report.RepackedBytes = llama.Roundings(report.Weights), 0
		read := perToken(m)
		for _, w := range report.Weights {
			report.RepackedBytes += w.RepackedBytes
			if w.RepackedBytes > 0 { // read in the place of the file
				read += w.RepackedBytes - w.Bytes
			}
		}
		report.CPU, report.KV = e.CPU(), string(e.KV())
		place := e.NUMA()
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
		b.weights = read
		runs, err := measure(ctx, e, b, o, say)
		e.Close()
		p.Close()
		if err != nil {
			return nil, err
		}
		for i := range runs {
			runs[i].Threads, runs[i].NUMA = threads, place
			limit := m.Config().MaxPositions
			runs[i].Beyond = limit > 0 && runs[i].Context+runs[i].Tokens > limit
		}
		report.Bandwidth[fmt.Sprint(threads)] = b.best / 1e9
		report.Runs = append(report.Runs, runs...)
	}
	report.NUMA = strings.Join(places, "; ")
	return report, nil
}

// perToken is the bytes of weights that a step reads: all of them but the embedding, of which it reads a
// row, unless that is the head too.
func perToken(m *checkpoint.Model) int64 {
	var n int64
	for _, t := range m.Tensors() {
		if t.Name != "model.embed_tokens.weight" || m.Config().TieEmbeddings {
			n += t.Bytes()
		}
	}
	return n
}

// measure runs both kinds with one engine.
func measure(ctx context.Context, e *llama.Engine, b *bus, o Options, say func(string)) ([]Run, error) {
	var runs []Run
	if o.Prefill > 0 {
		say("prefill")
		s, prompt := e.NewSession(o.Prefill), tokens(e, o.Prefill)
		defer s.Close()
		rates, err := repeat(ctx, o.Repeat, o.Prefill, func() error {
			s.Reset()
			return s.Forward(prompt, len(prompt)-1, ignore)
		}, nil)
		if err != nil {
			return nil, err
		}
		var r Run
		r.PerSec, r.StdDev = mean(rates)
		r.Kind, r.Tokens, r.Batch = "prefill", o.Prefill, 1
		runs = append(runs, r)
	}
	if o.Decode == 0 {
		return runs, nil
	}
	for _, depth := range o.Depth {
		say(fmt.Sprintf("a context of %d", depth))
		past := e.NewSession(depth + o.Decode + 1)
		defer past.Close()
		if err := past.Forward(tokens(e, depth+1), depth+1, nil); err != nil {
			return nil, err
		}
		for _, batch := range o.Batch {
			say(fmt.Sprintf("decode after %d, %d at a time", depth, batch))
			r, err := decode(ctx, e, b, o, past, batch)
			if err != nil {
				return nil, err
			}
			r.Context = depth
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// decode generates with so many sequences that begin as past does, and reads memory between the runs: its speed changes with what else the
// machine does.
func decode(ctx context.Context, e *llama.Engine, b *bus, o Options, past *llama.Session, batch int) (Run, error) {
	sessions := make([]*llama.Session, batch)
	for i := range sessions {
		sessions[i] = past.Fork()
		defer sessions[i].Close()
	}
	next := tokens(e, batch)
	var bandwidth []float64 // before each run, and after the last
	rates, err := repeat(ctx, o.Repeat, o.Decode*batch, func() error {
		for range o.Decode {
			if err := e.Step(sessions, next, ignore); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		for _, s := range sessions {
			s.Truncate(past.Len())
		}
		bandwidth = append(bandwidth, b.measure(2))
	})
	if err != nil {
		return Run{}, err
	}
	bandwidth = append(bandwidth, b.measure(2))[1:] // the first run warmed up
	r := Run{Kind: "decode", Tokens: o.Decode, Batch: batch}
	r.PerSec, r.StdDev = mean(rates)
	for i, rate := range rates {
		steps := rate / float64(batch)
		r.BusShare += steps * float64(b.weights) / max(bandwidth[i], bandwidth[i+1]) / float64(len(rates))
	}
	return r, nil
}

// ignore is what becomes of the logits.
func ignore(int, []float32) error { return nil }

// tokens makes up n tokens.
func tokens(e *llama.Engine, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*7919 + 13) % e.Vocab())
	}
	return out
}

// repeat times run, each time after prepare if that is set, once more than asked for, since the first run warms up, and returns tokens a second.
func repeat(ctx context.Context, times, tokens int, run func() error, prepare func()) ([]float64, error) {
	var rates []float64
	for i := range max(times, 1) + 1 {
		if prepare != nil {
			prepare()
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := run(); err != nil {
			return nil, err
		}
		if i > 0 {
			rates = append(rates, float64(tokens)/time.Since(start).Seconds())
		}
	}
	return rates, nil
}

// mean gives the mean of some rates and their standard deviation.
func mean(rates []float64) (mean, deviation float64) {
	var square float64
	for _, r := range rates {
		mean += r / float64(len(rates))
	}
	for _, r := range rates {
		square += (r - mean) * (r - mean)
	}
	return mean, math.Sqrt(square / float64(max(len(rates)-1, 1)))
}
