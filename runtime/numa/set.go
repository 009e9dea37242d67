package numa

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxID is the largest number of a CPU or a node that a list may name. Linux stops at 8192 CPUs; the limit
// keeps a list like 0-4000000000 from using up memory.
const MaxID = 1<<16 - 1

// Set is a set of CPUs or nodes: their numbers, ascending, each once.
type Set []int

// ParseSet reads the kernel's list format: numbers and ranges with commas between, such as 0-3,8. White space
// around the list is ignored, and an empty list is an empty set. Parts may overlap, as they may in the kernel's
// own reader.
func ParseSet(list string) (Set, error) {
	text := strings.TrimSpace(list)
	if text == "" {
		return Set{}, nil
	}
	var ranges [][2]int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := parseID(first)
		b := a
		if err == nil && isRange {
			b, err = parseID(last)
		}
		if err == nil && b < a {
			err = fmt.Errorf("range %d-%d ends before it starts", a, b)
		}
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", shorten(text), err)
		}
		ranges = append(ranges, [2]int{a, b})
	}
	slices.SortFunc(ranges, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	var s Set
	next := 0
	for _, r := range ranges {
		for next = max(next, r[0]); next <= r[1]; next++ {
			s = append(s, next)
		}
	}
	return s, nil
}

// parseID reads one number.
func parseID(text string) (int, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("expected a number, found %q", shorten(text))
		}
	}
	id, err := strconv.Atoi(text)
	if text == "" {
		return 0, errors.New("expected a number, found nothing")
	}
	if err != nil || id > MaxID {
		return 0, fmt.Errorf("number %s is over %d", shorten(text), MaxID)
	}
	return id, nil
}

// shorten keeps text in an error message readable.
func shorten(text string) string {
	if len(text) > 60 {
		return text[:60] + "…"
	}
	return text
}

// String gives the list format.
func (s Set) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		end := i
		for end+1 < len(s) && s[end+1] == s[end]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if end > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s[end]))
		}
		i = end + 1
	}
	return b.String()
}

// Contains reports whether id is in the set.
func (s Set) Contains(id int) bool {
	_, found := slices.BinarySearch(s, id)
	return found
}

// And gives what is in both sets.
func (s Set) And(other Set) Set {
	return s.filter(other.Contains)
}

// Or gives what is in either set.
func (s Set) Or(other Set) Set { return setOf(slices.Concat(s, other)) }

// Without gives what is in s and not in other.
func (s Set) Without(other Set) Set {
	return s.filter(func(id int) bool { return !other.Contains(id) })
}

func (s Set) filter(keep func(id int) bool) Set {
	out := Set{}
	for _, id := range s {
		if keep(id) {
			out = append(out, id)
		}
	}
	return out
}

// setOf sorts numbers into a set.
func setOf(ids []int) Set {
	slices.Sort(ids)
	return Set(slices.Compact(ids))
}
