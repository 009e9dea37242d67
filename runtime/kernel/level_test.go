//go:build amd64 && !noasm

package kernel

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoInstructionBeyondItsLevel reads the assembly: a function of the AVX2 level must not touch the wide or
// the upper registers, nor use instructions that are new with AVX-512; every function ends by clearing the
// upper halves.
func TestNoInstructionBeyondItsLevel(t *testing.T) {
	text, err := os.ReadFile("loops_amd64.s")
	require.NoError(t, err)
	beyond := regexp.MustCompile(`\b(Z\d+|[XY](1[6-9]|2\d|3[01])|K[0-7])\b|VPDP|\.BCST|VPXORD|VPANDD|VMOVDQU(8|16|32|64)|VINSERT[FI]64X4|VPERM[TI]2`)
	functions := strings.Split(string(text), "\nTEXT ")[1:]
	require.GreaterOrEqual(t, len(functions), 15)
	for _, f := range functions {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "·"), "(")
		if strings.HasPrefix(name, "avx2") {
			require.Empty(t, beyond.FindString(f), name)
		} else {
			require.True(t, strings.HasPrefix(name, "avx512"), name)
		}
		require.Equal(t, strings.Count(f, "RET"), strings.Count(f, "VZEROUPPER"), name)
		require.NotRegexp(t, `\bR14\b`, f, "R14 holds the goroutine")
	}
}
