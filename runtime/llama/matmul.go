package llama

import (
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// Rows that one unit of work takes: enough that handing it out costs nothing beside it, few enough
// that the last units end together.
const (
	panelsPerUnit = 4
	rowsPerTile   = 16
	tokensPerTile = 32 // that a decoded tile is multiplied with before the next
)

// product is one matrix of a step: out[t·stride + r] = Σ w[r]·x[t] (+ bias[r]).
type product struct {
	w   *linear
	out []float32 // from the first token's first element on
}

// units is the number of pieces that a product is cut into, by rows alone: so no result depends on
// the number of threads.
func (p product) units() int {
	n := rowsPerTile
	if p.w.tensor.Packed() {
		n = panelsPerUnit * packed.Panel
	}
	return (p.w.rows + n - 1) / n
}

// multiply runs the products of the same input, x[tokens][cols], in one step of the pool. Outputs
// have the given stride from token to token.
func (s *Session) multiply(x []float32, tokens, stride int, products ...product) error {
	e := s.engine
	cols := products[0].w.cols
	needCodes := false
	total := 0
	for _, p := range products {
		needCodes = needCodes || p.w.tensor.Packed()
		total += p.units()
	}
	if needCodes {
		s.codes.Resize(tokens, cols)
		e.pool.Run(tokens, func(_, t int) {
			e.kernels.Quantize(&s.codes, t, x[t*cols:(t+1)*cols])
		})
	}
	var failed failure
	e.pool.Run(total, func(worker, unit int) {
		for i := range products {
			p := &products[i]
			n := p.units()
			if unit >= n {
				unit -= n
				continue
			}
			if p.w.tensor.Packed() {
				e.multiplyPanels(p, unit, tokens, stride, &s.codes)
			} else {
				failed.note(e.multiplyTile(p, unit, tokens, stride, x, &e.scratch[worker]))
			}
			return
		}
	})
	return failed.err()
}

// multiplyPanels multiplies a unit of a packed matrix.
func (e *Engine) multiplyPanels(p *product, unit, tokens, stride int, codes *kernel.Activations) {
	m := p.w.tensor.Matrix()
	panel := unit * panelsPerUnit
	e.kernels.MulPanels(p.out[panel*packed.Panel:], stride, m, panel, min(panelsPerUnit, m.PanelCount()-panel), codes, 0, tokens)
	first := unit * panelsPerUnit * packed.Panel
	p.addBias(first, min(first+panelsPerUnit*packed.Panel, p.w.rows), tokens, stride)
}

// multiplyTile decodes a unit of a plain matrix and multiplies it.
func (e *Engine) multiplyTile(p *product, unit, tokens, stride int, x []float32, s *workerScratch) error {
	first := unit * rowsPerTile
	n := min(rowsPerTile, p.w.rows-first)
	cols := p.w.cols
	tile, ok := p.w.tensor.Float32s(first, n)
	if !ok {
		if len(s.tile) < n*cols {
			s.tile = make([]float32, rowsPerTile*cols)
		}
		tile = s.tile[:n*cols]
		if err := p.w.tensor.ReadRows(tile, first, n, &s.reader); err != nil {
			return err
		}
	}
	for t := 0; t < tokens; t += tokensPerTile {
		part := min(tokensPerTile, tokens-t)
		e.kernels.MulDense(p.out[t*stride+first:], stride, tile, n, cols, x[t*cols:(t+part)*cols], part)
	}
	p.addBias(first, first+n, tokens, stride)
	return nil
}

// addBias adds the bias of the rows first … last-1.
func (p *product) addBias(first, last, tokens, stride int) {
	if p.w.bias == nil {
		return
	}
	for t := range tokens {
		out := p.out[t*stride:]
		for r := first; r < last; r++ {
			out[r] += p.w.bias[r]
		}
	}
}
