package quant

import (
	"fmt"
	"math"

	"qtool/formats/packed"
	"qtool/runtime/linalg"
)

// Scaling says how the channels of a layer's input are scaled before its weights are quantized, by factors that the layer before takes
// in and that the weights make up for.
type Scaling string

const (
	// NoScaling leaves channels as they are.
	NoScaling Scaling = ""
	// AWQ makes the weights of channels with large inputs larger, by a power of the inputs that is searched for least error of the output: Lin,
	// Tang, Tang et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", 2024.
	AWQ Scaling = "awq"
	// SmoothQuant shares the range of inputs out between inputs and weights, for static ranges of activations: Xiao, Lin, Seznec et al.,
	// "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models", 2023.
	SmoothQuant Scaling = "smoothquant"
)

// ParseScaling reads the name of a scaling; "none" is NoScaling.
func ParseScaling(name string) (Scaling, error) {
	switch s := Scaling(name); s {
	case AWQ, SmoothQuant:
		return s, nil
	case "none", NoScaling:
		return NoScaling, nil
	}
	return "", fmt.Errorf("scaling %q is unknown: expected none, %q or %q", name, AWQ, SmoothQuant)
}

// Weights is a matrix, [Rows][N], with the scheme that it is to get.
type Weights struct {
	W      []float32
	Rows   int
	Scheme packed.Scheme
}

// Channels says what the factors of an input's channels are bound to.
type Channels struct {
	// Shared has a number for each channel, from 0 on: those with the same get the same factor. nil: each its own.
	Shared []int
	// Most is the largest factor that a channel may get; nil for any.
	Most []float32
}

// LeastScale is about the least number of half precision that goes with a group whose weights are of some magnitude at most.
func LeastScale(s packed.Scheme, magnitude float32) float32 {
	levels := float32(127) // of 8 bits, and of codebooks
	if s.Bits < 8 && !s.Codebook {
		levels = float32(int(1) << (s.Bits - 1))
	}
	if s.TwoLevel {
		levels *= 32 // scales of 6 bits
	}
	return magnitude / levels
}

// pool puts in the place of each value what a function makes of those that share a factor, of which it is given one after another, and how many there are.
func (c Channels) pool(values []float64, add func(sum, v float64) float64, end func(sum float64, n int) float64) {
	if c.Shared == nil {
		return
	}
	sums, counts := make([]float64, len(values)), make([]int, len(values))
	for i, v := range values {
		k := c.Shared[i]
		sums[k] = add(sums[k], v)
		counts[k]++
	}
	for i := range values {
		k := c.Shared[i]
		values[i] = end(sums[k], counts[k])
	}
}

// mean is the mean of channels that share a factor.
func (c Channels) mean(values []float64) {
	c.pool(values, func(sum, v float64) float64 { return sum + v }, func(sum float64, n int) float64 { return sum / float64(n) })
}

// largest is the largest of them, none of which is below 0.
func (c Channels) largest(values []float64) {
	c.pool(values, func(sum, v float64) float64 { return max(sum, v) }, func(sum float64, _ int) float64 { return sum })
}

// factors makes factors of their logarithms, with a geometric mean of 1 before they are held to what they may be at most.
func (c Channels) factors(logs []float64) []float32 {
	var mean float64
	for _, l := range logs {
		mean += l / float64(len(logs))
	}
	out := make([]float32, len(logs))
	for i, l := range logs {
		out[i] = float32(math.Exp(l - mean))
		if c.Most != nil {
			out[i] = min(out[i], c.Most[i])
		}
	}
	return out
}

// awqSteps is how many powers from 0 to 1 are tried, awqRows how many rows of a matrix at most.
const (
	awqSteps = 20
	awqRows  = 64
)

