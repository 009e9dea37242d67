// Package convert carries models from one container to another: with other element types, or
// quantized by a recipe into a packed file. Tensors stream through it, none in memory as a whole, where
// they are rounded as they stand; calibration takes a matrix at a time, and what Plan.Expect says.
package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// Choice is how a tensor is to be stored: a scheme's name (w4g32), a plain type (f32, f16, bf16), or keep
// for the type that it has.
type Choice string

// Keep leaves a tensor in the type that it has.
const Keep Choice = "keep"

// plainTypes are the element types that a choice can name.
var plainTypes = map[Choice]formats.DType{"f32": formats.F32, "f16": formats.F16, "bf16": formats.BF16}

// Validate says what is wrong with the choice.
func (c Choice) Validate() error {
	if c == Keep || plainTypes[c] != "" {
		return nil
	}
	_, err := packed.ParseScheme(string(c))
	return err
}

// ErrNoMatch is what an error matches where a pattern stands for nothing.
var ErrNoMatch = errors.New("matches no tensor of the model")

// Override is the choice for the tensors that a pattern matches.
type Override struct {
	Pattern string `json:"pattern"` // of the name, with * for any part between dots and ** for anything; see wild
	Choice  Choice `json:"choice"`
}

// ParseOverride reads PATTERN=CHOICE.
func ParseOverride(s string) (Override, error) {
	pattern, choice, ok := strings.Cut(s, "=")
	o := Override{Pattern: strings.TrimSpace(pattern), Choice: Choice(strings.TrimSpace(choice))}
	if !ok || o.Pattern == "" {
		return o, fmt.Errorf("%q: expected PATTERN=SCHEME, such as \"model.layers.*.mlp.down_proj.weight=w8\"", s)
	}
	return o, o.Validate()
}

// Validate says what is wrong with the override.
func (o Override) Validate() error {
	if o.Pattern == "" {
		return fmt.Errorf("the pattern is empty")
	}
	if _, err := path.Match(o.Pattern, ""); err != nil {
		return fmt.Errorf("%q: %w", o.Pattern, err)
	}
	return o.Choice.Validate()
}

// wild reports whether the pattern stands for more than one name. With a scheme it then means the
// matrices among these: a norm or bias is not packed because its layer is.
func (o Override) wild() bool { return strings.ContainsAny(o.Pattern, "*?[") }

// packs reports whether the choice is a scheme.
func (o Override) packs() bool {
	_, err := packed.ParseScheme(string(o.Choice))
	return err == nil
}

// matches reports whether the pattern matches a tensor's name.
func (o Override) matches(name string) bool {
	// path.Match keeps * within slashes, as the parts of a tensor's name are kept by dots.
	parts := func(s string) string { return strings.ReplaceAll(s, ".", "/") }
	if ok, _ := path.Match(parts(o.Pattern), parts(name)); ok {
		return true
	}
	before, after, ok := strings.Cut(o.Pattern, "**")
	return ok && strings.HasPrefix(name, before) && strings.HasSuffix(name, after) && len(name) >= len(before)+len(after)
}

// Recipe is everything that decides the bytes of a packed file besides its source.
type Recipe struct {
	Linear     Choice     `json:"linear"`     // weights of linear layers
	Embeddings Choice     `json:"embeddings"` // the token embedding
	Head       Choice     `json:"head"`       // the output projection
	Rule       quant.Rule `json:"scale_rule"`
	Overrides  []Override `json:"overrides,omitempty"`
	// Rotation turns the model first, by signs that follow from the seed.
	Rotation     Rotation `json:"rotation,omitempty"`
	RotationSeed uint64   `json:"rotation_seed,omitempty"`
	// Source says what calibration stands on; empty for a text.
	Source Source `json:"calibrated_by,omitempty"`
	// Method, Refine, Damping and Order say how linear layers are quantized by calibration; without it the method is rtn.
	Method  quant.Method `json:"method,omitempty"`
	Refine  int          `json:"refine,omitempty"`   // rounds of coordinate descent
	Damping float64      `json:"damping,omitempty"`  // of the Hessian, as a share of its mean diagonal
	InOrder bool         `json:"in_order,omitempty"` // columns as they stand, not those of the largest inputs first
	// Targets says what the outputs of a layer are to be close to.
	Targets Targets `json:"targets,omitempty"`
	// Scaling of the channels of inputs.
	Scaling quant.Scaling `json:"scaling,omitempty"`
	// Ranges is the rule for the ranges of activations of schemes that have static ones.
	Ranges calibrate.RangeRule `json:"activation_ranges,omitempty"`
	// Kernels are the loops that calibration ran on: other levels round sums differently.
	Kernels     string `json:"kernels,omitempty"`
	Context     int    `json:"context,omitempty"`     // tokens of a calibration sequence
	Sequences   int    `json:"sequences,omitempty"`   // that were asked for
	Calibration string `json:"calibration,omitempty"` // digest of the data
	// Budget, if it has a limit, chose Assigned.
	Budget   *Budget             `json:"budget,omitempty"`
	Assigned map[string]Assigned `json:"assigned,omitempty"` // by tensor; an override goes first
	Clamp    bool                `json:"clamp,omitempty"`    // values beyond a type's range are cut to it
}

