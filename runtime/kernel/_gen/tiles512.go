package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tiles512 writes the loops over two panels and a tile of tokens.
func tiles512() {
	for _, bits := range []int{4, 8} {
		tilePanels512(bits)
	}
	for _, bits := range []int{3, 4} {
		tileTable512(bits, 0)
		tileTable512(bits, 32)
	}
	tileTable512(4, 16) // by 3 bits there are too few registers
}

// tileRows gives where a tile's block has what belongs to a token: for each dword of codes a row of all tokens, then rows of what
// belongs to a token's codes.
func tileRows(x reg.Register) func(row, token int) Mem {
	return func(row, token int) Mem { return at(x, 4*(tileTokens*row+token)) }
}

// codeRows is the number of dwords of a block's codes.
const codeRows = block / 4

// tilePanels512 is panels512 for tokens as arrange lays them out, of kind Offset8 or Offset128, and for schemes without zero
// points. What unsigned codes add to a sum of products is what it begins with.
func tilePanels512(bits int) {
	name := fmt.Sprintf("avx512Tile%d", bits)
	function(name, "func(out *float32, outStride int, data *byte, panelStride int, x *uint32, blocks, group int)",
		fmt.Sprintf("%s multiplies 2 neighbouring panels of %d-bit codes without zero points with 8 tokens; strides are in bytes, group is in blocks.", name, bits))
	data, second := Load(Param("data"), GP64()).(reg.GPVirtual), Load(Param("panelStride"), GP64()).(reg.GPVirtual)
	ADDQ(data, second)
	x, blocks, n := Load(Param("x"), GP64()), Load(Param("blocks"), GP64()), GP64()
	rows := tileRows(x)
	label := func(l string) string { return fmt.Sprintf("tile512x%d%s", bits, l) }
	mask := constant512(0x0f0f0f0f)
	if bits == 8 {
		mask = constant512(0x80808080)
	}
	acc, dots := wide(tileTokens), wide(tileTokens)
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	s, t := ZMM(), YMM()

	Label(label("group"))
	Load(Param("group"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	VCVTPH2PS(at(data, 0), s.AsY())
	VCVTPH2PS(at(second, 0), t)
	VINSERTF64X4(Imm(1), t, s, s)
	ADDQ(Imm(16), data)
	ADDQ(Imm(16), second)

	Label(label("block"))
	for k, d := range dots {
		VPBROADCASTD(rows(codeRows+1, k), d)
	}
	high := ZMM()
	for v := range bits {
		w := load512(data, second, 32*v)
		if bits == 8 {
			VPXORD(mask, w, w)
			products512(dots, w, rows, v)
			continue
		}
		VPSRLW(Imm(4), w, high)
		VPANDD(mask, w, w)
		VPANDD(mask, high, high)
		products512(dots, w, rows, v)
		products512(dots, high, rows, codeRows/2+v)
	}
	for k, d := range dots {
		f := ZMM()
		VCVTDQ2PS(d, d)
		VMULPS_BCST(rows(codeRows, k), s, f)
		VFMADD231PS(d, f, acc[k])
	}
	ADDQ(U32(uint32(block*bits)), data)
	ADDQ(U32(uint32(block*bits)), second)
	ADDQ(U32(4*tileTokens*(codeRows+2)), x)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("group")))
	store512(acc)
	VZEROUPPER()
	RET()
}

