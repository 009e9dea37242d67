package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// element is a type that keys and values are kept in: how eight of them become float32.
type element struct {
	name, param string
	size        uint8
	widen       func(src Mem, dst reg.VecVirtual)
}

var elements = []element{
	{"F32", "float32", 4, func(src Mem, dst reg.VecVirtual) { VMOVUPS(src, dst) }},
	{"F16", "uint16", 2, func(src Mem, dst reg.VecVirtual) { VCVTPH2PS(src, dst) }},
	{"I8", "int8", 1, func(src Mem, dst reg.VecVirtual) {
		VPMOVSXBD(src, dst)
		VCVTDQ2PS(dst, dst)
	}},
}

// attentions writes the loops of attention.
func attentions() {
	for _, e := range elements {
		scores(e)
		scores4(e)
		mix(e, 1, 4)
		mix(e, 4, 2)
	}
	multiply()
	gate()
	greatest()
	narrow()
}

// pointer gives a register with the address n strides after base.
func pointer(base reg.Register, stride reg.Register, n int) reg.GPVirtual {
	p := GP64()
	MOVQ(base, p)
	for range n {
		ADDQ(stride, p)
	}
	return p
}

// ask prefetches n bytes, which may be anywhere: those that the loop is in need of next lie apart from those it reads.
func ask(from Op, n int) {
	m, ok := from.(Mem)
	if !ok {
		m = Mem{Base: from.(reg.Register)}
	}
	for line := 0; line < n; line += 64 {
		m.Disp = line
		PREFETCHT0(m)
	}
}

// rowBytes gives the bytes of dim elements.
func rowBytes(dim reg.Register, size uint8) reg.GPVirtual {
	b := GP64()
	MOVQ(dim, b)
	if shift := map[uint8]uint64{1: 0, 2: 1, 4: 2}[size]; shift > 0 {
		SHLQ(Imm(shift), b)
	}
	return b
}

// scores multiplies one query with keys, four at a time. Every product of a query and a key has one vector of
// partial sums, added up as scores4 does it.
func scores(e element) {
	name := "avx2Scores" + e.name + "x1"
	function(name, fmt.Sprintf("func(out, q *float32, dim int, keys, ahead *%s, n int)", e.param),
		name+" sets out to the products of q with n keys, a multiple of 4 that is not 0, of dim elements, a multiple of 8 that is not 0. It asks for as many from ahead on.")
	out, q, dim := Load(Param("out"), GP64()), Load(Param("q"), GP64()), Load(Param("dim"), GP64())
	key, n := Load(Param("keys"), GP64()), Load(Param("n"), GP64())
	next := Load(Param("ahead"), GP64())
	row := rowBytes(dim, e.size)
	keys := []reg.Register{key}
	for i := range 3 {
		keys = append(keys, pointer(key, row, i+1))
	}
	SHLQ(Imm(2), row) // of four keys
	at := GP64()
	acc := vectors(4)
	v, x := YMM(), YMM()
	Label(name + "Keys")
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	XORQ(at, at)
	Label(name + "Step")
	VMOVUPS(Mem{Base: q, Index: at, Scale: 4}, x)
	for i, a := range acc {
		e.widen(Mem{Base: keys[i], Index: at, Scale: e.size}, v)
		VFMADD231PS(v, x, a)
	}
	ask(next, 32*int(e.size))
	ADDQ(U32(32*uint32(e.size)), next)
	ADDQ(Imm(8), at)
	CMPQ(at, dim)
	JLT(LabelRef(name + "Step"))
	VHADDPS(acc[1], acc[0], acc[0])
	VHADDPS(acc[3], acc[2], acc[2])
	VHADDPS(acc[2], acc[0], acc[0])
	VEXTRACTF128(Imm(1), acc[0], v.AsX())
	VADDPS(v.AsX(), acc[0].AsX(), acc[0].AsX())
	VMOVUPS(acc[0].AsX(), Mem{Base: out})
	for _, k := range keys {
		ADDQ(row, k)
	}
	ADDQ(Imm(16), out)
	SUBQ(Imm(4), n)
	JNE(LabelRef(name + "Keys"))
	VZEROUPPER()
	RET()
}

