package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tileTokens is the number of tokens of a tile: a register of sums for each, and the half of the registers that is left
// holds unpacked codes and some of the results.
const tileTokens = 8

// heldTokens is the number of a tile's tokens whose results stay in registers. Those of the others are memory, which
// takes a store a block and none of the arithmetic units.
const heldTokens = 4

// Offsets of the last parameters of a tile's loop in the frame.
const (
	tileFactorOffset = 76
	tileBiasOffset   = 80
)

// tiles writes the loops over tiles of tokens.
func tiles() {
	gather(codes4)
	gather(codesFine)
	tile(codes4, "", true)
	tile(codesFine, "", true)
	tile(codesFine, "Sym", false)
}

// tileBytes is the storage of a block of a tile's activations: codes token by token, their scales and their sums.
func (c codes) tileBytes() int { return tileTokens * (1<<c.shift + 8) }

// gather lays the codes, scales and sums of a tile's tokens side by side, block after block. Rows of them are often a power of
// two apart, where the first cache has no room for many: read as they are, tokens would displace each other.
func gather(c codes) {
	name := "avx2Gather" + c.name
	function(name, "func(to *byte, q *"+c.activation+", stride int, scale, sum *float32, scaleStride, blocks int)",
		name+" lays blocks of 8 tokens side by side; strides are the bytes from token to token.")
	to := Load(Param("to"), GP64())
	q, stride := Load(Param("q"), GP64()), Load(Param("stride"), GP64())
	scale, sum, scaleStride := Load(Param("scale"), GP64()), Load(Param("sum"), GP64()), Load(Param("scaleStride"), GP64())
	n := Load(Param("blocks"), GP64())
	// A register for each of the first and the fifth token, with strides of one and three.
	three, scaleThree := GP64(), GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, three)
	LEAQ(Mem{Base: scaleStride, Index: scaleStride, Scale: 2}, scaleThree)
	fifth := func(base, stride reg.Register) reg.GPVirtual {
		r := GP64()
		LEAQ(Mem{Base: base, Index: stride, Scale: 4}, r)
		return r
	}
	near := func(base, stride, three reg.Register, t, disp int) Mem {
		m := Mem{Base: base, Disp: disp}
		switch t {
		case 1, 2:
			m.Index, m.Scale = stride, uint8(t)
		case 3:
			m.Index, m.Scale = three, 1
		}
		return m
	}
	label := "gather" + c.name
	Label(label)
	size := 1 << c.shift
	v := YMM()
	for half, base := range []reg.Register{q, fifth(q, stride)} {
		for t := range 4 {
			for i := 0; i < size; i += 32 {
				VMOVDQU(near(base, stride, three, t, i), v)
				VMOVDQU(v, at(to, (4*half+t)*size+i))
			}
		}
	}
	x := XMM()
	for i, from := range []reg.Register{scale, sum} {
		for half, base := range []reg.Register{from, fifth(from, scaleStride)} {
			VMOVSS(near(base, scaleStride, scaleThree, 0, 0), x)
			for t := 1; t < 4; t++ {
				VINSERTPS(Imm(uint64(t<<4)), near(base, scaleStride, scaleThree, t, 0), x, x)
			}
			VMOVUPS(x, at(to, tileTokens*size+32*i+16*half))
		}
	}
	ADDQ(U32(uint32(c.tileBytes())), to)
	ADDQ(U32(uint32(size)), q)
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	DECQ(n)
	JNE(LabelRef(label))
	VZEROUPPER()
	RET()
}