// tileTable512 is tablePanels512 for tokens as arrange lays them out, of kind Offset128, or Offset128Halves where groups are of
// 16. Integers of two levels multiply sums as float32, which hold them exactly: no sum of a block times them is beyond 2²⁴.
func tileTable512(bits, group int) {
	name := fmt.Sprintf("avx512TileTable%dx%d", bits, group)
	function(name, "func(out *float32, outStride int, data *byte, panelStride int, x *uint32, blocks, span, groups int, table *byte)",
		fmt.Sprintf("%s multiplies 2 neighbouring panels of %d-bit codes with 8 tokens; strides are in bytes, span in blocks.", name, bits))
	data, second := Load(Param("data"), GP64()).(reg.GPVirtual), Load(Param("panelStride"), GP64()).(reg.GPVirtual)
	ADDQ(data, second)
	bases := []reg.GPVirtual{data, second}
	x, blocks, n := Load(Param("x"), GP64()), Load(Param("blocks"), GP64()), GP64()
	rows, extra, sums := tileRows(x), 2, 1
	if group == 16 {
		extra, sums = 3, 2
	}
	label := func(l string) string { return fmt.Sprintf("tiletable512x%dx%d%s", bits, group, l) }
	t := tableLoop{bits: bits, group: group}
	if group != 0 {
		t.groups, t.at, t.spread = AllocLocal(8), GP64(), AllocLocal(len(bases)*spreadBytes)
		MOVQ(Load(Param("groups"), GP64()), t.groups)
	}
	l := newLookUp512(bits, Load(Param("table"), GP64()))
	acc := wide(tileTokens)
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	scales, subs := AllocLocal(64), wide(sums) // scales of the rows: registers are few
	dots := make([][]reg.VecVirtual, sums)     // of the block, or of its halves
	for i := range dots {
		dots[i] = wide(tileTokens)
	}

	Label(label("span"))
	for i, base := range bases {
		s := YMM()
		VCVTPH2PS(at(base, 0), s)
		VMOVUPS(s, scales.Offset(32*i))
		ADDQ(Imm(16), base)
	}
	t.spreads(bases, label)
	Load(Param("span"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)

	Label(label("block"))
	if group != 0 {
		for _, sub := range subs {
			v := XMM()
			VMOVQ(at(t.at, 0), v)
			VPINSRQ(Imm(1), at(t.at, spreadBytes), v, v)
			VPMOVSXBD(v, sub)
			VCVTDQ2PS(sub, sub)
			ADDQ(Imm(8), t.at)
		}
	}
	for i, part := range dots {
		for k, d := range part {
			VPBROADCASTD(rows(codeRows+1+i, k), d)
		}
	}
	l.each(bases, func(w reg.VecVirtual, column int) { products512(dots[column/16*(sums-1)], w, rows, column/4) })
	for k, d := range dots[0] {
		f := ZMM()
		VCVTDQ2PS(d, d)
		if group != 0 {
			VMULPS(subs[0], d, d)
		}
		if group == 16 {
			more := dots[1][k]
			VCVTDQ2PS(more, more)
			VFMADD231PS(subs[1], more, d)
		}
		VBROADCASTSS(rows(codeRows, k), f)
		VMULPS(scales, f, f)
		VFMADD231PS(d, f, acc[k])
	}
	for _, base := range bases {
		ADDQ(U32(uint32(block*bits)), base)
	}
	ADDQ(U32(uint32(4*tileTokens*(codeRows+extra))), x)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("span")))
	store512(acc)
	VZEROUPPER()
	RET()
}

// products512 adds the products of four columns with those of the tokens.
func products512(dots []reg.VecVirtual, w reg.VecVirtual, rows func(row, token int) Mem, row int) {
	for k, d := range dots {
		VPDPBUSD_BCST(rows(row, k), w, d)
	}
}

// load512 reads as many bytes of two panels. Its first instruction sets all of the register, which then is not held across the loop.
func load512(first, second reg.Register, disp int) reg.VecVirtual {
	w := ZMM()
	VBROADCASTI64X4(at(second, disp), w)
	VINSERTI64X4(Imm(0), at(first, disp), w, w)
	return w
}

// constant512 is a vector of the same dword.
func constant512(value uint32) reg.VecVirtual {
	r, v := GP32(), ZMM()
	MOVL(U32(value), r)
	VPBROADCASTD(r, v)
	return v
}
