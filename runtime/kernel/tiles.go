package kernel

import (
	"math"
	"unsafe"

	"qtool/formats/packed"
)

// tiling is the same codes, scales and sums once more, in the order in which loops of several tokens read them: block after
// block of a tile of tokens, in each block for every dword of codes those of all tokens, then their scales, then their
// sums. Rows of tokens are often a power of two apart, where the first cache has no room for many.
type tiling struct {
	data   []uint32
	tokens int // of a tile; 0: there are none
}

// resize makes room for the whole tiles among tokens and returns their number. words is the number of dwords of a token's block.
func (l *tiling) resize(size, tokens, blocks, words int) int {
	l.tokens = 0
	if size == 0 || tokens < size || blocks == 0 {
		return 0
	}
	l.tokens = size
	n := tokens / size
	l.data = grow(l.data, n*size*blocks*(words+2))
	return n
}

// arrange sets a tile from the codes, scales and sums of its tokens.
func arrange[T int8 | int16](l *tiling, tile int, q []T, scale, sum []float32, blocks int) {
	words := packed.Block * int(unsafe.Sizeof(q[0])) / 4
	n := l.tokens
	size := n * blocks * (words + 2)
	to := l.data[tile*size : (tile+1)*size]
	first := tile * n * blocks
	// Codes are moved by dwords, whose bytes stay in order.
	codes := unsafe.Slice((*uint32)(unsafe.Pointer(&q[first*packed.Block])), n*blocks*words)
	for t := range n {
		for b := range blocks {
			out := to[b*n*(words+2):][:n*(words+2)]
			for i, w := range codes[(t*blocks+b)*words:][:words] {
				out[i*n+t] = w
			}
			out[words*n+t] = math.Float32bits(scale[first+t*blocks+b])
			out[(words+1)*n+t] = math.Float32bits(sum[first+t*blocks+b])
		}
	}
}

// Tiled reports whether tiles of Activations are of use to a matrix of the scheme.
func Tiled(s packed.Scheme) bool { return s.Bits == 4 && !byTable(s) }

// Tile prepares a for products with several tokens at a time, once all of them are set: it returns the number of tiles, each of
// which Arrange then has to set before MulPanels; 0 where the set has no use for them.
func (s *Set) Tile(a *Activations) int {
	return a.tiles.resize(s.tiles, a.Tokens, a.Blocks, packed.Block/4)
}

// Arrange sets a tile. Different ones may be set at the same time.
func (s *Set) Arrange(a *Activations, tile int) {
	arrange(&a.tiles, tile, a.Q, a.Scale, a.Sum, a.Blocks)
}

// TileFine is Tile for a Fine.
func (s *Set) TileFine(f *Fine) int {
	if !s.wide() {
		return 0
	}
	return f.tiles.resize(s.tiles, f.Tokens, f.Blocks, packed.Block/2)
}

// ArrangeFine is Arrange for a Fine.
func (s *Set) ArrangeFine(f *Fine, tile int) {
	arrange(&f.tiles, tile, f.Q, f.Scale, f.Sum, f.Blocks)
}
