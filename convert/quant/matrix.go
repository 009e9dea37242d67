package quant

import (
	"fmt"

	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/linalg"
)

// Method says how codes are chosen once scales are.
type Method string

const (
	// RTN rounds each weight to the nearest code.
	RTN Method = "rtn"
	// GPTQ rounds column by column and makes up for each column's error by the columns to come: Frantar, Ashkboos, Hoefler and Alistarh,
	// "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023.
	GPTQ Method = "gptq"
)

// ParseMethod reads the name of a method.
func ParseMethod(name string) (Method, error) {
	switch m := Method(name); m {
	case RTN, GPTQ:
		return m, nil
	}
	return "", fmt.Errorf("method %q is unknown: expected %q or %q", name, RTN, GPTQ)
}

// MatrixOptions say how a matrix is quantized.
type MatrixOptions struct {
	Scheme packed.Scheme
	Rule   Rule
	Method Method
	// Refine is the number of rounds in which codes and scales are changed one by one where that lowers the error of the layer's
	// output, after all are chosen.
	Refine int
	// Stop, if set, ends the work where it gives an error, which Matrix then returns.
	Stop func() error
	// Range of activations, for a scheme with static ones.
	Range float32
}

// Quantized is a quantized matrix.
type Quantized struct {
	Matrix packed.Matrix
	// Error is the mean squared error of the layer's outputs over its inputs by the mean square of the outputs, of one output in
	// measuredRows where there are many; 0 without inputs.
	Error float64
}

// rowsPerUnit is how many rows a worker quantizes at a time: they share what is read of the Hessian.
const rowsPerUnit = 128

// columnBlock is how many columns are quantized before their errors are carried to the ones beyond, all at once.
const columnBlock = 128

// Matrix quantizes a matrix w, [rows][cols], of a layer with the given inputs, nil where nothing is known of them: then the method is RTN, or
// it is an error. The result depends on nothing but the arguments and the instructions in use. Errors: a *ValueError within a RowError.
func Matrix(s *linalg.Solver, w []float32, rows, cols int, in *Inputs, o MatrixOptions) (*Quantized, error) {
	if in != nil && in.N != cols {
		return nil, fmt.Errorf("%w: of %d channels, the matrix has %d columns", ErrInputs, in.N, cols)
	}
	if (in == nil || in.H == nil) && (o.Method != RTN || o.Refine > 0) {
		return nil, fmt.Errorf("%w: %s needs them", ErrInputs, o.Method)
	}
	if o.Method == GPTQ && in.factor == nil {
		return nil, fmt.Errorf("%w: %s needs the factor of their Hessian", ErrInputs, o.Method)
	}
	m := &matrixJob{solver: s, w: w, rows: rows, cols: cols, in: in, options: o}
	if in != nil {
		m.importance = in.Importance
	}
	q := New(s.Kernels(), o.Scheme, o.Rule)
	if o.Scheme.Codebook {
		var err error
		if m.book, err = q.fitBook(w, rows, cols, m.importance, func(n int, fn func(i int)) { s.Run(n, func(i int, _ *linalg.Scratch) { fn(i) }) }); err != nil {
			return nil, err
		}
	}
	m.grid = newGrid(o.Scheme, m.book)
	data := make([]byte, o.Scheme.Bytes(rows, cols))
	m.panels = packed.PutPrelude(o.Scheme, data, m.book, o.Range)
	if in != nil && in.H != nil && o.Method == RTN && o.Rule == Search {
		m.coupling = m.coupled()
	}
	units := (rows + rowsPerUnit - 1) / rowsPerUnit
	m.failures, m.losses, m.powers = make([]error, units), make([]float64, units), make([]float64, units)
	s.Run(units, func(i int, scratch *linalg.Scratch) { m.failures[i] = m.unit(i, scratch) })
	var loss, power float64
	for i, err := range m.failures {
		if err != nil {
			return nil, err
		}
		loss, power = loss+m.losses[i], power+m.powers[i]
	}
	out := &Quantized{}
	if power > 0 {
		out.Error = loss / power
	}
	var err error
	out.Matrix, err = packed.NewMatrix(o.Scheme, rows, cols, data)
	return out, err
}

