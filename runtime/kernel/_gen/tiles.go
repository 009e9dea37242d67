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
	tile(codes4, "", true)
	tile(codesFine, "", true)
	tile(codesFine, "Sym", false)
}

// tileBytes is the storage of a block of a tile's activations: for each dword of codes those of all tokens, then a vector of
// scales and one of sums.
func (c codes) tileBytes() int { return tileTokens * (1<<c.shift + 8) }

// middle is where the register for a tile's activations points to within a block: more of them are near it, for which
// addresses are shorter.
const middle = 128

// tile multiplies some columns of neighbouring panels with a tile's tokens. What it computes for a token and a row, and in
// which order, is what panels does for a single token. zeros is whether there are zero points.
func tile(c codes, suffix string, zeros bool) {
	name := "avx2Tile" + c.name + suffix
	TEXT(name, attr.NOSPLIT, "func(out *float32, outStride int, data *byte, panelStride, panels int, x *uint32, results *float32, blocks, group int, add, asym bool, zeroFactor, zeroBias float32)")
	Pragma("noescape")
	Doc(name + " multiplies panels of " + c.doc + " with 8 tokens, as arrange lays them, and sets out, or adds to what is there; results is memory of 8 vectors to work in. Strides are in bytes, group is in blocks.")
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
	ADDQ(U32(middle), x)
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
			VBROADCASTSS(at(x, size+32+4*t-middle), f)
			VFNMADD231PS(f, zero, d)
		}
		VBROADCASTSS(at(x, size+4*t-middle), f)
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
				VPBROADCASTD(at(x, 32*(4*i+v)+4*t-middle), product)
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
				VPBROADCASTD(at(x, 32*(2*v+i)+4*t-middle), product)
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
