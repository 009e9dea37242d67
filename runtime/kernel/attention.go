package kernel

import "qtool/formats/half"

// Vectors are the loops of attention over the keys and values of one head, one after the other, in one element type:
// float32, the bits of binary16, or int8 whose scales are the caller's to multiply with. Of each pair of a query and a
// key the sum is made in the same order, however many are multiplied together.
type Vectors[T float32 | uint16 | int8] struct {
	scores func(out []float32, stride int, q []float32, queries, dim int, keys, ahead []T, n int)
	mix    func(out, factors, p []float32, stride, queries, dim int, values, ahead []T, n int)
}

// Scores sets out[j·stride + i] to the product of query j with key i, i < n:
//
//	Σ_k q[j·dim + k] · keys[i·dim + k]
//
// queries is 1 or a multiple of 4, dim one of 8. n is rounded up to a multiple of 4, for which keys and the rows of out
// have room. ahead, if not empty, is where as many elements will be read next: they are asked for meanwhile.
func (v *Vectors[T]) Scores(out []float32, stride int, q []float32, queries, dim int, keys, ahead []T, n int) {
	n = (n + 3) &^ 3
	if n == 0 {
		return
	}
	v.scores(out[:(queries-1)*stride+n], stride, q[:queries*dim], queries, dim, keys[:n*dim], ahead, n)
}

// Mix adds values to the sums of queries:
//
//	out[j·dim + k] = factors[j] · out[j·dim + k] + Σ_i p[j·stride + i] · values[i·dim + k],  i < n
//
// queries is 1 or a multiple of 4, dim one of 8. ahead is as in Scores.
func (v *Vectors[T]) Mix(out, factors, p []float32, stride, queries, dim int, values, ahead []T, n int) {
	if n == 0 {
		return
	}
	v.mix(out[:queries*dim], factors[:queries], p[:(queries-1)*stride+n], stride, queries, dim, values[:n*dim], ahead, n)
}

// Multiply multiplies x by y, element by element; y has at least x's length.
func (s *Set) Multiply(x, y []float32) { s.multiply(x, y[:len(x)]) }

// Greatest is the greatest of x, of which there is at least one and none is NaN.
func (s *Set) Greatest(x []float32) float32 { return s.greatest(x) }

// EncodeF16 rounds src to binary16. A number beyond its range becomes an infinity.
func (s *Set) EncodeF16(dst []uint16, src []float32) { s.encodeF16(dst[:len(src)], src) }

// vectorsGeneric makes the loops for a type by widening it piece by piece.
func vectorsGeneric[T float32 | uint16 | int8](widen func(dst []float32, src []T)) Vectors[T] {
	const most = 256 // elements of a piece
	scores := func(out []float32, stride int, q []float32, queries, dim int, keys, _ []T, n int) {
		var piece [most]float32
		for i := range n {
			key := keys[i*dim : (i+1)*dim]
			for at := 0; at < dim; at += most {
				w := piece[:min(most, dim-at)]
				widen(w, key[at:])
				for j := range queries {
					product := dotGeneric(w, q[j*dim+at:])
					if at > 0 {
						product += out[j*stride+i]
					}
					out[j*stride+i] = product
				}
			}
		}
	}
	mix := func(out, factors, p []float32, stride, queries, dim int, values, _ []T, n int) {
		for j, f := range factors {
			row := out[j*dim : (j+1)*dim]
			for k := range row {
				row[k] *= f
			}
		}
		var piece [most]float32
		for i := range n {
			value := values[i*dim : (i+1)*dim]
			for at := 0; at < dim; at += most {
				w := piece[:min(most, dim-at)]
				widen(w, value[at:])
				for j := range queries {
					axpyGeneric(p[j*stride+i], w, out[j*dim+at:])
				}
			}
		}
	}
	return Vectors[T]{scores, mix}
}

func widenF32(dst, src []float32) { copy(dst, src) }

func widenF16(dst []float32, src []uint16) {
	for i := range dst {
		dst[i] = half.F16ToF32(src[i])
	}
}

func widenI8(dst []float32, src []int8) {
	for i := range dst {
		dst[i] = float32(src[i])
	}
}

func multiplyGeneric(x, y []float32) {
	for i, v := range y[:len(x)] {
		x[i] *= v
	}
}

func gateGeneric(e, gate, up []float32) {
	for i, v := range e {
		e[i] = float32(gate[i]/(1+v)) * up[i]
	}
}

func greatestGeneric(x []float32) float32 {
	most := x[0]
	for _, v := range x {
		if v > most {
			most = v
		}
	}
	return most
}

func encodeF16Generic(dst []uint16, src []float32) {
	for i, v := range src {
		dst[i] = half.F32ToF16(v)
	}
}
