package quant

import (
	"slices"

	"qtool/formats/packed"
	"qtool/runtime/kernel"
)

// grid is what codes of a scheme stand for before they are scaled.
type grid struct {
	scheme      packed.Scheme
	book        *[16]int8 // nil where levels are evenly spaced
	least, most float32   // range of the codes, evenly spaced
	nearest     [len(kernel.LevelTable{})]int8
	levels      kernel.LevelTable // of the nearest entries
}

func newGrid(s packed.Scheme, book *[16]int8) *grid {
	least, most := s.Levels()
	g := &grid{scheme: s, book: book, least: float32(least), most: float32(most)}
	if book == nil {
		return g
	}
	for i := range g.nearest {
		x := float32(i-kernel.TableSteps*kernel.TableReach) / kernel.TableSteps
		best := 0
		for c := range 1 << s.Bits {
			if d := abs(float32(book[c]) - x); d < abs(float32(book[best])-x) {
				best = c
			}
		}
		g.nearest[i], g.levels[i] = int8(best), float32(book[best])
	}
	return g
}

func abs(f float32) float32 { return max(f, -f) }

// code is the code nearest to x, a weight by its scale; zero is the zero point of its group.
func (g *grid) code(x, zero float32) int8 {
	if g.book != nil {
		return g.nearest[kernel.TableIndex(x)]
	}
	return int8(min(max(roundedTo(x+zero), g.least), g.most))
}

// roundedTo rounds to an integer, ties to even, what is within 22 bits; beyond that the size matters no more.
func roundedTo(x float32) float32 { return float32(nearest(min(max(x, -1<<20), 1<<20))) }

// level is what a code stands for before it is scaled.
func (g *grid) level(code int8, zero float32) float32 {
	if g.book != nil {
		return float32(g.book[code&15])
	}
	return float32(code) - zero
}

// initialBook is where fitting a codebook starts from: entries that lie closer together around zero, as weights do.
func initialBook(bits int) *[16]int8 {
	n := 1 << bits
	var b [16]int8
	for i := range n {
		// x + x³ is near the spacing that suits a normal distribution cut at its largest weight of 32.
		x := (float64(i) - float64(n-1)/2) / (float64(n-1) / 2)
		b[i] = int8(nearest(float32(127 * (0.66*x + 0.34*x*x*x))))
	}
	return &b
}

// bookSamples is how many rows a codebook is fitted to at most, and bookRounds how often.
const (
	bookSamples = 256
	bookRounds  = 12
)

// FitBook fits a codebook to some rows of a matrix, w[rows][cols], that stand for all of them. The error is a RowError of w.
func FitBook(k *kernel.Set, s packed.Scheme, r Rule, w []float32, rows, cols int) (*[16]int8, error) {
	return New(k, s, r).fitBook(w, rows, cols, nil, inTurn)
}

// BookRows are the rows of a matrix that its codebook is fitted to when they alone are at hand.
func BookRows(rows int) []int {
	var list []int
	for r := 0; r < rows; r += max(1, (rows+bookSamples-1)/bookSamples) {
		list = append(list, r)
	}
	return list
}

// bookUnit is how many of the rows that a codebook is fitted to are summed up in one go.
const bookUnit = 16

// bookSums are those of the scaled weights of each code, and of its squared scales, both by importance.
type bookSums struct {
	values, scales [16]float64
	err            error
}

// inTurn calls fn for each i < n.
func inTurn(n int, fn func(i int)) {
	for i := range n {
		fn(i)
	}
}

// fitBook fits the entries of a codebook to a matrix: in turn the scales of groups and their codes are chosen for the entries, and the
// entries are set to what is best for these, the mean of the scaled weights of a code under importance times squared scale (Lloyd's
// algorithm). The largest entry is kept at 127. run calls a function for each i < n, in any order and on any thread.
func (q *Quantizer) fitBook(w []float32, rows, cols int, importance []float32, run func(n int, fn func(i int))) (*[16]int8, error) {
	book := initialBook(q.scheme.Bits)
	list := BookRows(rows)
	n := 1 << q.scheme.Bits
	sums := make([]bookSums, (len(list)+bookUnit-1)/bookUnit)
	for range bookRounds {
		q.UseBook(book)
		run(len(sums), func(i int) {
			sums[i] = q.sumBook(w, list[i*bookUnit:min((i+1)*bookUnit, len(list))], cols, importance)
		})
		var sum, weight [16]float64
		for _, s := range sums {
			if s.err != nil {
				return nil, s.err
			}
			for c := range n {
				sum[c], weight[c] = sum[c]+s.values[c], weight[c]+s.scales[c]
			}
		}
		next := *book
		var entries [16]float64
		largest := 0.0
		for i := range n {
			entries[i] = float64(book[i])
			if weight[i] > 0 {
				entries[i] = sum[i] / weight[i]
			}
			largest = max(largest, entries[i], -entries[i])
		}
		if largest == 0 {
			break
		}
		for i := range n {
			next[i] = int8(nearest(float32(entries[i] / largest * 127)))
		}
		slices.Sort(next[:n])
		if next == *book {
			break
		}
		book = &next
	}
	q.UseBook(book)
	return book, nil
}

// sumBook quantizes rows by the codebook in use and sums up what is of each code.
func (q *Quantizer) sumBook(w []float32, rows []int, cols int, importance []float32) (out bookSums) {
	own := &Quantizer{kernels: q.kernels, scheme: q.scheme, rule: q.rule, grid: q.grid, equal: q.equal} // scratch of its own
	c := packed.NewCodes(q.scheme, cols)
	for _, r := range rows {
		row := w[r*cols : (r+1)*cols]
		if err := own.Row(c, row, importance); err != nil {
			out.err = &RowError{Row: r, Err: err}
			return out
		}
		for g, at := 0, 0; at < cols; g, at = g+1, at+q.scheme.Group {
			s := float64(q.scheme.Scale(c, g))
			for k := at; k < min(at+q.scheme.Group, cols); k++ {
				a := 1.0
				if importance != nil {
					a = float64(importance[k])
				}
				out.values[c.Codes[k]] += a * s * float64(row[k])
				out.scales[c.Codes[k]] += a * s * s
			}
		}
	}
	return out
}
