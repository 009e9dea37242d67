// Command _gen writes the assembly of package kernel:
//
//	go run . -out ../loops_amd64.s -stubs ../loops_amd64.go -pkg kernel
//	go run . foreign -out ../foreignloops_amd64.s -stubs ../foreignloops_amd64.go -pkg kernel
//
// Every loop here has a portable twin in ../generic.go that defines its result. Functions named avx2… use
// AVX2, FMA and F16C, those named avx512… also AVX-512 F, BW, DQ, VL and VNNI.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64,!noasm")
	if len(os.Args) > 1 && os.Args[1] == "foreign" { // loops in a file of their own
		os.Args = slices.Delete(os.Args, 1, 2)
		foreignConstants()
		foreigns()
		Generate()
		return
	}
	constants()
	exponentials()
	tableConstants()
	quantize(false)
	quantize(true)
	for _, c := range []codes{codes4, codes8, codesFine} {
		panels(c, 1, 1)
		panels(c, 1, 2)
		panels(c, 4, 1)
	}
	tiles()
	for _, bits := range []int{4, 8} {
		panels512(bits, 1)
		panels512(bits, 4)
	}
	both512()
	tables()
	tables512()
	tiles512()
	wides()
	slivers()
	dot()
	axpy()
	exponential()
	largest()
	encode()
	fit()
	fitTable()
	loss()
	decodes()
	attentions()
	Generate()
}

// block is the number of columns that share an activation scale, as packed.Block.
const block = 32

var tableLow, tableHigh, tableSteps, tableOffset Mem // of fitTable

var ones, nibbles, magnitudes, limits, fineLimits, infinities, order Mem

// Of the exponential: see expGeneric.
var (
	expLow, expHigh, expLog2, expLn2High, expLn2Low Mem
	expTerms                                        []Mem
)

// constants lays the vectors of constants into read-only data.
func constants() {
	vector := func(name string, values ...uint32) Mem {
		m := GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range 8 {
			DATA(4*i, U32(values[i%len(values)]))
		}
		return m
	}
	ones = vector("ones", 0x00010001)
	nibbles = vector("nibbles", 0x0f0f0f0f)
	magnitudes = vector("magnitudes", 0x7fffffff)
	limits = vector("limits", 0x42fe0000)                                                  // 127
	fineLimits = vector("fineLimits", 0x44ffe000)                                          // 2047
	tableLow, tableHigh = vector("tableLow", 0xc3000000), vector("tableHigh", 0x43000000)  // -128, 128
	tableSteps, tableOffset = vector("tableSteps", 0x40800000), vector("tableOffset", 512) // 4
	infinities = vector("infinities", 0x7f800000)                                          //
	order = vector("order", 0, 4, 1, 5, 2, 6, 3, 7)                                        // undoes what packing within lanes does
}

// exponentials lays the constants of the exponential.
func exponentials() {
	vector := func(name string, value float32) Mem {
		m := GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range 8 {
			DATA(4*i, F32(value))
		}
		return m
	}
	expLow, expHigh = vector("expLow", -87), vector("expHigh", 88)
	expLog2 = vector("expLog2", 1.44269504)
	expLn2High, expLn2Low = vector("expLn2High", 0.693359375), vector("expLn2Low", -2.12194440e-4)
	for i, c := range []float32{1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 0.5, 1, 1} {
		expTerms = append(expTerms, vector(fmt.Sprintf("expTerm%d", i), c))
	}
}

// function begins a function whose calls are short and need no stack.
func function(name, signature, doc string) {
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc)
}

func at(base reg.Register, disp int) Mem { return Mem{Base: base, Disp: disp} }

// vectors takes n registers.
func vectors(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = YMM()
	}
	return v
}