// Assigned is what a budget chose for a tensor.
type Assigned struct {
	Choice     Choice  `json:"choice"`
	Divergence float64 `json:"divergence"` // that its own quantization is expected to cost, in nats
}

// DefaultRecipe quantizes linear layers as linear says, embedding and head at 8 bits, by searched scales.
func DefaultRecipe(linear Choice) Recipe {
	return Recipe{Linear: linear, Embeddings: "w8", Head: "w8", Rule: quant.Search}
}

// Validate says what is wrong with the recipe.
func (r Recipe) Validate() error {
	for _, c := range []Choice{r.Linear, r.Embeddings, r.Head} {
		if err := c.Validate(); err != nil {
			return err
		}
	}
	if _, err := quant.ParseRule(string(r.Rule)); err != nil {
		return err
	}
	if _, err := ParseRotation(string(r.Rotation)); err != nil {
		return err
	}
	if r.Budget != nil {
		if err := r.Budget.Validate(); err != nil {
			return err
		}
	}
	for name, a := range r.Assigned {
		if err := a.Choice.Validate(); err != nil {
			return fmt.Errorf("assigned to %q: %w", name, err)
		}
		if a.Divergence-a.Divergence != 0 {
			return fmt.Errorf("assigned to %q: a divergence of %g is not a finite number", name, a.Divergence)
		}
	}
	if r.InOrder && r.Method != "" && !r.factors() {
		return fmt.Errorf("column_order %s: is of the columns that %s quantizes one after another; %s for a layer's own outputs rounds each weight by itself, in no order: leave it at %s",
			asStored, quant.GPTQ, r.Method, largestFirst)
	}
	return r.sourceCheck()
}

// factors reports whether the Hessians of inputs are factored: to round column by column, or to find what the source's outputs ask of weights. The order of
// columns is that of the factor.
func (r Recipe) factors() bool { return r.Method == quant.GPTQ || r.Targets == SourceOutputs }

// inputs are the options for preparing the statistics of a layer's inputs.
func (r Recipe) inputs() quant.InputOptions {
	return quant.InputOptions{Damping: r.Damping, InOrder: r.InOrder, Unfactored: !r.factors()}
}

// matrix are the options for quantizing a matrix.
func (r Recipe) matrix(s packed.Scheme) quant.MatrixOptions {
	return quant.MatrixOptions{Scheme: s, Rule: r.Rule, Method: r.Method, Refine: r.Refine}
}

// json gives the recipe as the packed file keeps it.
func (r Recipe) json() (json.RawMessage, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("recipe: %w", err) // a number that is not finite
	}
	return b, nil
}

// Decision is what becomes of one tensor.
type Decision struct {
	Tensor *checkpoint.Tensor
	Scheme *packed.Scheme // nil for a tensor that stays plain
	DType  formats.DType  // of a plain tensor
	Reason string
	Bytes  int64
}

// Storage names how the tensor will be stored.
func (d Decision) Storage() string {
	if d.Scheme != nil {
		return d.Scheme.String()
	}
	return string(d.DType)
}

// BitsPerWeight is the storage by the number of weights.
func (d Decision) BitsPerWeight() float64 {
	return 8 * float64(d.Bytes) / float64(max(d.Tensor.Elements(), 1))
}

// Plan is the decision for every tensor of a model.
type Plan struct {
	Recipe    Recipe
	Model     *checkpoint.Model // whose tensors these are: the source, or a view of it that the recipe asks for
	Decisions []Decision
	Warnings  []string
}

