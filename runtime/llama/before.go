package llama

import (
	"fmt"
	"strings"
)

// NormBefore names the norm that gives the input of the first layers of a half block, and nothing else.
func (b *Blocks) NormBefore(layer int, h Half) string {
	name := "input_layernorm"
	switch {
	case h == FeedForwardHalf && b.engine.config.PostNorms:
		name = "pre_feedforward_layernorm"
	case h == FeedForwardHalf:
		name = "post_attention_layernorm"
	}
	return fmt.Sprintf("model.layers.%d.%s.weight", layer, name)
}

// SetNorm puts other factors in the place of a norm's that NormBefore names: those that are multiplied with, gemma's 1 added.
func (b *Blocks) SetNorm(name string, factors []float32) error {
	for layer := range b.engine.layers {
		l := &b.engine.layers[layer]
		for h, norm := range []*[]float32{&l.attnNorm, &l.ffnNorm} {
			if b.NormBefore(layer, Half(h)) == name {
				if len(factors) != len(*norm) {
					return fmt.Errorf("norm %q has %d factors, found %d", name, len(*norm), len(factors))
				}
				*norm = factors
				return nil
			}
		}
	}
	return fmt.Errorf("the model has no norm %q before a linear layer", name)
}

// Rows are those of a linear layer that make the input of another one: channel i of that input is row First+Of[i] of the layer's output, bias and all,
// times what does not depend on the row, or a sum of such over tokens. To divide the row by a number is to divide the channel.
type Rows struct {
	Weight string // the tensor of the weights
	Bias   string // of the bias; empty for none
	First  int    // row
	Count  int    // of rows
	Of     []int  // by channel of the input
}

// RowsBefore gives the rows that make the input of the last layer of a half block: the values, each of which the heads of a group share, and what the gate is
// multiplied with.
func (b *Blocks) RowsBefore(layer int, h Half) Rows {
	l, c := &b.engine.layers[layer], b.engine.config
	var r Rows
	var from *linear
	if h == AttentionHalf {
		r = Rows{Count: c.KVDim(), Of: make([]int, c.QDim())}
		from = &l.v
		if c.FusedQKV {
			from, r.First = &l.q, c.QDim()+c.KVDim()
		}
		group := c.Heads / c.KVHeads
		for i := range r.Of {
			r.Of[i] = i/c.HeadDim/group*c.HeadDim + i%c.HeadDim
		}
	} else {
		r = Rows{Count: c.Intermediate, Of: make([]int, c.Intermediate)}
		from = &l.up
		if c.FusedGateUp {
			from, r.First = &l.gate, c.Intermediate
		}
		for i := range r.Of {
			r.Of[i] = i
		}
	}
	r.Weight = from.tensor.Name
	if from.bias != nil {
		r.Bias = strings.TrimSuffix(r.Weight, "weight") + "bias"
	}
	return r
}

// SetBias puts another bias in the place of the one of a linear layer, which is named by its weights.
func (b *Blocks) SetBias(name string, bias []float32) error {
	w, err := b.find(name)
	if err != nil {
		return err
	}
	if len(bias) != len(w.bias) {
		return fmt.Errorf("the bias of %q has %d elements, found %d", name, len(w.bias), len(bias))
	}
	w.bias = bias
	if w.own != nil {
		w.own.bias = bias
	}
	return nil
}
