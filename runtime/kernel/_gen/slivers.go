package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sliverUnroll is how many columns a turn of the loop of a sliver takes.
const sliverUnroll = 4

// slivers are the loops of MulSliver for some rows at a time, of Transpose, and of MulRows.
func slivers() {
	for _, rows := range []int{1, 2, 3, 4, 6} {
		sliver(rows)
	}
	for _, rows := range []int{1, 2, 4, 8, 14} {
		sliver512(rows)
	}
	slivers512()
	transpose()
	rowsOfSliver("F32", func(src Mem, dst reg.VecVirtual) { VMOVUPS(src, dst) }, 4)
	rowsOfSliver("F16", func(src Mem, dst reg.VecVirtual) { VCVTPH2PS(src, dst) }, 2)
	rowsOfSliver("BF16", func(src Mem, dst reg.VecVirtual) {
		VPMOVZXWD(src, dst)
		VPSLLD(Imm(16), dst, dst)
	}, 2)
}

// sliver multiplies rows with a sliver: every element of the result is a sum in a lane of its own, over columns in order. For six rows there are
// twelve sums of eight lanes, two registers for what is read of the sliver and one for an element of a row: all sixteen, and 12 products
// for 8 loads.
func sliver(rows int) {
	s := sliverLoop{name: fmt.Sprintf("avx2Sliver%d", rows), rows: rows, sums: vectors(2 * rows), width: 32}
	low, high, x := YMM(), YMM(), YMM()
	s.step = func(element func(r int) Mem, b, _ Mem) {
		VMOVUPS(b, low)
		VMOVUPS(b.Offset(32), high)
		for r := range rows {
			VBROADCASTSS(element(r), x)
			VFMADD231PS(low, x, s.sums[2*r])
			VFMADD231PS(high, x, s.sums[2*r+1])
		}
	}
	s.make(func(v reg.VecVirtual) { VXORPS(v, v, v) })
}

// sliver512 is sliver with vectors of the whole width, for up to fourteen rows. The sums are the same.
func sliver512(rows int) {
	s := sliverLoop{name: fmt.Sprintf("avx512Sliver%d", rows), rows: rows, sums: wide(rows), width: 64}
	all := ZMM()
	s.step = func(element func(r int) Mem, b, _ Mem) {
		VMOVUPS(b, all)
		for r := range rows {
			VFMADD231PS_BCST(element(r), all, s.sums[r])
		}
	}
	s.make(func(v reg.VecVirtual) { VPXORD(v, v, v) })
}

// slivers512 is sliver512 for two slivers and twelve rows: an element that was read serves both, so that there are 24 products for 14
// loads.
func slivers512() {
	const rows = 12
	s := sliverLoop{name: "avx512Slivers12", rows: rows, sums: wide(2 * rows), width: 64, pair: true}
	first, second, x := ZMM(), ZMM(), ZMM()
	s.step = func(element func(r int) Mem, b, more Mem) {
		VMOVUPS(b, first)
		VMOVUPS(more, second)
		for r := range rows {
			VBROADCASTSS(element(r), x)
			VFMADD231PS(first, x, s.sums[2*r])
			VFMADD231PS(second, x, s.sums[2*r+1])
		}
	}
	s.make(func(v reg.VecVirtual) { VPXORD(v, v, v) })
}

// sliverLoop is a loop that multiplies rows with a sliver, or with a pair.
type sliverLoop struct {
	name  string
	rows  int
	sums  []reg.VecVirtual // those of a row side by side
	width int              // of a sum, in bytes
	pair  bool
	// step adds the products of a column: element is that of a row, b what the sliver has of it, and more what the second one has.
	step func(element func(r int) Mem, b, more Mem)
}

// make writes the loop.
func (s *sliverLoop) make(zero func(v reg.VecVirtual)) {
	of, parameters := "a sliver", "sliver *float32"
	if s.pair {
		of, parameters = "two slivers", "sliver *float32, sliverStride int"
	}
	function(s.name, "func(out *float32, outStride int, a *float32, aStride int, "+parameters+", n int, add bool)",
		fmt.Sprintf("%s multiplies %d rows of n float32, n not 0, with %s, and adds to out what was there if add is set; strides are in bytes.", s.name, s.rows, of))
	a, stride := Load(Param("a"), GP64()), Load(Param("aStride"), GP64())
	b, n := Load(Param("sliver"), GP64()), Load(Param("n"), GP64())
	more := GP64()
	if s.pair {
		Load(Param("sliverStride"), more)
		ADDQ(b, more)
	}
	bases := []reg.Register{a} // of rows by threes
	for r := 3; r < s.rows; r += 3 {
		next := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, next)
		ADDQ(bases[len(bases)-1], next)
		bases = append(bases, next)
	}
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64())
	to := GP64()
	MOVQ(out, to)
	for r := range s.rows { // what the sums are added to is on its way while they are made
		PREFETCHT0(at(to, 0))
		if s.pair {
			PREFETCHT0(at(to, 64))
		}
		if r+1 < s.rows {
			ADDQ(outStride, to)
		}
	}
	for _, v := range s.sums {
		zero(v)
	}
	step := func(i int) {
		s.step(func(r int) Mem {
			m := Mem{Base: bases[r/3], Disp: 4 * i}
			if r%3 > 0 {
				m.Index, m.Scale = stride, uint8(r%3)
			}
			return m
		}, at(b, 64*i), at(more, 64*i))
	}
	next := func(columns int) {
		ADDQ(I32(64*columns), b)
		if s.pair {
			ADDQ(I32(64*columns), more)
		}
		for _, base := range bases {
			ADDQ(Imm(uint64(4*columns)), base)
		}
	}
	SUBQ(Imm(sliverUnroll), n)
	JLT(LabelRef(s.name + "Rest"))
	Label(s.name + "Turn")
	for i := range sliverUnroll {
		step(i)
	}
	next(sliverUnroll)
	SUBQ(Imm(sliverUnroll), n)
	JGE(LabelRef(s.name + "Turn"))
	Label(s.name + "Rest")
	ADDQ(Imm(sliverUnroll), n)
	JE(LabelRef(s.name + "Out"))
	Label(s.name + "One")
	step(0)
	next(1)
	DECQ(n)
	JNE(LabelRef(s.name + "One"))

	Label(s.name + "Out")
	add := Load(Param("add"), GP8())
	TESTB(add, add)
	JE(LabelRef(s.name + "Set"))
	s.store(out, outStride, true)
	Label(s.name + "Set")
	s.store(out, outStride, false)
}

