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
	run := func(loop foreignLoop, t, i int) {
		var halves *int16
		if p.halves != nil {
			halves = &p.halves[2*t*blocks]
		}
		loop(&p.out[t*p.stride+i*packed.Panel], 4*p.stride, &p.data[i*stride], stride,
			&p.q[t*blocks*packed.Block], &p.scale[t*blocks], &p.sum[t*blocks], halves, blocks)
	}
	t := 0
	for ; t+4 <= p.tokens; t += 4 {
		for i := range p.panels {
			run(four, t, i)
		}
	}
	for ; t < p.tokens; t++ {
		i := 0
		for ; i+2 <= p.panels; i += 2 {
			run(two, t, i)
		}
		if i < p.panels {
			run(one, t, i)
		}
	}
}

func halveAVX2(halves []int16, q []int8) {
	if len(halves) > 0 {
		avx2Halve(&halves[0], &q[0], len(halves)/2)
	}
}
