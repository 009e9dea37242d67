package convert_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/testdata"
)

// budgeted is a recipe with a budget.
func budgeted(b convert.Budget) *convert.Recipe {
	r := convert.DefaultRecipe("w4g32")
	r.Method, r.Damping, r.Budget = quant.RTN, quant.DefaultDamping, &b
	return &r
}

// TestMixResume: what an interrupted run measured is taken up, gives the same choice, serves another budget, and goes with the finished file;
// it does not serve other data.
func TestMixResume(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	c := calibration(t, m, 4)
	budget := convert.Budget{BitsPerWeight: 4.6}
	want := budgeted(budget)
	whole, err := convert.Mix(t.Context(), m, want, convert.Options{Threads: 2, Calibration: c})
	require.NoError(t, err)
	require.Zero(t, whole.Resumed)
	tensors := len(whole.Sensitivities)

	dir := t.TempDir()
	o := convert.Options{Output: filepath.Join(dir, "out.qpk"), Threads: 1, Calibration: c}
	mix := func(ctx context.Context, stop int) (*convert.Recipe, *convert.Mixed, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stopping, r := o, budgeted(budget)
		stopping.Progress = func(done, _ int64, _ string) {
			if int(done) == stop {
				cancel()
			}
		}
		mixed, err := convert.Mix(ctx, m, r, stopping)
		return r, mixed, err
	}
	_, _, err = mix(t.Context(), 5)
	require.ErrorIs(t, err, context.Canceled)
	journal := filepath.Join(o.Output+".work", "sensitivities")
	require.NoError(t, os.Truncate(journal, int64(len(content(t, journal))-3))) // the fifth is torn
	got, mixed, err := mix(t.Context(), -1)
	require.NoError(t, err)
	require.Equal(t, 4, mixed.Resumed)
	require.False(t, mixed.Discarded)
	require.Equal(t, want, got)
	require.Equal(t, whole.Sensitivities, mixed.Sensitivities)

	budget.BitsPerWeight = 5
	_, mixed, err = mix(t.Context(), -1)
	require.NoError(t, err)
	require.Equal(t, tensors, mixed.Resumed)

	_, err = convert.Quantize(t.Context(), m, plan(t, m, *got), o)
	require.NoError(t, err)
	require.NoDirExists(t, o.Output+".work")

	_, _, err = mix(t.Context(), 3)
	require.ErrorIs(t, err, context.Canceled)
	o.Calibration = calibration(t, m, 3)
	_, mixed, err = mix(t.Context(), -1)
	require.NoError(t, err)
	require.Zero(t, mixed.Resumed)
	require.True(t, mixed.Discarded)

	require.NoError(t, os.Truncate(journal, 10)) // the first line is torn: of whom it was is not known
	_, mixed, err = mix(t.Context(), -1)
	require.NoError(t, err)
	require.Zero(t, mixed.Resumed)
	require.False(t, mixed.Discarded)
}

// TestMixInFiles: states in files change nothing.
func TestMixInFiles(t *testing.T) {
	for _, name := range []string{"llama", "llama-mqa-tied"} {
		m := open(t, testdata.Path("arch", name))
		c := calibration(t, m, 4)
		want, got := budgeted(convert.Budget{BitsPerWeight: 6}), budgeted(convert.Budget{BitsPerWeight: 6})
		_, err := convert.Mix(t.Context(), m, want, convert.Options{Threads: 1, Calibration: c})
		require.NoError(t, err)
		c.MaxMemory = 1
		dir := t.TempDir()
		_, err = convert.Mix(t.Context(), m, got, convert.Options{Output: filepath.Join(dir, "x.qpk"), Threads: 2, Calibration: c})
		require.NoError(t, err)
		require.Equal(t, want, got)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1, "the work folder and no file of states")
	}
}

// TestMixChecksFirst: an output that cannot be, a budget that cannot be kept, and data that do not fit are found before anything is run.
func TestMixChecksFirst(t *testing.T) {
	m := open(t, testdata.Path("arch", "llama"))
	c := calibration(t, m, 2)
	dir := t.TempDir()
	untouched := func(int64, int64, string) { require.Fail(t, "measured") }
	for want, o := range map[string]convert.Options{
		"is a folder":             {Output: dir, Calibration: c},
		"its folder":              {Output: filepath.Join(dir, "absent", "x.qpk"), Calibration: c},
		"same file as the source": {Output: m.Paths()[0], Calibration: c},
		"token 67":                {Output: filepath.Join(dir, "x.qpk"), Calibration: &convert.Calibration{Sequences: [][]int32{{1, 67}}}},
		convert.ErrBudget.Error(): {Output: filepath.Join(dir, "small.qpk"), Calibration: c},
		"no calibration data":     {Output: filepath.Join(dir, "x.qpk")},
	} {
		o.Threads, o.Progress = 1, untouched
		b := convert.Budget{BitsPerWeight: 6}
		if o.Output == filepath.Join(dir, "small.qpk") {
			b.BitsPerWeight = 1
		}
		_, err := convert.Mix(t.Context(), m, budgeted(b), o)
		require.ErrorContains(t, err, want)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
