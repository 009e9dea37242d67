package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// foreign is a layout of kernel.Foreign.
type foreign struct {
	name  string
	bits  int
	super bool
}

// offset reports whether weights have one besides their codes' own.
func (f foreign) offset() bool { return f.bits < 6 }

// foreigns writes the loops over foreign matrices, in a file of their own.
func foreigns() {
	halve()
	for _, f := range []foreign{{"Super", 4, true}, {"Super", 5, true}, {"Super", 6, true}, {"Offset", 4, false}, {"Offset", 5, false}} {
		f.panels(1, 1)
		f.panels(1, 2)
		f.panels(4, 1)
	}
}

// words lays four 32-bit words into read-only data, for both halves of a vector.
func words(name string, values ...uint32) Mem {
	m := GLOBL(name, attr.RODATA|attr.NOPTR)
	for i := range 8 {
		DATA(4*i, U32(values[i%len(values)]))
	}
	return m
}

var (
	foreignNibbles, foreignOnes, foreignBytes, foreignFifth, foreignPairs Mem

	// Of pairs of words, twice the first or twice the second.
	foreignFirst, foreignSecond Mem
	foreignTwice                Mem // of bytes 0 … 7, twice each as words
)

// foreignConstants lays the constants.
func foreignConstants() {
	foreignNibbles, foreignOnes = words("foreignNibbles", 0x0f0f0f0f), words("foreignOnes", 0x00010001)
	foreignBytes = words("foreignBytes", 0x01010101)
	foreignFifth, foreignPairs = words("foreignFifth", 0x10101010), words("foreignPairs", 0x30303030)
	foreignFirst = words("foreignFirst", 0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c)
	foreignSecond = words("foreignSecond", 0x03020302, 0x07060706, 0x0b0a0b0a, 0x0f0e0f0e)
	// The upper half of the vector takes bytes 4 … 7.
	foreignTwice = GLOBL("foreignTwice", attr.RODATA|attr.NOPTR)
	for i := range 8 {
		DATA(4*i, U32(uint32(0x80008000|i|i<<16)))
	}
}

// halve is halveGeneric.
func halve() {
	function("avx2Halve", "func(halves *int16, q *int8, blocks int)", "avx2Halve sets the sums of half blocks of codes.")
	halves, q, n := Load(Param("halves"), GP64()), Load(Param("q"), GP64()), Load(Param("blocks"), GP64())
	one, ones, v, t := YMM(), YMM(), YMM(), YMM()
	VMOVDQU(foreignBytes, one)
	VMOVDQU(foreignOnes, ones)
	Label("halveBlock")
	VMOVDQU(at(q, 0), t)
	VPMADDUBSW(t, one, v)
	VPMADDWD(ones, v, v)
	VPSHUFD(Imm(0x4e), v, t)
	VPADDD(t, v, v)
	VPSHUFD(Imm(0xb1), v, t)
	VPADDD(t, v, v)
	VPEXTRW(Imm(0), v.AsX(), at(halves, 0))
	VEXTRACTI128(Imm(1), v, t.AsX())
	VPEXTRW(Imm(0), t.AsX(), at(halves, 2))
	ADDQ(Imm(4), halves)
	ADDQ(Imm(32), q)
	DECQ(n)
	JNE(LabelRef("halveBlock"))
	VZEROUPPER()
	RET()
}

// factors is where the factors of a panel's block are kept: registers are few.
type factors struct {
	d, m      Mem    // of rows, float32
	off       Mem    // what the sum of the activations is multiplied with, float32
	s         [2]Mem // of each half, pairs of words: as many times the sums of codes count
	pair      Mem    // of both halves side by side, words
	unchanged bool   // s is one
}

