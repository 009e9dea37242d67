package convert

import (
	"qtool/convert/quant"
	"qtool/formats/arch"
	"qtool/formats/packed"
)

// nanoseconds that one core takes for a weight that is rounded as it stands, as measured on a Xeon of 2.x GHz by the benchmarks of convert/quant.
var nanoseconds = map[quant.Rule]float64{quant.AbsMax: 6, quant.Search: 40}

// What calibration reaches on one core, as measured on two that were busy besides: multiply-adds a second, and how many of these one of the
// refinement takes.
const (
	multiplyAdds = 15e9
	refining     = 2
)

// Parts of the memory of calibration: square matrices of an input's channels that are there at once (the Hessian, what it is inverted in), and how
// much more the collector of garbage lets pile up.
const (
	squares = 4
	garbage = 1.5
)

// Expected is roughly what carrying out a plan takes.
type Expected struct {
	Memory  int64 // anonymous, in bytes
	Seconds float64
}

// Expect says what to expect of Quantize with these options. Rounding takes buffers, whatever the size of the model; with a rotation, some matrices as
// a whole too. By calibration there are the hidden states and inputs that the text makes, as far as these may be in memory; the largest matrix and
// the squares of its input's channels; and what is finished of the model, on which the text is run.
func (p *Plan) Expect(o Options) Expected {
	threads := max(o.Threads, 1)
	cols, whole := 0, 0
	var ns float64
	for _, d := range p.Decisions {
		cols = max(cols, d.Tensor.Cols())
		if p.Recipe.Rotation != NoRotation && d.Tensor.Role == arch.Linear {
			whole = max(whole, d.Tensor.Elements())
		}
		cost := 2.0
		if d.Scheme != nil {
			cost = nanoseconds[p.Recipe.Rule]
		}
		ns += cost * float64(d.Tensor.Elements())
	}
	perWorker := int64(cols) * packed.Panel * (4 + 1) // decoded rows and codes
	e := Expected{
		Memory:  32<<20 + int64(threads)*perWorker + int64(slots(threads))*chunkBytes + 3*4*int64(whole),
		Seconds: ns / 1e9 / float64(threads),
	}
	if o.Calibration == nil && o.Statistics == nil {
		return e
	}
	e.Memory += int64(garbage * float64(p.calibrationMemory(o)))
	e.Seconds += p.calibrationWork(o) / multiplyAdds / float64(threads)
	return e
}

// calibrated lists the matrices that are quantized by their inputs.
func (p *Plan) calibrated() []Decision {
	var out []Decision
	for _, d := range p.Decisions {
		role, tied := d.Tensor.Role, p.Model.Config().TieEmbeddings
		if d.Scheme != nil && !d.Tensor.Packed() && (role == arch.Linear || role == arch.Head || role == arch.Embedding && tied) {
			out = append(out, d)
		}
	}
	return out
}

// calibrationMemory is what is live at most, in bytes.
func (p *Plan) calibrationMemory(o Options) int64 {
	var matrix, square int64
	beside := p.Recipe.Targets == SourceOutputs && o.Calibration != nil
	for _, d := range p.calibrated() {
		matrix = max(matrix, 4*int64(d.Tensor.Elements()))
		need := squares * 4 * int64(d.Tensor.Cols()) * int64(d.Tensor.Cols())
		if beside { // the sums of what the source's differ by, of halves of the text
			need += 2 * 4 * int64(p.Model.Config().Hidden) * int64(d.Tensor.Cols())
		}
		square = max(square, need)
	}
	if beside {
		matrix *= 2 // and how it is changed
	}
	if o.Statistics != nil && o.Statistics.imatrix != nil {
		return matrix
	}
	n := matrix + square
	if o.Calibration == nil {
		return n
	}
	c := p.Model.Config()
	length := int64(len(o.Calibration.Sequences[0]))
	tokens := length * int64(len(o.Calibration.Sequences))
	most := o.Calibration.MaxMemory
	held := func(most int64) int64 {
		if all := 4 * tokens * int64(c.Hidden); most == 0 || all <= most {
			return all
		}
		return 4 * length * int64(c.Hidden) // of one sequence: the others are in a file
	}
	states := held(most)
	if beside { // twice, each within half of the limit
		states = 2 * held((most+1)/2)
	}
	inputs := int64(0)
	for _, d := range p.calibrated() {
		if need := 4 * tokens * int64(d.Tensor.Cols()+c.Hidden); d.Tensor.Role == arch.Linear && (most == 0 || need <= most) {
			inputs = max(inputs, 4*tokens*int64(d.Tensor.Cols()))
		}
	}
	n += states + inputs + 4*length*int64(8*c.Hidden+4*c.Intermediate) // and what a block computes of a sequence
	for _, d := range p.Decisions {
		if d.Scheme != nil {
			n += d.Bytes
		}
	}
	if p.Recipe.Budget != nil { // what is kept of the sample that sensitivities are measured on
		sequences, tokens := sampleSize(c, len(o.Calibration.Sequences), int(length))
		if sample := 4 * int64(sequences) * int64(tokens) * int64(perToken(c)); most == 0 || sample <= most {
			n = max(n, sample+matrix)
		}
	}
	return n
}

// calibrationWork is how many multiply-adds calibration takes: running the text through the blocks, about once and once more where inputs are not kept;
// Hessians; their factors; codes.
func (p *Plan) calibrationWork(o Options) float64 {
	var tokens, run, work float64
	if o.Calibration != nil {
		tokens = float64(len(o.Calibration.Sequences)) * float64(len(o.Calibration.Sequences[0]))
		run = tokens
		if o.Calibration.MaxMemory > 0 {
			run *= 2
		}
		if p.Recipe.Scaling != quant.NoScaling {
			run += tokens // to choose factors
		}
	}
	beside := p.Recipe.Targets == SourceOutputs && o.Calibration != nil
	if beside {
		run += 1.5 * tokens // the source, and what layers that add to the states give
	}
	for _, d := range p.calibrated() {
		rows, n := float64(d.Tensor.Rows()), float64(d.Tensor.Cols())
		if d.Tensor.Role == arch.Linear {
			work += run * rows * n
		}
		if hidden := float64(p.Model.Config().Hidden); beside {
			work += hidden*n*tokens + 2*hidden*n*n
		}
		if p.Recipe.Method == quant.GPTQ {
			work += rows * n * n / 2
		}
		if p.Recipe.Refine > 0 {
			work += refining * float64(p.Recipe.Refine+1) * rows * n * n
		}
	}
	if o.Statistics != nil && o.Statistics.imatrix != nil {
		return work
	}
	// Four inputs a block: those of q, o, gate and down, of which the last is the widest.
	c := p.Model.Config()
	for _, n := range []float64{float64(c.Hidden), float64(c.Hidden), float64(c.Hidden), float64(c.Intermediate)} {
		grams := 1.0
		if p.Recipe.Scaling != quant.NoScaling {
			grams = 2 // before factors, and of what they make of it
		}
		work += float64(c.Layers) * (grams*tokens*n*n/2 + 2*n*n*n/3)
	}
	return work
}
