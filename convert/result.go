package convert

import (
	"fmt"
	"maps"
	"slices"
)

// Result of a run.
type Result struct {
	Bytes     int64 // of the file
	Resumed   int   // tensors that an earlier run had finished
	Discarded bool  // what an earlier run had left belonged to another plan
	Damaged   bool  // a line of its journal was: that and what followed was made again
	Clamped   int   // values cut to the range of their type
	Warnings  []string
	// Calibrated says how quantizing by inputs went, by tensor; RoundedOnly names the linear layers and heads that were to be
	// quantized so and were not.
	Calibrated  map[string]CalibrationFigures
	RoundedOnly []string
	// Unknown names those that a file of statistics knows nothing of.
	Unknown []string
	// ZeroInputs names those whose inputs were all zero.
	ZeroInputs []string
	// Unscaled names the layers whose inputs were to be scaled and were not, by the reason. A layer that is not quantized asks for nothing.
	Unscaled map[Unscaled][]string
	// TooLong says that calibration sequences were longer than what the model was made for.
	TooLong string
	// Single says that one sequence was too little for the source's outputs as targets.
	Single string
}

// Unscaled says why the input of a layer could not be scaled.
type Unscaled int

const (
	SharedAsIs     Unscaled = iota // a layer that shares it is not quantized
	MadeAsIs                       // the layer that makes it is not
	InputUnknown                   // the file of statistics has nothing of it
	MakerUnknown                   // nor of the input of the layers among which it is made
	BiasBeyondType                 // of the layer that makes it: what can be divided is not what is stored
)

// unscaledText says it in words.
var unscaledText = [...]string{
	SharedAsIs:     "a layer that shares it is not quantized here",
	MadeAsIs:       "the layer that makes it is not quantized here",
	InputUnknown:   "the file has no statistics of it, or it saw no data",
	MakerUnknown:   "the file has no statistics of what the layer that makes it takes in, or it saw no data",
	BiasBeyondType: "the bias of the layer that makes it is beyond the range of its type",
}

// Shortfalls says what is less than was asked for, a line each.
func (r *Result) Shortfalls() []string {
	var lines []string
	if r.Clamped > 0 {
		lines = append(lines, fmt.Sprintf("%d values were cut to the range of their type", r.Clamped))
	}
	about := func(names []string, format string, args ...any) {
		if len(names) > 0 {
			lines = append(lines, some(names)+": "+fmt.Sprintf(format, args...))
		}
	}
	about(r.RoundedOnly, "rounded to nearest, nothing is known of the input")
	about(r.Unknown, "rounded to nearest, the file has no statistics of the input, or it saw no data")
	about(r.ZeroInputs, "rounded to nearest, all inputs were zero throughout the calibration data, as behind a layer that was pruned away")
	for why := range unscaledText {
		about(r.Unscaled[Unscaled(why)], "the input is not scaled, since %s", unscaledText[why])
	}
	for _, line := range []string{r.TooLong, r.Single} {
		if line != "" {
			lines = append(lines, line)
		}
	}
	var damped, dead, few []string
	damping, zeros, seen := 0.0, 0, 0
	for _, name := range slices.Sorted(maps.Keys(r.Calibrated)) {
		f := r.Calibrated[name]
		if f.DampingRaised {
			damped, damping = append(damped, name), max(damping, f.Damping)
		}
		if f.DeadInputs > 0 {
			dead, zeros = append(dead, name), max(zeros, f.DeadInputs)
		}
		if f.Inputs > 0 && f.Inputs < f.Channels {
			few, seen = append(few, name), f.Inputs
		}
	}
	about(damped, "the Hessian needed more damping than was asked for, at most %g of the mean diagonal", damping)
	about(dead, "input channels were zero throughout the calibration data, at most %d of a layer", zeros)
	about(few, "more input channels than the %d inputs that were seen, too few to tell channels apart; give more text", seen)
	return lines
}

// some names the first of several things, and says how many more there are.
func some(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}
