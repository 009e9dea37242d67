package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"qtool/calibrate"
	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// calibrationOptions are the flags that say how quantize uses calibration.
type calibrationOptions struct {
	dataOptions

	source convert.Source // what the data turn out to be
	// assumed says that a recipe is printed for data that are not named, of a text.
	assumed bool
	// fromRecipe says that a file has every choice, so that none of them is a default.
	fromRecipe bool
	method     string
	refine     int
	damping    float64
	inOrder    bool
	targets    string
	ranges     string
	scaling    string

	targetBits float64
	targetSize string
	schemes    []string
}

func (o *calibrationOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.data, "calib", "", "data to calibrate on: a text, documents in JSON lines, arrays of token ids in JSON lines, a .qcal file, or an imatrix")
	o.dataOptions.addFlags(f, "")
	f.StringVar(&o.method, "method", "gptq", "how codes are chosen with calibration: gptq, or rtn")
	f.IntVar(&o.refine, "refine", 3, "rounds of coordinate descent on the error of a layer's output")
	f.Float64Var(&o.damping, "damping", quant.DefaultDamping, "of the Hessian, as a share of its mean diagonal")
	f.StringVar(&o.scaling, "scaling", "none", "of the channels of linear layers' inputs, folded into what comes before: none, awq, or smoothquant (for schemes ending in -s8)")
	f.StringVar(&o.ranges, "activation-range", string(calibrate.MSE), "rule for static ranges of activations (schemes ending in -s8): minmax, percentile, mse, entropy")
	f.StringVar(&o.targets, "targets", "", "what a layer's outputs are to meet: source (those of the source model, so that it makes up for layers before it),"+
		" or own (those of its own weights); default: source for gptq on a text, else own")
	f.Float64Var(&o.targetBits, "target-bpw", 0, "mixed precision: a scheme for each tensor, so that all together take so many bits per weight")
	f.StringVar(&o.targetSize, "target-size", "", "the same by size of the tensors: 3.9GB, 700MiB")
	f.StringSliceVar(&o.schemes, "mix", nil, "schemes that mixed precision chooses from (default w3g32nlk,w3g16nlk,w4g32nlk,w4g16nlk,w4g32nl,w8)")
	f.BoolVar(&o.inOrder, "in-order", false, "quantize columns as they stand, not those of the largest inputs first")
}

// used reports whether there is calibration.
func (o *calibrationOptions) used() bool { return o.data != "" || o.assumed }

// apply puts what the flags say into a recipe. limit is a divergence that the result must keep, 0 for none: with calibration, and where no
// scheme was named, it is a budget.
func (o *calibrationOptions) apply(cmd *cobra.Command, r *convert.Recipe, limit float64) error {
	if cmd.Flags().Changed("target-bpw") && !(o.targetBits > 0) {
		return usagef("--target-bpw %g: expected a positive number", o.targetBits)
	}
	budget := convert.Budget{BitsPerWeight: o.targetBits}
	if o.targetSize != "" {
		n, err := parseSize(o.targetSize)
		if err != nil {
			return usagef("--target-size: %w", err)
		}
		budget.Bytes = n
	}
	named := cmd.Flags().Changed("scheme") || cmd.Flags().Changed("bits") || cmd.Flags().Changed("group")
	if err := o.detect(); err != nil {
		return err
	}
	if o.source != convert.FromText {
		if budget.Set() || len(o.schemes) > 0 {
			return usagef("mixed precision measures predictions on a text: give --calib a text, %s is a file of statistics (%s)", o.data, o.source)
		}
		if limit > 0 && !named {
			return usagef("--max-kld without a scheme chooses one for each tensor, which needs a text: name a --scheme or --bits and it is a gate alone")
		}
		if err := o.checkSource(cmd); err != nil {
			return err
		}
		if o.source == convert.FromImatrix && hasStatic(r) {
			return usagef("schemes that end in -s8 need ranges of activations, which an imatrix does not have")
		}
	}
	if cmd.Flags().Changed("max-kld") && limit == 0 && !budget.Set() && o.used() && !named {
		return usagef("--max-kld 0 leaves no scheme to choose: name a --scheme or --bits, and it is a gate")
	}
	if limit > 0 && !budget.Set() && o.used() && !named {
		budget.Divergence = limit
	}
	if !o.used() {
		if budget.Set() || len(o.schemes) > 0 {
			return usagef("mixed precision needs text to measure on: give --calib")
		}
		return o.unused(cmd)
	}
	if !(o.damping >= 1e-6) || o.damping > 10 || o.refine < 0 || o.refine > 100 {
		return usagef("expected a --damping from 0.000001 to 10, --refine from 0 to 100")
	}
	if err := o.check(); err != nil {
		return err
	}
	for _, s := range o.schemes {
		budget.Schemes = append(budget.Schemes, convert.Choice(s))
	}
	if err := budget.Validate(); err != nil {
		return usageError{err}
	}
	if budget.Set() {
		for _, flag := range []string{"scheme", "bits", "group", "asymmetric"} {
			if cmd.Flags().Changed(flag) {
				return usagef("a budget chooses the schemes: --%s would say them too; --mix says which to choose from, --tensor decides for single tensors", flag)
			}
		}
		if len(budget.Schemes) == 0 {
			budget.Schemes = convert.DefaultSchemes() // a recipe keeps what they are today
		}
		r.Budget = &budget
	} else if len(o.schemes) > 0 {
		return usagef("--mix says what mixed precision chooses from: give --target-bpw, --target-size or --max-kld")
	}
	m, err := quant.ParseMethod(o.method)
	if err != nil {
		return usageError{err}
	}
	ranges, err := calibrate.ParseRangeRule(o.ranges)
	if err != nil {
		return usageError{err}
	}
	if r.Scaling, err = quant.ParseScaling(o.scaling); err != nil {
		return usageError{err}
	}
	if r.Scaling == quant.SmoothQuant && !hasStatic(r) {
		return usagef("--scaling smoothquant is for schemes that end in -s8; awq is for the others")
	}
	if hasStatic(r) {
		r.Ranges = ranges
	} else if cmd.Flags().Changed("activation-range") {
		return usagef("--activation-range is for schemes that end in -s8")
	}
	if r.Source = o.source; r.Source == convert.FromText {
		r.Context, r.Sequences = o.context, o.samples
	}
	if r.Source == convert.FromQcal && r.Scaling != quant.NoScaling && hasStatic(r) && ranges != calibrate.MinMax {
		return usagef("with a file of statistics, --scaling and static ranges go together with --activation-range minmax only: histograms are of channels as they were")
	}
	if r.Targets, err = o.outputs(m); err != nil {
		return err
	}
	r.Method, r.Refine, r.Damping, r.InOrder = m, o.refine, o.damping, o.inOrder
	return o.refuseUseless(cmd, r)
}

