package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tables512 writes the loops over two panels with a table.
func tables512() {
	for _, bits := range []int{3, 4} {
		for _, group := range []int{0, 32, 16} {
			tablePanels512(bits, group, 1)
			tablePanels512(bits, group, 4)
		}
	}
}

// tablePanels512 is tablePanel for two panels, whose rows are the halves of a vector, as in panels512: entries of the table become
// unsigned by adding 128, which the sums of the activations take off again. Those of whole blocks do where a block has one scale. Where groups are of 16,
// integers of two levels multiply the sums of a half each, and the pair of integers that of the halves' activations.
func tablePanels512(bits, group, tokens int) {
	name := fmt.Sprintf("avx512Table%dx%dx%d", bits, group, tokens)
	signature := "func(out *float32, outStride int, data *byte, panelStride int, q *int8, scale, sum *float32, halves *int16, blocks, span, groups int, table *byte)"
	function(name, signature, fmt.Sprintf("%s multiplies 2 panels of %d-bit codes with %d tokens; strides are in bytes, outStride is that of %s, span in blocks. sum or halves is read, by the groups.", name, bits, tokens, strideOf512(tokens)))
	data, q, scale := Load(Param("data"), GP64()).(reg.GPVirtual), Load(Param("q"), GP64()).(reg.GPVirtual), Load(Param("scale"), GP64()).(reg.GPVirtual)
	second := Load(Param("panelStride"), GP64()).(reg.GPVirtual)
	ADDQ(data, second)
	bases := []reg.GPVirtual{data, second}
	sums := "sum"
	if group == 16 {
		sums = "halves"
	}
	sum := Load(Param(sums), GP64()).(reg.GPVirtual)
	blocks, left := Load(Param("blocks"), GP64()), AllocLocal(8)
	MOVQ(blocks, left)
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(5), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	label := func(l string) string { return fmt.Sprintf("t512x%dx%dx%d%s", bits, group, tokens, l) }
	t := tableLoop{bits: bits, group: group}
	if group != 0 {
		t.groups, t.at, t.spread = AllocLocal(8), GP64(), AllocLocal(len(bases)*spreadBytes)
		MOVQ(Load(Param("groups"), GP64()), t.groups)
	}
	l := newLookUp512(bits, Load(Param("table"), GP64()))
	var offset reg.VecVirtual
	var even reg.OpmaskVirtual
	if group == 16 {
		words := GP32()
		even = K() // the lower words of dwords
		MOVL(U32(0x55555555), words)
		KMOVD(words, even)
	} else {
		offset = constant512(0x43000000) // 128
	}

	acc := wide(tokens)
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	halves := [2][]reg.VecVirtual{wide(tokens), wide(tokens)}
	s, narrow := ZMM(), YMM()
	subs, pairs := wide(2), ZMM()

	Label(label("span"))
	VCVTPH2PS(at(data, 0), s.AsY())
	VCVTPH2PS(at(second, 0), narrow)
	VINSERTF64X4(Imm(1), narrow, s, s)
	for _, base := range bases {
		ADDQ(Imm(16), base)
	}
	t.spreads(bases, label)
	n := GP64()
	Load(Param("span"), n)
	CMPQ(n, left)
	CMOVQGT(left, n)
	SUBQ(n, left)

	Label(label("block"))
	if tokens == 1 {
		prefetch(bases, block*bits)
	}
	for half := range 2 {
		if group == 0 || half == 1 && group != 16 {
			continue
		}
		x := XMM()
		VMOVQ(at(t.at, 0), x)
		VPINSRQ(Imm(1), at(t.at, spreadBytes), x, x)
		VPMOVSXBD(x, subs[half])
		ADDQ(Imm(8), t.at)
	}
	for _, dots := range halves {
		for _, d := range dots {
			VPXORD(d, d, d)
		}
	}
	rows := addresses(q, qStride, tokens)
	l.each(bases, func(w reg.VecVirtual, column int) {
		for k, d := range halves[column/16] {
			VPDPBUSD_BCST(rows(k, column), w, d)
		}
	})
	if group == 16 {
		VPSLLD(Imm(16), subs[1], pairs)
		VMOVDQU16(subs[0], even, pairs)
		VPSLLW(Imm(7), pairs, pairs)
	} else if group == 32 {
		VCVTDQ2PS(subs[0], subs[0])
	}
	scales, corrections := addresses(scale, fStride, tokens), addresses(sum, fStride, tokens)
	for k, d := range halves[0] {
		f, more := ZMM(), halves[1][k]
		if group == 16 {
			VPMULLD(subs[0], d, d)
			VPMULLD(subs[1], more, more)
			VPADDD(more, d, d)
			c := ZMM()
			VPXORD(c, c, c)
			VPDPWSSD_BCST(corrections(k, 0), pairs, c)
			VPSUBD(c, d, d)
			VCVTDQ2PS(d, d)
		} else {
			VPADDD(more, d, d)
			VCVTDQ2PS(d, d)
			VFNMADD231PS_BCST(corrections(k, 0), offset, d)
			if group == 32 {
				VMULPS(subs[0], d, d)
			}
		}
		VMULPS_BCST(scales(k, 0), s, f)
		VFMADD231PS(d, f, acc[k])
	}
	for _, base := range bases {
		ADDQ(U32(uint32(block*bits)), base)
	}
	ADDQ(Imm(block), q)
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	DECQ(n)
	JNE(LabelRef(label("block")))
	CMPQ(left, Imm(0))
	JNE(LabelRef(label("span")))

	store512(acc)
	VZEROUPPER()
	RET()
}