// RowError says which row of a matrix has the weight at fault.
type RowError struct {
	Row int
	Err error
}

func (e *RowError) Error() string { return fmt.Sprintf("row %d: %v", e.Row, e.Err) }

// Unwrap gives the cause.
func (e *RowError) Unwrap() error { return e.Err }

// matrixJob is one call of Matrix.
type matrixJob struct {
	solver     *linalg.Solver
	w          []float32
	rows, cols int
	in         *Inputs
	importance []float32
	options    MatrixOptions
	book       *[16]int8
	grid       *grid
	panels     []byte
	coupling   []bool // see coupled; nil where scales stay as first chosen, or codes are not rounded to nearest

	failures       []error // by unit
	losses, powers []float64
}

// unitRows is what a worker knows of the rows that it quantizes.
type unitRows struct {
	first, n int
	codes    []packed.Codes
	scales   []float32 // [n][groups]
	zeros    []float32 // [n][groups]
	values   []float32 // [n][cols], what the codes stand for
	curves   []float64 // [n][groups], see rescale; negative where codes have changed since
}

// unit quantizes the rows of a unit and packs them.
func (m *matrixJob) unit(i int, scratch *linalg.Scratch) error {
	s, cols := m.options.Scheme, m.cols
	u := &unitRows{first: i * rowsPerUnit, n: min(rowsPerUnit, m.rows-i*rowsPerUnit)}
	groups := s.Groups(cols)
	u.scales, u.zeros = make([]float32, u.n*groups), make([]float32, u.n*groups)
	u.values = make([]float32, u.n*cols)
	q := New(m.solver.Kernels(), s, m.options.Rule)
	if m.book != nil {
		q.UseBook(m.book)
	}
	for r := range u.n {
		c := packed.NewCodes(s, cols)
		if err := q.Row(c, m.w[(u.first+r)*cols:(u.first+r+1)*cols], m.importance); err != nil {
			return &RowError{Row: u.first + r, Err: err}
		}
		u.codes = append(u.codes, c)
		m.spread(u, r)
	}
	if m.options.Method == GPTQ {
		m.gptq(u, scratch)
	} else if m.coupling != nil {
		m.rescaleNearest(u, scratch)
	}
	for r := range u.n {
		s.Dequantize(u.values[r*cols:(r+1)*cols], u.codes[r], m.book)
	}
	if m.in != nil {
		if m.in.H != nil {
			if err := m.refine(u, scratch); err != nil {
				return err
			}
		}
		m.losses[i], m.powers[i] = m.measure(u, scratch)
	}
	size := s.PanelBytes(cols)
	for r := 0; r < u.n; r += packed.Panel {
		p := (u.first + r) / packed.Panel
		packed.PackPanel(s, m.panels[p*size:(p+1)*size], u.codes[r:min(r+packed.Panel, u.n)], cols)
	}
	return nil
}

// spread fills in the scales and zero points of row r of a unit.
func (m *matrixJob) spread(u *unitRows, r int) {
	s := m.options.Scheme
	groups := s.Groups(m.cols)
	for g := range groups {
		u.scales[r*groups+g] = s.Scale(u.codes[r], g)
		u.zeros[r*groups+g] = s.Zero(u.codes[r].Zeros[g])
	}
}

// measuredRows is the share of a large matrix's rows, one in so many, that its error is measured on: it is for the report, and costs as much as
// a round of refinement. Matrices of up to measuredWhole rows are measured whole.
const (
	measuredRows  = 8
	measuredWhole = 512
)

