package llama

import (
	"qtool/formats"
	"qtool/formats/checkpoint"
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
	if p.w.integer() {
		n = panelsPerUnit * packed.Panel
	}
	return (p.w.rows + n - 1) / n
}

// job is the products of one input in work.
type job struct {
	x              []float32
	tokens, stride int
	fine           bool
	halves         bool    // sums of half blocks are needed
	limit          float32 // of activations, by calibration; 0 where they are scaled by what they are
	products       []product
}

// multiply runs the products of the same input, x[tokens][cols], in one step of the pool. Outputs
// have the given stride from token to token.
func (s *Session) multiply(x []float32, tokens, stride int, products ...product) error {
	e := s.engine
	cols := products[0].w.cols
	if s.tap != nil {
		if err := s.tap(products[0].w.tensor.Name, x[:tokens*cols], tokens, cols); err != nil {
			return err
		}
	}
	if at := differing(products); at > 0 {
		// Products under different ranges of their input take it in turn.
		if err := s.multiply(x, tokens, stride, products[:at]...); err != nil {
			return err
		}
		tap := s.tap
		s.tap = nil // it has seen this input
		err := s.multiply(x, tokens, stride, products[at:]...)
		s.tap = tap
		return err
	}
	needCodes, fine, halves := false, false, false
	total := 0
	for _, p := range products {
		needCodes = needCodes || p.w.integer()
		fine = fine || e.fine(p.w)
		halves = halves || p.w.foreign != nil && p.w.foreign.Layout == kernel.Super6
		total += p.units()
	}
	s.job = job{x: x, tokens: tokens, stride: stride, fine: fine, halves: halves, limit: products[0].w.limit(), products: append(s.job.products[:0], products...)}
	if needCodes {
		s.codes.Resize(tokens, cols)
		if halves {
			s.codes.ResizeHalves()
		}
		if fine {
			s.rest.Resize(tokens, cols)
			if halves {
				s.rest.ResizeHalves()
			}
		}
		e.pool.Run(tokens, s.steps.quantize)
	}
	e.pool.Run(total, s.steps.multiply)
	return s.failed.take()
}

// quantizeRow rounds the input of a token for packed matrices.
func (s *Session) quantizeRow(worker, t int) {
	e, cols := s.engine, s.codes.Cols
	row := s.job.x[t*cols : (t+1)*cols]
	if s.job.limit > 0 {
		e.kernels.QuantizeStatic(&s.codes, t, row, s.job.limit)
		return
	}
	e.kernels.Quantize(&s.codes, t, row)
	if s.job.halves {
		e.kernels.Halve(&s.codes, t)
	}
	if s.job.fine {
		w := &e.scratch[worker]
		w.tile = room(w.tile, cols)
		e.kernels.QuantizeRest(&s.rest, &s.codes, t, row, w.tile)
		if s.job.halves {
			e.kernels.Halve(&s.rest, t)
		}
	}
}

// multiplyUnit does a unit of the job's products.
func (s *Session) multiplyUnit(worker, unit int) {
	j, w := &s.job, &s.engine.scratch[worker]
	for i := range j.products {
		p := &j.products[i]
		n := p.units()
		if unit >= n {
			unit -= n
			continue
		}
		if p.w.integer() {
			s.multiplyPanels(p, unit, j.tokens, j.stride, w)
		} else {
			s.failed.note(s.engine.multiplyTile(p, unit, j.tokens, j.stride, j.x, w))
		}
		return
	}
}

// differing gives the first product whose limit is not that of the ones before it, 0 where all are alike.
func differing(products []product) int {
	for i := range products[1:] {
		if products[i+1].w.limit() != products[0].w.limit() {
			return i + 1
		}
	}
	return 0
}

// mulPanels multiplies panels of a packed or repacked matrix.
func (e *Engine) mulPanels(out []float32, stride int, w *linear, panel, panels int, a *kernel.Activations, tokens int) {
	if w.matrix != nil {
		e.kernels.MulPanels(out, stride, *w.matrix, panel, panels, a, 0, tokens)
		return
	}
	e.kernels.MulForeign(out, stride, *w.foreign, panel, panels, a, 0, tokens)
}

// multiplyPanels multiplies a unit of a packed matrix.
func (s *Session) multiplyPanels(p *product, unit, tokens, stride int, w *workerScratch) {
	e := s.engine
	panel := unit * panelsPerUnit
	panels := min(panelsPerUnit, p.w.panelCount()-panel)
	first := panel * packed.Panel
	rows := min(panels*packed.Panel, p.w.rows-first)
	e.mulPanels(p.out[first:], stride, p.w, panel, panels, &s.codes, tokens)
	if e.fine(p.w) {
		w.tile = room(w.tile, tokens*rows)
		e.mulPanels(w.tile, rows, p.w, panel, panels, &s.rest, tokens)
		for t := range tokens {
			e.kernels.Axpy(1, w.tile[t*rows:(t+1)*rows], p.out[t*stride+first:])
		}
	}
	p.addBias(first, first+rows, tokens, stride)
}

// multiplyTile decodes a unit of a plain matrix and multiplies it.
func (e *Engine) multiplyTile(p *product, unit, tokens, stride int, x []float32, s *workerScratch) error {
	first := unit * rowsPerTile
	n := min(rowsPerTile, p.w.rows-first)
	cols := p.w.cols
	tile, ok := p.w.tensor.Float32s(first, n)
	if !ok {
		s.tile = room(s.tile, n*cols)
		tile = s.tile
		if err := e.decodeRows(tile, p.w.tensor, first, n, s); err != nil {
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

// decodeRows decodes the rows first … first+n-1 of a matrix: halves by the engine's own loops, whose result is the
// same as that of Tensor.ReadRows.
func (e *Engine) decodeRows(tile []float32, t *checkpoint.Tensor, first, n int, s *workerScratch) error {
	cols := t.Cols()
	for i := range n {
		row, dtype, ok := t.Row(first + i)
		dst := tile[i*cols : (i+1)*cols]
		switch {
		case ok && dtype == formats.F16:
			e.kernels.DecodeF16(dst, row)
		case ok && dtype == formats.BF16:
			e.kernels.DecodeBF16(dst, row)
		default:
			return t.ReadRows(tile, first, n, &s.reader)
		}
	}
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
