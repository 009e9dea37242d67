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
	data  []uint32
	valid bool
}

// tileTokens is the number of tokens of a tile.
const tileTokens = 8

// resize makes room for the whole tiles among tokens and returns their number. words is the number of dwords of a token's block,
// with what belongs to it.
func (l *tiling) resize(tokens, blocks, words int) int {
	n := tokens / tileTokens
	l.valid = n > 0 && blocks > 0
	if !l.valid {
		return 0
	}
	l.data = grow(l.data, n*tileTokens*blocks*words)
	return n
}

// arrange sets a tile from the codes, scales and sums of its tokens.
func arrange[T int8 | int16](l *tiling, tile int, q []T, scale, sum []float32, blocks int) {
	words := packed.Block * int(unsafe.Sizeof(q[0])) / 4
	const n = tileTokens
	size := n * blocks * (words + 2)
	to := l.data[tile*size : (tile+1)*size]
	first := tile * n * blocks
	// Codes are moved by dwords, whose bytes stay in order, eight at a time.
	codes := unsafe.Slice((*uint32)(unsafe.Pointer(&q[first*packed.Block])), n*blocks*words)
	for t := range n {
		scales, sums := scale[first+t*blocks:][:blocks], sum[first+t*blocks:][:blocks]
		for b, c := range scales {
			out := to[b*n*(words+2)+t:][:(words+1)*n+1]
			in := codes[(t*blocks+b)*words:][:words]
			for len(in) >= 8 {
				v, o := (*[8]uint32)(in), (*[7*tileTokens + 1]uint32)(out)
				o[0], o[tileTokens], o[2*tileTokens], o[3*tileTokens] = v[0], v[1], v[2], v[3]
				o[4*tileTokens], o[5*tileTokens], o[6*tileTokens], o[7*tileTokens] = v[4], v[5], v[6], v[7]
				in, out = in[8:], out[8*tileTokens:]
			}
			out[0], out[tileTokens] = math.Float32bits(c), math.Float32bits(sums[b])
		}
	}
}

// Tiles is a choice of the ways in which tiles of Activations are laid out.
type Tiles uint8

const (
	Narrow Tiles = 1 << iota // codes as they are
	Wide                     // codes as int16
)

// Tiled gives the tiles of Activations that are of use to a matrix of the scheme.
func Tiled(s packed.Scheme) Tiles {
	switch {
	case byTable(s):
		return Wide
	case s.Bits == 4:
		return Narrow
	}
	return 0
}

// Tile prepares a for products with several tokens at a time, once all of them are set: it returns the number of tiles, each of
// which Arrange then has to set before MulPanels; 0 where the set has no use for them.
func (s *Set) Tile(a *Activations, tiles Tiles) (n int) {
	if !s.tiles {
		return 0
	}
	if tiles&Narrow != 0 {
		n = a.tiles.resize(a.Tokens, a.Blocks, packed.Block/4+2)
	}
	if tiles&Wide != 0 {
		n = a.wide.resize(a.Tokens, a.Blocks, wideWords)
	}
	return n
}

// Arrange sets a tile. Different ones may be set at the same time.
func (s *Set) Arrange(a *Activations, tile int) {
	if a.tiles.valid {
		arrange(&a.tiles, tile, a.Q, a.Scale, a.Sum, a.Blocks)
	}
	if a.wide.valid {
		s.arrangeWide(&a.wide, tile, a.Q, a.Scale, a.Blocks)
	}
}

// TileFine is Tile for a Fine.
func (s *Set) TileFine(f *Fine) int {
	if !s.tiles || !s.wide() {
		return 0
	}
	return f.tiles.resize(f.Tokens, f.Blocks, packed.Block/2+2)
}

// ArrangeFine is Arrange for a Fine.
func (s *Set) ArrangeFine(f *Fine, tile int) {
	arrange(&f.tiles, tile, f.Q, f.Scale, f.Sum, f.Blocks)
}
