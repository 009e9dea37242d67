// Package linalg does the dense linear algebra that calibration needs, in single precision on the kernels of the
// engine: Gram matrices, and the triangular factor of the inverse of a positive definite matrix.
//
// Matrices are row-major. Every element is computed by one worker, in an order that depends on the shape alone: so results
// do not depend on the number of threads.
package linalg

import (
	"errors"
	"fmt"
	"math"

	"github.com/klauspost/cpuid/v2"

	"qtool/runtime/kernel"
	"qtool/runtime/pool"
)

// ErrNotPositiveDefinite means that a matrix has no Cholesky factor in the precision at hand.
var ErrNotPositiveDefinite = errors.New("matrix is not positive definite")

// tile is the size of the blocks of rows that factors and inverses are made of.
const tile = 64

// Scratch is what one worker needs for products. The zero Scratch is ready.
type Scratch struct{ rows, sliver, part []float32 }

// Mul sets dst[i·dstStride + j] = Σ_p a[i·aStride + p]·b[j·bStride + p] for i < rows, j < cols, p < n.
func (s *Scratch) Mul(k *kernel.Set, dst []float32, dstStride int, a []float32, aStride, rows int, b []float32, bStride, cols, n int) {
	s.sliver = room(s.sliver, depth*width)
	for at := 0; at < max(n, 1); at += depth {
		part := min(depth, n-at)
		for i := 0; i < rows; i += tall {
			count := min(tall, rows-i)
			own, stride := s.gather(a[i*aStride+at:], aStride, count, part)
			for j := 0; j < cols; j += width {
				wide := min(width, cols-j)
				k.PackSliver(s.sliver, b[j*bStride+at:], bStride, wide, part)
				k.MulSliver(dst[i*dstStride+j:], dstStride, own, stride, count, s.sliver, wide, part, at > 0)
			}
		}
	}
}

// gather gives n elements, at most depth, of each of some rows. Rows that lie a multiple of four kilobytes apart, as those of large matrices do,
// would take the same places of the first cache from one another: they are copied.
func (s *Scratch) gather(a []float32, stride, rows, n int) (own []float32, ownStride int) {
	if stride%1024 != 0 {
		return a, stride
	}
	s.rows = room(s.rows, rows*apart)
	for i := range rows {
		copy(s.rows[i*apart:i*apart+n], a[i*stride:])
	}
	return s.rows, apart
}

// Apart is a distance of rows of n elements that Mul can take as they lie.
func Apart(n int) int {
	if n%1024 == 0 {
		return n + 16
	}
	return n
}

func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// Solver runs on the threads of a pool.
type Solver struct {
	kernels *kernel.Set
	pool    *pool.Pool
	scratch []Scratch
	slivers []float32 // that workers share
	high    int       // see rowsAtOnce
}

// New returns a solver. One computation at a time.
func New(k *kernel.Set, p *pool.Pool) *Solver {
	return &Solver{kernels: k, pool: p, scratch: make([]Scratch, p.Threads()), high: rowsAtOnce(cpuid.CPU.Cache.L2)}
}

// Kernels gives the loops in use.
func (s *Solver) Kernels() *kernel.Set { return s.kernels }

// Run calls fn for each i < n on the threads, each with scratch space of its own.
func (s *Solver) Run(n int, fn func(i int, w *Scratch)) {
	s.pool.Run(n, func(worker, i int) { fn(i, &s.scratch[worker]) })
}

// Mirror copies the upper triangle of h, [n][n], to the lower one.
func (s *Solver) Mirror(h []float32, n int) {
	s.Run((n+tile-1)/tile, func(block int, _ *Scratch) {
		for j := block * tile; j < min((block+1)*tile, n); j++ {
			for i := range j {
				h[j*n+i] = h[i*n+j]
			}
		}
	})
}

// InverseFactor returns Uᵀ, [n][n] lower triangular, of the upper triangular U with H⁻¹ = Uᵀ U: what the GPTQ paper calls the
// Cholesky factor of the inverse. The inverse itself is never formed: with the order of rows and columns reversed, H = L Lᵀ, and U is
// L⁻¹ in reverse. h is left as it was. The error matches ErrNotPositiveDefinite.
func (s *Solver) InverseFactor(h []float32, n int) ([]float32, error) {
	l := make([]float32, n*n)
	s.Run((n+tile-1)/tile, func(block int, _ *Scratch) {
		for i := block * tile; i < min((block+1)*tile, n); i++ {
			from := h[(n-1-i)*n : (n-i)*n]
			for j := range i + 1 {
				l[i*n+j] = from[n-1-j]
			}
		}
	})
	inverses, err := s.factor(l, n)
	if err != nil {
		return nil, err
	}
	inverse := s.invert(l, n, inverses)
	// Uᵀ[b][a] = L⁻¹[n−1−a][n−1−b], which inverse holds transposed.
	s.Run((n+tile-1)/tile, func(block int, _ *Scratch) {
		for b := block * tile; b < min((block+1)*tile, n); b++ {
			from, to := inverse[(n-1-b)*n:(n-b)*n], l[b*n:(b+1)*n]
			for a := range b + 1 {
				to[a] = from[n-1-a]
			}
			clear(to[b+1:])
		}
	})
	return l, nil
}

