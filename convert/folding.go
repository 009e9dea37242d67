package convert

import (
	"context"
	"fmt"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/half"
	"qtool/formats/packed"
	"qtool/runtime/llama"
)

// smoothAlpha is the share of the range that weights take over from inputs: what the authors of SmoothQuant use for most models.
const smoothAlpha = 0.5

// fold scales the channels that a norm gives to the linear layers of those names: it divides the norm's weights by factors, writes them, and
// notes the factors for the layers' columns. The factors are exactly what the stored norm was divided by, whatever its type rounds. Layers whose input
// comes from no norm stay as they are.
func (c *calibrated) fold(ctx context.Context, layer int, half llama.Half, names []string) error {
	scaling := c.plan.Recipe.Scaling
	norm, ok := c.blocks.NormBefore(layer, names[0])
	if scaling == quant.NoScaling || !ok {
		return nil
	}
	for _, name := range names {
		if d := c.decisions[name]; d.Scheme == nil || d.Tensor.Packed() {
			c.result.Unscaled = append(c.result.Unscaled, names[0])
			return nil
		}
	}
	d := c.decisions[norm]
	values := make([]float32, d.Tensor.Elements())
	if err := d.Tensor.ReadAll(values); err != nil {
		return err
	}
	if _, done := c.work.done[norm]; !done {
		factors, err := c.channelFactors(ctx, layer, half, names)
		if err != nil {
			return fmt.Errorf("scale the inputs of %q: %w", names[0], err)
		}
		if err := c.writeNorm(d, values, factors); err != nil {
			return fmt.Errorf("tensor %q: %w", norm, err)
		}
	}
	place := c.places[norm]
	raw := make([]byte, place.Size)
	if _, err := c.work.data.ReadAt(raw, place.Offset); err != nil {
		return err
	}
	stored := make([]float32, len(values))
	decodePlain(stored, raw, d.DType)
	shift := float32(0)
	if c.engine.Config().NormPlusOne {
		shift = 1
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

// channelFactors chooses the factors for layers that share an input.
func (c *calibrated) channelFactors(ctx context.Context, layer int, half llama.Half, names []string) ([]float32, error) {
	var matrices []quant.Weights
	cols := 0
	for _, name := range names {
		d := c.decisions[name]
		cols = d.Tensor.Cols()
		w := make([]float32, d.Tensor.Elements())
		if err := d.Tensor.ReadAll(w); err != nil {
			return nil, err
		}
		matrices = append(matrices, quant.Weights{W: w, Rows: d.Tensor.Rows(), Scheme: *d.Scheme})
	}
	var gram *calibrate.Gram
	var err error
	if c.options.Statistics != nil {
		gram, _, err = c.recallGram(names[0], false)
	} else {
		gram, _, err = c.collect(ctx, layer, half, cols, names[0], false)
	}
	if err != nil {
		return nil, err
	}
	if c.plan.Recipe.Scaling == quant.SmoothQuant {
		return quant.SmoothFactors(gram.Max, smoothAlpha, matrices), nil
	}
	return quant.AWQFactors(c.solver, gram.Mean(), cols, matrices)
}

// writeNorm stores a norm divided by factors; channels whose weight would round to nothing, or beyond the type, stay as they are.
func (c *calibrated) writeNorm(d Decision, values, factors []float32) error {
	shift := float32(0)
	if c.engine.Config().NormPlusOne {
		shift = 1
	}
	changed, one := make([]float32, len(values)), make([]float32, 1)
	for i, v := range values {
		changed[i] = (v+shift)/factors[i] - shift
		raw := encodePlain(changed[i:i+1], d.DType)
		decodePlain(one, raw, d.DType)
		if r := one[0] + shift; r == 0 || r-r != 0 || v+shift == 0 {
			changed[i] = v
		}
	}
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