// quantize is quantizeGeneric for whole blocks, or quantizeFineGeneric.
func quantize(fine bool) {
	name, activation, label, largestCode := "avx2Quantize", "int8", "quantizeBlock", limits
	if fine {
		name, activation, label, largestCode = "avx2QuantizeFine", "int16", "quantizeFineBlock", fineLimits
	}
	function(name, "func(q *"+activation+", scale, sum, x *float32, blocks int)",
		name+" sets the codes, scales and sums of blocks of 32 elements of x.")
	q, scale := Load(Param("q"), GP64()), Load(Param("scale"), GP64())
	sum, x := Load(Param("sum"), GP64()), Load(Param("x"), GP64())
	n := Load(Param("blocks"), GP64())
	mask, limit, perm, one := YMM(), YMM(), YMM(), YMM()
	VMOVUPS(magnitudes, mask)
	VMOVUPS(largestCode, limit)
	if !fine {
		VMOVDQU(order, perm)
	}
	VMOVDQU(ones, one)

	Label(label)
	v, most, t := vectors(4), YMM(), YMM()
	for i := range v {
		VMOVUPS(at(x, 32*i), v[i])
		if i == 0 {
			VANDPS(mask, v[i], most)
			continue
		}
		VANDPS(mask, v[i], t)
		VMAXPS(t, most, most)
	}
	across(most, t, VMAXPS)
	// scale = most/127, or 2047 in its place; inverse is the other way round, and 0 where that is infinite, as it is for 0 and for numbers
	// too small to keep.
	inverse, finite := YMM(), YMM()
	VDIVPS(limit, most, t)                      // most/127
	VDIVPS(most, limit, inverse)                // 127/most
	VCMPPS(Imm(1), infinities, inverse, finite) // inverse < infinity
	VANDPS(finite, inverse, inverse)
	VANDPS(finite, t, t)
	VMOVSS(t.AsX(), at(scale, 0))
	for i := range v {
		VMULPS(inverse, v[i], v[i])
		VCVTPS2DQ(v[i], v[i])
	}
	VPACKSSDW(v[1], v[0], v[0])
	VPACKSSDW(v[3], v[2], v[2])
	VPMADDWD(one, v[0], v[1])
	VPMADDWD(one, v[2], v[3])
	VPADDD(v[3], v[1], v[1])
	if fine {
		for i, codes := range []reg.VecVirtual{v[0], v[2]} {
			VPERMQ(Imm(0xd8), codes, codes) // in order, and of four the second and third change places
			VPSHUFLW(Imm(0xd8), codes, codes)
			VPSHUFHW(Imm(0xd8), codes, codes)
			VMOVDQU(codes, at(q, 32*i))
		}
		ADDQ(Imm(64), q)
	} else {
		VPACKSSWB(v[2], v[0], v[0])
		VPERMD(v[0], perm, v[0])
		VMOVDQU(v[0], at(q, 0))
		ADDQ(Imm(32), q)
	}
	across(v[1], t, VPADDD)
	VCVTDQ2PS(v[1], v[1])
	VMOVSS(v[1].AsX(), at(sum, 0))

	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	ADDQ(U32(128), x)
	DECQ(n)
	JNE(LabelRef(label))
	VZEROUPPER()
	RET()
}

// across combines all eight elements of v into each of them, by pairs a distance of 4, 2 and 1 apart.
func across(v, t reg.VecVirtual, op func(ops ...Op)) {
	VPERM2F128(Imm(1), v, v, t)
	op(t, v, v)
	VPERMILPS(Imm(0x4e), v, t)
	op(t, v, v)
	VPERMILPS(Imm(0xb1), v, t)
	op(t, v, v)
}

// codes is a way to multiply the codes of weights with those of activations.
type codes struct {
	name, doc  string
	activation string // type of a code of them
	shift      uint64 // log2 of the bytes of a block of them
	bytes      int    // of a block of weights
	dots       func(dots []reg.VecVirtual, base []reg.GPVirtual, q, stride reg.Register, tokens int)
}

var (
	codes4    = codes{"4", "4-bit codes", "int8", 5, 4 * block, block4}
	codes8    = codes{"8", "8-bit codes", "int8", 5, 8 * block, block8}
	codesFine = codes{"Fine", "8-bit codes", "int16", 6, 8 * block, blockFine}
)

