package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// panels512 multiplies two panels with tokens: the first panel's rows are in the lower half of a vector, the second's in the upper.
// The panels are neighbours where there are more tokens than one, see store512. VPDPBUSD sums four products of unsigned codes and signed activations
// into a dword without saturation. Codes of 8 bits become unsigned by adding 128, which the correction by
// the sum of the activations takes off again: the caller adds 128 to zeroBias.
func panels512(bits, tokens int) {
	name := fmt.Sprintf("avx512Panel%dx%d", bits, tokens)
	function(name, "func(out *float32, outStride int, data *byte, panelStride int, q *int8, scale, sum *float32, blocks, group int, asym bool, zeroFactor, zeroBias float32)",
		fmt.Sprintf("%s multiplies 2 panels of %d-bit codes with %d tokens; strides are in bytes, outStride is that of %s, group is in blocks.", name, bits, tokens, strideOf512(tokens)))
	data, panelStride := Load(Param("data"), GP64()), Load(Param("panelStride"), GP64())
	q, scale, sum := Load(Param("q"), GP64()), Load(Param("scale"), GP64()), Load(Param("sum"), GP64())
	blocks := Load(Param("blocks"), GP64())
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(5), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	second := GP64()
	LEAQ(Mem{Base: data, Index: panelStride, Scale: 1}, second)

	// Two sums a token, which need not wait for each other.
	acc, dots, more := wide(tokens), wide(tokens), wide(tokens)
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	s, zero, t := ZMM(), ZMM(), YMM()
	label := func(l string) string { return fmt.Sprintf("w%dx%d%s", bits, tokens, l) }
	mask := ZMM()
	value := GP32()
	if bits == 4 {
		MOVL(U32(0x0f0f0f0f), value)
	} else {
		MOVL(U32(0x80808080), value)
	}
	VPBROADCASTD(value, mask)

	Label(label("group"))
	n := GP64()
	Load(Param("group"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	VCVTPH2PS(Mem{Base: data}, s.AsY())
	VCVTPH2PS(Mem{Base: second}, t)
	VINSERTF64X4(Imm(1), t, s, s)
	flag := GP8()
	Load(Param("asym"), flag)
	VBROADCASTSS(NewParamAddr("zeroBias", zeroBiasOffset), zero)
	TESTB(flag, flag)
	JNE(LabelRef(label("asym")))
	ADDQ(Imm(16), data)
	ADDQ(Imm(16), second)
	JMP(LabelRef(label("block")))
	Label(label("asym"))
	f := ZMM()
	z := ZMM()
	VPMOVZXBD(Mem{Base: data, Disp: 16}, z.AsY())
	VPMOVZXBD(Mem{Base: second, Disp: 16}, t)
	VINSERTF64X4(Imm(1), t, z, z)
	VCVTDQ2PS(z, z)
	VBROADCASTSS(NewParamAddr("zeroFactor", zeroFactorOffset), f)
	VFMADD231PS(f, z, zero)
	ADDQ(Imm(24), data)
	ADDQ(Imm(24), second)

	Label(label("block"))
	if tokens == 1 {
		prefetch([]reg.GPVirtual{data.(reg.GPVirtual), second}, 8*block*bits/8)
	}
	for k, d := range dots {
		VPXORD(d, d, d)
		VPXORD(more[k], more[k], more[k])
	}
	rows := addresses(q, qStride, tokens)
	w, high := ZMM(), ZMM()
	for v := range bits {
		VMOVDQU32(Mem{Base: data, Disp: 32 * v}, w.AsY())
		VINSERTI64X4(Imm(1), Mem{Base: second, Disp: 32 * v}, w, w)
		if bits == 4 {
			VPSRLW(Imm(4), w, high)
			VPANDD(mask, w, w)
			VPANDD(mask, high, high)
			for k, d := range dots {
				VPDPBUSD_BCST(rows(k, 4*v), w, d)
			}
			for k, d := range more {
				VPDPBUSD_BCST(rows(k, 16+4*v), high, d)
			}
			continue
		}
		VPXORD(mask, w, w)
		for k := range dots {
			VPDPBUSD_BCST(rows(k, 4*v), w, [][]reg.VecVirtual{dots, more}[v%2][k])
		}
	}
	scales, sums := addresses(scale, fStride, tokens), addresses(sum, fStride, tokens)
	for k, d := range dots {
		g := ZMM()
		VPADDD(more[k], d, d)
		VCVTDQ2PS(d, d)
		VFNMADD231PS_BCST(sums(k, 0), zero, d)
		VMULPS_BCST(scales(k, 0), s, g)
		VFMADD231PS(d, g, acc[k])
	}
	ADDQ(U32(uint32(8*block*bits/8)), data)
	ADDQ(U32(uint32(8*block*bits/8)), second)
	ADDQ(Imm(block), q)
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("group")))
	store512(acc)
	VZEROUPPER()
	RET()
}

