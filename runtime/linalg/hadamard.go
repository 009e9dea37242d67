package linalg

import (
	"fmt"
	"math"
)

// Hadamard is an orthogonal matrix Q of order n without large entries, which spreads a single large element over many: a diagonal of random signs D,
// then blocks along the diagonal, each a Hadamard matrix divided by the root of its order. A vector is multiplied with it by additions alone and one
// multiplication an element, always in the same order.
//
// A block is P ⊗ S: S of Sylvester's construction, whose order is a power of two; P of Paley's, where the order asks for another factor (36 ⊗ 16 for
// 576, 12 ⊗ 256 for 3072). Blocks are as large as such orders allow; only widths with an unusual odd factor have more than one.
type Hadamard struct {
	n, run int // order of all, and of S
	paley  [][]bool
	signs  []bool // true for -1
	scale  float32
}

// maxPaley bounds the order of P, whose cost grows with its square.
const maxPaley = 256

// NewHadamard makes the matrix of order n. The signs follow from the seed: element i is negative where the top bit of splitmix64's output number i is
// set, counted from 0, with that seed.
func NewHadamard(n int, seed uint64) (*Hadamard, error) {
	if n < 1 {
		return nil, fmt.Errorf("a Hadamard matrix of order %d", n)
	}
	paley, run := 1, n&-n
	for order := 12; order <= min(n, maxPaley); order += 4 {
		if n%order != 0 || !isPaley(order) {
			continue
		}
		if r := (n / order) & -(n / order); order*r > paley*run {
			paley, run = order, r
		}
	}
	h := &Hadamard{n: n, run: run, signs: make([]bool, n), scale: float32(1 / math.Sqrt(float64(paley*run)))}
	if paley > 1 {
		h.paley = paleyMatrix(paley)
	}
	for i := range h.signs {
		h.signs[i] = splitmix(seed, uint64(i))>>63 == 1
	}
	return h, nil
}

// splitmix is output number i of the generator splitmix64 (Steele, Lea, Flood 2014).
func splitmix(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Order is the number of rows and columns.
func (h *Hadamard) Order() int { return h.n }

// Block is the order of the blocks, within which everything is mixed with everything.
func (h *Hadamard) Block() int { return h.run * max(len(h.paley), 1) }

// Scratch is how many elements MulRows needs beside its argument for rows of that width.
func (h *Hadamard) Scratch(width int) int {
	if h.paley == nil {
		return 0
	}
	return h.Block() * width
}

// MulRows replaces a matrix x[n][width] by Qᵀ·x: with a width of 1, a row vector x by x·Q. Each column is computed as if it were alone.
func (h *Hadamard) MulRows(x []float32, width int, scratch []float32) {
	for i, negative := range h.signs {
		if negative {
			row := x[i*width : (i+1)*width]
			for j := range row {
				row[j] = -row[j]
			}
		}
	}
	block := h.Block() * width
	for at := 0; at < h.n*width; at += block {
		part := x[at : at+block]
		for r := 0; r < block; r += h.run * width {
			sylvester(part[r:r+h.run*width], width)
		}
		if h.paley != nil {
			h.mulPaley(part, h.run*width, scratch[:block])
		}
		for i := range part {
			part[i] *= h.scale
		}
	}
}

// sylvester multiplies the rows of x, each of that width, with Sylvester's matrix: a power of two of them.
func sylvester(x []float32, width int) {
	half := width
	if width == 1 && len(x) >= 4 {
		// The first two steps, whose runs are too short for a loop.
		for p := x; len(p) >= 4; p = p[4:] {
			a, b, c, d := p[0]+p[1], p[0]-p[1], p[2]+p[3], p[2]-p[3]
			p[0], p[1], p[2], p[3] = a+c, b+d, a-c, b-d
		}
		half = 4
	}
	for ; half < len(x); half *= 2 {
		for at := 0; at < len(x); at += 2 * half {
			a, b := x[at:at+half], x[at+half:at+2*half]
			b = b[:len(a)]
			for j, u := range a {
				v := b[j]
				a[j], b[j] = u+v, u-v
			}
		}
	}
}

// mulPaley multiplies the runs of x, of that size, with the transpose of P.
func (h *Hadamard) mulPaley(x []float32, size int, scratch []float32) {
	copy(scratch, x)
	clear(x)
	for i, signs := range h.paley {
		from := scratch[i*size : (i+1)*size]
		for j, negative := range signs {
			to := x[j*size : (j+1)*size]
			if negative {
				for k, v := range from {
					to[k] -= v
				}
			} else {
				for k, v := range from {
					to[k] += v
				}
			}
		}
	}
}

// isPaley reports whether Paley's constructions over a prime field give a Hadamard matrix of that order.
func isPaley(n int) bool { return n%4 == 0 && (isPrime(n-1) || n%8 == 4 && isPrime(n/2-1)) }

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

// paleyMatrix gives the signs of a Hadamard matrix by Paley's first construction where n-1 is prime (and then 3 modulo 4), else by his second.
func paleyMatrix(n int) [][]bool {
	m := make([][]bool, n)
	for i := range m {
		m[i] = make([]bool, n)
	}
	if isPrime(n - 1) {
		for i, row := range conference(n-1, -1) {
			for j, v := range row {
				m[i][j] = v < 0 // the diagonal is 1
			}
		}
		return m
	}
	for i, row := range conference(n/2-1, 1) {
		for j, v := range row {
			// ±1 becomes ±[1 1; 1 -1], and 0 becomes [1 -1; -1 -1].
			m[2*i][2*j], m[2*i][2*j+1] = v < 0, v <= 0
			m[2*i+1][2*j], m[2*i+1][2*j+1] = v <= 0, v >= 0
		}
	}
	return m
}

// conference gives the matrix of order q+1 with 0 on the diagonal that quadratic residues of the prime q make: 1 in the first row, first in the first
// column.
func conference(q, first int) [][]int {
	square := make([]bool, q)
	for i := 1; i < q; i++ {
		square[i*i%q] = true
	}
	c := make([][]int, q+1)
	for i := range c {
		c[i] = make([]int, q+1)
		for j := range c[i] {
			switch {
			case i == j:
			case i == 0:
				c[i][j] = 1
			case j == 0:
				c[i][j] = first
			case square[(i-j+q)%q]:
				c[i][j] = 1
			default:
				c[i][j] = -1
			}
		}
	}
	return c
}

// MulCols replaces each row of x[rows][n] by its product with Q.
func (h *Hadamard) MulCols(x, scratch []float32) {
	for at := 0; at < len(x); at += h.n {
		h.MulRows(x[at:at+h.n], 1, scratch)
	}
}
