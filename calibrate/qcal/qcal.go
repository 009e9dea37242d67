// Package qcal reads and writes files with the statistics of the inputs of a model's linear layers: safetensors files of the form that SPEC.md describes.
package qcal

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"qtool/calibrate"
	"qtool/formats"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
)

// Keys of the file's metadata.
const (
	keyFormat  = "format"
	keyVersion = "qcal.version"
	keyHeader  = "qcal.header"
	keyDigests = "qcal.digests"

	formatName = "qcal"
	version    = 1
)

// Bounds far beyond what any model has.
const (
	maxChannels = 1 << 20
	maxNumber   = 1 << 40
)

// Parts of the statistics of an input, each a tensor named after the input and this.
const (
	partCount       = "/count"
	partHistogram   = "/histogram"
	partSquares     = "/sum_squares"
	partMin         = "/min"
	partMax         = "/max"
	partPercentiles = "/percentiles"
	partHessian     = "/hessian"
)

// Source is a tensor of the model that was run.
type Source struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Digest string `json:"digest"` // of its values as float32, little-endian, in Hugging Face's order
}

// Input is what some linear layers are multiplied with.
type Input struct {
	Name     string   `json:"name"`   // of the first layer
	Layers   []string `json:"layers"` // that share it, the first included
	Channels int      `json:"channels"`
}

// Header says what the statistics are of.
type Header struct {
	Model     []Source `json:"model"`
	Inputs    []Input  `json:"inputs"`
	Tokenizer string   `json:"tokenizer"` // digest
	Data      string   `json:"data"`      // digest
	Context   int      `json:"context"`   // tokens of a sequence
	Sequences int      `json:"sequences"`
	Tool      string   `json:"tool"`
	Kernels   string   `json:"kernels"`
}

// Statistics are those of one input.
type Statistics struct {
	Count       int64
	Squares     []float64 // sums by channel
	Min, Max    []float32 // by channel
	Percentiles [][]float32
	// Hessian is Σ x xᵀ: of each row the elements from the diagonal on.
	Hessian   []float32
	Histogram *calibrate.Histogram
}

// parts lists the tensors of an input.
func (in Input) parts() []safetensors.Tensor {
	n := in.Channels
	return []safetensors.Tensor{
		{Name: in.Name + partCount, DType: formats.I64, Shape: []int{1}},
		{Name: in.Name + partHistogram, DType: formats.I64, Shape: []int{calibrate.HistogramBins}},
		{Name: in.Name + partSquares, DType: formats.F64, Shape: []int{n}},
		{Name: in.Name + partMin, DType: formats.F32, Shape: []int{n}},
		{Name: in.Name + partMax, DType: formats.F32, Shape: []int{n}},
		{Name: in.Name + partPercentiles, DType: formats.F32, Shape: []int{len(calibrate.Percentiles), n}},
		{Name: in.Name + partHessian, DType: formats.F32, Shape: []int{n * (n + 1) / 2}},
	}
}

// Parts names the tensors of an input.
func (in Input) Parts() []string {
	var names []string
	for _, t := range in.parts() {
		names = append(names, t.Name)
	}
	return names
}

// Layout gives the layout of a file with the given digests of the data of each tensor; those that are missing count as zeros, and the header has
// the same size with any.
func (h Header) Layout(digests map[string]packed.Digest) (*safetensors.Layout, error) {
	var tensors []safetensors.Tensor
	sums := make(map[string]string)
	for _, in := range h.Inputs {
		for _, t := range in.parts() {
			tensors = append(tensors, t)
			sums[t.Name] = digests[t.Name].String()
		}
	}
	header, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(sums)
	if err != nil {
		return nil, err
	}
	return safetensors.Plan(tensors, safetensors.LayoutOptions{Align: packed.Align, Metadata: []safetensors.Pair{
		{Key: keyFormat, Value: formatName}, {Key: keyVersion, Value: strconv.Itoa(version)}, {Key: keyHeader, Value: string(header)}, {Key: keyDigests, Value: string(list)},
	}})
}

// New makes statistics of what was gathered.
func New(st *calibrate.InputStatistics) *Statistics {
	s := &Statistics{Count: int64(st.Gram.Count), Squares: st.Squares, Min: st.Min, Max: st.Max, Histogram: st.Histogram()}
	for _, p := range calibrate.Percentiles {
		s.Percentiles = append(s.Percentiles, st.Percentile(p))
	}
	n := st.Gram.Cols
	s.Hessian = make([]float32, 0, n*(n+1)/2)
	for i := range n {
		s.Hessian = append(s.Hessian, st.Gram.Sum[i*n+i:(i+1)*n]...)
	}
	return s
}

// Encode writes the data of the i-th of an input's Parts.
func (s *Statistics) Encode(w io.Writer, i int) error {
	switch i {
	case 0:
		return writeInts(w, []int64{s.Count})
	case 1:
		return writeInts(w, s.Histogram.Counts())
	case 2:
		return writeDoubles(w, s.Squares)
	case 3:
		return writeFloats(w, s.Min)
	case 4:
		return writeFloats(w, s.Max)
	case 5:
		for _, p := range s.Percentiles {
			if err := writeFloats(w, p); err != nil {
				return err
			}
		}
		return nil
	case 6:
		return writeFloats(w, s.Hessian)
	}
	return fmt.Errorf("statistics have no part %d", i)
}

// Magnitudes are the largest ones by channel.
func (s *Statistics) Magnitudes() []float32 {
	out := make([]float32, len(s.Max))
	for i := range out {
		out[i] = max(s.Max[i], -s.Min[i])
	}
	return out
}
