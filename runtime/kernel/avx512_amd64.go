//go:build amd64 && !noasm

package kernel

import "qtool/formats/packed"

func panel4AVX512(p panelArgs) {
	factor, bias := float32(1)/16, float32(0)
	if !p.scheme.Asym {
		bias = 8
	}
	panelsAVX512(p, panel4AVX2, avx512Tile4, avx512Panel4x1, avx512Panel4x4, factor, bias)
}

// panel8AVX512: codes are made unsigned by adding 128, which the zero point takes off.
func panel8AVX512(p panelArgs) {
	bias := float32(128)
	if p.scheme.Asym {
		bias = 0
	}
	panelsAVX512(p, panel8AVX2, avx512Tile8, avx512Panel8x1, avx512Panel8x4, 1, bias)
}

// panelBothAVX512 takes panels by twos, of two streams as pairs512 does.
func panelBothAVX512(p panelArgs) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	if blocks == 0 {
		panelGeneric(p)
		return
	}
	factor, bias := float32(0), float32(128)
	if p.scheme.Asym {
		factor, bias = 1, 0
	}
	size, group := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block
	pairs512(p, func(i, apart, _, _ int) {
		avx512Both8(&p.out[i*packed.Panel], 4*apart*packed.Panel, &p.data[i*size], apart*size,
			&p.q[0], &p.rest.q[0], &p.scale[0], &p.rest.scale[0], &p.sum[0], &p.rest.sum[0], blocks, group, factor, bias)
	})
	p.lastPanel(func(p panelArgs) {
		panel8AVX2(p)
		first := *(*[packed.Panel]float32)(p.out)
		p.q, p.scale, p.sum = p.rest.q, p.rest.scale, p.rest.sum
		panel8AVX2(p)
		for i, v := range first {
			p.out[i] += v
		}
	})
}

// tile512 is the signature of the loops over two panels and a tile of tokens.
type tile512 func(out *float32, outStride int, data *byte, panelStride int, x *uint32, blocks, group int)

// panelsAVX512 takes panels by twos, with tokens as pairs512 gives them. An odd panel, the last, is left to narrower vectors.
func panelsAVX512(p panelArgs, odd func(panelArgs), tile tile512, one, four panelLoop[int8], factor, bias float32) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	if blocks == 0 {
		panelGeneric(p)
		return
	}
	size, group, words := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block, blocks*p.tileWords()
	pairs512(p, func(i, apart, t, tokens int) {
		out, data := &p.out[t*p.stride+i*packed.Panel], &p.data[i*size]
		loop, outStride := one, 4*apart*packed.Panel
		switch tokens {
		case tileTokens:
			tile(out, 4*p.stride, data, size, &p.tiles.data[(p.first+t)*words], blocks, group)
			return
		case 4:
			loop, outStride = four, 4*p.stride
		}
		loop(out, outStride, data, apart*size,
			&p.q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], blocks, group, p.scheme.Asym, factor, bias)
	})
	p.lastPanel(odd)
}

// tileWords is the number of dwords of a token's block in the tiles for the scheme.
func (p *panelArgs) tileWords() int { return packed.Block/4 + tiledAVX512(p.scheme).extra() }

// lastPanel gives an odd panel to a loop that knows nothing of these tiles.
func (p panelArgs) lastPanel(loop func(panelArgs)) {
	if p.panels%2 == 0 {
		return
	}
	i := p.panels - 1
	p.data, p.out, p.panels, p.tiles = p.data[i*p.scheme.PanelBytes(p.cols):], p.out[i*packed.Panel:], 1, tiling{}
	loop(p)
}

// pairs512 goes over all pairs of panels and all tokens, whose loop is given panels i and i + apart, and t … t + tokens-1, a tile, four or one.
// Where there is one token, weights come from memory: then there are two streams of them, each of neighbouring panels, as in tokensAVX2.
// With more, neighbours are a pair, so that both panels' sums of a token are one vector.
func pairs512(p panelArgs, loop func(i, apart, t, tokens int)) {
	if p.tokens == 1 {
		half := p.panels / 2
		for i := range half {
			loop(i, half, 0, 1)
		}
		return
	}
	for t := 0; t < p.tokens; {
		n := tileTokens - (p.first+t)%tileTokens
		if n < tileTokens || !p.tiles.valid || t+n > p.tokens {
			n = min(n, p.tokens-t)
			if n >= 4 {
				n = 4
			} else {
				n = 1
			}
		}
		for i := 0; i+2 <= p.panels; i += 2 {
			loop(i, 1, t, n)
		}
		t += n
	}
}

