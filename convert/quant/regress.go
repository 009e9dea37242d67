package quant

import "qtool/runtime/linalg"

// Regress returns the linear map, [rows][N], that takes inputs x to what is closest to e in the mean square: D (H + damping)⁻¹, where D, [rows][N],
// is the mean of e xᵀ. d has it for each of two halves of the inputs, of so many each.
//
// What only one half shows is chance, and would be so much more error on other inputs. With T = D U⁻¹ of each half and of all, |T|² is the power of the
// map and T₁·T₂ what the halves agree on: each row is scaled by the quotient of the two, within 0 and 1, both taken together with their means over the
// rows, since those of one row are uncertain. Where a half is empty nothing is known, and the map is zero. The inputs must have been factored.
func (in *Inputs) Regress(s *linalg.Solver, d [2][]float32, counts [2]int, rows int) []float32 {
	n := in.N
	out := make([]float32, rows*n)
	if counts[0] == 0 || counts[1] == 0 {
		return out
	}
	share := float32(float64(counts[0]) / float64(counts[0]+counts[1]))
	halves := [2][]float32{make([]float32, rows*n), make([]float32, rows*n)}
	for half, mean := range d {
		s.Run(rows, func(r int, _ *linalg.Scratch) {
			for i, c := range in.order {
				out[r*n+i] = mean[r*n+c]
			}
		})
		s.MulTriangle(halves[half], out, rows, in.factor, n, false)
	}
	all, second := halves[0], halves[1]
	agreed, power := make([]float64, rows), make([]float64, rows)
	s.Run(rows, func(r int, _ *linalg.Scratch) {
		for i := r * n; i < (r+1)*n; i++ {
			agreed[r] += float64(all[i]) * float64(second[i])
			all[i] = share*all[i] + (1-share)*second[i]
			power[r] += float64(all[i]) * float64(all[i])
		}
	})
	var meanAgreed, meanPower float64
	for r := range rows {
		meanAgreed, meanPower = meanAgreed+agreed[r]/float64(rows), meanPower+power[r]/float64(rows)
	}
	s.Run(rows, func(r int, _ *linalg.Scratch) {
		scale := float32(0)
		if p := power[r] + meanPower; p > 0 {
			scale = float32(min(max((agreed[r]+meanAgreed)/p, 0), 1))
		}
		for i := r * n; i < (r+1)*n; i++ {
			all[i] *= scale
		}
	})
	s.MulTriangle(second, all, rows, in.factor, n, true)
	s.Run(rows, func(r int, _ *linalg.Scratch) {
		for i, c := range in.order {
			out[r*n+c] = second[r*n+i]
		}
	})
	return out
}
