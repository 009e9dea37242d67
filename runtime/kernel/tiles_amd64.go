//go:build amd64 && !noasm

package kernel

import (
	"sync"

	"qtool/formats/packed"
)

// tilesAVX2 is the number of tokens of a tile with AVX2.
const tilesAVX2 = 8

// Blocks of columns that are multiplied before the next, a multiple of every group: the activations of a tile then stay in the
// first cache while panels pass by.
const (
	chunk4    = 64
	chunkFine = 32
)

// tileResults are places for what the loops of tiles have no registers for, kept as tails are.
var tileResults = sync.Pool{New: func() any { return new([tilesAVX2 * packed.Panel]float32) }}

// tileKind is the loop of tiles for a kind of activations, the number of dwords of a token's block of them, and how many blocks of
// columns to take at once.
type tileKind struct {
	loop         func(out *float32, outStride int, data *byte, panelStride, panels int, x *uint32, results *float32, blocks, group int, add, asym bool, zeroFactor, zeroBias float32)
	words, chunk int
}

// tileAVX2 multiplies panels with the tile whose first token is t.
func tileAVX2(p panelArgs, t int, kind tileKind, factor, bias float32) {
	results := tileResults.Get().(*[tilesAVX2 * packed.Panel]float32)
	defer tileResults.Put(results)
	blocks := (p.cols + packed.Block - 1) / packed.Block
	x := p.tiles.data[(p.first+t)*blocks*(kind.words+2):]
	stride, group := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block
	for from := 0; from < blocks; from += kind.chunk {
		kind.loop(&p.out[t*p.stride], 4*p.stride, &p.data[p.scheme.PanelBytes(from*packed.Block)], stride, p.panels,
			&x[from*tilesAVX2*(kind.words+2)], &results[0], min(kind.chunk, blocks-from), group, from > 0, p.scheme.Asym, factor, bias)
	}
}
