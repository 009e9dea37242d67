//go:build amd64 && !noasm

package kernel

import "qtool/formats/packed"

// foreignLoop is the signature of the loops over panels of a Foreign matrix.
type foreignLoop func(out *float32, outStride int, data *byte, panelStride int, q *int8, scale, sum *float32, halves *int16, blocks int)

// foreignLoops gives the loops of a layout, for one token and panel, two panels, four tokens.
func foreignLoops(l Layout) (one, two, four foreignLoop) {
	switch l {
	case Super4:
		return avx2Super4x1x1, avx2Super4x1x2, avx2Super4x4x1
	case Super5:
		return avx2Super5x1x1, avx2Super5x1x2, avx2Super5x4x1
	case Super6:
		return avx2Super6x1x1, avx2Super6x1x2, avx2Super6x4x1
	case Offset4:
		return avx2Offset4x1x1, avx2Offset4x1x2, avx2Offset4x4x1
	}
	return avx2Offset5x1x1, avx2Offset5x1x2, avx2Offset5x4x1
}

// foreignAVX2 takes tokens by fours, whose unpacked codes are shared, and of single tokens panels by twos, which share the
// activations.
func foreignAVX2(p foreignArgs) {
	blocks := p.cols / packed.Block
	if blocks == 0 {
		foreignGeneric(p)
		return
	}
	one, two, four := foreignLoops(p.layout)
	stride := p.layout.PanelBytes(p.cols)
	run := func(loop foreignLoop, t, i, outStride, panelStride int) {
		var halves *int16
		if p.halves != nil {
			halves = &p.halves[2*t*blocks]
		}
		loop(&p.out[t*p.stride+i*packed.Panel], 4*outStride, &p.data[i*stride], panelStride,
			&p.q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], halves, blocks)
	}
	half := p.panels / 2 // two streams, each of neighbouring panels: see panelsAVX2
	t := 0
	for ; t+4 <= p.tokens; t += 4 {
		for i := range p.panels {
			run(four, t, i, p.stride, stride)
		}
	}
	for ; t < p.tokens; t++ {
		for i := range half {
			run(two, t, i, half*packed.Panel, half*stride)
		}
		if p.panels > 2*half {
			run(one, t, 2*half, p.stride, stride)
		}
	}
}

func halveAVX2(halves []int16, q []int8) {
	if len(halves) > 0 {
		avx2Halve(&halves[0], &q[0], len(halves)/2)
	}
}
