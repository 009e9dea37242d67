//go:build amd64 && !noasm

package kernel

import "qtool/formats/packed"

func panel4AVX512(p panelArgs) {
	factor, bias := float32(1)/16, float32(0)
	if !p.scheme.Asym {
		bias = 8
	}
	panelsAVX512(p, panel4AVX2, avx512Panel4x1, avx512Panel4x4, factor, bias)
}

// panel8AVX512: codes are made unsigned by adding 128, which the zero point takes off.
func panel8AVX512(p panelArgs) {
	bias := float32(128)
	if p.scheme.Asym {
		bias = 0
	}
	panelsAVX512(p, panel8AVX2, avx512Panel8x1, avx512Panel8x4, 1, bias)
}

// panelsAVX512 takes panels by twos, and tokens by fours, whose unpacked codes are shared. An odd panel is
// left to narrower vectors.
func panelsAVX512(p panelArgs, odd func(panelArgs), one, four panelLoop[int8], factor, bias float32) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	if blocks == 0 {
		panelGeneric(p)
		return
	}
	size, group := p.scheme.PanelBytes(p.cols), p.scheme.Group/packed.Block
	i := 0
	for ; i+2 <= p.panels; i += 2 {
		t := 0
		for ; t < p.tokens; t++ {
			loop, n := one, 1
			if t+4 <= p.tokens {
				loop, n = four, 4
			}
			loop(&p.out[t*p.stride+i*packed.Panel], 4*p.stride, &p.data[i*size], size,
				&p.q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], blocks, group, p.scheme.Asym, factor, bias)
			t += n - 1
		}
	}
	if i < p.panels {
		p.data, p.out, p.panels = p.data[i*size:], p.out[i*packed.Panel:], 1
		odd(p)
	}
}

// denseAVX512 tiles rows by four and tokens by five; rows that are no multiple of sixteen, and those beyond a
// multiple of four, are left to narrower vectors, however many tokens there are.
func denseAVX512(out []float32, stride int, w []float32, rows, cols int, x []float32, tokens int) {
	tiled := rows &^ 3
	if cols%16 != 0 || cols == 0 {
		tiled = 0
	}
	for r := 0; r < tiled; r += 4 {
		t := 0
		for ; t+5 <= tokens; t += 5 {
			avx512Dense4x5(&out[t*stride+r], 4*stride, &w[r*cols], &x[t*cols], cols)
		}
		for ; t < tokens; t++ {
			avx512Dense4x1(&out[t*stride+r], 4*stride, &w[r*cols], &x[t*cols], cols)
		}
	}
	if tiled < rows {
		denseAVX2(out[tiled:], stride, w[tiled*cols:], rows-tiled, cols, x, tokens)
	}
}