// factor replaces the lower triangle of l, [n][n], by its Cholesky factor, block column by block column, and returns the inverses
// of the blocks on the diagonal, [tile][tile] each.
func (s *Solver) factor(l []float32, n int) ([][]float32, error) {
	var inverses [][]float32
	for j := 0; j < n; j += tile {
		cols := min(tile, n-j)
		s.Run((n-j+tile-1)/tile, func(block int, w *Scratch) {
			i := j + block*tile
			rows := min(tile, n-i)
			w.part = room(w.part, tile*tile)
			w.Mul(s.kernels, w.part, cols, l[i*n:], n, rows, l[j*n:], n, cols, j)
			for r := range rows {
				to := l[(i+r)*n+j : (i+r)*n+j+cols]
				for c, v := range w.part[r*cols : (r+1)*cols] {
					to[c] -= v
				}
			}
		})
		inverse, err := factorBlock(l[j*n+j:], n, cols)
		if err != nil {
			return nil, fmt.Errorf("%w: pivot %d of %d", ErrNotPositiveDefinite, j, n)
		}
		inverses = append(inverses, inverse)
		s.Run((n-j-cols+tile-1)/tile, func(block int, w *Scratch) {
			i := j + cols + block*tile
			rows := min(tile, n-i)
			w.part = room(w.part, tile*tile)
			w.Mul(s.kernels, w.part, cols, l[i*n+j:], n, rows, inverse, tile, cols, cols)
			for r := range rows {
				copy(l[(i+r)*n+j:(i+r)*n+j+cols], w.part[r*cols:(r+1)*cols])
			}
		})
	}
	return inverses, nil
}

// factorBlock replaces the lower triangle of a block of n rows by its Cholesky factor, in double precision, and returns the inverse of that,
// [tile][tile].
func factorBlock(l []float32, stride, n int) ([]float32, error) {
	var f, inv [tile][tile]float64
	for i := range n {
		for j := range i + 1 {
			sum := float64(l[i*stride+j])
			for p := range j {
				sum -= f[i][p] * f[j][p]
			}
			if i > j {
				f[i][j] = sum / f[j][j]
				continue
			}
			if !(sum > 0) || math.IsInf(sum, 0) {
				return nil, ErrNotPositiveDefinite
			}
			f[i][i] = math.Sqrt(sum)
		}
	}
	out := make([]float32, tile*tile)
	for i := range n {
		for j := range i + 1 {
			sum := 0.0
			if i == j {
				sum = 1
			}
			for p := j; p < i; p++ {
				sum -= f[i][p] * inv[p][j]
			}
			inv[i][j] = sum / f[i][i]
			out[i*tile+j] = float32(inv[i][j])
			l[i*stride+j] = float32(f[i][j])
		}
	}
	return out, nil
}

// invert returns the transpose of the inverse of the lower triangular l, [n][n], row by row of blocks.
func (s *Solver) invert(l []float32, n int, inverses [][]float32) []float32 {
	t := make([]float32, n*n)
	for block, inverse := range inverses {
		i := block * tile
		rows := min(tile, n-i)
		s.Run(block, func(left int, w *Scratch) {
			k := left * tile
			// The part of L⁻¹ above, from column k on, times this row of blocks of L.
			w.part = room(w.part, 2*tile*tile)
			sum, done := w.part[:tile*tile], w.part[tile*tile:]
			w.Mul(s.kernels, sum, rows, t[k*n+k:], n, tile, l[i*n+k:], n, rows, i-k)
			w.Mul(s.kernels, done, rows, sum, rows, tile, inverse, tile, rows, rows)
			for c := range tile {
				to := t[(k+c)*n+i : (k+c)*n+i+rows]
				for r, v := range done[c*rows : (c+1)*rows] {
					to[r] = -v
				}
			}
		})
		for r := range rows {
			for c := range r + 1 {
				t[(i+c)*n+i+r] = inverse[r*tile+c]
			}
		}
	}
	return t
}