// lookUp512 is lookUp for two panels.
type lookUp512 struct {
	bits                 int
	entries, mask, third reg.VecVirtual
}

// newLookUp512 reads the table, whose entries it makes unsigned by adding 128.
func newLookUp512(bits int, table reg.Register) lookUp512 {
	l := lookUp512{bits: bits, entries: ZMM(), mask: constant512(0x0f0f0f0f)}
	if bits == 3 {
		l.mask, l.third = constant512(0x03030303), constant512(0x04040404)
	}
	VBROADCASTI32X4(Mem{Base: table}, l.entries)
	VPXORD(constant512(0x80808080), l.entries, l.entries)
	return l
}

// each looks up a block, four columns at a time: do is given them and the first one's number.
func (l lookUp512) each(bases []reg.GPVirtual, do func(w reg.VecVirtual, column int)) {
	load := func(disp int) reg.VecVirtual {
		return load512(bases[0], bases[1], disp)
	}
	if l.bits == 4 {
		for v := range 4 {
			w, high := load(32*v), ZMM()
			VPSRLW(Imm(4), w, high)
			for half, c := range []reg.VecVirtual{w, high} {
				VPANDD(l.mask, c, c)
				VPSHUFB(c, l.entries, c)
				do(c, 16*half+4*v)
			}
		}
		return
	}
	upper, x := load(64), ZMM()
	for v := range 2 {
		lower := load(32 * v)
		for f := range 4 { // field f of the two low bits, bit 2f+v of the third: see packed.Code3
			w := ZMM()
			if f == 0 {
				VPANDD(l.mask, lower, w)
			} else {
				VPSRLW(Imm(uint64(2*f)), lower, w)
				VPANDD(l.mask, w, w)
			}
			switch shift := 2*f + v - 2; {
			case shift > 0:
				VPSRLW(Imm(uint64(shift)), upper, x)
			case shift < 0:
				VPSLLW(Imm(uint64(-shift)), upper, x)
			default:
				VMOVDQA32(upper, x)
			}
			VPANDD(l.third, x, x)
			VPORD(x, w, w)
			VPSHUFB(w, l.entries, w)
			do(w, 8*f+4*v)
		}
	}
}
