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
	wideFloats = widePanels * packed.Panel * (packed.Block/2 + 1)
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

// widenLoop gives the loop that widens weights of a scheme.
func widenLoop(s packed.Scheme) func(to *float32, data *byte, blocks, span, groups int, table *byte) {
	group := 0
	if s.TwoLevel {
		group = s.Group
	}
	switch {
	case s.Bits == 3 && group == 0:
		return avx2Widen3x0
	case s.Bits == 3 && group == 32:
		return avx2Widen3x32
	case s.Bits == 3:
		return avx2Widen3x16
	case group == 0:
		return avx2Widen4x0
	case group == 32:
		return avx2Widen4x32
	}
	return avx2Widen4x16
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
	if !p.tiles.valid || end == first || panels == 0 {
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
	widen := widenLoop(p.scheme)
	blocks := (p.cols + packed.Block - 1) / packed.Block
	stride, columns, span := p.scheme.PanelBytes(p.cols), p.scheme.PanelBytes(packed.Super), p.scheme.Span()/packed.Block
	x := p.tiles.data[(p.first+t)*blocks*wideWords:]
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
			avx2Wide(to, 4*toStride, sums, &w.weights[0], &x[from*wideTokens*wideWords], 4*wideTokens*blocks*wideWords, n/wideTokens, size)
		}
	}
}

// tableTokens multiplies the panels from panel on with the tokens t … end-1 by fours, whose looked-up weights are shared, and single tokens
// with panels by twos, of two streams: see tokensAVX2.
func tableTokens(p panelArgs, t, end, panel int) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	one, two, four := tableLoops(p.scheme)
	stride, span, groups := p.scheme.PanelBytes(p.cols), p.scheme.Span()/packed.Block, p.scheme.Groups(p.cols)
	call := func(loop tableLoop, i, outStride, dataStride int) {
		loop(&p.out[t*p.stride+i*packed.Panel], 4*outStride, &p.data[i*stride], dataStride,
			&p.q[t*blocks*packed.Block], &p.scale[t*blocks], blocks, span, groups, &p.table[0])
	}
	for ; t+4 <= end; t += 4 {
		for i := panel; i < p.panels; i++ {
			call(four, i, p.stride, 0)
		}
	}
	half := (p.panels - panel) / 2
	for ; t < end; t++ {
		for i := panel; i < panel+half; i++ {
			call(two, i, half*packed.Panel, half*stride)
		}
		if panel+2*half < p.panels {
			call(one, p.panels-1, 0, 0)
		}
	}
}
