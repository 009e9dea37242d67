package calibrate

import (
	"math"

	"qtool/runtime/linalg"
)

// Percentiles are the shares of a channel's magnitudes that InputStatistics gives bounds for.
var Percentiles = [3]float64{0.99, 0.999, 0.9999}

// Bins of a channel's magnitudes: sixteen to an octave, of the octaves from 2⁻²⁰ up to 2¹², one for what is below and one for what is beyond.
const (
	channelSub   = 16
	channelLow   = -20
	channelHigh  = 12
	channelBins  = (channelHigh-channelLow)*channelSub + 2
	channelShift = 23 - 4 // of the fraction's bits, four count
)

// histogramParts is how many histograms are filled at a time.
const histogramParts = 8

// InputStatistics gathers all that a file of statistics keeps of the inputs of a linear layer.
type InputStatistics struct {
	Gram     *Gram
	Squares  []float64 // sums of squares by channel
	Min, Max []float32 // by channel

	parts [histogramParts]*Histogram
	bins  []uint32 // [channels][channelBins]
}

// NewInputStatistics returns empty ones.
func NewInputStatistics(s *linalg.Solver, cols int) *InputStatistics {
	st := &InputStatistics{
		Gram: NewGram(s, cols), Squares: make([]float64, cols), Min: make([]float32, cols), Max: make([]float32, cols), bins: make([]uint32, cols*channelBins),
	}
	for i := range st.parts {
		st.parts[i] = NewHistogram()
	}
	return st
}

// Add takes in inputs, x[n][cols]. Values that are not finite are an error. Every sum of a channel is made in the order of the inputs, whatever
// the number of threads.
func (st *InputStatistics) Add(x []float32, n int) error {
	cols, first := st.Gram.Cols, st.Gram.Count == 0
	if err := st.Gram.Add(x, n); err != nil {
		return err
	}
	const span = 64
	st.Gram.solver.Run((cols+span-1)/span, func(i int, _ *linalg.Scratch) {
		from, to := i*span, min((i+1)*span, cols)
		if first {
			copy(st.Min[from:to], x[from:to])
			copy(st.Max[from:to], x[from:to])
		}
		for k := range n {
			for c := from; c < to; c++ {
				v := x[k*cols+c]
				st.Squares[c] += float64(v) * float64(v)
				st.Min[c], st.Max[c] = min(st.Min[c], v), max(st.Max[c], v)
				st.bins[c*channelBins+channelBin(v)]++
			}
		}
	})
	st.Gram.solver.Run(histogramParts, func(i int, _ *linalg.Scratch) {
		st.parts[i].Add(x[n*i/histogramParts*cols : n*(i+1)/histogramParts*cols])
	})
	return nil
}

// Histogram is that of the magnitudes of all channels.
func (st *InputStatistics) Histogram() *Histogram {
	h := NewHistogram()
	for _, p := range st.parts {
		h.Count += p.Count
		h.Max = max(h.Max, p.Max)
		for i, n := range p.bins {
			h.bins[i] += n
		}
	}
	return h
}

// channelBin gives the bin of a value's magnitude.
func channelBin(v float32) int {
	bits := math.Float32bits(v) &^ (1 << 31)
	return min(max(int(bits>>channelShift)-(127+channelLow)*channelSub+1, 0), channelBins-1)
}

// Percentile gives for each channel the upper end of the bin that the share of its magnitudes ends in, but no more than its largest: at most a sixteenth above
// the least magnitude that so many are not beyond.
func (st *InputStatistics) Percentile(share float64) []float32 {
	out := make([]float32, st.Gram.Cols)
	for c := range out {
		largest := max(st.Max[c], -st.Min[c])
		out[c] = largest
		var seen int64
		for bin, n := range st.bins[c*channelBins : (c+1)*channelBins-1] {
			if seen += int64(n); seen > 0 && float64(seen) >= share*float64(st.Gram.Count) {
				out[c] = min(largest, math.Float32frombits(uint32(bin+(127+channelLow)*channelSub)<<channelShift))
				break
			}
		}
	}
	return out
}

// HistogramBins is how many bins a Histogram has: one for each value of the sixteen bits below the sign that a finite number may have.
const HistogramBins = 0x7f80

// Counts are the numbers of magnitudes in each bin, which must not be changed.
func (h *Histogram) Counts() []int64 { return h.bins }

// RestoreHistogram makes a histogram of its counts, HistogramBins of them and none negative, and the largest magnitude.
func RestoreHistogram(counts []int64, largest float32) *Histogram {
	h := &Histogram{Max: largest, bins: counts}
	for _, n := range counts {
		h.Count += n
	}
	return h
}
