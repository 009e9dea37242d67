//go:build amd64 && !noasm

package kernel

// The assembly of attention loops for one query and for four.
type (
	scoresLoop[T any]  func(out, q *float32, dim int, keys, ahead *T, n int)
	scores4Loop[T any] func(out *float32, stride int, q *float32, dim int, keys, ahead *T, n int)
	mixLoop[T any]     func(out, factors, p *float32, stride, dim int, values, ahead *T, n int)
)

// attentionAVX2 sets the loops of attention.
func attentionAVX2(s *Set) {
	s.F32 = vectorsAVX2(avx2ScoresF32x1, avx2ScoresF32x4, avx2MixF32x1, avx2MixF32x4)
	s.F16 = vectorsAVX2(avx2ScoresF16x1, avx2ScoresF16x4, avx2MixF16x1, avx2MixF16x4)
	s.I8 = vectorsAVX2(avx2ScoresI8x1, avx2ScoresI8x4, avx2MixI8x1, avx2MixI8x4)
	s.gate, s.multiply, s.greatest, s.encodeF16 = gateAVX2, multiplyAVX2, greatestAVX2, encodeF16AVX2
}

func vectorsAVX2[T float32 | uint16 | int8](scores scoresLoop[T], scores4 scores4Loop[T], mix, mix4 mixLoop[T]) Vectors[T] {
	return Vectors[T]{
		scores: func(out []float32, stride int, q []float32, queries, dim int, keys, ahead []T, n int) {
			next := asked(keys, ahead)
			if queries == 1 {
				scores(&out[0], &q[0], dim, &keys[0], next, n)
				return
			}
			for j := 0; j < queries; j += 4 {
				scores4(&out[j*stride], 4*stride, &q[j*dim], dim, &keys[0], next, n)
				next = &keys[0]
			}
		},
		mix: func(out, factors, p []float32, stride, queries, dim int, values, ahead []T, n int) {
			next := asked(values, ahead)
			if queries == 1 {
				mix(&out[0], &factors[0], &p[0], 4*stride, dim, &values[0], next, n)
				return
			}
			for j := 0; j < queries; j += 4 {
				mix4(&out[j*dim], &factors[j], &p[j*stride], 4*stride, dim, &values[0], next, n)
				next = &values[0]
			}
		},
	}
}

// asked is where a loop asks ahead: at what it reads, which is no work, where there is nothing else.
func asked[T any](read, ahead []T) *T {
	if len(ahead) > 0 {
		return &ahead[0]
	}
	return &read[0]
}

func multiplyAVX2(x, y []float32) {
	whole := len(x) &^ 7
	if whole > 0 {
		avx2Multiply(&x[0], &y[0], whole)
	}
	multiplyGeneric(x[whole:], y[whole:])
}

func gateAVX2(e, gate, up []float32) {
	whole := len(e) &^ 7
	if whole > 0 {
		avx2Gate(&e[0], &gate[0], &up[0], whole)
	}
	gateGeneric(e[whole:], gate[whole:], up[whole:])
}

func greatestAVX2(x []float32) float32 {
	whole := len(x) &^ 7
	if whole == 0 {
		return greatestGeneric(x)
	}
	return max(avx2Greatest(&x[0], whole), greatestGeneric(x[whole-1:]))
}

func encodeF16AVX2(dst []uint16, src []float32) {
	whole := len(src) &^ 7
	if whole > 0 {
		avx2EncodeF16(&dst[0], &src[0], whole)
	}
	encodeF16Generic(dst[whole:], src[whole:])
}
