package kernel

import (
	"encoding/binary"
	"math"

	"qtool/formats/half"
	"qtool/formats/packed"
)

func quantizeGeneric(q []int8, scale, sum, x []float32) {
	for b := range scale {
		in := x[b*packed.Block : min((b+1)*packed.Block, len(x))]
		out := q[b*packed.Block : (b+1)*packed.Block]
		var most float32
		for _, v := range in {
			most = max(most, abs(v))
		}
		scale[b] = most / 127
		var inverse float32
		if most > 0 {
			inverse = 127 / most
		}
		if math.IsInf(float64(inverse), 0) { // a block of subnormal numbers: nothing worth keeping
			inverse, scale[b] = 0, 0
		}
		total := int32(0)
		for i, v := range in {
			c := roundEven(v * inverse)
			total += c
			out[i] = int8(c)
		}
		clear(out[len(in):])
		sum[b] = float32(total)
	}
}

func abs(f float32) float32 { return math.Float32frombits(math.Float32bits(f) &^ (1 << 31)) }

// roundEven rounds a number of magnitude below 2^22 to the nearest integer, ties to even: adding
// 1.5·2^23 leaves no bits for a fraction.
func roundEven(f float32) int32 {
	const magic = 3 << 22
	return int32(math.Float32bits(f+magic)) - int32(math.Float32bits(magic))
}

// panelGeneric defines the products of panels with tokens: by panelFineToken where activations have the codes of Fine, by tableToken where a table says
// what codes of weights stand for, else by panelToken. They are called by name: by a variable, acc would be memory taken for each.
func panelGeneric(p panelArgs) {
	size := p.scheme.PanelBytes(p.cols)
	for i := range p.panels {
		data := p.data[i*size : (i+1)*size]
		for t := range p.tokens {
			var acc [packed.Panel]float32
			switch {
			case p.fine != nil:
				panelFineToken(&acc, p, data, t)
			case p.table != nil:
				tableToken(&acc, p, data, t)
			default:
				panelToken(&acc, p, data, t)
			}
			copy(p.out[t*p.stride+i*packed.Panel:], acc[:])
		}
	}
}

// panelToken multiplies one panel with one token: in each block the integers Σ code·q are exact, the zero point is taken off exactly too, and the block
// is scaled.
func panelToken(acc *[packed.Panel]float32, p panelArgs, data []byte, t int) {
	blocks := (p.cols + packed.Block - 1) / packed.Block
	q := p.q[t*blocks*packed.Block:]
	scale, sum := p.scale[t*blocks:], p.sum[t*blocks:]
	for b := 0; b < blocks; {
		var s, zero [packed.Panel]float32
		for r := range s {
			s[r] = half.F16ToF32(binary.LittleEndian.Uint16(data[2*r:]))
			var stored uint8
			if p.scheme.Asym {
				stored = data[2*packed.Panel+r]
			}
			zero[r] = p.scheme.Zero(stored)
		}
		data = data[2*packed.Panel:]
		if p.scheme.Asym {
			data = data[packed.Panel:]
		}
		for end := min(b+p.scheme.Group/packed.Block, blocks); b < end; b++ {
			var dots [packed.Panel]int32
			x := (*[packed.Block]int8)(q[b*packed.Block:])
			if p.scheme.Bits == 4 {
				dot4(&dots, (*[4 * packed.Block]byte)(data), x)
				data = data[4*packed.Block:]
			} else {
				dot8(&dots, (*[8 * packed.Block]byte)(data), x)
				data = data[8*packed.Block:]
			}
			for r := range acc {
				// Both terms and their difference are integers (or sixteenths) far below 2^24: nothing is
				// rounded until the scales come in.
				exact := float32(dots[r]) - float32(zero[r]*sum[b])
				acc[r] += float32(s[r]*scale[b]) * exact
			}
		}
	}
}

// dot4 adds the products of a block of 4-bit codes to dots, a row each.
func dot4(dots *[packed.Panel]int32, block *[4 * packed.Block]byte, q *[packed.Block]int8) {
	for v := range 4 {
		low, high := (*[4]int8)(q[4*v:]), (*[4]int8)(q[16+4*v:])
		for r := range dots {
			w := (*[4]byte)(block[32*v+4*r:])
			dots[r] += int32(w[0]&15)*int32(low[0]) + int32(w[0]>>4)*int32(high[0]) +
				int32(w[1]&15)*int32(low[1]) + int32(w[1]>>4)*int32(high[1]) +
				int32(w[2]&15)*int32(low[2]) + int32(w[2]>>4)*int32(high[2]) +
				int32(w[3]&15)*int32(low[3]) + int32(w[3]>>4)*int32(high[3])
		}
	}
}

// dot8 is dot4 for 8-bit codes.
func dot8(dots *[packed.Panel]int32, block *[8 * packed.Block]byte, q *[packed.Block]int8) {
	for v := range 8 {
		x := (*[4]int8)(q[4*v:])
		for r := range dots {
			w := (*[4]byte)(block[32*v+4*r:])
			dots[r] += int32(int8(w[0]))*int32(x[0]) + int32(int8(w[1]))*int32(x[1]) +
				int32(int8(w[2]))*int32(x[2]) + int32(int8(w[3]))*int32(x[3])
		}
	}
}

func dotGeneric(x, y []float32) float32 {
	y = y[:len(x)]
	var a0, a1, a2, a3, a4, a5, a6, a7 float32
	for len(x) >= 8 {
		u, v := (*[8]float32)(x), (*[8]float32)(y)
		a0 += u[0] * v[0]
		a1 += u[1] * v[1]
		a2 += u[2] * v[2]
		a3 += u[3] * v[3]
		a4 += u[4] * v[4]
		a5 += u[5] * v[5]
		a6 += u[6] * v[6]
		a7 += u[7] * v[7]
		x, y = x[8:], y[8:]
	}
	sum := ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

func axpyGeneric(a float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += a * v
	}
}

// expGeneric replaces each x by exp(x − shift) and returns the sum. With x = k·ln 2 + r, |r| ≤ ln 2 / 2, it is 2^k
// times the series of exp(r) to r^7, which is exact to the last bit or two; ln 2 comes in two parts, so that
// the difference is (Cody and Waite). Differences below −87 count as −87, which is 0 beside the largest.
func expGeneric(x []float32, shift float32) (sum float32) {
	const log2, ln2High, ln2Low = 1.44269504, 0.693359375, -2.12194440e-4
	for i, v := range x {
		v = min(max(v-shift, -87), 88)
		k := roundEven(v * log2)
		r := v - float32(k)*ln2High
		r -= float32(k) * ln2Low
		p := float32(1. / 5040)
		p = p*r + 1./720
		p = p*r + 1./120
		p = p*r + 1./24
		p = p*r + 1./6
		p = p*r + 0.5
		p = p*r + 1
		p = p*r + 1
		x[i] = math.Float32frombits(uint32(int32(math.Float32bits(p)) + k<<23))
		sum += x[i]
	}
	return sum
}
