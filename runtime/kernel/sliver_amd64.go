//go:build amd64 && !noasm

package kernel

import "qtool/formats"

// transposeAVX2 turns whole squares of eight, and leaves the rest to transposeGeneric.
func transposeAVX2(to []float32, toStride int, b []float32, stride, rows, n int) {
	whole, j := n&^7, 0
	for ; whole > 0 && j+8 <= rows; j += 8 {
		avx2Transpose(&to[j], 4*toStride, &b[j*stride], 4*stride, whole)
	}
	if whole < n && j > 0 {
		transposeGeneric(to[whole*toStride:], toStride, b[whole:], stride, j, n-whole)
	}
	if j < rows {
		transposeGeneric(to[j:], toStride, b[j*stride:], stride, rows-j, n)
	}
}

// mulSliverAVX2 takes rows by sixes. Results of less than the whole width are made beside and copied.
func mulSliverAVX2(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool) {
	if cols < SliverWidth {
		mulNarrowAVX2(out, stride, a, aStride, rows, sliver, cols, n, add)
		return
	}
	i := 0
	for ; i+6 <= rows; i += 6 {
		avx2Sliver6(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &sliver[0], n, add)
	}
	if i+4 <= rows {
		avx2Sliver4(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &sliver[0], n, add)
		i += 4
	}
	switch rows - i {
	case 1:
		avx2Sliver1(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &sliver[0], n, add)
	case 2:
		avx2Sliver2(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &sliver[0], n, add)
	case 3:
		avx2Sliver3(&out[i*stride], 4*stride, &a[i*aStride], 4*aStride, &sliver[0], n, add)
	}
}

func mulNarrowAVX2(out []float32, stride int, a []float32, aStride, rows int, sliver []float32, cols, n int, add bool) {
	const span = 6
	var beside [span * SliverWidth]float32
	for i := 0; i < rows; i += span {
		count := min(span, rows-i)
		mulSliverAVX2(beside[:], SliverWidth, a[i*aStride:], aStride, count, sliver, SliverWidth, n, false)
		for r := range count {
			to, from := out[(i+r)*stride:(i+r)*stride+cols], beside[r*SliverWidth:]
			for j := range to {
				if add {
					to[j] += from[j]
				} else {
					to[j] = from[j]
				}
			}
		}
	}
}

func mulRowsAVX2(out []float32, d formats.DType, rows *[SliverWidth][]byte, from int, x []float32, add bool) bool {
	size := 4
	switch d {
	case formats.F32:
	case formats.F16, formats.BF16:
		size = 2
	default:
		return false
	}
	var first [SliverWidth]*byte
	for i, r := range rows {
		first[i] = &r[from*size : (from+len(x))*size][0]
	}
	switch d { // by name: called by a variable, first would be an allocation
	case formats.F32:
		avx2RowsF32(&out[0], &first, &x[0], len(x), add)
	case formats.F16:
		avx2RowsF16(&out[0], &first, &x[0], len(x), add)
	case formats.BF16:
		avx2RowsBF16(&out[0], &first, &x[0], len(x), add)
	}
	return true
}