// strideOf512 names what outStride of a loop over two panels is the stride of.
func strideOf512(tokens int) string {
	if tokens == 1 {
		return "panels"
	}
	return "tokens"
}

// store512 writes the sums of tokens, a vector each. One token's two panels may be any: each is at the head of a stream through memory of its own.
func store512(acc []reg.VecVirtual) {
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64()) // late: registers are few
	if len(acc) == 1 {
		VMOVUPS(acc[0].AsY(), Mem{Base: out})
		VEXTRACTF64X4(Imm(1), acc[0], Mem{Base: out, Index: outStride, Scale: 1})
		return
	}
	for k, a := range acc {
		VMOVUPS(a, Mem{Base: out})
		if k+1 < len(acc) {
			ADDQ(outStride, out)
		}
	}
}

// wide takes n registers.
func wide(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = ZMM()
	}
	return v
}

// addresses gives the address of a token's activations.
func addresses(base, stride reg.Register, tokens int) func(t, disp int) Mem {
	third := beyond(base, stride, tokens)
	return func(t, disp int) Mem { return token(base, stride, third, t, disp) }
}

// both512 is panels512 for 8-bit codes and one token whose activations are two planes: weights, which come from memory, are read once for
// both. Each plane has a sum of its own, as if it were multiplied alone.
func both512() {
	name := "avx512Both8"
	function(name, "func(out *float32, outStride int, data *byte, panelStride int, q, restQ *int8, scale, restScale, sum, restSum *float32, blocks, group int, zeroFactor, zeroBias float32)",
		name+" multiplies 2 panels of 8-bit codes with the sum of two planes of a token; strides are in bytes, group is in blocks. Without zero points zeroFactor is 0.")
	data, second := Load(Param("data"), GP64()).(reg.GPVirtual), Load(Param("panelStride"), GP64()).(reg.GPVirtual)
	ADDQ(data, second)
	planes := [2]plane{{Load(Param("q"), GP64()), Load(Param("scale"), GP64()), Load(Param("sum"), GP64())},
		{Load(Param("restQ"), GP64()), Load(Param("restScale"), GP64()), Load(Param("restSum"), GP64())}}
	blocks, n := Load(Param("blocks"), GP64()), GP64()
	mask := constant512(0x80808080)
	acc := wide(2)
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	s, zero, t, z, f := ZMM(), ZMM(), YMM(), ZMM(), ZMM()

	Label("both512group")
	Load(Param("group"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	VCVTPH2PS(at(data, 0), s.AsY())
	VCVTPH2PS(at(second, 0), t)
	VINSERTF64X4(Imm(1), t, s, s)
	ADDQ(Imm(16), data)
	ADDQ(Imm(16), second)
	VBROADCASTSS(NewParamAddr("zeroFactor", bothFactorOffset), f)
	VBROADCASTSS(NewParamAddr("zeroBias", bothFactorOffset+4), zero)
	factor := GP32()
	VMOVD(f.AsX(), factor)
	TESTL(factor, factor)
	JE(LabelRef("both512block"))
	VPMOVZXBD(at(data, 0), z.AsY())
	VPMOVZXBD(at(second, 0), t)
	VINSERTF64X4(Imm(1), t, z, z)
	VCVTDQ2PS(z, z)
	VFMADD231PS(f, z, zero)
	ADDQ(Imm(8), data)
	ADDQ(Imm(8), second)

	Label("both512block")
	prefetch([]reg.GPVirtual{data, second}, 8*block)
	dots := [2][]reg.VecVirtual{wide(2), wide(2)} // of a plane two, which need not wait for each other
	for _, d := range dots {
		VPXORD(d[0], d[0], d[0])
		VPXORD(d[1], d[1], d[1])
	}
	for v := range 8 {
		w := load512(data, second, 32*v)
		VPXORD(mask, w, w)
		for i, p := range planes {
			VPDPBUSD_BCST(at(p.q, 4*v), w, dots[i][v%2])
		}
	}
	for i, p := range planes {
		d, g := dots[i][0], ZMM()
		VPADDD(dots[i][1], d, d)
		VCVTDQ2PS(d, d)
		VFNMADD231PS_BCST(at(p.sum, 0), zero, d)
		VMULPS_BCST(at(p.scale, 0), s, g)
		VFMADD231PS(d, g, acc[i])
		ADDQ(Imm(block), p.q)
		ADDQ(Imm(4), p.scale)
		ADDQ(Imm(4), p.sum)
	}
	ADDQ(U32(8*block), data)
	ADDQ(U32(8*block), second)
	DECQ(n)
	JNE(LabelRef("both512block"))
	TESTQ(blocks, blocks)
	JNE(LabelRef("both512group"))
	VADDPS(acc[1], acc[0], acc[0])
	store512(acc[:1])
	VZEROUPPER()
	RET()
}

// plane is where the codes, scales and sums of one are.
type plane struct{ q, scale, sum reg.Register }

// bothFactorOffset is that of a parameter in the frame; the assembler's vet checks it against its name.
const bothFactorOffset = 96
