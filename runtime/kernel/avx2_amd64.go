//go:build amd64 && !noasm

package kernel

import (
	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"

	"qtool/formats/half"
	"qtool/formats/packed"
)

// machineSets lists the sets beyond the portable one that the machine can run, fastest last.
func machineSets() []*Set {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpuid.CPU.Supports(cpuid.F16C) {
		return nil
	}
	avx2 := Set{
		Name: "avx2", tiled: tiledAVX2, widen: widenAVX2, quantize: quantizeAVX2, panel4: panel4AVX2, panel8: panel8AVX2, panelTable: tableAVX2,
		quantizeFine: quantizeFineAVX2, panelFine: panelFineAVX2,
		foreign: foreignAVX2, halve: halveAVX2,
		mulSliver: mulSliverAVX2, transpose: transposeAVX2, mulRows: mulRowsAVX2,
		dot: dotAVX2, axpy: axpyAVX2, exp: expAVX2,
		decodeF16: decodeF16AVX2, decodeBF16: decodeBF16AVX2,
		largest: largestAVX2, encode: encodeAVX2, fit: fitAVX2, fitTable: fitTableAVX2, loss: lossAVX2,
	}
	attentionAVX2(&avx2)
	if !cpu.X86.HasAVX512F || !cpu.X86.HasAVX512BW || !cpu.X86.HasAVX512DQ || !cpu.X86.HasAVX512VL || !cpu.X86.HasAVX512VNNI {
		return []*Set{&avx2}
	}
	avx512 := avx2
	avx512.Name, avx512.panel4, avx512.panel8, avx512.mulSliver = "avx512", panel4AVX512, panel8AVX512, mulSliverAVX512
	avx512.panelTable, avx512.halved, avx512.panelBoth = tableAVX512, halved, panelBothAVX512
	avx512.mulSlivers = mulSliversAVX512
	avx512.tiled, avx512.widen = tiledAVX512, nil
	avx512.quantizeFine, avx512.panelFine = nil, nil // two products of int8 in one instruction each are faster
	return []*Set{&avx2, &avx512}
}

func quantizeAVX2(q []int8, scale, sum, x []float32) {
	whole := len(x) / packed.Block
	if whole > 0 {
		avx2Quantize(&q[0], &scale[0], &sum[0], &x[0], whole)
	}
	if whole < len(scale) {
		quantizeGeneric(q[whole*packed.Block:], scale[whole:], sum[whole:], x[whole*packed.Block:])
	}
}

// panelLoop is the signature of the panel loops in assembly.
type panelLoop[T any] func(out *float32, outStride int, data *byte, panelStride int, q *T, scale, sum *float32, blocks, group int, asym bool, zeroFactor, zeroBias float32)

func panel4AVX2(p panelArgs) {
	factor, bias := float32(1)/16, float32(0)
	if !p.scheme.Asym {
		bias = 8
	}
	panelsAVX2(p, p.q, tileKind{avx2Tile4, packed.Block / 4, chunk4}, avx2Panel4x1x1, avx2Panel4x1x2, avx2Panel4x4x1, factor, bias)
}

func panel8AVX2(p panelArgs) {
	bias := float32(0)
	if p.scheme.Asym {
		bias = -128
	}
	panelsAVX2(p, p.q, tileKind{}, avx2Panel8x1x1, avx2Panel8x1x2, avx2Panel8x4x1, 1, bias)
}

func quantizeFineAVX2(q []int16, scale, sum, x []float32) {
	whole := len(x) / packed.Block
	if whole > 0 {
		avx2QuantizeFine(&q[0], &scale[0], &sum[0], &x[0], whole)
	}
	if whole < len(scale) {
		quantizeFineGeneric(q[whole*packed.Block:], scale[whole:], sum[whole:], x[whole*packed.Block:])
	}
}

func panelFineAVX2(p panelArgs) {
	bias, tiles := float32(0), tileKind{avx2TileFineSym, packed.Block / 2, chunkFine}
	if p.scheme.Asym {
		bias, tiles.loop = -128, avx2TileFine
	}
	panelsAVX2(p, p.fine, tiles, avx2PanelFinex1x1, avx2PanelFinex1x2, avx2PanelFinex4x1, 1, bias)
}

// panelsAVX2 takes whole tiles of tokens where they are arranged and there is a loop for them, and the other tokens by tokensAVX2.
func panelsAVX2[T any](p panelArgs, q []T, tiles tileKind, one, two, four panelLoop[T], factor, bias float32) {
	if p.cols == 0 {
		panelGeneric(p) // sums of nothing
		return
	}
	if tiles.loop == nil || !p.tiles.valid {
		tokensAVX2(p, q, 0, p.tokens, one, two, four, factor, bias)
		return
	}
	tile := newTile(p, tiles)
	defer tile.done()
	for t := 0; t < p.tokens; {
		end := min(t+tileTokens-(p.first+t)%tileTokens, p.tokens) // where the next tile begins
		if end-t == tileTokens {
			tile.multiply(p, t, factor, bias)
		} else {
			tokensAVX2(p, q, t, end, one, two, four, factor, bias)
		}
		t = end
	}
}

