package convert

import (
	"context"
	"fmt"
	"slices"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/llama"
)

// smoothAlpha is the share of the range that weights take over from inputs: what the authors of SmoothQuant use for most models.
const smoothAlpha = 0.5

// leastScale is what a scale of a row may come to at least when the row is divided: half precision has half a percent of error there.
const leastScale = 1.0 / (1 << 17)

// division is what rows of a matrix are divided by, from the first one on.
type division struct {
	first   int
	factors []float32
}

// apply divides the rows of w, [rows][cols].
func (d division) apply(w []float32, cols int) {
	for r, f := range d.factors {
		row := w[(d.first+r)*cols : (d.first+r+1)*cols]
		for i := range row {
			row[i] /= f
		}
	}
}

// scale chooses factors for the inputs of half a block's layers, and folds them into what comes before: of the first layers into the norm, of the last one into
// the rows of the layer that makes its input, the values or what the gate is multiplied with. All are chosen by what the half block computes before any of it
// is quantized, so a run that is taken up finds the same ones again.
func (c *calibrated) scale(ctx context.Context, layer int, half llama.Half) error {
	if c.plan.Recipe.Scaling == quant.NoScaling {
		return nil
	}
	groups := c.blocks.Linears(layer)[2*half : 2*half+2]
	first, last := groups[0], groups[1][0]
	norm, rows := c.blocks.NormBefore(layer, half), c.blocks.RowsBefore(layer, half)
	byNorm, err := c.canFoldNorm(first)
	if err != nil {
		return err
	}
	byRows, err := c.canFoldRows(first, last, rows)
	if err != nil {
		return err
	}
	var names []string
	if byNorm && !c.finished(norm) {
		names = append(names, first[0])
	}
	if byRows && !c.finished(rows.Weight, rows.Bias, last) {
		names = append(names, last)
	}
	grams, err := c.grams(ctx, layer, half, names)
	if err != nil {
		return err
	}
	if byNorm {
		if err := c.foldNorm(norm, first, grams[first[0]]); err != nil {
			return fmt.Errorf("scale the inputs of %q: %w", first[0], err)
		}
	}
	if byRows {
		if err := c.foldRows(rows, last, grams[last]); err != nil {
			return fmt.Errorf("scale the inputs of %q: %w", last, err)
		}
	}
	return nil
}

// finished reports whether all tensors of those names are.
func (c *calibrated) finished(names ...string) bool {
	for _, name := range names {
		if _, ok := c.work.done[name]; name != "" && !ok {
			return false
		}
	}
	return true
}

// quantizes reports whether a matrix is quantized in this run, so that its weights can make up for factors.
func (c *calibrated) quantizes(name string) bool {
	d, ok := c.decisions[name]
	return ok && d.Scheme != nil && !d.Tensor.Packed()
}

// hasInputs reports whether there is anything to go by for layers. A text has something for all.
func (c *calibrated) hasInputs(layers ...string) (bool, error) {
	if c.options.Statistics == nil {
		return true, nil
	}
	file := c.options.Statistics.qcal
	for _, layer := range layers {
		in, ok := file.Header().Find(layer)
		if !ok {
			return false, nil
		}
		if count, err := file.Count(in); err != nil || count == 0 {
			return false, err
		}
	}
	return true, nil
}

// unscaled counts a layer whose input is not scaled, and says why.
func (c *calibrated) unscaled(layer string, why Unscaled) {
	if c.result.Unscaled == nil {
		c.result.Unscaled = make(map[Unscaled][]string)
	}
	c.result.Unscaled[why] = append(c.result.Unscaled[why], layer)
}

// canFoldNorm reports whether the layers that share a norm's output can have it scaled, and counts them if some ask for that and they cannot.
func (c *calibrated) canFoldNorm(names []string) (bool, error) {
	quantized := c.quantized(names)
	if len(quantized) == 0 {
		return false, nil // nothing to be gained
	}
	if len(quantized) < len(names) {
		c.unscaled(quantized[0], SharedAsIs)
		return false, nil
	}
	ok, err := c.hasInputs(names...)
	if !ok && err == nil {
		c.unscaled(names[0], InputUnknown)
	}
	return ok, err
}

// quantized gives those of the matrices that are quantized in this run.
func (c *calibrated) quantized(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !c.quantizes(name) })
}

// canFoldRows reports whether a layer's input can be scaled by dividing the rows that make it, those of a matrix among layers that share an input, and
// counts the layer if it asks for that and they cannot.
func (c *calibrated) canFoldRows(makers []string, last string, rows llama.Rows) (bool, error) {
	if !c.quantizes(last) {
		return false, nil // nothing to be gained
	}
	if !c.quantizes(rows.Weight) {
		c.unscaled(last, MadeAsIs)
		return false, nil
	}
	if rows.Bias != "" {
		ok, err := c.isStorable(c.decisions[rows.Bias])
		if err != nil {
			return false, err
		}
		if !ok {
			c.unscaled(last, BiasBeyondType)
			return false, nil
		}
	}
	if ok, err := c.hasInputs(last); !ok || err != nil {
		if err == nil {
			c.unscaled(last, InputUnknown)
		}
		return false, err
	}
	ok, err := c.hasInputs(c.quantized(makers)...) // else the rows are not divided, which only those are that are quantized by inputs
	if !ok && err == nil {
		c.unscaled(last, MakerUnknown)
	}
	return ok, err
}