// panels multiplies panels with tokens. Products of unsigned codes with activations are summed in 16 bits as far as they fit: all eight of 4 bits
// (8 · 2 · 15 · 127 is 30,480), four of 5 bits (31,496), two of 6 bits (32,004); sums of pairs are then multiplied with the integer scale of their
// group while they are added up in 32 bits.
func (f foreign) panels(tokens, panels int) {
	name := fmt.Sprintf("%s%dx%dx%d", f.name, f.bits, tokens, panels)
	function("avx2"+name, "func(out *float32, outStride int, data *byte, panelStride int, q *int8, scale, sum *float32, halves *int16, blocks int)",
		fmt.Sprintf("avx2%s multiplies %d panels with %d tokens; strides are in bytes, outStride is that of what there are several of.", name, panels, tokens))
	data, panelStride := Load(Param("data"), GP64()), Load(Param("panelStride"), GP64())
	q, scale := Load(Param("q"), GP64()), Load(Param("scale"), GP64())
	blocks := Load(Param("blocks"), GP64())
	var sum reg.Register
	if f.offset() {
		sum = Load(Param("sum"), GP64())
	} else {
		sum = Load(Param("halves"), GP64())
	}
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(5), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	second := GP64()
	if panels > 1 {
		LEAQ(Mem{Base: data, Index: panelStride, Scale: 1}, second)
	}
	base := []reg.GPVirtual{data.(reg.GPVirtual), second}[:panels]
	kept := make([]factors, panels)
	local := AllocLocal(panels * 6 * 32)
	for p := range kept {
		place := func(i int) Mem { return local.Offset(32 * (6*p + i)) }
		kept[p] = factors{d: place(0), m: place(1), off: place(2), s: [2]Mem{place(3), place(3)}, pair: place(5), unchanged: !f.super}
		if f.bits == 6 {
			kept[p].s[1] = place(4)
		}
	}
	acc := vectors(tokens * panels)
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	label := func(l string) string { return name + l }
	n := GP64()
	if f.super {
		Label(label("span"))
		for p := range base {
			t := YMM()
			VCVTPH2PS(at(base[p], 0), t)
			VMOVUPS(t, kept[p].d)
			if f.offset() {
				VCVTPH2PS(at(base[p], 16), t)
				VMOVUPS(t, kept[p].m)
				ADDQ(Imm(32), base[p])
			} else {
				ADDQ(Imm(16), base[p])
			}
		}
		MOVQ(U32(8), n)
	}
	Label(label("block"))
	head := f.heads(base, kept)
	codes := block * f.bits
	if tokens == 1 {
		for p := range base {
			for line := 0; line < head+codes; line += 64 {
				PREFETCHT0(at(base[p], prefetchAhead+line))
			}
		}
	}
	dots := f.dots(base, kept, head, q, qStride, tokens)
	f.finish(acc, dots, kept, scale, sum, fStride, tokens)
	for p := range base {
		ADDQ(U32(uint32(head+codes)), base[p])
	}
	ADDQ(Imm(block), q)
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	DECQ(blocks)
	if f.super {
		DECQ(n)
		JNE(LabelRef(label("block")))
		TESTQ(blocks, blocks)
		JNE(LabelRef(label("span")))
	} else {
		JNE(LabelRef(label("block")))
	}
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64()) // late: registers are few
	for t := range tokens {
		for p := range panels {
			VMOVUPS(acc[t*panels+p], at(out, 0))
			if t+p+2 < tokens+panels {
				ADDQ(outStride, out)
			}
		}
	}
	VZEROUPPER()
	RET()
}

// heads works the head of a block out, and gives its size.
func (f foreign) heads(base []reg.GPVirtual, kept []factors) int {
	for p, k := range kept {
		t, u := YMM(), YMM()
		switch {
		case !f.super:
			VCVTPH2PS(at(base[p], 0), t)
			VMOVUPS(t, k.d)
			VCVTPH2PS(at(base[p], 16), t)
			VMOVUPS(t, k.off)
		case f.offset():
			VPBROADCASTQ(at(base[p], 0), t)
			VPSHUFB(foreignTwice, t, t)
			VMOVDQU(t, k.s[0])
			VPMOVZXBD(at(base[p], 8), u)
			VCVTDQ2PS(u, u)
			VMULPS(k.m, u, u)
			VMOVUPS(u, k.off)
		default:
			VPMOVSXBW(at(base[p], 0), t)
			VMOVDQU(t, k.pair)
			VPSHUFB(foreignFirst, t, u)
			VMOVDQU(u, k.s[0])
			VPSHUFB(foreignSecond, t, u)
			VMOVDQU(u, k.s[1])
		}
	}
	if f.super {
		return 16
	}
	return 32
}

