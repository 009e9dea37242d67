package kernel

import (
	"math"
	"math/bits"
	"unsafe"

	"qtool/formats/packed"
)

// tiling is the same codes, scales and sums once more, in the order in which loops of several tokens read them: block after
// block of a tile of tokens, in each block for every dword of codes those of all tokens, then their scales, then what the kind of
// tiles has besides. Rows of tokens are often a power of two apart, where the first cache has no room for many.
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

// arrange sets a tile from the codes, scales and sums of its tokens. What belongs to the codes of a block is, of each token, its
// scale and then what the kind asks for.
func arrange[T int8 | int16](l *tiling, kind Tiles, tile int, q []T, scale, sum []float32, blocks int) {
	words, more := packed.Block*int(unsafe.Sizeof(q[0]))/4, kind.extra()
	const n = tileTokens
	size := n * blocks * (words + more)
	to := l.data[tile*size : (tile+1)*size]
	first := tile * n * blocks
	// Codes are moved by dwords, whose bytes stay in order, eight at a time.
	codes := unsafe.Slice((*uint32)(unsafe.Pointer(&q[first*packed.Block])), n*blocks*words)
	for t := range n {
		scales, sums := scale[first+t*blocks:][:blocks], sum[first+t*blocks:][:blocks]
		for b, c := range scales {
			out := to[b*n*(words+more)+t:][:(words+more-1)*n+1]
			in := codes[(t*blocks+b)*words:][:words]
			for len(in) >= 8 {
				v, o := (*[8]uint32)(in), (*[7*tileTokens + 1]uint32)(out)
				o[0], o[tileTokens], o[2*tileTokens], o[3*tileTokens] = v[0], v[1], v[2], v[3]
				o[4*tileTokens], o[5*tileTokens], o[6*tileTokens], o[7*tileTokens] = v[4], v[5], v[6], v[7]
				in, out = in[8:], out[8*tileTokens:]
			}
			out[0] = math.Float32bits(c)
			switch kind {
			case Narrow:
				out[n] = math.Float32bits(sums[b])
			case Offset8:
				out[n] = uint32(-8 * int32(sums[b]))
			case Offset128:
				out[n] = uint32(-128 * int32(sums[b]))
			}
		}
	}
}

// arrangeHalves is arrange for Offset128Halves.
func arrangeHalves(l *tiling, tile int, q []int8, scale []float32, halves []int16, blocks int) {
	arrange(l, Offset128Halves, tile, q, scale, scale, blocks)
	const n, words = tileTokens, packed.Block / 4
	size := words + Offset128Halves.extra()
	to := l.data[tile*n*blocks*size:]
	for t := range n {
		sums := halves[2*(tile*n+t)*blocks:][:2*blocks]
		for b := range blocks {
			out := to[(b*size+words+1)*n+t:]
			out[0], out[n] = uint32(-128*int32(sums[2*b])), uint32(-128*int32(sums[2*b+1]))
		}
	}
}

// Tiles is a choice of the ways in which tiles of Activations are laid out.
type Tiles uint8

const (
	Narrow          Tiles = 1 << iota // codes as they are, and the sum of them
	Wide                              // codes as int16
	Offset8                           // codes as they are, and -8 times their sum as int32: products of codes of 8 more begin with it
	Offset128                         // the same by 128
	Offset128Halves                   // the same of the halves of a block; Halve has been called
)

// kinds is the number of them.
const kinds = 5

// extra is the number of dwords that belong to a token's block besides the codes.
func (k Tiles) extra() int {
	switch k {
	case Wide:
		return 1
	case Offset128Halves:
		return 3
	}
	return 2
}

// index is the place of one choice among all.
func (k Tiles) index() int { return bits.TrailingZeros8(uint8(k)) }

// tiledAVX2 and tiledAVX512 are what Set.Tiled gives.
func tiledAVX2(s packed.Scheme) Tiles {
	switch {
	case byTable(s):
		return Wide
	case s.Bits == 4:
		return Narrow
	}
	return 0
}

func tiledAVX512(s packed.Scheme) Tiles {
	switch {
	case s.Asym || s.Bits == 3 && halved(s):
		return 0
	case halved(s):
		return Offset128Halves
	case byTable(s) || s.Bits == 8:
		return Offset128
	}
	return Offset8
}

// Tiled gives the tiles of Activations that are of use to a matrix of the scheme, 0 where none are.
func (s *Set) Tiled(scheme packed.Scheme) Tiles {
	if s.tiled == nil {
		return 0
	}
	return s.tiled(scheme)
}

// Tile prepares a for products with several tokens at a time, once all of them are set: it returns the number of tiles, each of
// which Arrange then has to set before MulPanels. Before tokens are set anew, Resize has to be called.
func (s *Set) Tile(a *Activations, tiles Tiles) (n int) {
	for i := range a.tiles {
		kind := Tiles(1) << i
		if tiles&kind == 0 {
			continue
		}
		words := packed.Block / 4
		if kind == Wide {
			words = packed.Block / 2
		}
		n = a.tiles[i].resize(a.Tokens, a.Blocks, words+kind.extra())
	}
	return n
}

// Arrange sets a tile. Different ones may be set at the same time.
func (s *Set) Arrange(a *Activations, tile int) {
	for i := range a.tiles {
		l := &a.tiles[i]
		if !l.valid {
			continue
		}
		switch kind := Tiles(1) << i; kind {
		case Wide:
			s.arrangeWide(l, tile, a.Q, a.Scale, a.Blocks)
		case Offset128Halves:
			arrangeHalves(l, tile, a.Q, a.Scale, a.Halves, a.Blocks)
		default:
			arrange(l, kind, tile, a.Q, a.Scale, a.Sum, a.Blocks)
		}
	}
}

// TiledFine gives the tiles of a Fine that are of use to a matrix of the scheme, 0 where none are, as for all that have no 8 bits.
func (s *Set) TiledFine(scheme packed.Scheme) Tiles {
	if scheme.Bits != 8 {
		return 0
	}
	if s.tiled != nil && s.wide() {
		return Narrow // of int16
	}
	return s.Tiled(scheme)
}

// TileFine is Tile for a Fine, and tiles are what TiledFine gives.
func (s *Set) TileFine(f *Fine, tiles Tiles) int {
	switch {
	case tiles == 0:
		return 0
	case s.wide():
		return f.tiles.resize(f.Tokens, f.Blocks, packed.Block/2+Narrow.extra())
	}
	s.Tile(&f.rest, tiles)
	return s.Tile(&f.first, tiles)
}

// ArrangeFine is Arrange for a Fine.
func (s *Set) ArrangeFine(f *Fine, tile int) {
	if s.wide() {
		arrange(&f.tiles, Narrow, tile, f.Q, f.Scale, f.Sum, f.Blocks)
		return
	}
	s.Arrange(&f.first, tile)
	s.Arrange(&f.rest, tile)
}
