package kernel

import (
	"math"
	"unsafe"

	"qtool/formats/packed"
)

// wideTokens is the number of tokens that loops over widened codes take at once, a part of tileTokens.
const wideTokens = 4

// wideWords is the number of dwords of a token's block, its scale included.
const wideWords = packed.Block/2 + 1

// arrangeWide sets a tile to codes as int16, four tokens after four, block after block: of four neighbours the first and the third
// and then the second and the fourth, which is how bytes of weights come apart, for each token in turn; then the scales.
func arrangeWide(l *tiling, tile int, q []int8, scale []float32, blocks int) {
	for t := range tileTokens {
		token := tile*tileTokens + t
		to := l.data[token/wideTokens*wideTokens*blocks*wideWords+t%wideTokens:]
		scales := scale[token*blocks:][:blocks]
		codes := unsafe.Slice((*[packed.Block / 4]uint32)(unsafe.Pointer(&q[token*blocks*packed.Block])), blocks)
		for b, c := range scales {
			o := (*[wideTokens*(wideWords-1) + 1]uint32)(to[b*wideTokens*wideWords:])
			for i, v := range codes[b] {
				o[2*wideTokens*i], o[2*wideTokens*i+wideTokens] = widenEven(v), widenEven(v>>8)
			}
			o[wideTokens*(wideWords-1)] = math.Float32bits(c)
		}
	}
}

// widenEven gives bytes 0 and 2 as int16.
func widenEven(v uint32) uint32 {
	const sign = 0x00800080
	v &= 0x00ff00ff
	return v | v&sign*(0xff00>>7) // 0xff00 where there is a sign
}
