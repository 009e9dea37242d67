package convert

import (
	"context"
	"fmt"

	"qtool/calibrate"
	"qtool/runtime/llama"
)

// embedding quantizes the embedding. It has no inputs to calibrate on, unless it is the head too: then it is what the head makes of the text that
// counts, and the hidden states that the head sees are those of the source, since all blocks come after.
func (c *calibrated) embedding(ctx context.Context) error {
	name := c.engine.EmbeddingName()
	d := c.decisions[name]
	_, done := c.work.done[name]
	if done || name != c.blocks.Head() || d.Scheme == nil || d.Tensor.Packed() {
		return c.plainly(ctx, name)
	}
	if err := c.options.Calibration.embed(c.blocks, c.states); err != nil {
		return err
	}
	for layer := range c.blocks.Count() {
		for _, half := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
			if err := c.advance(ctx, layer, half); err != nil {
				return err
			}
		}
	}
	return c.headMatrix(ctx, d)
}

// head quantizes an output projection of its own.
func (c *calibrated) head(ctx context.Context) error {
	name := c.blocks.Head()
	d, ok := c.decisions[name]
	if !ok || name == c.engine.EmbeddingName() || d.Scheme == nil || d.Tensor.Packed() {
		return nil
	}
	if _, ok := c.work.done[name]; ok {
		return nil
	}
	return c.headMatrix(ctx, d)
}

// headMatrix quantizes the output projection by the hidden states, which have passed all blocks.
func (c *calibrated) headMatrix(ctx context.Context, d Decision) error {
	name, hidden := d.Tensor.Name, c.engine.Config().Hidden
	gram := calibrate.NewGram(c.solver, hidden)
	var ranges *calibrate.Histogram
	if d.Scheme.Static {
		ranges = calibrate.NewHistogram()
	}
	input := make([]float32, c.length*hidden)
	apart := c.source != nil && name != c.engine.EmbeddingName() // the states are not the source's
	if apart {
		c.source.beginHead()
	}
	for i := range c.options.Calibration.Sequences {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, err := c.states.Get(i)
		if err != nil {
			return err
		}
		c.blocks.HeadInput(input, x, c.length)
		if apart {
			if err := c.source.addHead(i, input); err != nil {
				return fmt.Errorf("inputs of %q: %w", name, err)
			}
		}
		if err := gram.Add(input, c.length); err != nil {
			return fmt.Errorf("inputs of the head, %q: %w", name, err)
		}
		if ranges != nil {
			ranges.Add(input)
		}
	}
	h := gram.Mean()
	if name == c.engine.EmbeddingName() {
		addIdentity(h, hidden, embeddingShare)
	}
	in, err := c.prepare(h, hidden)
	if err != nil {
		return fmt.Errorf("inputs of %q: %w", name, err)
	}
	var to *target
	if apart && in != nil {
		to = c.source.of(in)
	}
	return c.matrices(ctx, []Decision{d}, in, to, c.limit(ranges))
}

// embeddingShare is what an error of an embedding's element counts beside the error that it makes in the head, where the two are tied, by the mean
// of the latter. Chosen on few models: KL divergence on stories260k, tinystories656k with the embedding at w4g32: 0.076, 0.067 with 0; 0.072, 0.058 with 0.3; 0.077, 0.055
// with 1; 0.087, 0.054 when rounded to nearest.
const embeddingShare = 1

// addIdentity adds a share of the mean of the diagonal of h, [n][n], to it.
func addIdentity(h []float32, n int, share float64) {
	var sum float64
	for i := range n {
		sum += float64(h[i*n+i])
	}
	for i := range n {
		h[i*n+i] += float32(share * sum / float64(n))
	}
}
