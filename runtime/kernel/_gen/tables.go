package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var twoBits, thirdBits, subBias, lowNibble, lowPair Mem

// tableConstants lays the constants of the loops over panels with a table.
func tableConstants() {
	vector := func(name string, value uint32) Mem {
		m := GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range 8 {
			DATA(4*i, U32(value))
		}
		return m
	}
	twoBits, thirdBits = vector("twoBits", 0x03030303), vector("thirdBits", 0x04040404)
	subBias, lowNibble, lowPair = vector("subBias", 32), vector("lowNibble", 15), vector("lowPair", 3)
}

// tables writes the loops over panels with a table.
func tables() {
	for _, bits := range []int{3, 4} {
		for _, group := range []int{0, 32, 16} {
			for _, tokens := range []int{1, 4} {
				tablePanel(bits, group, tokens)
			}
		}
	}
}

// tablePanel multiplies a panel with tokens: codes of 3 or 4 bits are looked up in a table of 16 signed bytes, and the products are
// those of block8. group is 0 where the scales are of half precision, else the size of the groups of two levels, whose scales
// are spread out on the stack at the head of each span.
func tablePanel(bits, group, tokens int) {
	name := fmt.Sprintf("avx2Table%dx%dx%d", bits, group, tokens)
	function(name, "func(out *float32, outStride int, data *byte, q *int8, scale *float32, blocks, span, groups int, table *byte)",
		fmt.Sprintf("%s multiplies a panel of %d-bit codes with %d tokens; outStride is in bytes, span in blocks.", name, bits, tokens))
	base := Load(Param("data"), GP64()).(reg.GPVirtual)
	q, scale := Load(Param("q"), GP64()), Load(Param("scale"), GP64())
	blocks := Load(Param("blocks"), GP64())
	groups := GP64()
	if group != 0 {
		Load(Param("groups"), groups)
	}
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(5), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	var spread Mem
	if group != 0 {
		spread = AllocLocal(16 * 32)
	}
	acc := vectors(tokens)
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	s, entries := YMM(), YMM()
	t := Load(Param("table"), GP64())
	VBROADCASTI128(Mem{Base: t}, entries)
	label := func(l string) string { return fmt.Sprintf("t%dx%dx%d%s", bits, group, tokens, l) }

	Label(label("span"))
	n := GP64()
	Load(Param("span"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	VCVTPH2PS(at(base, 0), s)
	ADDQ(Imm(16), base)
	at32 := GP64()
	if group != 0 {
		spreadScales(base, groups, s, spread, 256/group, label)
		LEAQ(spread, at32)
	}

	Label(label("block"))
	if tokens == 1 {
		for line := 0; line < block*bits; line += 64 {
			PREFETCHT0(at(base, prefetchAhead+line))
		}
	}
	dots := vectors(tokens)
	for half := range 2 {
		tableHalf(dots, entries, base, q, qStride, bits, half, half == 0 || group == 16)
		if half == 0 && group != 16 {
			continue
		}
		if group != 0 {
			VMOVUPS(at(at32, 0), s)
			ADDQ(Imm(32), at32)
		}
		third := beyond(scale, fStride, tokens)
		for i, d := range dots {
			f := YMM()
			VCVTDQ2PS(d, d)
			VBROADCASTSS(token(scale, fStride, third, i, 0), f)
			VMULPS(f, s, f)
			VFMADD231PS(d, f, acc[i])
		}
	}
	ADDQ(U32(uint32(block*bits)), base)
	ADDQ(Imm(block), q)
	ADDQ(Imm(4), scale)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("span")))

	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64()) // late: registers are few
	for i := range acc {
		VMOVUPS(acc[i], at(out, 0))
		if i+1 < tokens {
			ADDQ(outStride, out)
		}
	}
	VZEROUPPER()
	RET()
}