// measure gives the squared error of the unit's outputs and their square, both summed over rows and averaged over inputs.
func (m *matrixJob) measure(u *unitRows, scratch *linalg.Scratch) (loss, power float64) {
	cols, step := m.cols, 1
	if m.in.H == nil { // as if channels were not correlated
		for i, v := range u.values {
			w, d := float64(m.w[u.first*cols+i]), float64(v-m.w[u.first*cols+i])
			by := float64(m.importance[i%cols])
			loss, power = loss+by*d*d, power+by*w*w
		}
		return loss, power
	}
	if m.rows > measuredWhole {
		step = measuredRows
	}
	var weights, diff []float32
	for r := 0; r < u.n; r += step {
		w := m.w[(u.first+r)*cols : (u.first+r+1)*cols]
		weights = append(weights, w...)
		for i, v := range u.values[r*cols : (r+1)*cols] {
			diff = append(diff, v-w[i])
		}
	}
	rows := len(diff) / max(cols, 1)
	product := make([]float32, rows*columnBlock)
	for _, part := range []struct {
		values []float32
		sum    *float64
	}{{diff, &loss}, {weights, &power}} {
		for at := 0; at < cols; at += columnBlock {
			n := min(columnBlock, cols-at)
			scratch.Mul(m.solver.Kernels(), product, n, part.values, cols, rows, m.in.H[at*cols:], cols, n, cols)
			for r := range rows {
				for k, v := range part.values[r*cols+at : r*cols+at+n] {
					*part.sum += float64(v) * float64(product[r*n+k])
				}
			}
		}
	}
	return loss, power
}

// gptq chooses codes column by column, in the order of the inputs. With H⁻¹ = Uᵀ U of the damped Hessian, the error of column i by
// U[i][i] is taken off each column j to come U[i][j] times. Within a block of columns that is done at once, beyond it when a block is
// begun, for all columns before it.
func (m *matrixJob) gptq(u *unitRows, scratch *linalg.Scratch) {
	cols, k := m.cols, m.solver.Kernels()
	groups, group := m.options.Scheme.Groups(cols), m.options.Scheme.Group
	apart := linalg.Apart(cols)
	errs := make([]float32, u.n*apart) // by position in the order
	work := make([]float32, u.n*columnBlock)
	var square [columnBlock * columnBlock]float32 // U within the block
	for at := 0; at < cols; at += columnBlock {
		n := min(columnBlock, cols-at)
		scratch.Mul(k, work, columnBlock, errs, apart, u.n, m.in.factor[at*cols:], cols, n, at)
		for i := range n {
			for j := i; j < n; j++ {
				square[i*columnBlock+j] = m.in.factor[(at+j)*cols+at+i]
			}
		}
		for r := range u.n {
			row := m.w[(u.first+r)*cols : (u.first+r+1)*cols]
			left := work[r*columnBlock : r*columnBlock+n]
			for i := range left {
				left[i] = row[m.in.order[at+i]] - left[i]
			}
			codes, scales, zeros := u.codes[r].Codes, u.scales[r*groups:], u.zeros[r*groups:]
			for i := range left {
				column := m.in.order[at+i]
				s, zero := scales[column/group], zeros[column/group]
				code := m.grid.code(left[i]*reciprocal(s), zero)
				codes[column] = code
				e := (left[i] - s*m.grid.level(code, zero)) / square[i*columnBlock+i]
				errs[r*apart+at+i] = e
				if i+1 < n {
					k.Axpy(-e, square[i*columnBlock+i+1:i*columnBlock+n], left[i+1:])
				}
			}
		}
	}
}

// refine lowers the error of the layer's output, (ŵ − w) H (ŵ − w)ᵀ for each row, by coordinate descent: each code in turn is set to the one
// of least error while all others stay, then each scale by least squares for its codes. The error never rises: a change that would
// raise it is not made.
func (m *matrixJob) refine(u *unitRows, scratch *linalg.Scratch) error {
	cols, k := m.cols, m.solver.Kernels()
	block := max(columnBlock, m.options.Scheme.Group) // whole groups
	gradient := make([]float32, u.n*block)
	apart := linalg.Apart(cols)
	diff := make([]float32, u.n*apart)
	for r := range u.n {
		for i, v := range u.values[r*cols : (r+1)*cols] {
			diff[r*apart+i] = v - m.w[(u.first+r)*cols+i]
		}
	}
	u.curves = make([]float64, len(u.scales))
	for i := range u.curves {
		u.curves[i] = -1
	}
	for range m.options.Refine {
		if m.options.Stop != nil {
			if err := m.options.Stop(); err != nil {
				return err
			}
		}
		for at := 0; at < cols; at += block {
			n := min(block, cols-at)
			scratch.Mul(k, gradient, block, diff, apart, u.n, m.in.H[at*cols:], cols, n, cols)
			for r := range u.n {
				m.descend(u, r, at, n, gradient[r*block:r*block+n], diff[r*apart+at:r*apart+at+n])
			}
		}
	}
	return nil
}

