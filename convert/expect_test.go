package convert_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/convert/quant"
	"qtool/testdata"
)

// TestExpect: calibration takes memory for what the text makes, as far as it may, for squares of channels and for what is finished; and time for the text.
func TestExpect(t *testing.T) {
	m := open(t, testdata.Path("grammar-lm"))
	r := convert.DefaultRecipe("w4g32")
	plainly := plan(t, m, r).Expect(convert.Options{Threads: 2})
	require.Positive(t, plainly.Seconds)
	require.Less(t, plainly.Memory, int64(64<<20))

	r.Method, r.Refine, r.Damping = quant.GPTQ, 3, quant.DefaultDamping
	p := plan(t, m, r)
	with := func(sequences int, most int64) convert.Expected {
		c := calibration(t, m, 4)
		c.MaxMemory = most
		for len(c.Sequences) < sequences {
			c.Sequences = append(c.Sequences, c.Sequences...)
		}
		c.Sequences = slices.Clip(c.Sequences[:sequences])
		return p.Expect(convert.Options{Threads: 2, Calibration: c})
	}
	few, many := with(4, 0), with(1024, 0)
	require.Greater(t, few.Memory, plainly.Memory)
	require.Greater(t, few.Seconds, plainly.Seconds)
	states := int64(1020 * 48 * 4 * (96 + 256)) // hidden states and the inputs of o_proj
	require.GreaterOrEqual(t, many.Memory-few.Memory, states)
	require.LessOrEqual(t, many.Memory-few.Memory, 2*states)
	require.Greater(t, many.Seconds, 2*few.Seconds)

	tight := with(1024, 1<<20)
	require.Less(t, tight.Memory, few.Memory+1<<20)
	require.Greater(t, tight.Seconds, many.Seconds, "inputs are computed again")

	p.Recipe.Targets = convert.SourceOutputs
	beside := with(1024, 0)
	require.GreaterOrEqual(t, beside.Memory-many.Memory, int64(1024*48*4*96), "the source's states")
	require.Greater(t, beside.Seconds, many.Seconds)
	require.Less(t, with(1024, 1<<20).Memory, few.Memory+2<<20)
}
