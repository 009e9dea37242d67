package numa

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSet(t *testing.T) {
	for list, want := range map[string]Set{
		"":                {},
		"\n":              {},
		"0":               {0},
		"0-3,8":           {0, 1, 2, 3, 8},
		" 0-1 \n":         {0, 1},
		"8,0-3":           {0, 1, 2, 3, 8},
		"0-3,2-5,4":       {0, 1, 2, 3, 4, 5},
		"7-7":             {7},
		"1023,1024,65535": {1023, 1024, 65535},
	} {
		got, err := ParseSet(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for list, message := range map[string]string{
		",":            "found nothing",
		"1,":           "found nothing",
		"1,,2":         "found nothing",
		"-":            "found nothing",
		"1-":           "found nothing",
		"-1":           "found nothing",
		"3-1":          "ends before it starts",
		"1-2-3":        `found "2-3"`,
		"a":            `found "a"`,
		"1 2":          `found "1 2"`,
		"+1":           `found "+1"`,
		"0x1":          `found "0x1"`,
		"0-10:2/4":     `found "10:2/4"`,
		"0-65536":      "over 65535",
		"0-4000000000": "over 65535",
		"99999999999999999999999999999999999999999999999999999999999999999999999": "over 65535",
		"1\x00": "expected a number",
	} {
		_, err := ParseSet(list)
		require.ErrorContains(t, err, message, list)
	}
}

func TestSetText(t *testing.T) {
	require.Equal(t, "0-3,8,10-11", Set{0, 1, 2, 3, 8, 10, 11}.String())
	require.Equal(t, "", Set{}.String())
	require.Equal(t, Set{1, 3}, Set{0, 1, 2, 3}.And(Set{1, 3, 5}))
	require.Equal(t, Set{0, 2}, Set{0, 1, 2, 3}.Without(Set{1, 3, 5}))
}

// What is read is a set, and its text reads as the same set.
func FuzzParseSet(f *testing.F) {
	for _, seed := range []string{"", "0", "0-3,8", "8,0-3", "0-3,2-5", "3-1", "1,,2", "0-65535", "a", "0-10:2/4", " 1 "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		s, err := ParseSet(list)
		if err != nil {
			require.Nil(t, s)
			return
		}
		for i, id := range s {
			require.True(t, id >= 0 && id <= MaxID && (i == 0 || s[i-1] < id), "%v", s)
		}
		again, err := ParseSet(s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}