// descend changes codes and scales of n columns of a row, from column at on. gradient is H·diff of these columns, and diff what the row's
// values differ by from its weights there; both are kept up to date.
func (m *matrixJob) descend(u *unitRows, r, at, n int, gradient, diff []float32) {
	cols, h, k, s := m.cols, m.in.H, m.solver.Kernels(), m.options.Scheme
	groups := s.Groups(cols)
	scales, zeros := u.scales[r*groups:(r+1)*groups], u.zeros[r*groups:(r+1)*groups]
	codes, values, curves := u.codes[r].Codes, u.values[r*cols:(r+1)*cols], u.curves[r*groups:(r+1)*groups]
	change := func(i int, delta float32) {
		diff[i] += delta
		values[at+i] += delta
		k.Axpy(delta, h[(at+i)*cols+at:(at+i)*cols+at+n], gradient)
	}
	for i := range n {
		c := at + i
		curve := h[c*cols+c]
		scale, zero := scales[c/s.Group], zeros[c/s.Group]
		if curve <= 0 || scale == 0 {
			continue
		}
		now := scale * m.grid.level(codes[c], zero)
		code := m.grid.code((now-gradient[i]/curve)/scale, zero)
		if code == codes[c] {
			continue
		}
		delta := scale*m.grid.level(code, zero) - now
		if delta*(2*gradient[i]+delta*curve) < 0 {
			codes[c], curves[c/s.Group] = code, -1
			change(i, delta)
		}
	}
	for g := at / s.Group; g*s.Group < at+n; g++ {
		from, to := g*s.Group-at, min((g+1)*s.Group-at, n)
		m.rescale(u, r, g, at, from, to, gradient, change)
	}
}

// rescale sets the scale of group g, columns at+from … at+to-1, to what is best for its codes, if that can be stored and lowers the error. How
// steep the error gets, codes H codesᵀ within the group, is kept for as long as the codes stay.
func (m *matrixJob) rescale(u *unitRows, r, g, at, from, to int, gradient []float32, change func(i int, delta float32)) {
	s := m.options.Scheme
	groups := s.Groups(m.cols)
	scale, zero := u.scales[r*groups+g], u.zeros[r*groups+g]
	c := u.codes[r]
	var slope float64
	var levels [packed.Super]float32
	for i := from; i < to; i++ {
		levels[i-from] = m.grid.level(c.Codes[at+i], zero)
		slope += float64(levels[i-from]) * float64(gradient[i])
	}
	used := levels[:to-from]
	curve := u.curves[r*groups+g]
	if curve < 0 {
		curve = m.form(used, at+from)
		u.curves[r*groups+g] = curve
	}
	if curve <= 0 {
		return
	}
	wanted := scale - float32(slope/curve)
	var stored float32
	if s.TwoLevel {
		d := c.Scales[g*s.Group/packed.Super]
		stored = half.F16ToF32(d) * subScale(wanted, d)
	} else {
		stored = half.F16ToF32(half.F32ToF16(wanted))
	}
	step := float64(stored - scale)
	if step == 0 || step-step != 0 || step*(2*slope+step*curve) >= 0 {
		return
	}
	if s.TwoLevel {
		c.Subs[g] = int8(subScale(wanted, c.Scales[g*s.Group/packed.Super]))
	} else {
		c.Scales[g] = half.F32ToF16(wanted)
	}
	u.scales[r*groups+g] = stored
	for i := from; i < to; i++ {
		change(i, stored*levels[i-from]-scale*levels[i-from])
	}
}

// form is v H vᵀ of columns at … at+len(v)-1.
func (m *matrixJob) form(v []float32, at int) (sum float64) {
	for i, l := range v {
		if l != 0 {
			first := (at+i)*m.cols + at
			sum += float64(l) * float64(m.solver.Kernels().Dot(v, m.in.H[first:first+len(v)]))
		}
	}
	return sum
}