// spreadScales turns the 6-bit scales at the head of a span, of at most most groups, into floats, by fours of groups: the last
// four may read beyond the scales, into codes, and their results are not used. It moves base on to the codes.
func spreadScales(base, groups reg.Register, s reg.VecVirtual, spread Mem, most int, label func(string) string) {
	n, quads, high, to := GP64(), GP64(), GP64(), GP64()
	MOVQ(U64(uint64(most)), n)
	CMPQ(n, groups)
	CMOVQGT(groups, n)
	SUBQ(n, groups)
	LEAQ(Mem{Base: n, Disp: 1}, high)
	SHRQ(Imm(1), high)
	SHLQ(Imm(3), high)
	low := GP64()
	MOVQ(base, low)
	ADDQ(base, high)
	LEAQ(Mem{Base: n, Disp: 3}, quads)
	SHRQ(Imm(2), quads)
	LEAQ(Mem{Base: high, Index: quads, Scale: 8}, base)
	LEAQ(spread, to)
	Label(label("spread"))
	pairs, h, v, x := vectors(2), YMM(), YMM(), YMM()
	VPMOVZXBD(at(low, 0), pairs[0])
	VPMOVZXBD(at(low, 8), pairs[1])
	VPMOVZXBD(at(high, 0), h)
	for i := range 4 {
		p := pairs[i/2]
		if i%2 == 1 {
			VPSRLD(Imm(4), p, p)
		}
		VPAND(lowNibble, p, v)
		if i > 0 {
			VPSRLD(Imm(2), h, h)
		}
		VPAND(lowPair, h, x)
		VPSLLD(Imm(4), x, x)
		VPOR(x, v, v)
		VPSUBD(subBias, v, v)
		VCVTDQ2PS(v, v)
		VMULPS(s, v, v)
		VMOVUPS(v, at(to, 32*i))
	}
	ADDQ(Imm(16), low)
	ADDQ(Imm(8), high)
	ADDQ(U32(128), to)
	DECQ(quads)
	JNE(LabelRef(label("spread")))
}

// tableHalf adds the products of columns 0 … 15 or 16 … 31 of a block to dots, a row each, or sets them.
func tableHalf(dots []reg.VecVirtual, entries reg.VecVirtual, base, q, stride reg.Register, bits, half int, set bool) {
	tokens := len(dots)
	third := beyond(q, stride, tokens)
	w, abs, x := YMM(), YMM(), YMM()
	for i := range 4 { // four columns each
		lookUp(w, x, entries, base, bits, half, i)
		VPABSB(w, abs)
		for t := range dots {
			VPBROADCASTD(token(q, stride, third, t, 16*half+4*i), x)
			VPSIGNB(w, x, x)
			VPMADDUBSW(x, abs, x)
			if set && i == 0 {
				VPMADDWD(ones, x, dots[t])
				continue
			}
			VPMADDWD(ones, x, x)
			VPADDD(x, dots[t], dots[t])
		}
	}
}

// lookUp sets w to what the codes of columns 16·half + 4i … 16·half + 4i + 3 of a block stand for; x is lost.
func lookUp(w, x, entries reg.VecVirtual, base reg.Register, bits, half, i int) {
	if bits == 4 {
		VMOVDQU(at(base, 32*i), w)
		if half == 1 {
			VPSRLW(Imm(4), w, w)
		}
		VPAND(nibbles, w, w)
	} else {
		// Field f of the two low bits, bit 2f+v of the third: see packed.Code3.
		f, v := 2*half+i/2, i%2
		VMOVDQU(at(base, 32*v), w)
		if f > 0 {
			VPSRLW(Imm(uint64(2*f)), w, w)
		}
		VPAND(twoBits, w, w)
		VMOVDQU(at(base, 64), x)
		switch shift := 2*f + v - 2; {
		case shift > 0:
			VPSRLW(Imm(uint64(shift)), x, x)
		case shift < 0:
			VPSLLW(Imm(uint64(-shift)), x, x)
		}
		VPAND(thirdBits, x, x)
		VPOR(x, w, w)
	}
	VPSHUFB(w, entries, w)
}
