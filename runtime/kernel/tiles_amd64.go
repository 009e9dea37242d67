//go:build amd64 && !noasm

package kernel

import (
	"sync"

	"qtool/formats/packed"
)

// Blocks of columns that are multiplied before the next, a multiple of every group: the activations of a tile then stay in the
// first cache while panels pass by.
const (
	chunk4    = 64
	chunkFine = 32
)

// tileKind is the loop of tiles for a kind of activations, the number of dwords of a token's block of them, and how many blocks of
// columns to take at once.
type tileKind struct {
	loop         func(out *float32, outStride int, data *byte, panelStride, panels int, x *uint32, results *float32, blocks, group int, add, asym bool, zeroFactor, zeroBias float32)
	words, chunk int
}

// tileWork is places for what the loops of tiles have no registers for.
type tileWork [tileTokens * packed.Panel]float32

// tileWorks are kept as tails are.
var tileWorks = sync.Pool{New: func() any { return new(tileWork) }}

// tileLoop is a loop of tiles at work.
type tileLoop struct {
	tileKind
	work           *tileWork
	blocks, group  int
	panel, columns int // bytes of a panel, and of it those of a chunk
}

// newTile prepares for tiles of p.
func newTile(p panelArgs, kind tileKind) tileLoop {
	return tileLoop{
		tileKind: kind, work: tileWorks.Get().(*tileWork),
		blocks: (p.cols + packed.Block - 1) / packed.Block, group: p.scheme.Group / packed.Block,
		panel: p.scheme.PanelBytes(p.cols), columns: p.scheme.PanelBytes(kind.chunk * packed.Block),
	}
}

func (l *tileLoop) done() { tileWorks.Put(l.work) }

// multiply multiplies panels with the tile whose first token is t.
func (l *tileLoop) multiply(p panelArgs, t int, factor, bias float32) {
	x, data := p.tiles.data[(p.first+t)*l.blocks*(l.words+2):], p.data
	for from := 0; from < l.blocks; from += l.chunk {
		l.loop(&p.out[t*p.stride], 4*p.stride, &data[from/l.chunk*l.columns], l.panel, p.panels,
			&x[from*tileTokens*(l.words+2)], &l.work[0], min(l.chunk, l.blocks-from), l.group, from > 0, p.scheme.Asym, factor, bias)
	}
}
