package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"

	"qtool/calibrate"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/packed"
)

// maxRecipe bounds a recipe file: far more than one needs.
const maxRecipe = 64 << 10

// recipeVersion is the version of the schema, which RECIPE.md describes.
const recipeVersion = 1

// recipeFile is a recipe as its file has it.
type recipeFile struct {
	Version     int                `yaml:"version"`
	Linear      string             `yaml:"linear"`
	Embeddings  string             `yaml:"embeddings"`
	Head        string             `yaml:"head"`
	ScaleRule   string             `yaml:"scale_rule"`
	Overrides   []recipeOverride   `yaml:"overrides,omitempty"`
	Clamp       bool               `yaml:"clamp"`
	Rotation    string             `yaml:"rotation,omitempty"`
	Seed        *number            `yaml:"rotation_seed,omitempty"`
	Calibration *recipeCalibration `yaml:"calibration,omitempty"`
	Budget      *recipeBudget      `yaml:"budget,omitempty"`
}

type recipeOverride struct {
	Pattern string `yaml:"pattern"`
	Choice  string `yaml:"choice"`
}

type recipeCalibration struct {
	Source          string  `yaml:"source,omitempty"`
	Context         *number `yaml:"context,omitempty"`
	Sequences       *number `yaml:"sequences,omitempty"`
	Digest          string  `yaml:"digest,omitempty"`
	Method          string  `yaml:"method"`
	Refine          *number `yaml:"refine"`
	Damping         *number `yaml:"damping"`
	ColumnOrder     string  `yaml:"column_order"`
	Targets         string  `yaml:"targets,omitempty"`
	Scaling         string  `yaml:"scaling"`
	ActivationRange string  `yaml:"activation_range,omitempty"`
}

// number is read as it is written: an integer with a fraction is then found.
type number float64

// UnmarshalYAML reads a plain number.
func (n *number) UnmarshalYAML(text []byte) error {
	f, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return fmt.Errorf("expected a number, found %s", strings.TrimSpace(string(text)))
	}
	*n = number(f)
	return nil
}

// integer gives a whole number.
func (n *number) integer(key string) (int, error) {
	if n == nil {
		return 0, fmt.Errorf("%s: is missing", key)
	}
	if f := float64(*n); f != math.Trunc(f) || math.Abs(f) > 1<<30 {
		return 0, fmt.Errorf("%s: expected a whole number, found %g", key, f)
	}
	return int(*n), nil
}

type recipeBudget struct {
	BitsPerWeight float64  `yaml:"bits_per_weight,omitempty"`
	Bytes         int64    `yaml:"bytes,omitempty"`
	Divergence    float64  `yaml:"divergence,omitempty"`
	Schemes       []string `yaml:"schemes,omitempty"`
}

// Orders of columns, as recipes name them.
const (
	largestFirst = "largest-first"
	asStored     = "as-stored"
)

// ReadRecipe reads a recipe file. Errors match formats.ErrMalformed where the file is at fault.
func ReadRecipe(path string) (Recipe, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecipe {
		return Recipe{}, formats.Malformed(path, "", "expected a regular file of at most %d bytes, found %d", maxRecipe, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	return ParseRecipe(path, data)
}

// ParseRecipe reads a recipe; name is what errors call the file.
func ParseRecipe(name string, data []byte) (Recipe, error) {
	if len(data) > maxRecipe {
		return Recipe{}, formats.Malformed(name, "", "%d bytes, expected at most %d", len(data), maxRecipe)
	}
	if err := checkTokens(name, lexer.Tokenize(string(data))); err != nil {
		return Recipe{}, err
	}
	var f recipeFile
	err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&f)
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return Recipe{}, formats.Malformed(name, "", "%s", yamlReason(err)).WithHint("RECIPE.md lists the keys; --print-recipe writes a whole recipe")
	}
	r, err := f.recipe()
	if err != nil {
		return Recipe{}, formats.Malformed(name, "", "%v", err).WithHint("RECIPE.md lists the keys; --print-recipe writes a whole recipe")
	}
	return r, nil
}

// yamlReason says what is wrong with YAML, and where, in a line: the parser's own text has a picture of several.
func yamlReason(err error) string {
	var at yaml.Error
	if !errors.As(err, &at) {
		return strings.TrimSpace(err.Error())
	}
	reason, found := at.GetMessage(), at.GetToken()
	if of := new(yaml.TypeError); errors.As(err, &of) {
		reason = fmt.Sprintf("expected %s, found %s", kindText(of.DstType), kindText(of.SrcType))
		if found != nil && found.Prev != nil && found.Prev.Type == token.MappingValueType && found.Prev.Prev != nil {
			reason = found.Prev.Prev.Value + ": " + reason
		}
	}
	if found == nil {
		return reason
	}
	return fmt.Sprintf("line %d, column %d: %s", found.Position.Line, found.Position.Column, reason)
}

