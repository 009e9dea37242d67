package main

import (
	"os"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats/checkpoint"
	"qtool/runtime/tokenizer"
)

// calibrationOptions are the flags that say how quantize uses calibration.
type calibrationOptions struct {
	data             string
	context, samples int
	method           string
	refine           int
	damping          float64
	inOrder          bool
	maxMemory        int64
}

func (o *calibrationOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.data, "calib", "", "text to calibrate on")
	f.IntVar(&o.context, "calib-context", 512, "tokens of a calibration sequence")
	f.IntVar(&o.samples, "calib-samples", 128, "calibration sequences at most")
	f.StringVar(&o.method, "method", "gptq", "how codes are chosen with calibration: gptq, or rtn")
	f.IntVar(&o.refine, "refine", 3, "rounds of coordinate descent on the error of a layer's output")
	f.Float64Var(&o.damping, "damping", quant.DefaultDamping, "of the Hessian, as a share of its mean diagonal")
	f.BoolVar(&o.inOrder, "in-order", false, "quantize columns as they stand, not those of the largest inputs first")
}

func (o *calibrationOptions) apply(_ *cobra.Command, r *convert.Recipe) error {
	if o.data == "" {
		return nil
	}
	m, err := quant.ParseMethod(o.method)
	if err != nil {
		return usageError{err}
	}
	r.Method, r.Refine, r.Damping, r.InOrder = m, o.refine, o.damping, o.inOrder
	return nil
}

func (o *calibrationOptions) read(m *checkpoint.Model, r *convert.Recipe) (*convert.Calibration, error) {
	if o.data == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.data)
	if err != nil {
		return nil, err
	}
	d, err := m.Vocabulary()
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.New(d)
	if err != nil {
		return nil, err
	}
	ids := t.Encode(string(text), tokenizer.Options{AddSpecial: true})
	c := &convert.Calibration{MaxMemory: o.maxMemory}
	for at := 0; at+o.context <= len(ids) && len(c.Sequences) < o.samples; at += o.context {
		w := append([]int32(nil), ids[at:at+o.context]...)
		if t.AddsBOS() {
			w[0] = t.BOS()
		}
		c.Sequences = append(c.Sequences, w)
	}
	return c, nil
}