// scores4 multiplies four queries with keys, two at a time, each read and widened once.
func scores4(e element) {
	name := "avx2Scores" + e.name + "x4"
	function(name, fmt.Sprintf("func(out *float32, stride int, q *float32, dim int, keys, ahead *%s, n int)", e.param),
		name+" sets out, rows of stride bytes, to the products of four queries with n keys, a multiple of 2 that is not 0, of dim elements, a multiple of 8 that is not 0. It asks for as many from ahead on.")
	out, stride := Load(Param("out"), GP64()), Load(Param("stride"), GP64())
	first, dim := Load(Param("q"), GP64()), Load(Param("dim"), GP64())
	key, next := Load(Param("keys"), GP64()), Load(Param("ahead"), GP64())
	count, err := Param("n").Resolve()
	if err != nil {
		panic(err)
	}
	row := rowBytes(dim, 4)
	q := []reg.Register{first}
	for i := range 3 {
		q = append(q, pointer(first, row, i+1))
	}
	row = rowBytes(dim, e.size)
	second := pointer(key, row, 1)
	ADDQ(row, row)    // of two keys
	acc := vectors(8) // query by query
	v, x := vectors(2), YMM()
	at := GP64()
	Label(name + "Keys")
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	XORQ(at, at)
	Label(name + "Step")
	e.widen(Mem{Base: key, Index: at, Scale: e.size}, v[0])
	e.widen(Mem{Base: second, Index: at, Scale: e.size}, v[1])
	for i := range q {
		VMOVUPS(Mem{Base: q[i], Index: at, Scale: 4}, x)
		VFMADD231PS(v[0], x, acc[2*i])
		VFMADD231PS(v[1], x, acc[2*i+1])
	}
	ask(next, 16*int(e.size))
	ADDQ(U32(16*uint32(e.size)), next)
	ADDQ(Imm(8), at)
	CMPQ(at, dim)
	JLT(LabelRef(name + "Step"))
	for i := range 4 {
		VHADDPS(acc[2*i+1], acc[2*i], acc[2*i])
	}
	to := pointer(out, stride, 2)
	for i := range 2 { // of queries 2i and 2i+1, both keys each
		a := acc[4*i]
		VHADDPS(acc[4*i+2], a, a)
		VEXTRACTF128(Imm(1), a, v[0].AsX())
		VADDPS(v[0].AsX(), a.AsX(), a.AsX())
		base := []reg.Register{out, to}[i]
		VMOVLPS(a.AsX(), Mem{Base: base})
		VMOVHPS(a.AsX(), Mem{Base: base, Index: stride, Scale: 1})
	}
	ADDQ(row, key)
	ADDQ(row, second)
	ADDQ(Imm(8), out)
	SUBQ(Imm(2), count.Addr) // in memory: registers are short
	JNE(LabelRef(name + "Keys"))
	VZEROUPPER()
	RET()
}

// mix adds values weighted for some queries to their sums, wide vectors of eight elements at a time and then one.
// Each element is summed in the order of the values.
func mix(e element, queries, wide int) {
	name := fmt.Sprintf("avx2Mix%sx%d", e.name, queries)
	function(name, fmt.Sprintf("func(out, factors, p *float32, stride, dim int, values, ahead *%s, n int)", e.param),
		fmt.Sprintf("%s multiplies the sums of %d queries by factors and adds n values of dim elements, a multiple of 8 that is not 0, weighted by p, rows of stride bytes. n is not 0. It asks for as many from ahead on.", name, queries))
	out, factors := Load(Param("out"), GP64()), Load(Param("factors"), GP64())
	stride, dim := Load(Param("stride"), GP64()), Load(Param("dim"), GP64())
	values, ahead := Load(Param("values"), GP64()), Load(Param("ahead"), GP64())
	SUBQ(values, ahead)
	outRow, row := rowBytes(dim, 4), rowBytes(dim, e.size)
	left := dim
	SHRQ(Imm(3), left)
	p, third, value, i := GP64(), GP64(), GP64(), GP64()
	// chunk adds up the next vectors of the sums.
	chunk := func(width int) {
		label := fmt.Sprintf("%sw%d", name, width)
		acc, v, f := vectors(queries*width), vectors(width), YMM()
		sums := pointer(out, outRow, 0)
		for q := range queries {
			VBROADCASTSS(Mem{Base: factors, Disp: 4 * q}, f)
			for k := range width {
				VMULPS(Mem{Base: sums, Disp: 32 * k}, f, acc[q*width+k])
			}
			if q+1 < queries {
				ADDQ(outRow, sums)
			}
		}
		Load(Param("p"), p)
		if queries > 3 {
			LEAQ(Mem{Base: p, Index: stride, Scale: 2}, third)
		}
		Load(Param("n"), i)
		MOVQ(values, value)
		Label(label)
		for k := range width {
			e.widen(Mem{Base: value, Disp: 8 * int(e.size) * k}, v[k])
		}
		for q := range queries {
			VBROADCASTSS(token(p, stride, third, q, 0), f)
			for k := range width {
				VFMADD231PS(v[k], f, acc[q*width+k])
			}
		}
		ask(Mem{Base: value, Index: ahead, Scale: 1}, 8*int(e.size)*width)
		ADDQ(row, value)
		ADDQ(Imm(4), p)
		if queries > 3 {
			ADDQ(Imm(4), third)
		}
		DECQ(i)
		JNE(LabelRef(label))
		sums = pointer(out, outRow, 0)
		for q := range queries {
			for k := range width {
				VMOVUPS(acc[q*width+k], Mem{Base: sums, Disp: 32 * k})
			}
			if q+1 < queries {
				ADDQ(outRow, sums)
			}
		}
		ADDQ(U32(uint32(32*width)), out)
		ADDQ(U32(uint32(8*width*int(e.size))), values)
		SUBQ(Imm(uint64(width)), left)
	}
	Label(name + "Wide")
	CMPQ(left, Imm(uint64(wide)))
	JLT(LabelRef(name + "Rest"))
	chunk(wide)
	JMP(LabelRef(name + "Wide"))
	Label(name + "Rest")
	TESTQ(left, left)
	JE(LabelRef(name + "End"))
	chunk(1)
	JMP(LabelRef(name + "Rest"))
	Label(name + "End")
	VZEROUPPER()
	RET()
}