// kindText names what a key of a recipe holds.
func kindText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "keys and values"
}

// The parser's memory grows with the square of nesting, which no recipe has much of.
const (
	maxNesting = 4
	maxColumn  = 64 // of what begins an entry of a list or stands before a colon
)

// checkTokens refuses what no recipe needs and what could mean something else than it seems, before anything is parsed: anchors, aliases, tags,
// further documents, empty values, numbers that are not decimal, deep nesting.
func checkTokens(name string, tokens token.Tokens) error {
	depth, headers := 0, 0
	for _, t := range tokens {
		fail := func(format string, args ...any) error {
			return formats.Malformed(name, fmt.Sprintf("line %d", t.Position.Line), format, args...)
		}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.DirectiveType, token.MappingKeyType:
			return fail("anchors, aliases, tags and directives are not part of a recipe: put quotes around a value that begins with %q", t.Value)
		case token.NullType, token.ImplicitNullType:
			return fail("a value is missing")
		case token.BinaryIntegerType, token.OctetIntegerType, token.HexIntegerType:
			return fail("%s: expected a decimal number", strings.TrimSpace(t.Origin))
		case token.DocumentHeaderType, token.DocumentEndType:
			if headers++; headers > 1 || t.Prev != nil && t.Prev.Type != token.CommentType {
				return fail("expected one document")
			}
		case token.SequenceStartType, token.MappingStartType:
			if depth++; depth > maxNesting {
				return fail("nested more than %d deep", maxNesting)
			}
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingValueType:
			if depth == 0 && t.Position.Column > maxColumn {
				return fail("a key or an entry of a list stands beyond column %d", maxColumn)
			}
		}
	}
	return nil
}

// recipe makes a recipe of a file's content.
func (f recipeFile) recipe() (Recipe, error) {
	if f.Version != recipeVersion {
		return Recipe{}, fmt.Errorf("version: expected %d, found %d", recipeVersion, f.Version)
	}
	r := DefaultRecipe(Choice(f.Linear))
	r.Clamp = f.Clamp
	for _, v := range []struct {
		text string
		to   *Choice
		key  string
	}{{f.Linear, &r.Linear, "linear"}, {f.Embeddings, &r.Embeddings, "embeddings"}, {f.Head, &r.Head, "head"}} {
		// A default may change; what a recipe says must not.
		if v.text == "" {
			return r, fmt.Errorf("%s: is missing", v.key)
		}
		*v.to = Choice(v.text)
		if err := v.to.Validate(); err != nil {
			return r, fmt.Errorf("%s: %w", v.key, err)
		}
	}
	if s, err := packed.ParseScheme(f.Linear); err == nil {
		r.Linear = Choice(s.String()) // one spelling: it is part of the file
	}
	if f.ScaleRule == "" {
		return r, errors.New("scale_rule: is missing")
	}
	r.Rule = quant.Rule(f.ScaleRule)
	for i, o := range f.Overrides {
		over := Override{Pattern: o.Pattern, Choice: Choice(o.Choice)}
		if err := over.Validate(); err != nil {
			return r, fmt.Errorf("overrides[%d]: %w", i, err)
		}
		r.Overrides = append(r.Overrides, over)
	}
	if err := f.rotation(&r); err != nil {
		return r, err
	}
	if f.Budget != nil && f.Calibration == nil {
		return r, errors.New("budget: needs a calibration section")
	}
	if err := f.Calibration.apply(&r); err != nil {
		return r, fmt.Errorf("calibration: %w", err)
	}
	if b := f.Budget; b != nil {
		r.Budget = &Budget{BitsPerWeight: b.BitsPerWeight, Bytes: b.Bytes, Divergence: b.Divergence}
		for _, s := range b.Schemes {
			r.Budget.Schemes = append(r.Budget.Schemes, Choice(s))
		}
		if err := r.Budget.Validate(); err != nil {
			return r, fmt.Errorf("budget: %w", err)
		}
		if !r.Budget.Set() {
			return r, errors.New("budget: expected bits_per_weight, bytes or divergence")
		}
	}
	return r, r.Validate()
}

// rotation sets what the file says of a rotation.
func (f recipeFile) rotation(r *Recipe) (err error) {
	if r.Rotation, err = ParseRotation(f.Rotation); err != nil {
		return fmt.Errorf("rotation: %w", err)
	}
	if r.Rotation == NoRotation {
		if f.Seed != nil {
			return errors.New("rotation_seed: is for a rotation")
		}
		return nil
	}
	seed, err := f.Seed.integer("rotation_seed")
	if err == nil && seed < 0 {
		err = fmt.Errorf("rotation_seed: expected a number from 0 on, found %d", seed)
	}
	r.RotationSeed = uint64(seed)
	return err
}

