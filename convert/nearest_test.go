package convert_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/testdata"
)

// TestRoundingByStatistics: codes that are rounded to nearest under scales by a file of statistics give predictions closer to the source's, on
// sequences that the file is not of, than scales without data.
func TestRoundingByStatistics(t *testing.T) {
	if testing.Short() {
		t.Skip("quantizes many times")
	}
	m := open(t, testdata.Path("grammar-lm"))
	all := calibration(t, m, 60)
	c, other := &convert.Calibration{Sequences: all.Sequences[:40]}, all.Sequences[40:]
	file := filepath.Join(t.TempDir(), "a.qcal")
	collect(t, m, convert.CollectOptions{Output: file, Threads: 2, Calibration: c})
	source := predictions(t, m.Path(), other)
	for _, scheme := range []convert.Choice{"w3g32", "w3g64"} {
		r := convert.DefaultRecipe(scheme)
		r.Embeddings, r.Head = "keep", "keep"
		plain := filepath.Join(t.TempDir(), "plain.qpk")
		_, err := convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: plain, Threads: 2})
		require.NoError(t, err)
		s, err := convert.OpenStatistics(file, convert.FromQcal)
		require.NoError(t, err)
		r.Method, r.Source = quant.RTN, convert.FromQcal
		out := filepath.Join(t.TempDir(), "out.qpk")
		_, err = convert.Quantize(t.Context(), m, plan(t, m, r), convert.Options{Output: out, Threads: 2, Statistics: s})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		without, with := divergence(source, predictions(t, plain, other)), divergence(source, predictions(t, out, other))
		t.Logf("%s: %.6f without data, %.6f with", scheme, without, with)
		require.Less(t, with, 0.9*without, scheme)
	}
}