// isStorable reports whether all values of a plain tensor are finite once they are stored.
func (c *calibrated) isStorable(d Decision) (bool, error) {
	stored := make([]float32, d.Tensor.Elements())
	if err := d.Tensor.ReadAll(stored); err != nil {
		return false, err
	}
	decodePlain(stored, encodePlain(stored, d.DType), d.DType)
	return !slices.ContainsFunc(stored, func(v float32) bool { return v-v != 0 }), nil
}

// grams gives what is known of the inputs of layers of half a block: of the file, or of the text, which one run through the half block sees.
func (c *calibrated) grams(ctx context.Context, layer int, half llama.Half, names []string) (map[string]*calibrate.Gram, error) {
	grams := make(map[string]*calibrate.Gram)
	if len(names) == 0 {
		return grams, nil
	}
	for _, name := range names {
		if c.options.Statistics == nil {
			grams[name] = calibrate.NewGram(c.solver, c.decisions[name].Tensor.Cols())
			continue
		}
		gram, _, err := c.recallGram(name, false)
		if err != nil {
			return nil, err
		}
		grams[name] = gram
	}
	if c.options.Statistics != nil {
		return grams, nil
	}
	return grams, c.inputs(ctx, layer, half, names[len(names)-1], func(_ int, _ []float32, name string, x []float32, tokens int) error {
		if gram := grams[name]; gram != nil {
			return gram.Add(x, tokens)
		}
		return nil
	})
}

// foldNorm scales the channels that a norm gives to the linear layers of those names: it divides the norm's weights by factors, writes them, and
// notes the factors for the layers' columns. The factors are exactly what the stored norm was divided by, whatever its type rounds. gram is of a norm that
// is not finished.
func (c *calibrated) foldNorm(norm string, names []string, gram *calibrate.Gram) error {
	d := c.decisions[norm]
	values := make([]float32, d.Tensor.Elements())
	if err := d.Tensor.ReadAll(values); err != nil {
		return err
	}
	shift := float32(0)
	if c.engine.Config().NormPlusOne {
		shift = 1
	}
	if !c.finished(norm) {
		factors, err := c.channelFactors(gram, quant.Channels{}, names)
		if err != nil {
			return err
		}
		changed, one := make([]float32, len(values)), make([]float32, 1)
		for i, v := range values {
			changed[i] = (v+shift)/factors[i] - shift
			decodePlain(one, encodePlain(changed[i:i+1], d.DType), d.DType)
			// Channels whose weight would round to nothing, or beyond the type, stay as they are.
			if r := one[0] + shift; r == 0 || r-r != 0 || v+shift == 0 {
				changed[i] = v
			}
		}
		if err := c.writePlain(d, values, changed); err != nil {
			return err
		}
	}
	stored, err := c.readPlain(d)
	if err != nil {
		return err
	}
	factors := make([]float32, len(values))
	for i, v := range values {
		stored[i] += shift
		factors[i] = 1
		if stored[i] != 0 { // a channel that the norm gives nothing to needs no factor
			factors[i] = (v + shift) / stored[i]
		}
	}
	for _, name := range names {
		c.factors[name] = factors
	}
	return c.blocks.SetNorm(norm, stored)
}

// foldRows scales the input of a layer: it notes factors for the rows that make it, which are divided by them, and for the layer's columns, and writes the bias
// of the rows. Of an element of the bias, the factor is exactly what the stored one was divided by. gram is missing where all is finished.
func (c *calibrated) foldRows(rows llama.Rows, last string, gram *calibrate.Gram) error {
	if gram == nil {
		if rows.Bias == "" {
			return nil
		}
		stored, err := c.readPlain(c.decisions[rows.Bias])
		if err != nil {
			return err
		}
		return c.blocks.SetBias(rows.Weight, stored)
	}
	most, err := c.mostFactors(rows)
	if err != nil {
		return err
	}
	channels := quant.Channels{Shared: rows.Of, Most: make([]float32, len(rows.Of))}
	for i, r := range rows.Of {
		channels.Most[i] = most[r]
	}
	columns, err := c.channelFactors(gram, channels, []string{last})
	if err != nil {
		return err
	}
	factors := make([]float32, rows.Count)
	for i, r := range rows.Of {
		factors[r] = columns[i]
	}
	if rows.Bias != "" {
		if err := c.divideBias(rows, factors); err != nil {
			return fmt.Errorf("tensor %q: %w", rows.Bias, err)
		}
	}
	for i, r := range rows.Of {
		columns[i] = factors[r]
	}
	c.factors[last], c.divided[rows.Weight] = columns, division{rows.First, factors}
	return nil
}