// tableLoop512 is the signature of the loops over two panels with a table.
type tableLoop512 func(out *float32, outStride int, data *byte, panelStride int, q *int8, scale, sum *float32, halves *int16, blocks, span, groups int, table *byte)

// tableLoops512 gives the loops of a scheme for one token and for four.
func tableLoops512(s packed.Scheme) (one, four tableLoop512) {
	group := 0
	if s.TwoLevel {
		group = s.Group
	}
	switch {
	case s.Bits == 3 && group == 0:
		return avx512Table3x0x1, avx512Table3x0x4
	case s.Bits == 3 && group == 32:
		return avx512Table3x32x1, avx512Table3x32x4
	case s.Bits == 3:
		return avx512Table3x16x1, avx512Table3x16x4
	case group == 0:
		return avx512Table4x0x1, avx512Table4x0x4
	case group == 32:
		return avx512Table4x32x1, avx512Table4x32x4
	}
	return avx512Table4x16x1, avx512Table4x16x4
}

// tableAVX512 is panelsAVX512 for panels whose codes are looked up.
func tableAVX512(p panelArgs) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	if blocks == 0 {
		panelGeneric(p)
		return
	}
	one, four := tableLoops512(p.scheme)
	size, span, groups := p.scheme.PanelBytes(p.cols), p.scheme.Span()/packed.Block, p.scheme.Groups(p.cols)
	tile, words := tileTable512(p.scheme), blocks*p.tileWords()
	pairs512(p, func(i, apart, t, tokens int) {
		out, data := &p.out[t*p.stride+i*packed.Panel], &p.data[i*size]
		loop, outStride := one, 4*apart*packed.Panel
		switch tokens {
		case tileTokens:
			tile(out, 4*p.stride, data, size, &p.tiles.data[(p.first+t)*words], blocks, span, groups, &p.table[0])
			return
		case 4:
			loop, outStride = four, 4*p.stride
		}
		var halves *int16
		if halved(p.scheme) {
			halves = &p.halves[2*t*blocks]
		}
		loop(out, outStride, data, apart*size,
			&p.q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], halves, blocks, span, groups, &p.table[0])
	})
	p.lastPanel(tableAVX2)
}

// tileTableLoop is the signature of the loops over two panels with a table and a tile of tokens.
type tileTableLoop func(out *float32, outStride int, data *byte, panelStride int, x *uint32, blocks, span, groups int, table *byte)

// tileTable512 gives that of a scheme, nil where there is none.
func tileTable512(s packed.Scheme) tileTableLoop {
	group := 0
	if s.TwoLevel {
		group = s.Group
	}
	switch {
	case group == 16 && s.Bits == 3:
		return nil
	case group == 16:
		return avx512TileTable4x16
	case group == 0 && s.Bits == 3:
		return avx512TileTable3x0
	case group == 0:
		return avx512TileTable4x0
	case s.Bits == 3:
		return avx512TileTable3x32
	}
	return avx512TileTable4x32
}

// mulSliverAVX512 takes rows by fourteens and the rest by powers of two. Results of less than the whole width are left to narrower vectors:
// their sums are the same.
func mulSliverAVX512(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool) {
	if cols < SliverWidth {
		mulNarrowAVX2(out, stride, a, aStride, rows, sliver, cols, n, add)
		return
	}
	for i := 0; i < rows; {
		to, from := &out[i*stride], &a[i*aStride]
		switch left := rows - i; {
		case left >= 14:
			avx512Sliver14(to, 4*stride, from, 4*aStride, &sliver[0], n, add)
			i += 14
		case left >= 8:
			avx512Sliver8(to, 4*stride, from, 4*aStride, &sliver[0], n, add)
			i += 8
		case left >= 4:
			avx512Sliver4(to, 4*stride, from, 4*aStride, &sliver[0], n, add)
			i += 4
		case left >= 2:
			avx512Sliver2(to, 4*stride, from, 4*aStride, &sliver[0], n, add)
			i += 2
		default:
			avx512Sliver1(to, 4*stride, from, 4*aStride, &sliver[0], n, add)
			i++
		}
	}
}

// mulSliversAVX512 takes rows by twelves, and multiplies the rest with one sliver after the other.
func mulSliversAVX512(out []float32, stride int, a []float32, aStride, rows int, slivers []float32, sliverStride, n int, add bool) {
	i := 0
	for ; i+12 <= rows; i += 12 {
		avx512Slivers12(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &slivers[0], 4*sliverStride, n, add)
	}
	if i == rows {
		return
	}
	for j := range 2 {
		mulSliverAVX512(out[i*stride+j*SliverWidth:], stride, a[i*aStride:], aStride, rows-i, slivers[j*sliverStride:], SliverWidth, n, add)
	}
}
