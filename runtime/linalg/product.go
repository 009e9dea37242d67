package linalg

// AddProduct adds X Yᵀ to h, [rows][cols], where x is X, [rows][m], and y is Y, [cols][m]. Sums over m are made as AddGram makes them.
func (s *Solver) AddProduct(h []float32, x []float32, rows int, y []float32, cols, m int) {
	s.Run((rows+tile-1)/tile, func(block int, w *Scratch) {
		i := block * tile
		n := min(tile, rows-i)
		w.part = room(w.part, tile*tile)
		for j := 0; j < cols; j += tile {
			nj := min(tile, cols-j)
			w.mulTile(s.kernels, w.part, nj, x[i*m:], m, n, y[j*m:], m, nj, m)
			for r := range n {
				to := h[(i+r)*cols+j : (i+r)*cols+j+nj]
				for c, v := range w.part[r*nj : (r+1)*nj] {
					to[c] += v
				}
			}
		}
	})
}

// MulTriangle sets dst, [rows][n], to X L, or to X Lᵀ if transposed, of x, [rows][n], and l, [n][n], of which only the lower triangle counts.
func (s *Solver) MulTriangle(dst, x []float32, rows int, l []float32, n int, transposed bool) {
	if rows == 0 {
		return
	}
	const span = 4 * tile // rows that share what is read of l
	blocks := (n + tile - 1) / tile
	s.Run(blocks*((rows+span-1)/span), func(unit int, w *Scratch) {
		j, i := unit%blocks*tile, unit/blocks*span
		cols, count := min(tile, n-j), min(span, rows-i)
		if transposed { // Σ_p x[p]·l[j][p], p ≤ j
			w.mulTile(s.kernels, dst[i*n+j:], n, x[i*n:], n, count, w.lower(l, n, j, cols), j+cols, cols, j+cols)
			return
		}
		// Σ_p x[p]·l[p][j], p ≥ j: of the columns of l
		w.mulTile(s.kernels, dst[i*n+j:], n, x[i*n+j:], n, count, w.columns(l, n, j, cols), n-j, cols, n-j)
	})
}

// lower copies rows from j on of the lower triangle of l, [cols][j+cols].
func (s *Scratch) lower(l []float32, n, j, cols int) []float32 {
	width := j + cols
	s.turned = room(s.turned, cols*width)
	for r := range cols {
		to := s.turned[r*width : (r+1)*width]
		copy(to, l[(j+r)*n:(j+r)*n+j+r+1])
		clear(to[j+r+1:])
	}
	return s.turned
}

// columns copies columns from j on of the lower triangle of l as rows, [cols][n-j].
func (s *Scratch) columns(l []float32, n, j, cols int) []float32 {
	width := n - j
	s.turned = room(s.turned, cols*width)
	for p := range width {
		from := l[(j+p)*n+j:]
		for c := range cols {
			v := float32(0)
			if c <= p {
				v = from[c]
			}
			s.turned[c*width+p] = v
		}
	}
	return s.turned
}
