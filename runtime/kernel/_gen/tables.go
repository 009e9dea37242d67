package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var twoBits, thirdBits, subBias, lowNibbles, lowPairs, nibbleShifts, pairShifts, subPairs Mem

// tableConstants lays the constants of the loops over panels with a table.
func tableConstants() {
	vector := func(name string, values ...uint32) Mem {
		m := GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range 8 {
			DATA(4*i, U32(values[i%len(values)]))
		}
		return m
	}
	twoBits, thirdBits = vector("twoBits", 0x03030303), vector("thirdBits", 0x04040404)
	subBias, lowNibbles, lowPairs = vector("subBias", 0x20202020), vector("lowNibbles", 0x0f0f0f0f), vector("lowPairs", 0x03030303)
	nibbleShifts, pairShifts = vector("nibbleShifts", 0, 0, 4, 0), vector("pairShifts", 0, 0, 2, 0, 4, 0, 6, 0) // of quadwords
	// The byte of each row twice, as the high ones of two words.
	subPairs = vector("subPairs", 0x00800080, 0x01800180, 0x02800280, 0x03800380, 0x04800480, 0x05800580, 0x06800680, 0x07800780)
}

// tables writes the loops over panels with a table.
func tables() {
	for _, bits := range []int{3, 4} {
		for _, group := range []int{0, 32, 16} {
			tablePanel(bits, group, 1, 1)
			tablePanel(bits, group, 2, 1)
			tablePanel(bits, group, 1, 4)
		}
	}
}

// tablePanel multiplies panels with tokens: codes of 3 or 4 bits are looked up in a table of 16 signed bytes. group is 0 where the scales
// are of half precision, and the products those of block8; else it is the size of the groups of two levels, whose integers
// multiply the sums of pairs of products: so a block has one sum, whatever groups it has.
func tablePanel(bits, group, panels, tokens int) {
	name := fmt.Sprintf("avx2Table%dx%dx%dx%d", bits, group, panels, tokens)
	function(name, "func(out *float32, outStride int, data *byte, dataStride int, q *int8, scale *float32, blocks, span, groups int, table *byte)",
		fmt.Sprintf("%s multiplies panels of %d-bit codes (%d at once) with %d tokens; strides are in bytes, span in blocks.", name, bits, panels, tokens))
	bases := []reg.GPVirtual{Load(Param("data"), GP64()).(reg.GPVirtual)}
	if panels > 1 {
		bases = append(bases, Load(Param("dataStride"), GP64()).(reg.GPVirtual))
		ADDQ(bases[0], bases[1])
	}
	q, scale := Load(Param("q"), GP64()), Load(Param("scale"), GP64())
	blocks := Load(Param("blocks"), GP64())
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(5), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	t := tableLoop{bits: bits, group: group, entries: YMM(), scales: vectors(panels), subs: make([]reg.VecVirtual, panels)}
	if group != 0 {
		t.groups, t.at, t.subs = Load(Param("groups"), GP64()), GP64(), vectors(panels)
		t.spread = AllocLocal(panels * spreadBytes)
	}
	acc := vectors(panels * tokens)
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	table := Load(Param("table"), GP64())
	VBROADCASTI128(Mem{Base: table}, t.entries)
	label := func(l string) string { return fmt.Sprintf("t%dx%dx%dx%d%s", bits, group, panels, tokens, l) }

	Label(label("span"))
	n := GP64()
	Load(Param("span"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	t.head(bases, label)

	Label(label("block"))
	if tokens == 1 {
		prefetch(bases, block*bits)
	}
	dots := vectors(panels * tokens)
	t.products(dots, bases, q, qStride, tokens)
	third := beyond(scale, fStride, tokens)
	for i := range tokens {
		x, f := YMM(), YMM()
		VBROADCASTSS(token(scale, fStride, third, i, 0), x)
		for p, s := range t.scales {
			d := dots[p*tokens+i]
			VCVTDQ2PS(d, d)
			VMULPS(x, s, f)
			VFMADD231PS(d, f, acc[p*tokens+i])
		}
	}
	for _, base := range bases {
		ADDQ(U32(uint32(block*bits)), base)
	}
	ADDQ(Imm(block), q)
	ADDQ(Imm(4), scale)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("span")))

	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64()) // late: registers are few
	for i := range acc {
		VMOVUPS(acc[i], at(out, 0))
		if i+1 < len(acc) {
			ADDQ(outStride, out)
		}
	}
	VZEROUPPER()
	RET()
}

// spreadBytes is the room for a span's integers of two-level scales, a byte a row of 16 groups.
const spreadBytes = 16 * 8