// panels multiplies neighbouring panels with tokens. Codes are unsigned bytes of 4 bits, or signed bytes whose
// magnitude is multiplied with the activation of their sign: then neither product nor the sum of two can
// leave 16 bits, −128 · 127 included. A block of 4-bit codes sums in 16 bits: 8 · 2 · 15 · 127 is 30,480.
func panels(c codes, tokens, panels int) {
	name := fmt.Sprintf("avx2Panel%sx%dx%d", c.name, tokens, panels)
	function(name, "func(out *float32, outStride int, data *byte, panelStride int, q *"+c.activation+", scale, sum *float32, blocks, group int, asym bool, zeroFactor, zeroBias float32)",
		fmt.Sprintf("%s multiplies %d panels of %s with %d tokens; strides are in bytes, outStride is that of what there are several of, group is in blocks.", name, panels, c.doc, tokens))
	out, outStride := Load(Param("out"), GP64()), Load(Param("outStride"), GP64())
	data, panelStride := Load(Param("data"), GP64()), Load(Param("panelStride"), GP64())
	q, scale, sum := Load(Param("q"), GP64()), Load(Param("scale"), GP64()), Load(Param("sum"), GP64())
	blocks := Load(Param("blocks"), GP64())

	// Rows of activations of the tokens, by index registers.
	qStride, fStride := GP64(), GP64()
	if tokens > 1 {
		MOVQ(blocks, qStride)
		SHLQ(Imm(c.shift), qStride)
		MOVQ(blocks, fStride)
		SHLQ(Imm(2), fStride)
	}
	second := GP64()
	if panels > 1 {
		LEAQ(Mem{Base: data, Index: panelStride, Scale: 1}, second)
	}
	base := []reg.GPVirtual{data.(reg.GPVirtual), second}[:panels]

	acc := vectors(tokens * panels)
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	s, zero := vectors(panels), vectors(panels)
	label := func(l string) string { return fmt.Sprintf("p%sx%dx%d%s", c.name, tokens, panels, l) }

	Label(label("group"))
	n := GP64()
	Load(Param("group"), n)
	CMPQ(n, blocks)
	CMOVQGT(blocks, n)
	SUBQ(n, blocks)
	flag := GP8()
	Load(Param("asym"), flag)
	for p := range base {
		VCVTPH2PS(at(base[p], 0), s[p])
	}
	TESTB(flag, flag)
	JNE(LabelRef(label("asym")))
	for p := range base {
		VBROADCASTSS(NewParamAddr("zeroBias", zeroBiasOffset), zero[p])
		ADDQ(Imm(16), base[p])
	}
	JMP(LabelRef(label("block")))
	Label(label("asym"))
	for p := range base {
		t := YMM()
		VPMOVZXBD(at(base[p], 16), zero[p])
		VCVTDQ2PS(zero[p], zero[p])
		VBROADCASTSS(NewParamAddr("zeroFactor", zeroFactorOffset), t)
		VMULPS(t, zero[p], zero[p])
		VBROADCASTSS(NewParamAddr("zeroBias", zeroBiasOffset), t)
		VADDPS(t, zero[p], zero[p])
		ADDQ(Imm(24), base[p])
	}
	Label(label("block"))
	if tokens == 1 {
		prefetch(base, c.bytes)
	}
	dots := vectors(tokens * panels)
	c.dots(dots, base, q, qStride, tokens)
	finish(acc, dots, s, zero, scale, sum, fStride, tokens, panels)
	for p := range base {
		ADDQ(U32(uint32(c.bytes)), base[p])
	}
	ADDQ(Imm(1<<c.shift), q)
	ADDQ(Imm(4), scale)
	ADDQ(Imm(4), sum)
	DECQ(n)
	JNE(LabelRef(label("block")))
	TESTQ(blocks, blocks)
	JNE(LabelRef(label("group")))

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

// prefetch asks for the weights that a loop of one token reads prefetchAhead bytes later: they are read once, from memory, and the
// processor's own prefetching stops at the end of a page. size is what a block of a panel has of codes; scales between blocks make their
// distance longer, so that without a line more some would be passed over.
func prefetch(bases []reg.GPVirtual, size int) {
	for _, base := range bases {
		for line := 0; line < size+64; line += 64 {
			PREFETCHT0(at(base, prefetchAhead+line))
		}
	}
}

// prefetchAhead is how many bytes of weights lie between what is multiplied and what is asked for: more only fills the
// few buffers for lines under way, and asks at the end of a stream for more that is not needed.
const prefetchAhead = 2048

// Offsets of the last parameters in the frame; the assembler's vet checks them against their names.
const (
	zeroFactorOffset = 76
	zeroBiasOffset   = 80
)

// token gives the address of a token's activations, disp bytes on. Of a register and its double there are
// the strides 0, 1 and 2; the fourth token's address is made in a register of its own.
func token(base, stride reg.Register, third reg.GPVirtual, t, disp int) Mem {
	switch t {
	case 0:
		return Mem{Base: base, Disp: disp}
	case 1:
		return Mem{Base: base, Index: stride, Scale: 1, Disp: disp}
	case 2:
		return Mem{Base: base, Index: stride, Scale: 2, Disp: disp}
	}
	return Mem{Base: third, Index: stride, Scale: 1, Disp: disp}
}

// beyond gives the address of the third token, for tokens that need it.
func beyond(base, stride reg.Register, tokens int) reg.GPVirtual {
	third := GP64()
	if tokens > 3 {
		LEAQ(Mem{Base: base, Index: stride, Scale: 2}, third)
	}
	return third
}

// block4 sums the products of a block of 4-bit codes into dwords, a row each.
func block4(dots []reg.VecVirtual, base []reg.GPVirtual, q, stride reg.Register, tokens int) {
	low, high, x, mask := vectors(len(base)), vectors(len(base)), YMM(), YMM()
	third := beyond(q, stride, tokens)
	VMOVDQU(nibbles, mask)
	for v := range 4 {
		for p := range base {
			VMOVDQU(at(base[p], 32*v), low[p])
			VPSRLW(Imm(4), low[p], high[p])
			VPAND(mask, low[p], low[p])
			VPAND(mask, high[p], high[p])
		}
		for t := range tokens {
			for i, codes := range [][]reg.VecVirtual{low, high} {
				if len(base) == 1 {
					VPBROADCASTD(token(q, stride, third, t, 16*i+4*v), x)
					if v+i == 0 {
						VPMADDUBSW(x, codes[0], dots[t])
					} else {
						VPMADDUBSW(x, codes[0], x)
						VPADDW(x, dots[t], dots[t])
					}
					continue
				}
				VPBROADCASTD(token(q, stride, third, t, 16*i+4*v), x)
				for p := range base {
					d := dots[t*len(base)+p]
					if v+i == 0 {
						VPMADDUBSW(x, codes[p], d)
					} else {
						VPMADDUBSW(x, codes[p], codes[p])
						VPADDW(codes[p], d, d)
					}
				}
			}
		}
	}
	VMOVDQU(ones, mask)
	for _, d := range dots {
		VPMADDWD(mask, d, d)
	}
}

// block8 sums the products of a block of 8-bit codes into dwords, a row each.
func block8(dots []reg.VecVirtual, base []reg.GPVirtual, q, stride reg.Register, tokens int) {
	w, abs, x, t16, one := vectors(len(base)), vectors(len(base)), YMM(), YMM(), YMM()
	third := beyond(q, stride, tokens)
	VMOVDQU(ones, one)
	for v := range 8 {
		for p := range base {
			VMOVDQU(at(base[p], 32*v), w[p])
			VPABSB(w[p], abs[p])
		}
		for t := range tokens {
			VPBROADCASTD(token(q, stride, third, t, 4*v), x)
			for p := range base {
				d := dots[t*len(base)+p]
				VPSIGNB(w[p], x, t16)
				VPMADDUBSW(t16, abs[p], t16)
				if v == 0 {
					VPMADDWD(one, t16, d)
				} else {
					VPMADDWD(one, t16, t16)
					VPADDD(t16, d, d)
				}
			}
		}
	}
}

// blockFine sums the products of a block of 8-bit codes with int16, which are in the order that finePlace gives: the even bytes
// of a dword, widened, meet the first pair and the odd bytes the second.
func blockFine(dots []reg.VecVirtual, base []reg.GPVirtual, q, stride reg.Register, tokens int) {
	even, odd, x := vectors(len(base)), vectors(len(base)), YMM()
	third := beyond(q, stride, tokens)
	for v := range 8 {
		for p := range base {
			VMOVDQU(at(base[p], 32*v), odd[p])
			VPSLLW(Imm(8), odd[p], even[p])
			VPSRAW(Imm(8), odd[p], odd[p])
			VPSRAW(Imm(8), even[p], even[p])
		}
		for t := range tokens {
			for i, w := range [][]reg.VecVirtual{even, odd} {
				VPBROADCASTD(token(q, stride, third, t, 8*v+4*i), x)
				for p := range base {
					d := dots[t*len(base)+p]
					switch {
					case v+i == 0:
						VPMADDWD(x, w[p], d)
					case p == len(base)-1:
						VPMADDWD(x, w[p], x)
						VPADDD(x, d, d)
					default:
						VPMADDWD(x, w[p], w[p])
						VPADDD(w[p], d, d)
					}
				}
			}
		}
	}
}

// finish takes the zero points off, which is exact, and adds the scaled sums of the block.
func finish(acc, dots, s, zero []reg.VecVirtual, scale, sum, stride reg.Register, tokens, panels int) {
	f := YMM()
	thirdScale, thirdSum := beyond(scale, stride, tokens), beyond(sum, stride, tokens)
	for t := range tokens {
		for p := range panels {
			d := dots[t*panels+p]
			VCVTDQ2PS(d, d)
			VBROADCASTSS(token(sum, stride, thirdSum, t, 0), f)
			VFNMADD231PS(f, zero[p], d)
			VBROADCASTSS(token(scale, stride, thirdScale, t, 0), f)
			VMULPS(f, s[p], f)
			VFMADD231PS(d, f, acc[t*panels+p])
		}
	}
}

// dot is the inner product of n float32, n a multiple of 8.
func dot() {
	function("avx2Dot", "func(x, y *float32, n int) float32", "avx2Dot is the inner product of n elements, a multiple of 8 that is not 0.")
	x, y, n := Load(Param("x"), GP64()), Load(Param("y"), GP64()), Load(Param("n"), GP64())
	acc, v := vectors(4), YMM()
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	Label("dot4")
	CMPQ(n, Imm(32))
	JLT(LabelRef("dot1"))
	for i, a := range acc {
		VMOVUPS(at(x, 32*i), v)
		VFMADD231PS(at(y, 32*i), v, a)
	}
	ADDQ(U32(128), x)
	ADDQ(U32(128), y)
	SUBQ(Imm(32), n)
	JMP(LabelRef("dot4"))
	Label("dot1")
	TESTQ(n, n)
	JE(LabelRef("dotEnd"))
	VMOVUPS(at(x, 0), v)
	VFMADD231PS(at(y, 0), v, acc[0])
	ADDQ(Imm(32), x)
	ADDQ(Imm(32), y)
	SUBQ(Imm(8), n)
	JMP(LabelRef("dot1"))
	Label("dotEnd")
	VADDPS(acc[1], acc[0], acc[0])
	VADDPS(acc[3], acc[2], acc[2])
	VADDPS(acc[2], acc[0], acc[0])
	across(acc[0], v, VADDPS)
	Store(acc[0].AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// axpy adds a·x to y.
func axpy() {
	function("avx2Axpy", "func(a float32, x, y *float32, n int)", "avx2Axpy adds a·x to y, n elements, a multiple of 8 that is not 0.")
	a := YMM()
	VBROADCASTSS(NewParamAddr("a", 0), a)
	x, y, n := Load(Param("x"), GP64()), Load(Param("y"), GP64()), Load(Param("n"), GP64())
	v := YMM()
	Label("axpyStep")
	VMOVUPS(at(y, 0), v)
	VFMADD231PS(at(x, 0), a, v)
	VMOVUPS(v, at(y, 0))
	ADDQ(Imm(32), x)
	ADDQ(Imm(32), y)
	SUBQ(Imm(8), n)
	JNE(LabelRef("axpyStep"))
	VZEROUPPER()
	RET()
}

// exponential replaces x by exp(x − shift) and returns the sum: as expGeneric, with products and sums fused.
func exponential() {
	function("avx2Exp", "func(x *float32, n int, shift float32) float32", "avx2Exp replaces n elements, a multiple of 8 that is not 0, by exp(x - shift) and returns their sum.")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	shift, sum := YMM(), YMM()
	VBROADCASTSS(NewParamAddr("shift", 16), shift)
	VXORPS(sum, sum, sum)
	Label("expStep")
	v, k, p := YMM(), YMM(), YMM()
	VMOVUPS(at(x, 0), v)
	VSUBPS(shift, v, v)
	VMAXPS(expLow, v, v)
	VMINPS(expHigh, v, v)
	VMULPS(expLog2, v, k)
	VROUNDPS(Imm(8), k, k) // to nearest, ties to even
	VFNMADD231PS(expLn2High, k, v)
	VFNMADD231PS(expLn2Low, k, v)
	VMOVUPS(expTerms[0], p)
	for _, c := range expTerms[1:] {
		VFMADD213PS(c, v, p)
	}
	VCVTPS2DQ(k, k)
	VPSLLD(Imm(23), k, k)
	VPADDD(k, p, p) // times 2^k
	VMOVUPS(p, at(x, 0))
	VADDPS(p, sum, sum)
	ADDQ(Imm(32), x)
	SUBQ(Imm(8), n)
	JNE(LabelRef("expStep"))
	across(sum, v, VADDPS)
	Store(sum.AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}
