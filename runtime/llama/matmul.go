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
	bytesPerUnit  = 128 << 10 // of panels, and at least
	panelsPerUnit = 4
	rowsPerTile   = 16
	tokensPerTile = 32 // that a decoded tile is multiplied with before the next
)

// product is one matrix of a step: out[t·stride + r] = Σ w[r]·x[t] (+ bias[r]).
type product struct {
	w   *linear
	out []float32 // from the first token's first element on
}

// unitPanels is the number of panels in a unit, an even one.
func unitPanels(s packed.Scheme, cols int) int {
	return max(panelsPerUnit, bytesPerUnit/max(s.PanelBytes(cols), 1)&^1)
}

// job is the products of one input in work.
type job struct {
	x              []float32
	tokens, stride int
	coarse, fine   bool    // codes that products need
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
	coarse, fine, tiled := false, false, false
	clear(e.counts)
	for _, p := range products {
		coarse = coarse || p.w.matrix != nil && !p.fine()
		fine = fine || p.fine()
		tiled = tiled || p.w.matrix != nil && kernel.Tiled(p.w.matrix.Scheme)
		for i := range p.w.shares {
			e.counts[i] += p.w.shares[i].units()
		}
	}
	s.job = job{x: x, tokens: tokens, stride: stride, coarse: coarse, fine: fine, limit: products[0].limit(), products: append(s.job.products[:0], products...)}
	if coarse {
		s.codes.Resize(tokens, cols)
	}
	if fine {
		e.kernels.ResizeFine(&s.fine, tokens, cols)
	}
	if coarse || fine {
		e.pool.Run(tokens, s.steps.quantize)
	}
	if tiled {
		e.pool.Run(e.kernels.Tile(&s.codes), s.steps.arrange)
	}
	if fine {
		e.pool.Run(e.kernels.TileFine(&s.fine), s.steps.arrangeFine)
	}
	e.pool.RunParts(e.counts, s.steps.multiply)
	return s.failed.take()
}

// quantizeRow rounds the input of a token for packed matrices.
func (s *Session) quantizeRow(worker, t int) {
	e, cols := s.engine, s.job.products[0].w.cols
	row := s.job.x[t*cols : (t+1)*cols]
	if s.job.limit > 0 {
		e.kernels.QuantizeStatic(&s.codes, t, row, s.job.limit)
		return
	}
	if s.job.coarse {
		e.kernels.Quantize(&s.codes, t, row)
	}
	if s.job.fine {
		w := &e.scratch[worker]
		w.tile = room(w.tile, cols)
		e.kernels.QuantizeFine(&s.fine, t, row, w.tile)
	}
}

// arrangeTile and arrangeFineTile prepare a tile of tokens for packed matrices.
func (s *Session) arrangeTile(_, tile int)     { s.engine.kernels.Arrange(&s.codes, tile) }
func (s *Session) arrangeFineTile(_, tile int) { s.engine.kernels.ArrangeFine(&s.fine, tile) }

// multiplyUnit does a unit of a part's shares in the job's products. What a unit is follows from the rows alone: so no
// result depends on the number of threads or nodes.
func (s *Session) multiplyUnit(worker, part, unit int) {
	j, w := &s.job, &s.engine.scratch[worker]
	for i := range j.products {
		p := &j.products[i]
		own := &p.w.shares[part]
		n := own.units()
		if unit >= n {
			unit -= n
			continue
		}
		if own.matrix != nil {
			s.multiplyPanels(p, own, unit, j.tokens, j.stride, w)
		} else {
			s.failed.note(s.engine.multiplyTile(p, own, unit, j.tokens, j.stride, j.x, w))
		}
		return
	}
}

// limit is the range of activations that a product was calibrated for, 0 for none.
func (p product) limit() float32 {
	if p.w.matrix == nil {
		return 0
	}
	return p.w.matrix.Range()
}

// differing gives the first product whose limit is not that of the ones before it, 0 where all are alike.
func differing(products []product) int {
	for i := range products[1:] {
		if products[i+1].limit() != products[0].limit() {
			return i + 1
		}
	}
	return 0
}

// fine reports whether the matrix is multiplied with activations of more than 8 bits: see kernel.Fine.
func (p product) fine() bool {
	return p.w.matrix != nil && p.w.matrix.Scheme.Bits == 8 && p.limit() == 0
}

// multiplyPanels multiplies a unit of a packed matrix.
func (s *Session) multiplyPanels(p *product, own *share, unit, tokens, stride int, w *workerScratch) {
	set, m := s.engine.kernels, *own.matrix
	each := unitPanels(m.Scheme, m.Cols)
	at := unit * each * packed.Panel
	rows := min(each*packed.Panel, own.rows-at)
	first := own.first + at
	panel, panels := (first-own.base)/packed.Panel, (rows+packed.Panel-1)/packed.Panel
	if p.fine() {
		w.tile = room(w.tile, set.FineScratch(panels, tokens))
		set.MulPanelsFine(p.out[first:], stride, m, panel, panels, &s.fine, 0, tokens, w.tile)
	} else {
		set.MulPanels(p.out[first:], stride, m, panel, panels, &s.codes, 0, tokens)
	}
	p.addBias(first, first+rows, tokens, stride)
}

// multiplyTile decodes a unit of a plain matrix and multiplies it.
func (e *Engine) multiplyTile(p *product, own *share, unit, tokens, stride int, x []float32, s *workerScratch) error {
	at := unit * rowsPerTile
	n := min(rowsPerTile, own.rows-at)
	first := own.first + at
	cols, row := p.w.cols, first-own.base
	tile, ok := own.tensor.Float32s(row, n)
	if !ok {
		s.tile = room(s.tile, n*cols)
		tile = s.tile
		if err := e.decodeRows(tile, own.tensor, row, n, s); err != nil {
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
