package kernel

import (
	"qtool/formats"
	"qtool/formats/half"
)

// SliverWidth is how many rows of a matrix a sliver holds.
const SliverWidth = 16

// PackSliver lays out some rows of a matrix, at most SliverWidth, of n elements each and stride apart, column by column, as MulSliver takes
// them: to[k·SliverWidth + j] = b[j·stride + k] for j < rows, and 0 for the others.
func (s *Set) PackSliver(to, b []float32, stride, rows, n int) {
	for k := 0; rows < SliverWidth && k < n; k++ {
		clear(to[k*SliverWidth+rows : (k+1)*SliverWidth])
	}
	s.Transpose(to, SliverWidth, b, stride, rows, n)
}

// PackColumns makes slivers of the columns of a matrix, which has n rows that lie stride apart:
// to[(j/SliverWidth·n + k)·SliverWidth + j%SliverWidth] = b[k·stride + j] for j < cols, and 0 beyond the last column.
func (s *Set) PackColumns(to, b []float32, stride, cols, n int) {
	const span = 32 // rows at a time, whose pages and neighbouring columns are at hand for the next sliver
	for first := 0; first < n; first += span {
		end := min(first+span, n)
		for j := 0; j < cols; j += SliverWidth {
			sliver := to[j*n : j*n+n*SliverWidth]
			if cols-j < SliverWidth {
				for k := first; k < end; k++ {
					row := sliver[k*SliverWidth : (k+1)*SliverWidth]
					clear(row[copy(row, b[k*stride+j:k*stride+cols]):])
				}
				continue
			}
			for k := first; k < end; k++ {
				row, from := (*[SliverWidth]float32)(sliver[k*SliverWidth:]), (*[SliverWidth]float32)(b[k*stride+j:])
				for c := 0; c < SliverWidth; c += 4 { // without a call
					row[c], row[c+1], row[c+2], row[c+3] = from[c], from[c+1], from[c+2], from[c+3]
				}
			}
		}
	}
}

// Transpose turns rows into columns: to[k·toStride + j] = b[j·stride + k], j < rows, k < n.
func (s *Set) Transpose(to []float32, toStride int, b []float32, stride, rows, n int) {
	if rows > 0 && n > 0 {
		s.transpose(to[:(n-1)*toStride+rows], toStride, b[:(rows-1)*stride+n], stride, rows, n)
	}
}

// MulSliver multiplies rows of a with the cols rows that a sliver was made of:
//
//	out[i·stride + j] = Σ_k a[i·aStride + k] · sliver[k·SliverWidth + j],  i < rows, j < cols, k < n
//
// and adds what out held before if add is set. Each sum is made over k in order, whatever the shape: so large products are made in
// parts of some hundred columns, which keep a sliver in the first cache. This is the inner loop of Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication", 2008.
func (s *Set) MulSliver(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool) {
	if rows == 0 || cols == 0 {
		return
	}
	out, a, sliver = out[:(rows-1)*stride+cols], a[:max((rows-1)*aStride+n, 0)], sliver[:n*SliverWidth]
	if n == 0 {
		if !add {
			for i := range rows {
				clear(out[i*stride : i*stride+cols])
			}
		}
		return
	}
	s.mulSliver(out, stride, a, aStride, rows, sliver, cols, n, add)
}

// MulSlivers is MulSliver for neighbouring slivers, of cols rows in all, the first element of one sliverStride after that of the one before.
func (s *Set) MulSlivers(out []float32, stride int, a []float32, aStride, rows int, slivers []float32, sliverStride, cols, n int, add bool) {
	if rows == 0 {
		return
	}
	j := 0
	if s.mulSlivers != nil && n > 0 {
		for ; j+2*SliverWidth <= cols; j += 2 * SliverWidth {
			pair := slivers[j/SliverWidth*sliverStride:]
			pair = pair[:sliverStride+n*SliverWidth]
			s.mulSlivers(out[j:(rows-1)*stride+j+2*SliverWidth], stride, a[:(rows-1)*aStride+n], aStride, rows, pair, sliverStride, n, add)
		}
	}
	for ; j < cols; j += SliverWidth {
		s.MulSliver(out[j:], stride, a, aStride, rows, slivers[j/SliverWidth*sliverStride:], min(SliverWidth, cols-j), n, add)
	}
}

// MulRows multiplies columns from … from+len(x)-1 of SliverWidth rows of plain weights, given by their stored bytes, with one vector: the same
// sums, to the bit, as MulSliver makes of one row of a and a sliver of the rows, without laying that out. It does nothing and reports false
// for vectors that are no multiple of eight, and for types that it does not know.
func (s *Set) MulRows(out []float32, d formats.DType, rows *[SliverWidth][]byte, from int, x []float32, add bool) bool {
	if len(x)%8 != 0 || len(x) == 0 {
		return false
	}
	return s.mulRows(out[:SliverWidth], d, rows, from, x, add)
}

func mulRowsGeneric(out []float32, d formats.DType, rows *[SliverWidth][]byte, from int, x []float32, add bool) bool {
	size := 2
	switch d {
	case formats.F32:
		size = 4
	case formats.F16, formats.BF16:
	default:
		return false
	}
	const span = 64
	var part [span]float32
	for j, r := range rows {
		r = r[from*size : (from+len(x))*size]
		sum := float32(0)
		for at := 0; at < len(x); at += span {
			n := min(span, len(x)-at)
			stored := r[at*size : (at+n)*size]
			switch d { // by name: called by a variable, part would be an allocation
			case formats.F32:
				half.DecodeF32(part[:n], stored)
			case formats.F16:
				half.DecodeF16(part[:n], stored)
			default:
				half.DecodeBF16(part[:n], stored)
			}
			for k, v := range x[at : at+n] {
				sum += v * part[k]
			}
		}
		if add {
			sum += out[j]
		}
		out[j] = sum
	}
	return true
}

func transposeGeneric(to []float32, toStride int, b []float32, stride, rows, n int) {
	for j := range rows {
		for k, v := range b[j*stride : j*stride+n] {
			to[k*toStride+j] = v
		}
	}
}

func mulSliverGeneric(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool) {
	for i := range rows {
		row := a[i*aStride : i*aStride+n]
		var sums [SliverWidth]float32
		for j := 0; j < cols; j += 8 { // as many sums as there are registers for
			var s0, s1, s2, s3, s4, s5, s6, s7 float32
			for k, v := range row {
				w := (*[8]float32)(sliver[k*SliverWidth+j:])
				s0 += v * w[0]
				s1 += v * w[1]
				s2 += v * w[2]
				s3 += v * w[3]
				s4 += v * w[4]
				s5 += v * w[5]
				s6 += v * w[6]
				s7 += v * w[7]
			}
			*(*[8]float32)(sums[j:]) = [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
		}
		to := out[i*stride : i*stride+cols]
		for j := range to {
			if add {
				to[j] += sums[j]
			} else {
				to[j] = sums[j]
			}
		}
	}
}
