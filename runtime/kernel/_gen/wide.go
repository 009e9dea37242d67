package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// wideTokens and widePanels is what the loops over widened weights multiply at once: each vector of weights meets
// four tokens and each dword of activations two panels, which asks the first cache for less than eight of one would.
const (
	wideTokens = 4
	widePanels = 2
)

// Bytes of a block of what these loops read: int16 weights, eight columns' pairs of all rows a vector, for two panels in turn, with the
// panels' scales behind; and for each pair of activations those of four tokens, then their scales.
const (
	wideStep       = 32 * widePanels
	wideBlock      = 16*wideStep + wideStep
	wideActivation = 16*4*wideTokens + 4*wideTokens
)

// wides writes the loops that widen codes with a table, and those that multiply them with many tokens.
func wides() {
	for _, bits := range []int{3, 4} {
		for _, group := range []int{0, 32, 16} {
			widen(bits, group)
		}
	}
	arrangeWide()
	wideTile()
}

// widen looks up codes of some columns of a panel and lays them out as int16, times the integers of two-level scales, with the scales of
// half precision in float32, as wideTile reads them. group is as in tablePanel.
func widen(bits, group int) {
	name := fmt.Sprintf("avx2Widen%dx%d", bits, group)
	function(name, "func(to *float32, data *byte, blocks, span, groups int, table *byte)",
		fmt.Sprintf("%s looks up blocks of %d-bit codes of a panel, for one of two panels in turn; span is in blocks.", name, bits))
	to, base := Load(Param("to"), GP64()), Load(Param("data"), GP64()).(reg.GPVirtual)
	blocks := Load(Param("blocks"), GP64())
	t := tableLoop{bits: bits, group: group, entries: YMM(), scales: vectors(1)}
	if group != 0 {
		t.groups, t.at, t.subs = Load(Param("groups"), GP64()), GP64(), vectors(1)
		t.spread = AllocLocal(spreadBytes)
	}
	table := Load(Param("table"), GP64())
	VBROADCASTI128(Mem{Base: table}, t.entries)
	label := func(l string) string { return fmt.Sprintf("widen%dx%d%s", bits, group, l) }

	Label(label("span"))
	n := GP64()
	Load(Param("span"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	t.head([]reg.GPVirtual{base}, label)

	Label(label("block"))
	odd, even := YMM(), YMM()
	offset := 0
	for half := range 2 {
		t.sub(half)
		for i := range 4 {
			lookUp(odd, even, t.entries, base, bits, half, i)
			VPSLLW(Imm(8), odd, even)
			VPSRAW(Imm(8), odd, odd)
			VPSRAW(Imm(8), even, even)
			for _, v := range []reg.VecVirtual{even, odd} {
				if group != 0 {
					VPMULLW(t.subs[0], v, v)
				}
				VMOVDQU(v, at(to, offset))
				offset += wideStep
			}
		}
	}
	VMOVUPS(t.scales[0], at(to, offset))
	ADDQ(U32(uint32(block*bits)), base)
	ADDQ(U32(wideBlock), to)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("span")))
	VZEROUPPER()
	RET()
}