// dots sums the products of a block into dwords, a row each, times the scales of their groups.
func (f foreign) dots(base []reg.GPVirtual, kept []factors, head int, q, stride reg.Register, tokens int) []reg.VecVirtual {
	panels := len(base)
	fit := map[int]int{4: 8, 5: 4, 6: 2}[f.bits] // products whose sum fits 16 bits
	third := beyond(q, stride, tokens)
	words, dots := vectors(tokens*panels), vectors(tokens*panels)
	w, x, u := vectors(panels), YMM(), YMM()
	nibbles := head + map[int]int{4: 0, 5: 32, 6: 64}[f.bits]
	for i := range 8 { // four columns each
		h, v := i/4, i%4
		for p := range base {
			VMOVDQU(at(base[p], nibbles+32*v), w[p])
			if h == 1 {
				VPSRLW(Imm(4), w[p], w[p])
			}
			VPAND(foreignNibbles, w[p], w[p])
			switch f.bits {
			case 5:
				VMOVDQU(at(base[p], head), u)
				shift(u, 4-(4*h+v))
				VPAND(foreignFifth, u, u)
				VPOR(u, w[p], w[p])
			case 6:
				VMOVDQU(at(base[p], head+32*h), u)
				shift(u, 4-2*v)
				VPAND(foreignPairs, u, u)
				VPOR(u, w[p], w[p])
			}
		}
		for t := range tokens {
			VPBROADCASTD(token(q, stride, third, t, 16*h+4*v), x)
			for p := range base {
				at := words[t*panels+p]
				product := x
				if panels > 1 {
					product = w[p] // x is still wanted
				}
				if i%fit == 0 {
					VPMADDUBSW(x, w[p], at)
				} else {
					VPMADDUBSW(x, w[p], product)
					VPADDW(product, at, at)
				}
				if i%fit != fit-1 {
					continue
				}
				s := kept[p].s[h]
				if kept[p].unchanged {
					s = foreignOnes
				}
				if i < fit {
					VPMADDWD(s, at, dots[t*panels+p])
				} else {
					VPMADDWD(s, at, at)
					VPADDD(at, dots[t*panels+p], dots[t*panels+p])
				}
			}
		}
	}
	return dots
}

// shift shifts words left by n bits, or right by −n.
func shift(v reg.VecVirtual, n int) {
	switch {
	case n > 0:
		VPSLLW(Imm(uint64(n)), v, v)
	case n < 0:
		VPSRLW(Imm(uint64(-n)), v, v)
	}
}

// finish takes offsets off and adds the scaled sums of the block.
func (f foreign) finish(acc, dots []reg.VecVirtual, kept []factors, scale, sum, stride reg.Register, tokens int) {
	x := YMM()
	thirdScale, thirdSum := beyond(scale, stride, tokens), beyond(sum, stride, tokens)
	for t := range tokens {
		for p, k := range kept {
			d := dots[t*len(kept)+p]
			if f.offset() {
				VCVTDQ2PS(d, d)
				VMULPS(k.d, d, d)
				VBROADCASTSS(token(sum, stride, thirdSum, t, 0), x)
				VFNMADD231PS(k.off, x, d)
			} else {
				VPBROADCASTD(token(sum, stride, thirdSum, t, 0), x) // the sums of both halves
				VPMADDWD(k.pair, x, x)
				VPSLLD(Imm(5), x, x)
				VPSUBD(x, d, d)
				VCVTDQ2PS(d, d)
				VMULPS(k.d, d, d)
			}
			VBROADCASTSS(token(scale, stride, thirdScale, t, 0), x)
			VFMADD231PS(d, x, acc[t*len(kept)+p])
		}
	}
}