// store writes the sums, added to what is there or not, and returns.
func (s *sliverLoop) store(out, outStride reg.Register, added bool) {
	each := len(s.sums) / s.rows
	for r := range s.rows {
		for i, v := range s.sums[r*each : (r+1)*each] {
			if added {
				VADDPS(at(out, s.width*i), v, v)
			}
			VMOVUPS(v, at(out, s.width*i))
		}
		if r+1 < s.rows {
			ADDQ(outStride, out)
		}
	}
	VZEROUPPER()
	RET()
}

// transpose turns eight rows into eight columns, eight columns of the rows at a time.
func transpose() {
	function("avx2Transpose", "func(to *float32, toStride int, b *float32, stride, n int)",
		"avx2Transpose turns 8 rows of n float32, a multiple of 8 that is not 0, into columns; strides are in bytes.")
	to, toStride := Load(Param("to"), GP64()), Load(Param("toStride"), GP64())
	b, stride := Load(Param("b"), GP64()), Load(Param("stride"), GP64())
	n := Load(Param("n"), GP64())
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
	ahead := [2]reg.GPVirtual{GP64(), GP64()} // rows 8 and 12
	LEAQ(Mem{Base: b, Index: stride, Scale: 8}, ahead[0])
	LEAQ(Mem{Base: fifth, Index: stride, Scale: 8}, ahead[1])
	Label("transposeTurn")
	v, t, column := vectors(4), vectors(4), YMM()
	store := func() {
		VMOVUPS(column, at(to, 0))
		ADDQ(toStride, to)
	}
	for r := range 8 { // of the next eight rows, each in another page
		m := row(r, 0)
		m.Base = ahead[r/4]
		PREFETCHT0(m)
	}
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
			store()
			VUNPCKHPD(t[2*half+1], t[2*half], column)
			store()
		}
	}
	for _, base := range []reg.Register{b, fifth, ahead[0], ahead[1]} {
		ADDQ(Imm(32), base)
	}
	SUBQ(Imm(8), n)
	JNE(LabelRef("transposeTurn"))
	VZEROUPPER()
	RET()
}

// rowsOfSliver multiplies the rows of a sliver, where they are stored, with one vector: squares of eight are turned in registers. The sums are
// those of sliver(1).
func rowsOfSliver(name string, load func(src Mem, dst reg.VecVirtual), bytes int) {
	name = "avx2Rows" + name
	function(name, "func(out *float32, rows *[16]*byte, x *float32, n int, add bool)",
		name+" multiplies 16 rows of n elements, a multiple of 8 that is not 0, with x, and adds to out what was there if add is set.")
	rows, x, n := Load(Param("rows"), GP64()), Load(Param("x"), GP64()), Load(Param("n"), GP64())
	sums := vectors(2)
	for i := range sums {
		VXORPS(sums[i], sums[i], sums[i])
	}
	at8, row := GP64(), GP64()
	XORQ(at8, at8)
	Label(name + "Turn")
	for octet := range 2 {
		v := vectors(8)
		for r := range v {
			MOVQ(at(rows, 8*(8*octet+r)), row)
			load(Mem{Base: row, Index: at8, Scale: uint8(bytes)}, v[r])
		}
		turn := func(low, high func(ops ...Op), a, b int) { // v[a] gets the low halves of pairs, v[b] the high ones
			t := YMM()
			low(v[b], v[a], t)
			high(v[b], v[a], v[b])
			v[a] = t
		}
		pair := func(a, b int) {
			turn(VUNPCKLPS, VUNPCKHPS, a, b)
		}
		for r := 0; r < 8; r += 2 {
			pair(r, r+1)
		}
		double := func(a, b int) { turn(VUNPCKLPD, VUNPCKHPD, a, b) }
		for r := 0; r < 8; r += 4 {
			double(r, r+2)   // columns 0 and 1 of the rows, and 4 and 5
			double(r+1, r+3) // 2 and 3, 6 and 7
		}
		order := [4]int{0, 2, 1, 3} // the registers of columns 0, 1, 2, 3
		column, factor := YMM(), YMM()
		for k := range 8 {
			half := uint64(0x20)
			if k >= 4 {
				half = 0x31
			}
			from := order[k%4]
			VPERM2F128(Imm(half), v[from+4], v[from], column)
			VBROADCASTSS(Mem{Base: x, Index: at8, Scale: 4, Disp: 4 * k}, factor)
			VFMADD231PS(column, factor, sums[octet])
		}
	}
	ADDQ(Imm(8), at8)
	CMPQ(at8, n)
	JLT(LabelRef(name + "Turn"))
	out, add := Load(Param("out"), GP64()), Load(Param("add"), GP8())
	TESTB(add, add)
	JE(LabelRef(name + "Set"))
	for i, v := range sums {
		VADDPS(at(out, 32*i), v, v)
	}
	Label(name + "Set")
	for i, v := range sums {
		VMOVUPS(v, at(out, 32*i))
	}
	VZEROUPPER()
	RET()
}