// NewPlan decides by the recipe. It looks at descriptions alone, not at data. It is an error where a
// pattern matches nothing, or a choice cannot be carried out.
func NewPlan(m *checkpoint.Model, r Recipe) (*Plan, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.Rotation == Hadamard {
		var err error
		if m, err = rotated(m, r.RotationSeed); err != nil {
			return nil, err
		}
	}
	p := &Plan{Recipe: r, Model: m}
	used := make([]bool, len(r.Overrides))
	for _, t := range m.Tensors() {
		if err := t.CanRead(); err != nil {
			return nil, err
		}
		choice, reason := r.settle(m.Config(), t, used)
		d, err := decide(t, choice)
		if err == nil && d.Scheme != nil && d.Scheme.Static && !t.Packed() {
			switch {
			case r.Method == "":
				err = fmt.Errorf("%s needs calibration for the range of its inputs", choice)
			case t.Role != arch.Linear && t.Role != arch.Head || t.Role == arch.Head && m.Config().TieEmbeddings:
				err = fmt.Errorf("%s is for linear layers, whose inputs have ranges: this is %s", choice, t.Role)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		d.Reason = reason
		p.Decisions = append(p.Decisions, d)
	}
	for i, o := range r.Overrides {
		if !used[i] {
			return nil, fmt.Errorf("override %q %w", o.Pattern, ErrNoMatch)
		}
	}
	if name, storage, unused := r.HeadUnused(m); unused {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the head of this model is its embedding, %s: the recipe's choice for the embedding decides over both, %s, not the one for the head, %s", name, storage, r.Head))
	}
	var twice []string
	for _, d := range p.Decisions {
		if d.Scheme == nil {
			continue
		}
		if _, blocks := d.Tensor.Block(); blocks || d.Tensor.Packed() && d.Tensor.Matrix().Scheme != *d.Scheme {
			twice = append(twice, fmt.Sprintf("%s (%s)", d.Tensor.Name, d.Tensor.Storage()))
		}
	}
	if len(twice) > 0 {
		p.Warnings = append(p.Warnings, some(twice)+": quantized already, accuracy is lost twice; quantize the original instead")
	}
	return p, nil
}

// settle is the recipe's choice for a tensor, and why. It marks the overrides that match.
func (r Recipe) settle(c *arch.Config, t *checkpoint.Tensor, used []bool) (choice Choice, reason string) {
	choice, reason = r.choose(c, t)
	if a, ok := r.Assigned[t.Name]; ok {
		choice, reason = a.Choice, fmt.Sprintf("budget: costs %.3g nats", a.Divergence)
	}
	for i, o := range r.Overrides {
		if o.matches(t.Name) && (len(t.Shape) == 2 || !o.wild() || !o.packs()) {
			choice, reason, used[i] = o.Choice, "override "+o.Pattern, true
		}
	}
	return choice, reason
}

// TiesHead reports whether the head of what the recipe makes of a model is its embedding: a rotation gives it one of its own.
func (r Recipe) TiesHead(m *checkpoint.Model) bool {
	return m.Config().TieEmbeddings && r.Rotation == NoRotation
}

// HeadUnused reports whether the recipe's choice for the head decides nothing in a model, since its head is its embedding, which is stored otherwise. It
// names that, and how it is stored. A recipe that has one choice for both asks for nothing else.
func (r Recipe) HeadUnused(m *checkpoint.Model) (name, storage string, unused bool) {
	if !r.TiesHead(m) || r.Head == r.Embeddings {
		return "", "", false
	}
	for _, t := range m.Tensors() {
		if t.Role != arch.Embedding {
			continue
		}
		choice, _ := r.settle(m.Config(), t, make([]bool, len(r.Overrides)))
		d, err := decide(t, choice)
		if err != nil {
			return "", "", false // planning says so
		}
		asked, err := decide(t, r.Head)
		return t.Name, d.Storage(), err != nil || asked.Storage() != d.Storage()
	}
	return "", "", false
}

// choose is the recipe's choice without overrides, and why.
func (r Recipe) choose(c *arch.Config, t *checkpoint.Tensor) (Choice, string) {
	switch t.Role {
	case arch.Embedding:
		if c.TieEmbeddings {
			return r.Embeddings, "embedding, also the head"
		}
		return r.Embeddings, "embedding"
	case arch.Head:
		return r.Head, "head"
	case arch.Linear:
		return r.Linear, "linear layer"
	case arch.Norm:
		return Keep, "norm, kept"
	}
	return Keep, t.Role.String() + ", kept"
}

// decide makes a decision of a choice.
func decide(t *checkpoint.Tensor, c Choice) (Decision, error) {
	d := Decision{Tensor: t}
	if s, err := packed.ParseScheme(string(c)); err == nil {
		if len(t.Shape) != 2 || t.Elements() == 0 {
			return d, fmt.Errorf("shape %v cannot be stored as %s, which needs a matrix", t.Shape, c)
		}
		d.Scheme, d.Bytes = &s, int64(s.Bytes(t.Rows(), t.Cols()))
		return d, nil
	}
	d.DType = plainTypes[c]
	if c == Keep {
		own, isPlain := t.DType()
		switch {
		case t.Packed():
			s := t.Matrix().Scheme
			d.Scheme, d.Bytes = &s, t.Bytes()
			return d, nil
		case isPlain:
			d.DType = own
		default:
			d.DType = formats.F32 // of a block type: exact
		}
	}
	width, ok := d.DType.Bits()
	if !ok {
		return d, fmt.Errorf("element type %q cannot be stored", d.DType)
	}
	d.Bytes = int64(t.Elements()) * int64(width) / 8
	return d, nil
}

// Bytes is the size of all tensors.
func (p *Plan) Bytes() int64 {
	var n int64
	for _, d := range p.Decisions {
		n += d.Bytes
	}
	return n
}

// Quantizes reports whether there is a tensor that the plan packs.
func (p *Plan) Quantizes() bool {
	for _, d := range p.Decisions {
		if d.Scheme != nil && !d.Tensor.Packed() {
			return true
		}
	}
	return false
}

// Weights is the number of elements of all tensors.
func (p *Plan) Weights() int64 {
	var n int64
	for _, d := range p.Decisions {
		n += int64(d.Tensor.Elements())
	}
	return n
}

// BitsPerWeight is the size of all tensors by the number of their elements.
func (p *Plan) BitsPerWeight() float64 {
	return 8 * float64(p.Bytes()) / float64(max(p.Weights(), 1))
}