// tile multiplies some columns of neighbouring panels with a tile's tokens. What it computes for a token and a row, and in
// which order, is what panels does for a single token. zeros is whether there are zero points.
func tile(c codes, suffix string, zeros bool) {
	name := "avx2Tile" + c.name + suffix
	TEXT(name, attr.NOSPLIT, "func(out *float32, outStride int, data *byte, panelStride, panels int, x *byte, results *float32, blocks, group int, add, asym bool, zeroFactor, zeroBias float32)")
	Pragma("noescape")
	Doc(name + " multiplies panels of " + c.doc + " with 8 tokens, as avx2Gather" + c.name + " lays them, and sets out, or adds to what is there; results is memory of 8 vectors to work in. Strides are in bytes, group is in blocks.")
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64())
	data, panels := Load(Param("data"), GP64()), Load(Param("panels"), GP64())
	results := Load(Param("results"), GP64())
	label := func(l string) string { return "tile" + c.name + suffix + l }

	dots, held, work := vectors(tileTokens), vectors(heldTokens), vectors(4)
	place, w, x, blocks, n, flag := GP64(), GP64(), GP64(), GP64(), GP64(), GP8()
	// each visits the results of the tokens in turn: in a register, or in memory.
	each := func(f func(t int, m Mem)) {
		MOVQ(out, place)
		for t := range tileTokens {
			f(t, at(results, 32*(t-heldTokens)))
			if t+1 < tileTokens {
				ADDQ(outStride, place)
			}
		}
	}

	Label(label("panel"))
	Load(Param("add"), flag)
	TESTB(flag, flag)
	JNE(LabelRef(label("add")))
	for t := range tileTokens {
		if t < heldTokens {
			VXORPS(held[t], held[t], held[t])
		} else {
			VMOVUPS(held[0], at(results, 32*(t-heldTokens)))
		}
	}
	JMP(LabelRef(label("start")))
	Label(label("add"))
	each(func(t int, m Mem) {
		if t < heldTokens {
			VMOVUPS(at(place, 0), held[t])
		} else {
			VMOVUPS(at(place, 0), work[0])
			VMOVUPS(work[0], m)
		}
	})
	Label(label("start"))
	MOVQ(data, w)
	Load(Param("x"), x)
	Load(Param("blocks"), blocks)

	Label(label("group"))
	s, zero, f := work[0], work[1], work[2]
	scales, zeroes := at(results, 32*(tileTokens-heldTokens)), at(results, 32*(tileTokens-heldTokens+1))
	Load(Param("group"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	VCVTPH2PS(at(w, 0), s)
	VMOVUPS(s, scales)
	if zeros {
		VBROADCASTSS(NewParamAddr("zeroBias", tileBiasOffset), zero)
	}
	ADDQ(Imm(16), w)
	if zeros {
		Load(Param("asym"), flag)
		TESTB(flag, flag)
		JE(LabelRef(label("zero")))
		VPMOVZXBD(at(w, 0), s)
		VCVTDQ2PS(s, s)
		VBROADCASTSS(NewParamAddr("zeroFactor", tileFactorOffset), f)
		VMULPS(f, s, s)
		VADDPS(zero, s, zero)
		ADDQ(Imm(8), w)
		Label(label("zero"))
		VMOVUPS(zero, zeroes)
	}

	Label(label("block"))
	if c.name == "4" {
		tile4(dots, work, w, x)
	} else {
		tileFine(dots, work, w, x)
	}
	VMOVUPS(scales, s)
	if zeros {
		VMOVUPS(zeroes, zero)
	}
	for t, d := range dots { // as finish does
		if c.name == "4" {
			VPMADDWD(ones, d, d)
		}
		VCVTDQ2PS(d, d)
		size := tileTokens << c.shift
		if zeros {
			VBROADCASTSS(at(x, size+4*tileTokens+4*t), f)
			VFNMADD231PS(f, zero, d)
		}
		VBROADCASTSS(at(x, size+4*t), f)
		VMULPS(f, s, f)
		if t < heldTokens {
			VFMADD231PS(d, f, held[t])
		} else {
			m := at(results, 32*(t-heldTokens))
			VFMADD213PS(m, f, d)
			VMOVUPS(d, m)
		}
	}
	ADDQ(U32(uint32(c.bytes)), w)
	ADDQ(U32(uint32(c.tileBytes())), x)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("group")))

	each(func(t int, m Mem) {
		if t < heldTokens {
			VMOVUPS(held[t], at(place, 0))
		} else {
			VMOVUPS(m, work[0])
			VMOVUPS(work[0], at(place, 0))
		}
	})
	ADDQ(Imm(32), out)
	Load(Param("panelStride"), n)
	ADDQ(n, data)
	DECQ(panels)
	JNE(LabelRef(label("panel")))
	VZEROUPPER()
	RET()
}

// tile4 sums the products of a block of 4-bit codes as words, two a row: see panels for why they do not overflow.
func tile4(dots, work []reg.VecVirtual, w, x reg.Register) {
	low, high, product, mask := work[0], work[1], work[2], work[3]
	VMOVDQU(nibbles, mask)
	for v := range 4 {
		VMOVDQU(at(w, 32*v), low)
		VPSRLW(Imm(4), low, high)
		VPAND(mask, low, low)
		VPAND(mask, high, high)
		for i, codes := range []reg.VecVirtual{low, high} {
			for t, d := range dots {
				VPBROADCASTD(at(x, block*t+16*i+4*v), product)
				if v+i == 0 {
					VPMADDUBSW(product, codes, d)
					continue
				}
				VPMADDUBSW(product, codes, product)
				VPADDW(product, d, d)
			}
		}
	}
}

// tileFine sums the products of a block of 8-bit codes with int16 as dwords: see blockFine.
func tileFine(dots, work []reg.VecVirtual, w, x reg.Register) {
	even, odd, product := work[0], work[1], work[2]
	for v := range 8 {
		VMOVDQU(at(w, 32*v), odd)
		VPSLLW(Imm(8), odd, even)
		VPSRAW(Imm(8), odd, odd)
		VPSRAW(Imm(8), even, even)
		for i, codes := range []reg.VecVirtual{even, odd} {
			for t, d := range dots {
				VPBROADCASTD(at(x, 2*block*t+8*v+4*i), product)
				if v+i == 0 {
					VPMADDWD(product, codes, d)
					continue
				}
				VPMADDWD(product, codes, product)
				VPADDD(product, d, d)
			}
		}
	}
}
