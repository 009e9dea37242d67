package kernel

import "qtool/formats/packed"

// wideTokens is the number of tokens that loops over widened codes take at once, a part of tileTokens.
const wideTokens = 4

// wideWords is the number of dwords of a token's block as int16, its scale included.
const wideWords = packed.Block/2 + 1

// arrangeWide sets a tile of widened codes.
func (s *Set) arrangeWide(l *tiling, tile int, q []int8, scale []float32, blocks int) {
	for t := tile * tileTokens; t < (tile+1)*tileTokens; t += wideTokens {
		end := t + wideTokens
		s.widen(l.data[t*blocks*wideWords:end*blocks*wideWords], q[t*blocks*packed.Block:end*blocks*packed.Block], scale[t*blocks:end*blocks], blocks)
	}
}