// tokensAVX2 takes the tokens t … end-1 by fours, whose unpacked codes are shared, and single tokens with panels by twos, which
// share the activations.
func tokensAVX2[T any](p panelArgs, q []T, t, end int, one, two, four panelLoop[T], factor, bias float32) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	stride, group := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block
	for ; t+4 <= end; t += 4 {
		for i := range p.panels {
			four(&p.out[t*p.stride+i*packed.Panel], 4*p.stride, &p.data[i*stride], stride,
				&q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], blocks, group, p.scheme.Asym, factor, bias)
		}
	}
	// Two streams, each of neighbouring panels: memory gives more than by one, and the end of one is not the start of
	// the other, which would be asked for in advance once more.
	half := p.panels / 2
	for ; t < end; t++ {
		for i := 0; i < p.panels; i++ {
			loop := two
			switch {
			case i == 2*half:
				loop = one
			case i >= half:
				continue
			}
			loop(&p.out[t*p.stride+i*packed.Panel], 4*half*packed.Panel, &p.data[i*stride], half*stride,
				&q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], blocks, group, p.scheme.Asym, factor, bias)
		}
	}
}

// tableLoop is the signature of the loops over panels with a table.
type tableLoop func(out *float32, outStride int, data *byte, dataStride int, q *int8, scale *float32, blocks, span, groups int, table *byte)

// tableLoops gives the loops of a scheme: for one token and one panel, for one token and two panels, for four tokens and one panel.
func tableLoops(s packed.Scheme) (one, two, four tableLoop) {
	group := 0
	if s.TwoLevel {
		group = s.Group
	}
	switch {
	case s.Bits == 3 && group == 0:
		return avx2Table3x0x1x1, avx2Table3x0x2x1, avx2Table3x0x1x4
	case s.Bits == 3 && group == 32:
		return avx2Table3x32x1x1, avx2Table3x32x2x1, avx2Table3x32x1x4
	case s.Bits == 3:
		return avx2Table3x16x1x1, avx2Table3x16x2x1, avx2Table3x16x1x4
	case group == 0:
		return avx2Table4x0x1x1, avx2Table4x0x2x1, avx2Table4x0x1x4
	case group == 32:
		return avx2Table4x32x1x1, avx2Table4x32x2x1, avx2Table4x32x1x4
	}
	return avx2Table4x16x1x1, avx2Table4x16x2x1, avx2Table4x16x1x4
}

func dotAVX2(x, y []float32) float32 {
	whole := len(x) &^ 7
	var sum float32
	if whole > 0 {
		sum = avx2Dot(&x[0], &y[0], whole)
	}
	for i := whole; i < len(x); i++ {
		sum += x[i] * y[i]
	}
	return sum
}

func axpyAVX2(a float32, x, y []float32) {
	whole := len(x) &^ 7
	if whole > 0 {
		avx2Axpy(a, &x[0], &y[0], whole)
	}
	for i := whole; i < len(x); i++ {
		y[i] += a * x[i]
	}
}

func expAVX2(x []float32, shift float32) (sum float32) {
	whole := len(x) &^ 7
	if whole > 0 {
		sum = avx2Exp(&x[0], whole, shift)
	}
	return sum + expGeneric(x[whole:], shift)
}

func largestAVX2(w []float32) uint32 {
	whole := len(w) &^ 7
	var most uint32
	if whole > 0 {
		most = avx2Largest(&w[0], whole)
	}
	return max(most, largestGeneric(w[whole:]))
}

func encodeAVX2(codes []int8, w []float32, inverse float32, least, most, offset int8) {
	whole := len(w) &^ 31
	if whole > 0 {
		const all = 0x01010101
		avx2Encode(&codes[0], &w[0], whole, inverse, uint32(uint8(least))*all, uint32(uint8(most))*all, uint32(uint8(offset))*all)
	}
	encodeGeneric(codes[whole:], w[whole:], inverse, least, most, offset)
}

func fitAVX2(w, a []float32, low, inverse, least, most float32) (c, cc, cw float32) {
	whole := len(w) &^ 7
	if whole > 0 {
		c, cc, cw = avx2Fit(&w[0], &a[0], whole, low, inverse, least, most)
	}
	return fitRest(w[whole:], a[whole:], low, inverse, least, most, c, cc, cw)
}

func fitTableAVX2(w, a []float32, inverse float32, t *LevelTable) (lw, ll float32) {
	whole := len(w) &^ 7
	if whole > 0 {
		lw, ll = avx2FitTable(&w[0], &a[0], whole, inverse, &t[0])
	}
	return fitTableRest(w[whole:], a[whole:], inverse, t, lw, ll)
}

func lossAVX2(w, a []float32, inverse, zero, least, most, scale float32) (sum float32) {
	whole := len(w) &^ 7
	if whole > 0 {
		sum = avx2Loss(&w[0], &a[0], whole, inverse, zero, least, most, scale)
	}
	return lossRest(w[whole:], a[whole:], inverse, zero, least, most, scale, sum)
}

func decodeF16AVX2(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		avx2DecodeF16(&dst[0], &src[0], whole)
	}
	half.DecodeF16(dst[whole:], src[2*whole:])
}

func decodeBF16AVX2(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	whole := len(dst) &^ 7
	if whole > 0 {
		avx2DecodeBF16(&dst[0], &src[0], whole)
	}
	half.DecodeBF16(dst[whole:], src[2*whole:])
}
