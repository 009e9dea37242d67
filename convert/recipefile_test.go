package convert_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/calibrate"
	"qtool/convert"
	"qtool/convert/quant"
	"qtool/formats"
)

func fullRecipe() convert.Recipe {
	r := convert.DefaultRecipe("w8-s8")
	r.Embeddings, r.Head, r.Rule, r.Clamp = "w4g32nlk", "f16", quant.AbsMax, true
	r.Method, r.Refine, r.Damping, r.InOrder = quant.GPTQ, 4, 0.02, true
	r.Context, r.Sequences, r.Calibration = 256, 40, "2f55ed8145156553e6f5e229667ffdfa"
	r.Rotation, r.RotationSeed = convert.Hadamard, 77
	r.Scaling, r.Ranges = quant.SmoothQuant, calibrate.Entropy
	r.Overrides = []convert.Override{{Pattern: "**.down_proj.weight", Choice: "w8g32"}, {Pattern: "model.norm.weight", Choice: "keep"}, {Pattern: "a=b", Choice: "w8"}}
	r.Budget = &convert.Budget{BitsPerWeight: 4.25, Schemes: []convert.Choice{"w3g32nlk", "w8"}}
	return r
}

func TestRecipeRoundTrip(t *testing.T) {
	for _, r := range []convert.Recipe{convert.DefaultRecipe("w4g32"), fullRecipe()} {
		text, err := r.YAML()
		require.NoError(t, err)
		back, err := convert.ParseRecipe("x.yaml", text)
		require.NoError(t, err, string(text))
		require.Equal(t, r, back)
		again, err := back.YAML()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	}
	short, err := convert.ParseRecipe("x.yaml", []byte("version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\n"))
	require.NoError(t, err)
	require.Equal(t, convert.DefaultRecipe("w4g32"), short)
}

