package linalg

import "qtool/runtime/kernel"

// Products are made as Goto and van de Geijn describe in "Anatomy of High-Performance Matrix Multiplication", 2008: of one factor, width
// rows and depth columns at a time are laid out for the first cache, and high rows of the other stay in the second one meanwhile, or tall
// ones where a layout serves them alone.
const (
	width = kernel.SliverWidth
	depth = 512
	high  = 48 // or up to three times as many: see rowsAtOnce
	tall  = 128
	wide  = 4 * width  // columns that a worker lays out at a time
	apart = depth + 16 // the distance of rows
)

// rowsAtOnce is how many rows of a factor stay in a second cache of so many bytes, of which they take a half: a multiple of the twelve or six rows
// that most loops take at once, and no fewer than high. Where the cache's size is not known, as is said by a number below 1, it is taken for small.
func rowsAtOnce(cache int) int {
	const row = 4 * apart
	return high * min(max(cache/2/row/high, 1), 3)
}

// blocks divides rows so that all threads have some of them: each unit is of at most as many rows as rowsAtOnce says, and there are three of them for a
// thread if there are enough rows, since those of a triangle differ. No result depends on it.
func (s *Solver) blocks(rows int) (each int) {
	return min(s.high, high*max(1, rows/(high*3*s.pool.Threads())))
}

// AddGram adds Xᵀ X to the upper triangle of h, [n][n], where x is X, [m][n]: of each row of h the elements from the diagonal on;
// what some of those before it become is undefined. A sum over m is made in parts of at most 512 and these are added in order: with c such parts in all, the relative error of an element whose
// terms have one sign stays below (512 + c)·2⁻²⁴.
func (s *Solver) AddGram(h []float32, n int, x []float32, m int) {
	s.addProduct(h, x, n, x, n, m, true)
}

// AddProduct adds Xᵀ Y to h, [rows][cols], where x is X, [m][rows], and y is Y, [m][cols]. Sums over m are made as AddGram makes them.
func (s *Solver) AddProduct(h []float32, x []float32, rows int, y []float32, cols, m int) {
	s.addProduct(h, x, rows, y, cols, m, false)
}

// addProduct is AddProduct, of the slivers from the diagonal on if upper is set.
func (s *Solver) addProduct(h []float32, x []float32, rows int, y []float32, cols, m int, upper bool) {
	if m == 0 {
		return
	}
	slivers := (cols + width - 1) / width
	s.slivers = room(s.slivers, slivers*width*m)
	s.Run((cols+wide-1)/wide, func(part int, _ *Scratch) {
		j := part * wide
		s.kernels.PackColumns(s.slivers[j*m:], y[j:], cols, min(wide, cols-j), m)
	})
	high := s.blocks(rows)
	s.Run((rows+high-1)/high, func(block int, w *Scratch) {
		i := block * high
		n, first := min(high, rows-i), 0
		if upper {
			first = i / width
		}
		w.rows = room(w.rows, high*apart)
		for at := 0; at < m; at += depth {
			part := min(depth, m-at)
			s.kernels.Transpose(w.rows, apart, x[at*rows+i:], rows, part, n)
			s.kernels.MulSlivers(h[i*cols+first*width:], cols, w.rows, apart, n, s.slivers[(first*m+at)*width:], m*width, cols-first*width, part, true)
		}
	})
}

// MulTriangle sets dst, [rows][n], to X L, or to X Lᵀ if transposed, of x, [rows][n], and l, [n][n], of which only the lower triangle counts.
func (s *Solver) MulTriangle(dst, x []float32, rows int, l []float32, n int, transposed bool) {
	if rows == 0 {
		return
	}
	const blocks = 4 // of width columns, which share what is gathered of x
	units := (n + blocks*width - 1) / (blocks * width)
	s.Run(units*((rows+tall-1)/tall), func(unit int, w *Scratch) {
		first, i := unit%units*blocks*width, unit/units*tall
		last, count := min(first+blocks*width, n), min(tall, rows-i)
		from, end := first, n // Σ_p x[p]·l[p][j], p ≥ j
		if transposed {
			from, end = 0, last // Σ_p x[p]·l[j][p], p ≤ j
		}
		w.sliver = room(w.sliver, depth*width)
		for at := from; at < end; at += depth {
			part := min(depth, end-at)
			own, stride := w.gather(x[i*n+at:], n, count, part)
			for j := first; j < last; j += width {
				cols := min(width, n-j)
				if transposed {
					s.lower(w.sliver, l, n, j, cols, at, part)
				} else {
					columns(w.sliver, l, n, j, cols, at, part)
				}
				s.kernels.MulSliver(dst[i*n+j:], n, own, stride, count, w.sliver, cols, part, at > from)
			}
		}
	})
}

// lower makes a sliver of rows j … j+cols-1 of the lower triangle of l, columns at … at+part-1.
func (s *Solver) lower(sliver, l []float32, n, j, cols, at, part int) {
	s.kernels.PackSliver(sliver, l[j*n+at:], n, cols, part)
	for k := max(j+1-at, 0); k < part; k++ { // beyond the diagonal of some
		clear(sliver[k*width : k*width+min(at+k-j, cols)])
	}
}

// columns makes a sliver of columns j … j+cols-1 of the lower triangle of l, rows at … at+part-1.
func columns(sliver, l []float32, n, j, cols, at, part int) {
	for k := range part {
		to := sliver[k*width : (k+1)*width]
		p := at + k
		clear(to[copy(to, l[p*n+j:max(p*n+min(j+cols, p+1), p*n+j)]):])
	}
}