// tableLoop is what loops over panels with a table share.
type tableLoop struct {
	bits, group int
	entries     reg.VecVirtual
	scales      []reg.VecVirtual // of half precision, those of a panel each
	groups      Op               // that are left, in a register or in memory
	at          reg.Register     // the next block's in spread
	spread      Mem
	subs        []reg.VecVirtual // a group's integers, twice each, as words
}

// head reads what a span of the panels begins with, and moves the bases on to codes.
func (t *tableLoop) head(bases []reg.GPVirtual, label func(string) string) {
	for p, base := range bases {
		VCVTPH2PS(at(base, 0), t.scales[p])
		ADDQ(Imm(16), base)
	}
	t.spreads(bases, label)
}

// spreads spreads the integers of two-level scales, which the bases point to, and moves these on to codes.
func (t *tableLoop) spreads(bases []reg.GPVirtual, label func(string) string) {
	if t.group == 0 {
		return
	}
	n, quads, high := GP64(), GP64(), GP64()
	MOVQ(U64(uint64(256/t.group)), n)
	CMPQ(n, t.groups)
	CMOVQGT(t.groups, n)
	SUBQ(n, t.groups)
	LEAQ(Mem{Base: n, Disp: 1}, high)
	SHRQ(Imm(1), high)
	SHLQ(Imm(3), high)
	LEAQ(Mem{Base: n, Disp: 3}, quads)
	SHRQ(Imm(2), quads)
	for p, base := range bases {
		t.spreadSubs(base, high, quads, t.spread.Offset(p*spreadBytes), label(fmt.Sprintf("spread%d", p)))
	}
	LEAQ(t.spread, t.at)
}

// spreadSubs spreads the 6-bit integers at the head of a span to bytes, by fours of groups: the last four may read beyond them, into codes,
// and their results are not used. high is where the high bits begin. It moves base on to the codes.
func (t *tableLoop) spreadSubs(base, high, quads reg.Register, spread Mem, label string) {
	pairs, n := GP64(), GP64()
	LEAQ(Mem{Base: base, Index: high, Scale: 1}, pairs)
	LEAQ(spread, t.at)
	MOVQ(quads, n)
	Label(label)
	v, h := reg.Y0, reg.Y1            // by name: of 32 registers, others may be given that these instructions cannot name
	VPERMQ(Imm(0x50), at(base, 0), v) // the bytes of two pairs of groups, twice each
	VPSRLVQ(nibbleShifts, v, v)
	VPAND(lowNibbles, v, v)
	VPBROADCASTQ(at(pairs, 0), h)
	VPSRLVQ(pairShifts, h, h)
	VPAND(lowPairs, h, h)
	VPSLLW(Imm(4), h, h)
	VPOR(h, v, v)
	VPSUBB(subBias, v, v)
	VMOVDQU(v, at(t.at, 0))
	ADDQ(Imm(16), base)
	ADDQ(Imm(8), pairs)
	ADDQ(Imm(32), t.at)
	DECQ(n)
	JNE(LabelRef(label))
	MOVQ(pairs, base)
}

// sub reads the integers of a group of the block, if half is where one begins.
func (t *tableLoop) sub(half int) {
	if t.group == 0 || half == 1 && t.group != 16 {
		return
	}
	for p, s := range t.subs {
		VPBROADCASTQ(at(t.at, p*spreadBytes), s)
		VPSHUFB(subPairs, s, s)
		VPSRAW(Imm(8), s, s)
	}
	ADDQ(Imm(8), t.at)
}

// products sets dots to the sums of a block, those of a panel's tokens side by side.
func (t *tableLoop) products(dots []reg.VecVirtual, bases []reg.GPVirtual, q, stride reg.Register, tokens int) {
	third := beyond(q, stride, tokens)
	w, abs, x, a := YMM(), YMM(), YMM(), YMM()
	for half := range 2 {
		t.sub(half)
		for i := range 4 { // four columns each
			shared := tokens == 1 && len(bases) > 1
			if shared {
				VPBROADCASTD(at(q, 16*half+4*i), a)
			}
			for p, base := range bases {
				lookUp(w, x, t.entries, base, t.bits, half, i)
				VPABSB(w, abs)
				for k := range tokens {
					if !shared {
						VPBROADCASTD(token(q, stride, third, k, 16*half+4*i), a)
					}
					VPSIGNB(w, a, x)
					VPMADDUBSW(x, abs, x)
					d := dots[p*tokens+k]
					to := x
					if half == 0 && i == 0 {
						to = d
					}
					if t.group == 0 {
						VPMADDWD(ones, x, to)
					} else {
						VPMADDWD(t.subs[p], x, to)
					}
					if to != d {
						VPADDD(x, d, d)
					}
				}
			}
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