// apply sets what a calibration section says.
func (c *recipeCalibration) apply(r *Recipe) (err error) {
	if c == nil {
		return nil
	}
	switch c.Source {
	case "", "text":
	case string(FromQcal), string(FromImatrix):
		r.Source = Source(c.Source)
		if c.Context != nil || c.Sequences != nil {
			return fmt.Errorf("context and sequences: are those of the file where source is %s", c.Source)
		}
	default:
		return fmt.Errorf("source: expected text, %s or %s, found %q", FromQcal, FromImatrix, c.Source)
	}
	for _, v := range []struct {
		n   *number
		to  *int
		key string
	}{{c.Context, &r.Context, "context"}, {c.Sequences, &r.Sequences, "sequences"}, {c.Refine, &r.Refine, "refine"}} {
		if v.to != &r.Refine && r.Source != FromText {
			continue
		}
		if *v.to, err = v.n.integer(v.key); err != nil {
			return err
		}
	}
	if c.Damping == nil {
		return errors.New("damping: is missing")
	}
	r.Damping, r.Calibration = float64(*c.Damping), c.Digest
	if c.Digest != "" {
		if _, err := packed.ParseDigest(c.Digest); err != nil {
			return fmt.Errorf("digest: %w", err)
		}
	}
	if r.Source == FromText && (r.Context < 2 || r.Sequences < 1) {
		return fmt.Errorf("context and sequences: expected 2 tokens or more and 1 sequence or more, found %d and %d", r.Context, r.Sequences)
	}
	if !(r.Damping >= 1e-6) || r.Damping > 10 || r.Refine < 0 || r.Refine > 100 {
		return fmt.Errorf("damping and refine: expected 0.000001 to 10, and 0 to 100 rounds, found %g and %d", r.Damping, r.Refine)
	}
	if r.Method, err = quant.ParseMethod(c.Method); err != nil {
		return err
	}
	if r.Scaling, err = quant.ParseScaling(c.Scaling); err != nil {
		return err
	}
	switch c.ColumnOrder {
	case largestFirst, asStored:
		r.InOrder = c.ColumnOrder == asStored
	default:
		return fmt.Errorf("column_order: expected %q or %q, found %q", largestFirst, asStored, c.ColumnOrder)
	}
	if c.Targets != "" { // else own, as before there were others
		if r.Targets, err = ParseTargets(c.Targets); err != nil {
			return err
		}
	}
	if c.ActivationRange != "" {
		r.Ranges, err = calibrate.ParseRangeRule(c.ActivationRange)
	}
	return err
}

// MarshalYAML writes whole numbers without a point.
func (n number) MarshalYAML() (any, error) {
	if f := float64(n); f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return int64(f), nil
	}
	return float64(n), nil
}

// numbered gives a number as a file has it.
func numbered[T int | float64](v T) *number {
	n := number(v)
	return &n
}

// YAML gives the recipe as a file that ReadRecipe reads.
func (r Recipe) YAML() ([]byte, error) {
	f := recipeFile{
		Version: recipeVersion, Linear: string(r.Linear), Embeddings: string(r.Embeddings), Head: string(r.Head), ScaleRule: string(r.Rule), Clamp: r.Clamp,
	}
	for _, o := range r.Overrides {
		f.Overrides = append(f.Overrides, recipeOverride{o.Pattern, string(o.Choice)})
	}
	if r.Rotation != NoRotation {
		f.Rotation, f.Seed = string(r.Rotation), numbered(int(r.RotationSeed))
	}
	if r.Method != "" {
		f.Calibration = &recipeCalibration{
			Source: string(r.Source), Digest: r.Calibration, Method: string(r.Method), Refine: numbered(r.Refine),
			Damping:     numbered(r.Damping),
			ColumnOrder: largestFirst, Scaling: string(r.Scaling), ActivationRange: string(r.Ranges),
		}
		if r.Source == FromText {
			f.Calibration.Context, f.Calibration.Sequences = numbered(r.Context), numbered(r.Sequences)
		}
		if r.Source == FromText {
			f.Calibration.Targets = r.Targets.String()
		}
		if r.InOrder {
			f.Calibration.ColumnOrder = asStored
		}
		if r.Scaling == quant.NoScaling {
			f.Calibration.Scaling = "none"
		}
	}
	if b := r.Budget; b != nil {
		f.Budget = &recipeBudget{BitsPerWeight: b.BitsPerWeight, Bytes: b.Bytes, Divergence: b.Divergence}
		for _, s := range b.Schemes {
			f.Budget.Schemes = append(f.Budget.Schemes, string(s))
		}
	}
	out, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("write the recipe: %w", err)
	}
	return append([]byte("# A recipe of qtool quantize: convert/RECIPE.md describes the keys.\n"), out...), nil
}
