//go:build amd64 && !noasm

package kernel

import (
	"sync"

	"qtool/formats/packed"
)

// Of the loops over widened weights: how many panels they take at once, how many blocks of columns, a multiple of every group of
// two levels, and the most floats that a block of weights takes; and with how many tokens weights are multiplied before
// they are widened anew, so that what belongs to them stays in the second cache.
const (
	widePanels = 2
	wideBlocks = packed.Super / packed.Block
	wideFloats = widePanels * packed.Panel * (packed.Block/2 + 2)
	wideRun    = 16 * tileTokens
)

// wideWork is places for widened weights, and for sums over the columns so far: rows of the output are often a power of two
// apart, where the first cache has no room for many.
type wideWork struct {
	weights [wideBlocks * wideFloats]float32
	sums    []float32
}

// wideWorks are kept as tails are.
var wideWorks = sync.Pool{New: func() any { return new(wideWork) }}

func widenAVX2(to []uint32, q []int8, scale []float32, blocks int) {
	avx2ArrangeWide(&to[0], &q[0], &scale[0], blocks)
}

// widenLoop and wideLoop are the signatures of the loops that widen weights and that multiply them.
type (
	widenLoop func(to *float32, data *byte, blocks, span, groups int, table *byte)
	wideLoop  func(out *float32, outStride int, sums *float32, weights *float32, x *uint32, xStride, fours, blocks int)
)

// wideLoops gives the loops of a scheme.
func wideLoops(s packed.Scheme) (widen widenLoop, multiply wideLoop) {
	group := 0
	if s.TwoLevel {
		group = s.Group
	}
	switch {
	case s.Bits == 3 && group == 0:
		return avx2Widen3x0, avx2WideWhole
	case s.Bits == 3 && group == 32:
		return avx2Widen3x32, avx2WideWhole
	case s.Bits == 3:
		return avx2Widen3x16, avx2WideHalf
	case group == 0:
		return avx2Widen4x0, avx2WideWhole
	case group == 32:
		return avx2Widen4x32, avx2WideWhole
	}
	return avx2Widen4x16, avx2WideHalf
}

// tableAVX2 multiplies whole tiles of tokens, where they are arranged, with weights that are looked up once for all of them.
func tableAVX2(p panelArgs) {
	if p.cols == 0 {
		panelGeneric(p)
		return
	}
	first := min((tileTokens-p.first%tileTokens)%tileTokens, p.tokens)
	end := first + (p.tokens-first)&^(tileTokens-1)
	panels := p.panels &^ (widePanels - 1)
	if !p.wide.valid || end == first || panels == 0 {
		tableTokens(p, 0, p.tokens, 0)
		return
	}
	tableTokens(p, 0, first, 0)
	tableTokens(p, end, p.tokens, 0)
	tableTokens(p, first, end, panels)

	work := wideWorks.Get().(*wideWork)
	defer wideWorks.Put(work)
	for t := first; t < end; t += wideRun {
		work.multiply(p, t, min(wideRun, end-t), panels)
	}
}

// multiply multiplies an even number of panels with the tokens t … t+n-1, whole tiles.
func (w *wideWork) multiply(p panelArgs, t, n, panels int) {
	widen, multiply := wideLoops(p.scheme)
	blocks := (p.cols + packed.Block - 1) / packed.Block
	stride, columns, span := p.scheme.PanelBytes(p.cols), p.scheme.PanelBytes(packed.Super), p.scheme.Span()/packed.Block
	x := p.wide.data[(p.first+t)*blocks*wideWords:]
	const pair = widePanels * packed.Panel
	w.sums = grow(w.sums, panels*packed.Panel*n)
	for from := 0; from < blocks; from += wideBlocks { // the activations of so many columns then stay near while panels pass by
		size := min(wideBlocks, blocks-from)
		groups := p.scheme.Groups(min(packed.Super, p.cols-from*packed.Block))
		for i := 0; i < panels; i += widePanels {
			for k := range widePanels {
				widen(&w.weights[k*packed.Panel], &p.data[(i+k)*stride+from/wideBlocks*columns], size, span, groups, &p.table[0])
			}
			sums := &w.sums[i*packed.Panel*n]
			to, toStride := sums, pair
			if from == 0 {
				sums = nil
			}
			if from+size == blocks {
				to, toStride = &p.out[t*p.stride+i*packed.Panel], p.stride
			}
			multiply(to, 4*toStride, sums, &w.weights[0], &x[from*wideTokens*wideWords], 4*wideTokens*blocks*wideWords, n/wideTokens, size)
		}
	}
}

// tableTokens multiplies the panels from panel on with the tokens t … end-1 by fours, whose looked-up weights are shared.
func tableTokens(p panelArgs, t, end, panel int) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	one, four := tableLoops(p.scheme)
	stride, span, groups := p.scheme.PanelBytes(p.cols), p.scheme.Span()/packed.Block, p.scheme.Groups(p.cols)
	for t < end {
		loop, n := one, 1
		if t+4 <= end {
			loop, n = four, 4
		}
		for i := panel; i < p.panels; i++ {
			loop(&p.out[t*p.stride+i*packed.Panel], 4*p.stride, &p.data[i*stride],
				&p.q[t*blocks*packed.Block], &p.scale[t*blocks], blocks, span, groups, &p.table[0])
		}
		t += n
	}
}