// multiply multiplies element by element.
func multiply() {
	function("avx2Multiply", "func(x, y *float32, n int)", "avx2Multiply multiplies n elements of x, a multiple of 8 that is not 0, by those of y.")
	x, y, n := Load(Param("x"), GP64()), Load(Param("y"), GP64()), Load(Param("n"), GP64())
	v := YMM()
	Label("multiplyStep")
	VMOVUPS(at(x, 0), v)
	VMULPS(at(y, 0), v, v)
	VMOVUPS(v, at(x, 0))
	ADDQ(Imm(32), x)
	ADDQ(Imm(32), y)
	SUBQ(Imm(8), n)
	JNE(LabelRef("multiplyStep"))
	VZEROUPPER()
	RET()
}

// gate divides by one more than an exponential, and multiplies.
func gate() {
	function("avx2Gate", "func(e, gate, up *float32, n int)", "avx2Gate replaces n elements of e, a multiple of 8 that is not 0, by gate/(1 + e)·up.")
	e, g, up := Load(Param("e"), GP64()), Load(Param("gate"), GP64()), Load(Param("up"), GP64())
	n := Load(Param("n"), GP64())
	one, v, d := YMM(), YMM(), YMM()
	VMOVUPS(expTerms[len(expTerms)-1], one)
	Label("gateStep")
	VADDPS(at(e, 0), one, d)
	VMOVUPS(at(g, 0), v)
	VDIVPS(d, v, v)
	VMULPS(at(up, 0), v, v)
	VMOVUPS(v, at(e, 0))
	for _, p := range []reg.Register{e, g, up} {
		ADDQ(Imm(32), p)
	}
	SUBQ(Imm(8), n)
	JNE(LabelRef("gateStep"))
	VZEROUPPER()
	RET()
}

// greatest finds the greatest element.
func greatest() {
	function("avx2Greatest", "func(x *float32, n int) float32", "avx2Greatest gives the greatest of n elements, a multiple of 8 that is not 0.")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	most, v := YMM(), YMM()
	VMOVUPS(at(x, 0), most)
	Label("greatestStep")
	VMAXPS(at(x, 0), most, most)
	ADDQ(Imm(32), x)
	SUBQ(Imm(8), n)
	JNE(LabelRef("greatestStep"))
	across(most, v, VMAXPS)
	Store(most.AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// narrow writes binary16 numbers.
func narrow() {
	function("avx2EncodeF16", "func(dst *uint16, src *float32, n int)", "avx2EncodeF16 rounds n numbers, a multiple of 8 that is not 0, to binary16, to nearest, ties to even.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	v := YMM()
	Label("encodeF16Step")
	VMOVUPS(at(src, 0), v)
	VCVTPS2PH(Imm(0), v, at(dst, 0))
	ADDQ(Imm(32), src)
	ADDQ(Imm(16), dst)
	SUBQ(Imm(8), n)
	JNE(LabelRef("encodeF16Step"))
	VZEROUPPER()
	RET()
}