func TestRecipeRefuses(t *testing.T) {
	const calibration = "version: 1\nlinear: w4g32\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 256, sequences: 4, method: gptq, refine: 1, damping: 0.01, column_order: largest-first, scaling: none"
	const rtnInOrder = "version: 1\nlinear: w4g32\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 256, sequences: 4, method: rtn, refine: 1, damping: 0.01, column_order: as-stored, scaling: none"
	for text, want := range map[string]string{
		"":                                   "the file is empty",
		"linear: w4":                         "version: expected 1, found 0",
		"version: 2\nlinear: w4":             "version: expected 1, found 2",
		"version: 1":                         "linear: is missing",
		"version: 1\nlinear: w5":             "w5",
		"version: 1\nlinear: w4\nhaed: w8":   "haed",
		"version: 1\nlinear: w4\nlinear: w8": "linear",
		"version: 1\nlinear: [w4]":           "linear",
		"version: one\nlinear: w4":           "version",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: best":                                                 "best",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\noverrides: [{pattern: 'a[', choice: w8}]":     "overrides[0]",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nbudget: {bits_per_weight: 4}":                 "needs a calibration",
		"version: 1\nlinear: &a w4\nhead: *a":                                                                                "anchors, aliases",
		"version: 1\nlinear: w4":                                                                                             "embeddings: is missing",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\n---\nhead: f32":                               "one document",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\noverrides: [&a {pattern: x, choice: w8}, *a]": "anchors",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nrotation: givens":                             "rotation",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nrotation: hadamard":                           "rotation_seed: is missing",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nrotation: hadamard\nrotation_seed: -1":        "rotation_seed",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nrotation: hadamard\nrotation_seed: 1.5":       "rotation_seed: expected a whole number",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\nrotation: none\nrotation_seed: 1":             "rotation_seed: is for a rotation",
		"version: 01\nlinear: w4":        "decimal",
		"version: 1\nlinear:\nhead: w8":  "missing",
		strings.Repeat("[", 30000):       "nested",
		strings.Repeat("{a: ", 8000):     "nested",
		strings.Repeat("- ", 8000) + "a": "beyond column",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 8, sequences: 1, refine: 3.7, damping: 1}": "refine: expected a whole number",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 8, sequences: 1, damping: 1}":              "refine: is missing",
		calibration + ", digest: abc}":                       "digest",
		calibration + ", extra: 1}":                          "extra",
		calibration + ", activation_range: most}":            "most",
		calibration + "}\nbudget: {bits_per_weight: .inf}":   "must be a positive number",
		calibration + "}\nbudget: {divergence: .nan}":        "must be a positive number",
		calibration + "}\nbudget: {}":                        "expected bits_per_weight, bytes or divergence",
		calibration + "}\nbudget: {bytes: 1, divergence: 1}": "one limit",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 1, sequences: 1, refine: 0, damping: 1}":               "context and sequences",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 8, sequences: 1, refine: 0, damping: 0}":               "damping and refine",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 8, sequences: 1, refine: 0, damping: 1, method: gptq}": "column_order",
		"version: 1\nlinear: w4\nembeddings: w8\nhead: w8\nscale_rule: search\ncalibration: {context: 8, sequences: 1, refine: 0, damping: 1, method: best}": "best",
		rtnInOrder + "}":               "column_order as-stored",
		rtnInOrder + ", targets: own}": "rounds each weight by itself",
	} {
		_, err := convert.ParseRecipe("x.yaml", []byte(text))
		require.ErrorIs(t, err, formats.ErrMalformed, text)
		require.ErrorContains(t, err, "x.yaml", text)
		require.ErrorContains(t, err, want, text)
	}
	_, err := convert.ParseRecipe("x.yaml", []byte(rtnInOrder+", targets: source}"))
	require.NoError(t, err, "the source's outputs are found by a factor, which has an order")
	path := filepath.Join(t.TempDir(), "large.yaml")
	require.NoError(t, os.WriteFile(path, make([]byte, 65<<10), 0o600))
	_, err = convert.ReadRecipe(path)
	require.ErrorIs(t, err, formats.ErrMalformed)
	_, err = convert.ReadRecipe(filepath.Dir(path))
	require.ErrorIs(t, err, formats.ErrMalformed)
	_, err = convert.ReadRecipe(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestRecipeErrorsAreOneLine: what the parser finds is said as everything else is, with its place.
func TestRecipeErrorsAreOneLine(t *testing.T) {
	const hint = " (RECIPE.md lists the keys; --print-recipe writes a whole recipe)"
	for text, want := range map[string]string{
		"version: 1\nlinear: w4\nclamp6: true\n":           `x.yaml: line 3, column 1: unknown field "clamp6"`,
		"version: 1\ncalibration:\n  context: 256\n  sequ": "x.yaml: line 4, column 3: non-map value is specified",
		"version: 1\noverrides: [a, \"sequ":                "x.yaml: line 2, column 16: could not find end character of double-quoted text",
		"version: one\nlinear: w4":                         "x.yaml: line 1, column 10: version: expected a number, found a text",
		"version: 1\nclamp: 3\n":                           "x.yaml: line 2, column 8: clamp: expected true or false, found a number",
		"version: 1\ncalibration: {damping: \"0.01\"}\n":   `x.yaml: expected a number, found "0.01"`,
		"version: 1\nlinear: w4\nlinear: w8":               `x.yaml: line 3, column 1: mapping key "linear" already defined at [2:1]`,
		"version: 1\nlinear: [w4]":                         "x.yaml: line 2, column 9: linear: expected a text, found a list",
	} {
		_, err := convert.ParseRecipe("x.yaml", []byte(text))
		require.EqualError(t, err, want+hint, text)
	}
}

func FuzzParseRecipe(f *testing.F) {
	full, err := fullRecipe().YAML()
	require.NoError(f, err)
	f.Add(full)
	f.Add([]byte("version: 1\nlinear: w4\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := convert.ParseRecipe("x.yaml", data)
		if err != nil {
			return
		}
		text, err := r.YAML()
		require.NoError(t, err)
		back, err := convert.ParseRecipe("y.yaml", text)
		require.NoError(t, err, string(text))
		require.Equal(t, r, back)
	})
}
