package llama

import (
	"fmt"

	"qtool/formats"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// Rows that one unit of work takes: enough that handing it out costs nothing beside it, few enough
// that the last units end together.
const (
	bytesPerUnit  = 128 << 10 // of panels, and at least
	panelsPerUnit = 4
	rowsPerTile   = kernel.SliverWidth
)

// Plain matrices are multiplied in slivers, of so many columns at a time that one stays in the first cache. Tokens lie apart by somewhat
// more, so that they do not push one another out of it.
const (
	sliverDepth = 512
	sliverApart = sliverDepth + 16
)

// product is one matrix of a step: out[t·stride + r] = Σ w[r]·x[t] (+ bias[r]).
type product struct {
	w   *linear
	out []float32 // from the first token's first element on
}

// unitPanels is the number of panels of some size in a unit, an even one.
func unitPanels(size int) int { return max(panelsPerUnit, bytesPerUnit/max(size, 1)&^1) }

// job is the products of one input in work.
type job struct {
	x              []float32
	tokens, stride int
	coarse, fine   bool         // codes that products need
	rest           bool         // what the coarse ones leave, in a second plane
	halves         bool         // sums of half blocks of codes
	tiles          kernel.Tiles // of coarse codes, for several tokens at a time
	fineTiles      kernel.Tiles // of fine ones
	limit          float32      // of activations, by calibration; 0 where they are scaled by what they are
	plain          bool         // there are matrices without codes
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
	s.job = job{x: x, tokens: tokens, stride: stride, limit: products[0].w.limit(), products: append(s.job.products[:0], products...)}
	j := &s.job
	clear(e.counts)
	for _, p := range products {
		rounding := e.rounding(p.w)
		switch rounding {
		case roundNone:
			j.plain = true
		case roundInt8, roundFixed:
			j.coarse = true
		case roundInt16:
			j.coarse, j.rest = true, true
		case roundFine:
			j.fine = true
		}
		j.halves = j.halves || p.w.form != nil && p.w.form.Layout == kernel.Super6
		scheme, ok := p.w.scheme()
		switch {
		case !ok || rounding == roundNone:
		case rounding == roundFine:
			j.fineTiles |= e.kernels.TiledFine(scheme)
		default:
			j.halves = j.halves || e.kernels.Halved(scheme)
			j.tiles |= e.kernels.Tiled(scheme)
		}
		for i := range p.w.shares {
			e.counts[i] += p.w.shares[i].units()
		}
	}
	s.resizeCodes(tokens, cols)
	if j.coarse || j.fine {
		e.pool.Run(tokens, s.steps.quantize)
	}
	if j.tiles != 0 {
		n := e.kernels.Tile(&s.codes, j.tiles)
		if j.rest {
			e.kernels.Tile(&s.rest, j.tiles)
		}
		e.pool.Run(n, s.steps.arrange)
	}
	if j.fine {
		e.pool.Run(e.kernels.TileFine(&s.fine, j.fineTiles), s.steps.arrangeFine)
	}
	if j.plain {
		s.parts = room(s.parts, (cols+sliverDepth-1)/sliverDepth*tokens*sliverApart)
		e.pool.Run(tokens, s.steps.part)
	}
	e.pool.RunParts(e.counts, s.steps.multiply)
	return s.failed.take()
}

// resizeCodes makes room for the codes of a job.
func (s *Session) resizeCodes(tokens, cols int) {
	if s.job.coarse {
		s.codes.Resize(tokens, cols)
		if s.job.halves {
			s.codes.ResizeHalves()
		}
	}
	if s.job.rest {
		s.rest.Resize(tokens, cols)
		if s.job.halves {
			s.rest.ResizeHalves()
		}
	}
	if s.job.fine {
		s.engine.kernels.ResizeFine(&s.fine, tokens, cols)
	}
}

// finite reports whether all values are.
func (e *Engine) finite(x []float32) bool {
	const infinity = 0x7f800000
	return e.kernels.Largest(x) < infinity
}

// quantizeRow rounds the input of a token for packed matrices.
func (s *Session) quantizeRow(worker, t int) {
	e, cols := s.engine, s.job.products[0].w.cols
	row := s.job.x[t*cols : (t+1)*cols]
	if !e.finite(row) {
		s.failed.note(fmt.Errorf("%w: the inputs of %s", ErrNotFinite, s.job.products[0].w.tensor.Name))
	}
	if s.job.limit > 0 {
		e.kernels.QuantizeStatic(&s.codes, t, row, s.job.limit)
		if s.job.halves {
			e.kernels.Halve(&s.codes, t)
		}
		return
	}
	w := &e.scratch[worker]
	if s.job.fine || s.job.rest {
		w.tile = room(w.tile, cols)
	}
	if s.job.coarse {
		e.kernels.Quantize(&s.codes, t, row)
		if s.job.halves {
			e.kernels.Halve(&s.codes, t)
		}
	}
	if s.job.rest {
		e.kernels.QuantizeRest(&s.rest, &s.codes, t, row, w.tile)
		if s.job.halves {
			e.kernels.Halve(&s.rest, t)
		}
	}
	if s.job.fine {
		e.kernels.QuantizeFine(&s.fine, t, row, w.tile)
	}
}

// arrangeTile and arrangeFineTile prepare a tile of tokens for packed matrices.
func (s *Session) arrangeTile(_, tile int) {
	s.engine.kernels.Arrange(&s.codes, tile)
	if s.job.rest {
		s.engine.kernels.Arrange(&s.rest, tile)
	}
}

func (s *Session) arrangeFineTile(_, tile int) { s.engine.kernels.ArrangeFine(&s.fine, tile) }

// partRow copies the input of a token into parts of sliverDepth columns, [parts][tokens][sliverApart].
func (s *Session) partRow(_, t int) {
	j, cols := &s.job, s.job.products[0].w.cols
	row := j.x[t*cols : (t+1)*cols]
	for at := 0; at < cols; at += sliverDepth {
		copy(s.parts[(at/sliverDepth*j.tokens+t)*sliverApart:], row[at:min(at+sliverDepth, cols)])
	}
}

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
		if p.w.integer() {
			s.multiplyPanels(p, own, unit, j.tokens, j.stride, w)
		} else {
			s.failed.note(s.multiplyTile(p, own, unit, w))
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

// multiplyPanels multiplies a unit of a packed or repacked matrix.
func (s *Session) multiplyPanels(p *product, own *share, unit, tokens, stride int, w *workerScratch) {
	e := s.engine
	at := unit * own.unit
	rows := min(own.unit, own.rows-at)
	first := own.first + at
	panel, panels := (first-own.base)/packed.Panel, (rows+packed.Panel-1)/packed.Panel
	out := p.out[first:]
	switch e.rounding(p.w) {
	case roundFine:
		w.tile = room(w.tile, e.kernels.FineScratch(panels, tokens))
		e.kernels.MulPanelsFine(out, stride, *own.matrix, panel, panels, &s.fine, 0, tokens, w.tile)
	case roundInt16:
		w.tile = room(w.tile, tokens*panels*packed.Panel)
		if own.foreign == nil {
			e.kernels.MulPanelsBoth(out, stride, *own.matrix, panel, panels, &s.codes, &s.rest, 0, tokens, w.tile)
			break
		}
		e.mulPanels(out, stride, own, panel, panels, &s.codes, tokens)
		e.mulPanels(w.tile, rows, own, panel, panels, &s.rest, tokens)
		for t := range tokens {
			e.kernels.Axpy(1, w.tile[t*rows:(t+1)*rows], out[t*stride:])
		}
	default:
		e.mulPanels(out, stride, own, panel, panels, &s.codes, tokens)
	}
	p.addBias(first, first+rows, tokens, stride)
}

// mulPanels multiplies panels of a share with activations of 8 bits.
func (e *Engine) mulPanels(out []float32, stride int, own *share, panel, panels int, a *kernel.Activations, tokens int) {
	if own.foreign != nil {
		e.kernels.MulForeign(out, stride, *own.foreign, panel, panels, a, 0, tokens)
		return
	}
	e.kernels.MulPanels(out, stride, *own.matrix, panel, panels, a, 0, tokens)
}

// multiplyTile multiplies a unit of a plain matrix: by one token as it is stored, if it can be, by more decoded and laid out as a sliver.
func (s *Session) multiplyTile(p *product, own *share, unit int, w *workerScratch) error {
	e, j := s.engine, &s.job
	n := min(rowsPerTile, own.rows-unit*rowsPerTile)
	first := own.first + unit*rowsPerTile
	cols, row := p.w.cols, first-own.base
	dtype, stored := own.tensor.DType()
	for i := range n {
		if stored {
			w.rows[i], _, stored = own.tensor.Row(row + i)
		}
	}
	halves := stored && (dtype == formats.F16 || dtype == formats.BF16)
	whole, ready := own.tensor.Float32s(row, n)
	w.sliver = room(w.sliver, sliverDepth*kernel.SliverWidth)
	for at := 0; at < cols; at += sliverDepth {
		part := min(sliverDepth, cols-at)
		x, out, add := s.parts[at/sliverDepth*j.tokens*sliverApart:], p.out[first:], at > 0
		if j.tokens == 1 && stored && n == kernel.SliverWidth && e.kernels.MulRows(out, dtype, &w.rows, at, x[:part], add) {
			continue
		}
		if !halves {
			if !ready {
				w.tile = room(w.tile, n*cols)
				if err := own.tensor.ReadRows(w.tile, row, n, &w.reader); err != nil {
					return err
				}
				whole, ready = w.tile, true
			}
			e.kernels.PackSliver(w.sliver, whole[at:], cols, n, part)
		} else {
			w.tile = room(w.tile, n*part)
			for i := range n {
				e.decodeHalves(w.tile[i*part:(i+1)*part], dtype, w.rows[i][2*at:])
			}
			e.kernels.PackSliver(w.sliver, w.tile, part, n, part)
		}
		e.kernels.MulSliver(out, j.stride, x, sliverApart, j.tokens, w.sliver, n, part, add)
	}
	p.addBias(first, first+n, j.tokens, j.stride)
	return nil
}

// decodeHalves decodes one of the types of 16 bits, by the engine's own loops, whose result is the same as that of Tensor.ReadRows.
func (e *Engine) decodeHalves(dst []float32, d formats.DType, src []byte) {
	if d == formats.F16 {
		e.kernels.DecodeF16(dst, src)
	} else {
		e.kernels.DecodeBF16(dst, src)
	}
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
