//go:build amd64 && !noasm

package kernel

import (
	"sync"
	"unsafe"

	"qtool/formats/packed"
)

// tileTokens is the number of tokens of a tile.
const tileTokens = 8

// Blocks of columns that are multiplied before the next, a multiple of every group: the activations of a tile then stay in the
// first cache while panels pass by.
const (
	chunk4    = 64
	chunkFine = 32
)

// tileScratch is what a tile works in: the vectors of its loop, and the activations of its tokens.
type tileScratch struct {
	results [tileTokens * packed.Panel]float32
	x       [max(chunk4*tileTokens*(packed.Block+8), chunkFine*tileTokens*(2*packed.Block+8))]byte
}

// tileScratches are kept as tails are.
var tileScratches = sync.Pool{New: func() any { return new(tileScratch) }}

// gatherLoop and tileLoop are the signatures of the loops of tiles in assembly.
type (
	gatherLoop[T any] func(to *byte, q *T, stride int, scale, sum *float32, scaleStride, blocks int)
	tileLoop          func(out *float32, outStride int, data *byte, panelStride, panels int, x *byte, results *float32, blocks, group int, add, asym bool, zeroFactor, zeroBias float32)
)

// tilesAVX2 multiplies panels with tokens by eights and returns the tokens that are left, fewer than six. Six and seven are
// made eight by some that were multiplied already, which gives the same again.
func tilesAVX2[T any](p panelArgs, q []T, gather gatherLoop[T], loop tileLoop, chunk int, factor, bias float32) (panelArgs, []T) {
	blocks := len(p.scale) / max(p.tokens, 1)
	if p.tokens < tileTokens || blocks == 0 {
		return p, q
	}
	s := tileScratches.Get().(*tileScratch)
	defer tileScratches.Put(s)
	stride, group := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block
	row := len(q) / p.tokens
	done := 0
	for p.tokens-done > tileTokens-3 {
		t := min(done, p.tokens-tileTokens)
		for from := 0; from < blocks; from += chunk {
			n, at := min(chunk, blocks-from), t*blocks+from
			gather(&s.x[0], &q[at*packed.Block], row*int(unsafe.Sizeof(q[0])), &p.scale[at], &p.sum[at], 4*blocks, n)
			loop(&p.out[t*p.stride], 4*p.stride, &p.data[p.scheme.PanelBytes(from*packed.Block)], stride, p.panels,
				&s.x[0], &s.results[0], n, group, from > 0, p.scheme.Asym, factor, bias)
		}
		done = t + tileTokens
	}
	rest := p
	rest.tokens -= done
	rest.out, rest.scale, rest.sum = p.out[min(done*p.stride, len(p.out)):], p.scale[done*blocks:], p.sum[done*blocks:]
	return rest, q[done*row:]
}
