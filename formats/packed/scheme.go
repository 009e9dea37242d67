package packed

import (
	"fmt"
	"regexp"
	"strconv"

	"qtool/formats"
)

// Scheme says how the weights of a matrix are stored: integer codes of Bits bits, and for every
// Group weights along a row one half-precision scale.
//
//	symmetric, 4 bits:  w = scale·(code − 8),   code 0…15
//	symmetric, 8 bits:  w = scale·code,         code −127…127
//	asymmetric, 4 bits: w = scale·(code − z/16), code 0…15, z 0…255 in sixteenths of a step
//	asymmetric, 8 bits: w = scale·(code + 128 − z), code −128…127, z 0…255
//
// The last group of a row is shorter where the row is not a multiple of Group.
type Scheme struct {
	Bits  int  // 4 or 8
	Group int  // weights a scale: 32, 64, 128 or 256
	Asym  bool // a zero point a group
}

// Block is the number of neighbouring weights of a row that are stored as one unit, and that
// activations share a scale over. Every group is a whole number of blocks.
const Block = 32

// Panel is the number of rows that are stored interleaved.
const Panel = 8

// Align is what the size of a packed matrix is padded to, so that all of them start on a cache line.
const Align = 64

// DefaultGroup8 is the group size that "w8" without one stands for.
const DefaultGroup8 = 128

// DefaultGroup4 is the group size that "w4" without one stands for.
const DefaultGroup4 = 32

var schemeName = regexp.MustCompile(`^w([48])(?:g(\d{1,6}))?(a?)$`)

// ParseScheme reads a scheme's name: w4g32, w4g128a, w8 and so on.
func ParseScheme(name string) (Scheme, error) {
	m := schemeName.FindStringSubmatch(name)
	if m == nil {
		return Scheme{}, formats.Unsupported("", "", "scheme %q is not known", name).
			WithHint("schemes are w8 and w4 with a group size of 32, 64, 128 or 256, and an a for asymmetric: w8, w8g32, w4g32, w4g128a")
	}
	s := Scheme{Bits: int(m[1][0] - '0'), Asym: m[3] == "a"}
	switch m[2] {
	case "":
		s.Group = DefaultGroup4
		if s.Bits == 8 {
			s.Group = DefaultGroup8
		}
	default:
		s.Group, _ = strconv.Atoi(m[2])
	}
	return s, s.Validate()
}

// Validate says what is wrong with the scheme.
func (s Scheme) Validate() error {
	if s.Bits != 4 && s.Bits != 8 {
		return formats.Unsupported("", "", "weights of %d bits are not supported", s.Bits).WithHint("4 and 8 are")
	}
	switch s.Group {
	case 32, 64, 128, 256:
		return nil
	}
	return formats.Unsupported("", "", "groups of %d weights are not supported", s.Group).WithHint("32, 64, 128 and 256 are")
}

// String gives the scheme's name. The group is left out where it is the default of 8 bits.
func (s Scheme) String() string {
	name := fmt.Sprintf("w%dg%d", s.Bits, s.Group)
	if s.Bits == 8 && s.Group == DefaultGroup8 {
		name = "w8"
	}
	if s.Asym {
		name += "a"
	}
	return name
}

// Groups is the number of groups of a row of cols weights.
func (s Scheme) Groups(cols int) int { return (cols + s.Group - 1) / s.Group }

// blockBytes is the storage of the codes of one block of a panel.
func (s Scheme) blockBytes() int { return Panel * Block * s.Bits / 8 }

// headBytes is the storage of the scales and zero points of one group of a panel.
func (s Scheme) headBytes() int {
	if s.Asym {
		return 3 * Panel
	}
	return 2 * Panel
}

// PanelBytes is the storage of a panel of rows of cols weights.
func (s Scheme) PanelBytes(cols int) int {
	return s.Groups(cols)*s.headBytes() + blocks(cols)*s.blockBytes()
}

// Bytes is the storage of a matrix, padding included.
func (s Scheme) Bytes(rows, cols int) int {
	n := (rows + Panel - 1) / Panel * s.PanelBytes(cols)
	return (n + Align - 1) / Align * Align
}

// BitsPerWeight is the storage of a matrix by its number of weights, padding included; 0 where it
// has none.
func (s Scheme) BitsPerWeight(rows, cols int) float64 {
	if rows == 0 || cols == 0 {
		return 0
	}
	return 8 * float64(s.Bytes(rows, cols)) / (float64(rows) * float64(cols))
}

// Levels is the range of the codes.
func (s Scheme) Levels() (least, most int) {
	switch {
	case s.Bits == 4:
		return 0, 15
	case s.Asym:
		return -128, 127
	}
	return -127, 127
}

// Zero is what is subtracted from a code before it is scaled, given the stored zero point of its
// group, which a symmetric scheme has not.
func (s Scheme) Zero(stored uint8) float32 {
	switch {
	case s.Bits == 4 && s.Asym:
		return float32(stored) / 16
	case s.Bits == 4:
		return 8
	case s.Asym:
		return float32(stored) - 128
	}
	return 0
}

func blocks(cols int) int { return (cols + Block - 1) / Block }
