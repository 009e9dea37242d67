package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sliverUnroll is how many columns a turn of the loop of a sliver takes.
const sliverUnroll = 4

// slivers are the loops of MulSliver for some rows at a time, and of PackSliver.
func slivers() {
	for _, rows := range []int{1, 2, 3, 4, 6} {
		sliver(rows)
	}
	packSliver()
}

// sliver multiplies rows with a sliver: every element of the result is a sum in a lane of its own, over columns in order. For six rows there are
// twelve sums of eight lanes, two registers for what is read of the sliver and one for an element of a row: all sixteen, and 12 products
// for 8 loads.
func sliver(rows int) {
	name := fmt.Sprintf("avx2Sliver%d", rows)
	function(name, "func(out *float32, outStride int, a *float32, aStride int, sliver *float32, n int, add bool)",
		fmt.Sprintf("%s multiplies %d rows of n float32, n not 0, with a sliver, and adds to out what was there if add is set; strides are in bytes.", name, rows))
	a, stride := Load(Param("a"), GP64()), Load(Param("aStride"), GP64())
	b, n := Load(Param("sliver"), GP64()), Load(Param("n"), GP64())
	fourth := GP64()
	if rows > 3 {
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, fourth)
		ADDQ(a, fourth)
	}
	row := func(r, disp int) Mem {
		base := reg.Register(a)
		if r >= 3 {
			base, r = fourth, r-3
		}
		if r == 0 {
			return at(base, disp)
		}
		return Mem{Base: base, Index: stride, Scale: uint8(r), Disp: disp}
	}
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64())
	to := GP64()
	MOVQ(out, to)
	acc := vectors(2 * rows)
	for i, v := range acc {
		VXORPS(v, v, v)
		if i%2 == 0 { // what the sums are added to is on its way while they are made
			PREFETCHT0(at(to, 0))
			ADDQ(outStride, to)
		}
	}
	low, high, x := YMM(), YMM(), YMM()
	step := func(i int) {
		VMOVUPS(at(b, 64*i), low)
		VMOVUPS(at(b, 64*i+32), high)
		for r := range rows {
			VBROADCASTSS(row(r, 4*i), x)
			VFMADD231PS(low, x, acc[2*r])
			VFMADD231PS(high, x, acc[2*r+1])
		}
	}
	next := func(columns int) {
		ADDQ(I32(64*columns), b)
		ADDQ(Imm(uint64(4*columns)), a)
		if rows > 3 {
			ADDQ(Imm(uint64(4*columns)), fourth)
		}
	}
	SUBQ(Imm(sliverUnroll), n)
	JLT(LabelRef(name + "Rest"))
	Label(name + "Turn")
	for i := range sliverUnroll {
		step(i)
	}
	next(sliverUnroll)
	SUBQ(Imm(sliverUnroll), n)
	JGE(LabelRef(name + "Turn"))
	Label(name + "Rest")
	ADDQ(Imm(sliverUnroll), n)
	JE(LabelRef(name + "Out"))
	Label(name + "One")
	step(0)
	next(1)
	DECQ(n)
	JNE(LabelRef(name + "One"))

	Label(name + "Out")
	add := Load(Param("add"), GP8())
	TESTB(add, add)
	JE(LabelRef(name + "Set"))
	store := func(added bool) {
		for r := range rows {
			for half := range 2 {
				if added {
					VADDPS(at(out, 32*half), acc[2*r+half], acc[2*r+half])
				}
				VMOVUPS(acc[2*r+half], at(out, 32*half))
			}
			if r+1 < rows {
				ADDQ(outStride, out)
			}
		}
		VZEROUPPER()
		RET()
	}
	store(true)
	Label(name + "Set")
	store(false)
}

// packSliver turns eight rows into eight columns of a sliver, eight columns of the rows at a time.
func packSliver() {
	function("avx2PackSliver", "func(sliver, b *float32, stride, n int)",
		"avx2PackSliver lays out 8 rows of n float32, a multiple of 8 that is not 0, as half the width of a sliver; stride is in bytes.")
	to, b := Load(Param("sliver"), GP64()), Load(Param("b"), GP64())
	stride, n := Load(Param("stride"), GP64()), Load(Param("n"), GP64())
	fifth, triple := GP64(), GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
	LEAQ(Mem{Base: b, Index: stride, Scale: 4}, fifth)
	row := func(r, disp int) Mem {
		base := reg.Register(b)
		if r >= 4 {
			base, r = fifth, r-4
		}
		switch r {
		case 0:
			return at(base, disp)
		case 3:
			return Mem{Base: base, Index: triple, Scale: 1, Disp: disp}
		}
		return Mem{Base: base, Index: stride, Scale: uint8(r), Disp: disp}
	}
	Label("packSliverTurn")
	v, t, column := vectors(4), vectors(4), YMM()
	for quarter := range 2 {
		// Rows r and r+4 share registers, a half each: what is left is to turn squares of four within halves.
		for r := range v {
			VMOVUPS(row(r, 16*quarter), v[r].AsX())
			VINSERTF128(Imm(1), row(r+4, 16*quarter), v[r], v[r])
		}
		for pair := range 2 {
			VUNPCKLPS(v[2*pair+1], v[2*pair], t[pair])
			VUNPCKHPS(v[2*pair+1], v[2*pair], t[2+pair])
		}
		for half := range 2 {
			VUNPCKLPD(t[2*half+1], t[2*half], column)
			VMOVUPS(column, at(to, 64*(4*quarter+2*half)))
			VUNPCKHPD(t[2*half+1], t[2*half], column)
			VMOVUPS(column, at(to, 64*(4*quarter+2*half+1)))
		}
	}
	ADDQ(Imm(32), b)
	ADDQ(Imm(32), fifth)
	ADDQ(U32(512), to)
	SUBQ(Imm(8), n)
	JNE(LabelRef("packSliverTurn"))
	VZEROUPPER()
	RET()
}
