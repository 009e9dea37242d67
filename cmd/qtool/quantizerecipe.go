package main

import (
	"errors"

	"github.com/spf13/cobra"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// calibratedDefaults are the schemes of --bits with calibration: of those of as many bits, half a bit for scales included, the ones of
// least divergence.
var calibratedDefaults = map[int]string{3: "w3g16nlk", 4: "w4g16nlk"}

// recipe makes a recipe of the flags.
func (o *quantizeOptions) recipe(cmd *cobra.Command) (convert.Recipe, error) {
	if o.recipeFile != "" {
		return o.fromFile(cmd)
	}
	o.calibration.assumed = o.printRecipe && o.calibration.data == "" && o.static()
	linear := packed.Scheme{Bits: o.bits, Group: o.group, Asym: o.asymmetric}
	if o.group == 0 {
		linear.Group = packed.DefaultGroup4
		if o.bits == 8 {
			linear.Group = packed.DefaultGroup8
		}
	}
	name := linear.String()
	if o.scheme != "" {
		for _, flag := range []string{"bits", "group", "asymmetric"} {
			if cmd.Flags().Changed(flag) {
				return convert.Recipe{}, usagef("--scheme and --%s say the same thing: give one", flag)
			}
		}
		name = o.scheme
	} else if o.calibration.used() && calibratedDefaults[o.bits] != "" && o.group == 0 && !o.asymmetric {
		name = calibratedDefaults[o.bits]
	} else if err := linear.Validate(); err != nil {
		return convert.Recipe{}, usageError{err}
	}
	r := convert.DefaultRecipe(convert.Choice(name))
	if s, err := packed.ParseScheme(name); err == nil {
		r.Linear = convert.Choice(s.String()) // one spelling: it is part of the file
	}
	r.Embeddings, r.Head, r.Rule, r.Clamp = convert.Choice(o.embeddings), convert.Choice(o.head), quant.Rule(o.rule), o.clamp
	if rotation, err := convert.ParseRotation(o.rotation); err != nil {
		return r, usagef("--rotate: %w", err)
	} else if rotation != convert.NoRotation {
		r.Rotation, r.RotationSeed = rotation, convert.RotationSeed
	}
	for _, s := range o.overrides {
		over, err := convert.ParseOverride(s)
		if err != nil {
			return r, usagef("--tensor %w", err)
		}
		r.Overrides = append(r.Overrides, over)
	}
	if err := o.calibration.apply(cmd, &r, o.eval.maxKLD); err != nil {
		return r, err
	}
	if err := r.Validate(); err != nil {
		return r, usageError{err}
	}
	if !o.calibration.used() && hasStatic(&r) {
		return r, usagef("schemes that end in -s8 need calibration for the ranges of their inputs: give --calib")
	}
	return r, nil
}

// static reports whether the flags name a scheme with static ranges, which no recipe without calibration can have.
func (o *quantizeOptions) static() bool {
	r := convert.Recipe{Linear: convert.Choice(o.scheme), Head: convert.Choice(o.head)}
	for _, s := range o.overrides {
		if over, err := convert.ParseOverride(s); err == nil { // else recipe says what is wrong
			r.Overrides = append(r.Overrides, over)
		}
	}
	return hasStatic(&r)
}

// fromFile reads the recipe of a file, beside which no flag may decide over bytes.
func (o *quantizeOptions) fromFile(cmd *cobra.Command) (convert.Recipe, error) {
	for _, flag := range []string{
		"bits", "group", "asymmetric", "scheme", "embeddings", "head", "scale-rule", "rotate", "tensor", "clamp", "calib-context", "calib-samples", "method", "refine", "damping",
		"in-order", "targets", "scaling", "activation-range", "target-bpw", "target-size", "mix",
	} {
		if cmd.Flags().Changed(flag) {
			return convert.Recipe{}, usagef("--recipe and --%s say the same thing: give one", flag)
		}
	}
	r, err := convert.ReadRecipe(o.recipeFile)
	if errors.Is(err, formats.ErrMalformed) {
		return r, usageError{err}
	}
	if err != nil {
		return r, err
	}
	o.calibration.fromRecipe = true
	switch {
	case r.Method != "" && o.calibration.data == "" && o.printRecipe:
		return r, o.calibration.unused(cmd) // no data are read
	case r.Method != "" && o.calibration.data == "":
		return r, usagef("the recipe %s is a calibrated one: give --calib", o.recipeFile)
	case r.Method == "" && o.calibration.data != "":
		return r, usagef("the recipe %s has no calibration: leave --calib out", o.recipeFile)
	}
	if r.Method == "" {
		return r, o.calibration.unused(cmd)
	}
	if err := o.calibration.detect(); err != nil {
		return r, err
	}
	if o.calibration.source != r.Source {
		return r, usagef("the recipe %s is for calibration by %s, %s is %s", o.recipeFile, sourceText(r.Source), o.calibration.data, sourceText(o.calibration.source))
	}
	if r.Source != convert.FromText {
		return r, o.calibration.unusedText(cmd)
	}
	if err := o.calibration.checkField(cmd); err != nil {
		return r, err
	}
	return r, o.calibration.checkReading()
}

// settle puts into a recipe what depends on the model: the length of sequences, where it is to have the default, and what the head is to be where it is the
// embedding. A flag for the head that could decide nothing then is wrong usage; of a recipe's file, which may be for many models, the report says so.
func (o *quantizeOptions) settle(cmd *cobra.Command, model string, r *convert.Recipe) (err error) {
	needsContext := o.calibration.used() && r.Source == convert.FromText && r.Context == 0
	if o.recipeFile != "" && !needsContext {
		return nil
	}
	path, err := find(model)
	if err != nil {
		return err
	}
	m, err := checkpoint.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if needsContext {
		r.Context = contextFor(m, 0)
	}
	if o.recipeFile != "" || !r.TiesHead(m) {
		return nil
	}
	if !cmd.Flags().Changed("head") {
		r.Head = r.Embeddings
	} else if name, storage, unused := r.HeadUnused(m); unused {
		return usagef("--head %s: the head of this model is its embedding, %s, which is to be %s: --embeddings decides over both", o.head, name, storage)
	}
	return nil
}