// mostFactors gives what each row, with the factors of its columns, may be divided by at most, so that its scales stay numbers of half precision: 1 at least, which
// leaves a row as it is.
func (c *calibrated) mostFactors(rows llama.Rows) ([]float32, error) {
	d := c.decisions[rows.Weight]
	cols := d.Tensor.Cols()
	w := make([]float32, rows.Count*cols)
	if err := readGuarded(d.Tensor, w, rows.First, rows.Count, &checkpoint.Reader{}); err != nil {
		return nil, err
	}
	columns := c.factors[rows.Weight]
	most := make([]float32, rows.Count)
	for r := range most {
		var largest float32
		for i, v := range w[r*cols : (r+1)*cols] {
			if columns != nil {
				v *= columns[i]
			}
			largest = max(largest, v, -v)
		}
		most[r] = max(1, quant.LeastScale(*d.Scheme, largest)/leastScale)
	}
	return most, nil
}

// divideBias divides the bias of rows by their factors, writes it, and sets the factors to what that came to in its type.
func (c *calibrated) divideBias(rows llama.Rows, factors []float32) error {
	d := c.decisions[rows.Bias]
	values := make([]float32, d.Tensor.Elements())
	if err := d.Tensor.ReadAll(values); err != nil {
		return err
	}
	changed := append([]float32(nil), values...)
	stored := make([]float32, len(values))
	for r := range factors {
		changed[rows.First+r] /= factors[r]
	}
	decodePlain(stored, encodePlain(changed, d.DType), d.DType)
	for r := range factors {
		i := rows.First + r
		v, s := values[i], stored[i]
		switch {
		case v == 0: // whatever it is divided by
		case s == 0 || s-s != 0: // it would round to nothing, or beyond the type
			changed[i], factors[r] = v, 1
		default:
			factors[r] = v / s
		}
	}
	if !c.finished(rows.Bias) {
		if err := c.writePlain(d, values, changed); err != nil {
			return err
		}
	}
	decodePlain(stored, encodePlain(changed, d.DType), d.DType)
	return c.blocks.SetBias(rows.Weight, stored)
}

// channelFactors chooses the factors for layers that share an input.
func (c *calibrated) channelFactors(gram *calibrate.Gram, channels quant.Channels, names []string) ([]float32, error) {
	var matrices []quant.Weights
	for _, name := range names {
		d := c.decisions[name]
		w := make([]float32, d.Tensor.Elements())
		if err := d.Tensor.ReadAll(w); err != nil {
			return nil, err
		}
		matrices = append(matrices, quant.Weights{W: w, Rows: d.Tensor.Rows(), Scheme: *d.Scheme})
	}
	if c.plan.Recipe.Scaling == quant.SmoothQuant {
		return quant.SmoothFactors(gram.Max, smoothAlpha, channels, matrices), nil
	}
	return quant.AWQFactors(c.solver, gram.Mean(), gram.Cols, channels, c.plan.Recipe.Rule, matrices)
}

// writePlain stores a vector of which the source has values as what these were changed to.
func (c *calibrated) writePlain(d Decision, values, changed []float32) error {
	raw := encodePlain(changed, d.DType)
	if _, err := c.work.data.WriteAt(raw, c.places[d.Tensor.Name].Offset); err != nil {
		return err
	}
	it, err := plain(d.Tensor, d.DType, false)
	if err != nil {
		return err
	}
	source, err := sourceDigest(&it, values)
	if err != nil {
		return err
	}
	return c.work.finish(d.Tensor.Name, outcome{digest: packed.Sum(raw), source: source})
}

// readPlain reads what writePlain has stored.
func (c *calibrated) readPlain(d Decision) ([]float32, error) {
	place := c.places[d.Tensor.Name]
	raw := make([]byte, place.Size)
	if _, err := c.work.data.ReadAt(raw, place.Offset); err != nil {
		return nil, err
	}
	stored := make([]float32, d.Tensor.Elements())
	decodePlain(stored, raw, d.DType)
	return stored, nil
}

// encodePlain gives values in a plain type.
func encodePlain(values []float32, d formats.DType) []byte {
	width, _ := d.Bits()
	raw := make([]byte, len(values)*width/8)
	switch d {
	case formats.F16:
		half.EncodeF16(raw, values)
	case formats.BF16:
		half.EncodeBF16(raw, values)
	default:
		half.EncodeF32(raw, values)
	}
	return raw
}

// decodePlain reads what encodePlain gives.
func decodePlain(values []float32, raw []byte, d formats.DType) {
	switch d {
	case formats.F16:
		half.DecodeF16(values, raw)
	case formats.BF16:
		half.DecodeBF16(values, raw)
	default:
		half.DecodeF32(values, raw)
	}
}
