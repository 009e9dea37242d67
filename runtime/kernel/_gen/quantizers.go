package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The loops of the quantizers give the same bits on every machine, so that files do: products and sums are
// rounded one by one, none is fused.

// largest is the bits of the largest magnitude.
func largest() {
	function("avx2Largest", "func(w *float32, n int) uint32", "avx2Largest gives the bits of the largest magnitude of n elements, a multiple of 8 that is not 0.")
	w, n := Load(Param("w"), GP64()), Load(Param("n"), GP64())
	mask, most, v := YMM(), YMM(), YMM()
	VMOVDQU(magnitudes, mask)
	VPXOR(most, most, most)
	Label("largestStep")
	VPAND(at(w, 0), mask, v)
	VPMAXUD(v, most, most)
	ADDQ(Imm(32), w)
	SUBQ(Imm(8), n)
	JNE(LabelRef("largestStep"))
	across(most, v, VPMAXUD)
	out := GP32()
	VMOVD(most.AsX(), out)
	Store(out, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// encode rounds quotients to codes.
func encode() {
	function("avx2Encode", "func(codes *int8, w *float32, n int, inverse float32, least, most, offset uint32)",
		"avx2Encode sets codes to the nearest integers of w·inverse within least … most, plus offset: bytes repeated four times. n is a multiple of 32 that is not 0; no product may exceed 16 bits.")
	codes, w, n := Load(Param("codes"), GP64()), Load(Param("w"), GP64()), Load(Param("n"), GP64())
	inverse, least, most, offset, perm := YMM(), YMM(), YMM(), YMM(), YMM()
	VBROADCASTSS(NewParamAddr("inverse", 24), inverse)
	for i, v := range []reg.VecVirtual{least, most, offset} {
		dword := GP32()
		Load(Param([]string{"least", "most", "offset"}[i]), dword)
		VMOVD(dword, v.AsX())
		VPBROADCASTD(v.AsX(), v)
	}
	VMOVDQU(order, perm)
	Label("encodeStep")
	v := vectors(4)
	for i := range v {
		VMULPS(at(w, 32*i), inverse, v[i])
		VCVTPS2DQ(v[i], v[i])
	}
	VPACKSSDW(v[1], v[0], v[0])
	VPACKSSDW(v[3], v[2], v[2])
	VPACKSSWB(v[2], v[0], v[0])
	VPERMD(v[0], perm, v[0])
	VPMAXSB(least, v[0], v[0])
	VPMINSB(most, v[0], v[0])
	VPADDB(offset, v[0], v[0])
	VMOVDQU(v[0], at(codes, 0))
	ADDQ(Imm(32), codes)
	ADDQ(U32(128), w)
	SUBQ(Imm(32), n)
	JNE(LabelRef("encodeStep"))
	VZEROUPPER()
	RET()
}

// fit sums what a line through (code, weight) needs.
func fit() {
	function("avx2Fit", "func(w, a *float32, n int, low, inverse, least, most float32) (c, cc, cw float32)",
		"avx2Fit gives the sums of Set.Fit for n elements, a multiple of 8 that is not 0.")
	w, a, n := Load(Param("w"), GP64()), Load(Param("a"), GP64()), Load(Param("n"), GP64())
	low, inverse, least, most := YMM(), YMM(), YMM(), YMM()
	VBROADCASTSS(NewParamAddr("low", 24), low)
	VBROADCASTSS(NewParamAddr("inverse", 28), inverse)
	VBROADCASTSS(NewParamAddr("least", 32), least)
	VBROADCASTSS(NewParamAddr("most", 36), most)
	sums := vectors(3)
	for _, s := range sums {
		VXORPS(s, s, s)
	}
	Label("fitStep")
	v, c, ac := YMM(), YMM(), YMM()
	VMOVUPS(at(w, 0), v)
	VSUBPS(low, v, c)
	VMULPS(inverse, c, c)
	VROUNDPS(Imm(8), c, c)
	VMAXPS(least, c, c)
	VMINPS(most, c, c)
	VMULPS(at(a, 0), c, ac)
	VADDPS(ac, sums[0], sums[0])
	VMULPS(ac, c, c)
	VADDPS(c, sums[1], sums[1])
	VMULPS(ac, v, v)
	VADDPS(v, sums[2], sums[2])
	ADDQ(Imm(32), w)
	ADDQ(Imm(32), a)
	SUBQ(Imm(8), n)
	JNE(LabelRef("fitStep"))
	for i, s := range sums {
		across(s, v, VADDPS)
		Store(s.AsX(), ReturnIndex(i))
	}
	VZEROUPPER()
	RET()
}

// fitTable sums what a scale of a codebook's codes is found from.
func fitTable() {
	function("avx2FitTable", "func(w, a *float32, n int, inverse float32, table *float32) (lw, ll float32)",
		"avx2FitTable gives the sums of Set.FitTable for n elements, a multiple of 8 that is not 0.")
	w, a, n := Load(Param("w"), GP64()), Load(Param("a"), GP64()), Load(Param("n"), GP64())
	inverse, sums := YMM(), vectors(2)
	VBROADCASTSS(NewParamAddr("inverse", 24), inverse)
	table := GP64()
	MOVQ(NewParamAddr("table", 32), table)
	for _, s := range sums {
		VXORPS(s, s, s)
	}
	Label("fitTableStep")
	v, x, l, all := YMM(), YMM(), YMM(), YMM()
	VMOVUPS(at(w, 0), v)
	VMULPS(inverse, v, x)
	VMAXPS(tableLow, x, x)
	VMINPS(tableHigh, x, x)
	VMULPS(tableSteps, x, x)
	VCVTPS2DQ(x, x)
	VPADDD(tableOffset, x, x)
	VPCMPEQD(all, all, all)
	VGATHERDPS(all, Mem{Base: table, Index: x, Scale: 4}, l)
	VMULPS(at(a, 0), l, x)
	VMULPS(x, v, v)
	VADDPS(v, sums[0], sums[0])
	VMULPS(l, x, x)
	VADDPS(x, sums[1], sums[1])
	ADDQ(Imm(32), w)
	ADDQ(Imm(32), a)
	SUBQ(Imm(8), n)
	JNE(LabelRef("fitTableStep"))
	for i, s := range sums {
		across(s, v, VADDPS)
		Store(s.AsX(), ReturnIndex(i))
	}
	VZEROUPPER()
	RET()
}

// loss sums the squared errors of codes.
func loss() {
	function("avx2Loss", "func(w, a *float32, n int, inverse, zero, least, most, scale float32) float32",
		"avx2Loss gives the sum of Set.Loss for n elements, a multiple of 8 that is not 0.")
	w, a, n := Load(Param("w"), GP64()), Load(Param("a"), GP64()), Load(Param("n"), GP64())
	inverse, zero, least, most, scale, sum := YMM(), YMM(), YMM(), YMM(), YMM(), YMM()
	VBROADCASTSS(NewParamAddr("inverse", 24), inverse)
	VBROADCASTSS(NewParamAddr("zero", 28), zero)
	VBROADCASTSS(NewParamAddr("least", 32), least)
	VBROADCASTSS(NewParamAddr("most", 36), most)
	VBROADCASTSS(NewParamAddr("scale", 40), scale)
	VXORPS(sum, sum, sum)
	Label("lossStep")
	v, c := YMM(), YMM()
	VMOVUPS(at(w, 0), v)
	VMULPS(inverse, v, c)
	VADDPS(zero, c, c)
	VROUNDPS(Imm(8), c, c)
	VMAXPS(least, c, c)
	VMINPS(most, c, c)
	VSUBPS(zero, c, c)
	VMULPS(scale, c, c)
	VSUBPS(c, v, v)
	VMULPS(v, v, c)
	VMULPS(at(a, 0), c, c)
	VADDPS(c, sum, sum)
	ADDQ(Imm(32), w)
	ADDQ(Imm(32), a)
	SUBQ(Imm(8), n)
	JNE(LabelRef("lossStep"))
	across(sum, v, VADDPS)
	Store(sum.AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// decode widens halves: binary16 by the processor's own conversion, bfloat16 by a shift.
func decode(name, doc string, widen func(src Mem, dst reg.VecVirtual)) {
	function(name, "func(dst *float32, src *byte, n int)", name+doc+", n a multiple of 8 that is not 0.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	v := YMM()
	Label(name + "Step")
	widen(at(src, 0), v)
	VMOVUPS(v, at(dst, 0))
	ADDQ(Imm(16), src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(8), n)
	JNE(LabelRef(name + "Step"))
	VZEROUPPER()
	RET()
}

func decodes() {
	decode("avx2DecodeF16", " reads n binary16 numbers", func(src Mem, dst reg.VecVirtual) { VCVTPH2PS(src, dst) })
	decode("avx2DecodeBF16", " reads n bfloat16 numbers", func(src Mem, dst reg.VecVirtual) {
		VPMOVZXWD(src, dst)
		VPSLLD(Imm(16), dst, dst)
	})
}