// AWQFactors gives the factor of each of n channels for matrices that share their input, of which h is the mean of x xᵀ, [n][n]. Factors are
// powers of the channels' root mean squares, and 1 for all is one of the trials: so by the measure of the search, the error of outputs
// when weights are rounded with scales by the rule, the result is never worse than none.
func AWQFactors(s *linalg.Solver, h []float32, n int, c Channels, rule Rule, matrices []Weights) ([]float32, error) {
	losses, failures := make([]float64, awqSteps+1), make([]error, awqSteps+1)
	s.Run(awqSteps+1, func(i int, scratch *linalg.Scratch) {
		factors := c.powers(h, n, float64(i)/awqSteps)
		for _, m := range matrices {
			l, err := roundingLoss(s, scratch, h, n, m, rule, factors)
			if err != nil {
				failures[i] = err
				return
			}
			losses[i] += l
		}
	})
	best := 0
	for i, err := range failures {
		if err != nil {
			return nil, err
		}
		if losses[i] < losses[best] {
			best = i
		}
	}
	return c.powers(h, n, float64(best)/awqSteps), nil
}

// powers are the channels' root mean squares to a power, by their geometric mean.
func (c Channels) powers(h []float32, n int, power float64) []float32 {
	squares := make([]float64, n)
	floor := 0.0
	for i := range n {
		squares[i] = float64(h[i*n+i])
		floor = max(floor, squares[i])
	}
	c.mean(squares)
	for i, v := range squares {
		squares[i] = 0.5 * power * math.Log(max(v, 1e-8*floor, 1e-30))
	}
	return c.factors(squares)
}

// roundingLoss is the squared error of some rows' outputs when the weights are scaled, rounded to nearest and scaled back.
func roundingLoss(s *linalg.Solver, scratch *linalg.Scratch, h []float32, n int, m Weights, rule Rule, factors []float32) (float64, error) {
	q := New(s.Kernels(), m.Scheme, rule)
	book := (*[16]int8)(nil)
	if m.Scheme.Codebook {
		book = initialBook(m.Scheme.Bits)
	}
	codes := packed.NewCodes(m.Scheme, n)
	step := max(1, (m.Rows+awqRows-1)/awqRows)
	var diff []float32
	scaled, back, importance := make([]float32, n), make([]float32, n), make([]float32, n)
	var mean float64
	for i := range n {
		mean += float64(h[i*n+i]) / float64(n)
	}
	for i, f := range factors { // of the inputs, divided
		importance[i] = max(h[i*n+i], float32(1e-6*mean), 1e-30) / (f * f)
	}
	for r := 0; r < m.Rows; r += step {
		row := m.W[r*n : (r+1)*n]
		for i, v := range row {
			scaled[i] = v * factors[i]
		}
		if err := q.Row(codes, scaled, importance); err != nil {
			return 0, &RowError{Row: r, Err: err}
		}
		m.Scheme.Dequantize(back, codes, book)
		for i, v := range row {
			diff = append(diff, back[i]/factors[i]-v)
		}
	}
	rows := len(diff) / n
	product := make([]float32, rows*n)
	scratch.Mul(s.Kernels(), product, n, diff, n, rows, h, n, n, n)
	var loss float64
	for i, v := range diff {
		loss += float64(v) * float64(product[i])
	}
	return loss, nil
}

// SmoothFactors gives the factor of each of n channels: the largest input to the power alpha by the largest weight to the power 1 − alpha,
// scaled to a geometric mean of 1.
func SmoothFactors(inputs []float32, alpha float64, c Channels, matrices []Weights) []float32 {
	n := len(inputs)
	most, weights := make([]float64, n), make([]float64, n)
	for i, v := range inputs {
		most[i] = float64(v)
	}
	for _, m := range matrices {
		for i, v := range m.W {
			weights[i%n] = max(weights[i%n], float64(v), -float64(v))
		}
	}
	c.largest(most)
	c.largest(weights)
	for i, v := range most {
		most[i] = alpha*math.Log(max(v, 1e-5)) - (1-alpha)*math.Log(max(weights[i], 1e-5))
	}
	return c.factors(most)
}