// wideTile multiplies some columns of two neighbouring panels with tokens by fours. What it computes for a token and a row, and in
// which order, is what tablePanel does: products of int16 are exact whatever the codes are, and so are their sums.
func wideTile() {
	const name = "avx2Wide"
	TEXT(name, attr.NOSPLIT, "func(out *float32, outStride int, sums *float32, weights *float32, x *uint32, xStride, fours, blocks int)")
	Pragma("noescape")
	Doc(name + " multiplies two panels' weights, as the loops above lay them out, with tokens by fours, as avx2ArrangeWide does, and sets out to the sums with sums, 16 a token, or without where it is nil; strides are in bytes, xStride from four to four.")
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64())
	fours, row := Load(Param("fours"), GP64()), Load(Param("x"), GP64())
	label := func(l string) string { return "wide" + l }
	results := AllocLocal(32 * wideTokens) // of the second panel: registers are few

	first, second, held := vectors(wideTokens), vectors(wideTokens), vectors(wideTokens)
	w, a, t := vectors(widePanels), YMM(), YMM()
	sums, weights, x, n := Load(Param("sums"), GP64()), GP64(), GP64(), GP64()

	Label(label("four"))
	TESTQ(sums, sums)
	JNE(LabelRef(label("add")))
	for i, h := range held {
		VXORPS(h, h, h)
		VMOVUPS(h, results.Offset(32*i))
	}
	JMP(LabelRef(label("start")))
	Label(label("add"))
	for i, h := range held {
		VMOVUPS(at(sums, wideStep*i), h)
		VMOVUPS(at(sums, wideStep*i+32), t)
		VMOVUPS(t, results.Offset(32*i))
	}
	ADDQ(U32(wideStep*wideTokens), sums)
	Label(label("start"))
	Load(Param("weights"), weights)
	MOVQ(row, x)
	Load(Param("blocks"), n)

	Label(label("block"))
	for step := range 16 {
		for p := range w {
			VMOVDQU(at(weights, wideStep*step+32*p), w[p])
		}
		for i := range wideTokens {
			VPBROADCASTD(at(x, 4*wideTokens*step+4*i), a)
			if step == 0 {
				VPMADDWD(a, w[0], first[i])
				VPMADDWD(a, w[1], second[i])
				continue
			}
			VPMADDWD(a, w[0], t)
			VPMADDWD(a, w[1], a)
			VPADDD(t, first[i], first[i])
			VPADDD(a, second[i], second[i])
		}
	}
	for p := range w {
		VMOVUPS(at(weights, 16*wideStep+32*p), w[p])
	}
	for i := range wideTokens {
		VBROADCASTSS(at(x, 16*4*wideTokens+4*i), a)
		VCVTDQ2PS(first[i], first[i])
		VMULPS(a, w[0], t)
		VFMADD231PS(first[i], t, held[i])
		VCVTDQ2PS(second[i], second[i])
		VMULPS(a, w[1], a)
		VFMADD213PS(results.Offset(32*i), a, second[i])
		VMOVUPS(second[i], results.Offset(32*i))
	}
	ADDQ(U32(wideBlock), weights)
	ADDQ(U32(wideActivation), x)
	DECQ(n)
	JNE(LabelRef(label("block")))

	for i, h := range held {
		VMOVUPS(results.Offset(32*i), t)
		VMOVUPS(h, at(out, 0))
		VMOVUPS(t, at(out, 32))
		ADDQ(outStride, out)
	}
	Load(Param("xStride"), n)
	ADDQ(n, row)
	DECQ(fours)
	JNE(LabelRef(label("four")))
	VZEROUPPER()
	RET()
}

// arrangeWide lays out activations of four tokens as wideTile reads them.
func arrangeWide() {
	function("avx2ArrangeWide", "func(to *uint32, q *int8, scale *float32, blocks int)",
		"avx2ArrangeWide widens the codes of four tokens to int16 and lays them out block after block: of four neighbours the first and the third and then the second and the fourth, as bytes of weights come apart, for each token in turn; then the scales.")
	to, q, scale := Load(Param("to"), GP64()), Load(Param("q"), GP64()), Load(Param("scale"), GP64())
	n := Load(Param("blocks"), GP64())
	qStride, fStride := GP64(), GP64()
	MOVQ(n, qStride)
	SHLQ(Imm(5), qStride)
	MOVQ(n, fStride)
	SHLQ(Imm(2), fStride)
	third, thirdScale := beyond(q, qStride, wideTokens), beyond(scale, fStride, wideTokens)
	f := GP32()

	Label("arrangeWideBlock")
	v, u := vectors(wideTokens), vectors(wideTokens)
	for odd := range 2 {
		for t := range v {
			VMOVDQU(token(q, qStride, third, t, 0), v[t])
			if odd == 0 {
				VPSLLW(Imm(8), v[t], v[t])
			}
			VPSRAW(Imm(8), v[t], v[t])
		}
		VPUNPCKLDQ(v[1], v[0], u[0])
		VPUNPCKHDQ(v[1], v[0], u[1])
		VPUNPCKLDQ(v[3], v[2], u[2])
		VPUNPCKHDQ(v[3], v[2], u[3])
		VPUNPCKLQDQ(u[2], u[0], v[0])
		VPUNPCKHQDQ(u[2], u[0], v[1])
		VPUNPCKLQDQ(u[3], u[1], v[2])
		VPUNPCKHQDQ(u[3], u[1], v[3])
		for i, x := range v { // of quads i and i+4 of columns
			VMOVDQU(x.AsX(), at(to, 4*wideTokens*(2*i+odd)))
			VEXTRACTI128(Imm(1), x, at(to, 4*wideTokens*(2*(i+4)+odd)))
		}
	}
	for t := range wideTokens {
		MOVL(token(scale, fStride, thirdScale, t, 0), f)
		MOVL(f, at(to, 16*4*wideTokens+4*t))
	}
	for _, x := range []reg.GPVirtual{q.(reg.GPVirtual), third} {
		ADDQ(Imm(block), x)
	}
	for _, x := range []reg.GPVirtual{scale.(reg.GPVirtual), thirdScale} {
		ADDQ(Imm(4), x)
	}
	ADDQ(U32(wideActivation), to)
	DECQ(n)
	JNE(LabelRef("arrangeWideBlock"))
	VZEROUPPER()
	RET()
}