// outputs says what the outputs of layers are to meet.
func (o *calibrationOptions) outputs(m quant.Method) (convert.Targets, error) {
	if o.targets == "" {
		if m == quant.GPTQ && o.source == convert.FromText && o.samples > 1 {
			return convert.SourceOutputs, nil
		}
		return convert.OwnOutputs, nil
	}
	t, err := convert.ParseTargets(o.targets)
	if err != nil {
		return "", usageError{err}
	}
	if t == convert.SourceOutputs && o.source != convert.FromText {
		return "", usagef("--targets source runs the source beside what is quantized, on a text: %s is %s", o.data, sourceText(o.source))
	}
	return t, nil
}

// settleTargets takes back a default that data of one sequence cannot meet, and reports that it did.
func (o *calibrationOptions) settleTargets(r *convert.Recipe, c *convert.Calibration) bool {
	if o.targets != "" || o.fromRecipe || c == nil || len(c.Sequences) > 1 || r.Method != quant.GPTQ {
		return false
	}
	taken := r.Targets == convert.SourceOutputs
	r.Targets = convert.OwnOutputs
	return taken
}

// refuseUseless refuses flags that would change nothing.
func (o *calibrationOptions) refuseUseless(cmd *cobra.Command, r *convert.Recipe) error {
	if r.Method == quant.RTN && r.Targets == convert.OwnOutputs && cmd.Flags().Changed("damping") {
		return usagef("--damping is for Hessians, which --method rtn does not use but for --targets source: leave it out")
	}
	if r.InOrder && r.Method == quant.RTN && r.Targets == convert.OwnOutputs {
		return usagef("--in-order is the order in which gptq quantizes columns: --method rtn rounds each weight by itself, in none; leave it out")
	}
	return o.checkField(cmd)
}

// unused refuses flags that say how calibration is used, where there is none.
func (o *calibrationOptions) unused(cmd *cobra.Command) error {
	for _, flag := range append([]string{"method", "refine", "damping", "in-order", "targets", "scaling", "activation-range"}, textFlags...) {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s says how calibration is used: give --calib", flag)
		}
	}
	return nil
}

// read reads the calibration data, and notes their digest in the recipe; nil where there are none.
func (o *calibrationOptions) read(m *checkpoint.Model, r *convert.Recipe) (*convert.Calibration, *dataReport, error) {
	if o.data == "" || o.source != convert.FromText {
		return nil, nil, nil
	}
	s, report, err := o.sequences(m, r.Context, r.Sequences)
	if err != nil {
		return nil, nil, err
	}
	found := s.Digest.String()
	if r.Calibration != "" && r.Calibration != found {
		return nil, nil, fmt.Errorf("calibration data %s have digest %s, the recipe asks for those of %s", o.data, found, r.Calibration)
	}
	r.Calibration = found
	return &convert.Calibration{Sequences: s.Windows, MaxMemory: o.maxMemory}, report, nil
}

// hasStatic reports whether a scheme of the recipe has static ranges of activations.
func hasStatic(r *convert.Recipe) bool {
	choices := []convert.Choice{r.Linear, r.Head}
	for _, o := range r.Overrides {
		choices = append(choices, o.Choice)
	}
	return slices.ContainsFunc(choices, func(c convert.Choice) bool {
		s, err := packed.ParseScheme(string(c))
		return err == nil && s.Static
	})
}

// parseSize reads a number of bytes with a unit: 700MB, 3.9 GB, 512MiB.
func parseSize(s string) (int64, error) {
	units := []struct {
		name  string
		bytes float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(f*u.bytes >= 1) || f*u.bytes > 1e18 {
			break
		}
		return int64(f * u.bytes), nil
	}
	return 0, fmt.Errorf("%q: expected a number of bytes with its unit, such as 3.9GB or 700MiB", s)
}
