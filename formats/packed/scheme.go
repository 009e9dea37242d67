package packed

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"qtool/formats"
)

// Scheme says how the weights of a matrix are stored: integer codes of Bits bits, and for every
// Group weights along a row one scale.
//
//	symmetric, 3 or 4 bits:   w = scale·(code − 4 or 8),   code 0…7 or 0…15
//	symmetric, 8 bits:        w = scale·code,              code −127…127
//	asymmetric, 3 or 4 bits:  w = scale·(code − z/16), z 0…255 in sixteenths of a step
//	asymmetric, 8 bits:       w = scale·(code + 128 − z),  code −128…127, z 0…255
//	codebook, 3 or 4 bits:    w = scale·book[code], 8 or 16 entries −127…127 for the matrix
//
// A scale is a half-precision number; with TwoLevel it is a 6-bit integer, −32…31, times a half-precision
// number for every 256 weights. The last group of a row is shorter where the row is not a multiple of Group.
type Scheme struct {
	Bits     int  // 3, 4 or 8
	Group    int  // weights a scale: 32, 64, 128 or 256; with TwoLevel 16 or 32
	Asym     bool // a zero point a group
	Codebook bool // codes stand for the entries of a table that the matrix has
	TwoLevel bool // 6-bit scales under one of half precision
	Static   bool // activations are quantized by one calibrated range, not by what they are
}

// Block is the number of neighbouring weights of a row that are stored as one unit, and that
// activations share a scale over. Every group but one of 16 is a whole number of blocks.
const Block = 32

// Panel is the number of rows that are stored interleaved.
const Panel = 8

// Super is the number of weights of a row under one half-precision scale of a two-level scheme.
const Super = 256

// Align is what the size of a packed matrix is padded to, so that all of them start on a cache line.
const Align = 64

// prelude is the storage before the panels of what the whole matrix has one of: the codebook, 16 bytes, and the range
// of activations, a float32.
const prelude = 64

// DefaultGroup8 is the group size that "w8" without one stands for.
const DefaultGroup8 = 128

// DefaultGroup4 is the group size that "w4" and "w3" without one stand for.
const DefaultGroup4 = 32

var schemeName = regexp.MustCompile(`^w([348])(?:g(\d{1,6}))?(a|nl)?(k?)((?:-s8)?)$`)

// schemeHint says what names there are.
const schemeHint = "schemes are w8, w4 and w3 with a group size (w4g32, w4g64, w4g128, w4g256), then a for asymmetric or nl for a learned codebook, " +
	"k for 6-bit scales under one a row of 256 (groups of 16 or 32), -s8 for calibrated ranges of activations: w8, w4g32, w4g128a, w4g32nl, w4g32nlk, w8-s8"

// ParseScheme reads a scheme's name: w4g32, w4g128a, w4g32nlk, w8 and so on.
func ParseScheme(name string) (Scheme, error) {
	m := schemeName.FindStringSubmatch(name)
	if m == nil {
		return Scheme{}, formats.Unsupported("", "", "scheme %q is not known", name).WithHint(schemeHint)
	}
	s := Scheme{Bits: int(m[1][0] - '0'), Asym: m[3] == "a", Codebook: m[3] == "nl", TwoLevel: m[4] != "", Static: m[5] != ""}
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
	if s.Bits == 3 && s.Asym {
		return formats.Unsupported("", "", "weights of 3 bits have no zero point").WithHint("w3g32nl has a codebook instead")
	}
	if s.Bits != 3 && s.Bits != 4 && s.Bits != 8 {
		return formats.Unsupported("", "", "weights of %d bits are not supported", s.Bits).WithHint("3, 4 and 8 are")
	}
	if s.Bits == 8 && (s.Codebook || s.TwoLevel) {
		return formats.Unsupported("", "", "weights of 8 bits have neither a codebook nor scales of two levels")
	}
	if s.Asym && (s.Codebook || s.TwoLevel) {
		return formats.Unsupported("", "", "a scheme with a zero point has neither a codebook nor scales of two levels")
	}
	if s.TwoLevel {
		if s.Group == 16 || s.Group == 32 {
			return nil
		}
		return formats.Unsupported("", "", "groups of %d weights under scales of two levels are not supported", s.Group).WithHint("16 and 32 are")
	}
	switch s.Group {
	case 32, 64, 128, 256:
		return nil
	}
	return formats.Unsupported("", "", "groups of %d weights are not supported", s.Group).WithHint("32, 64, 128 and 256 are")
}

// String gives the scheme's name. The group is left out where it is the default of 8 bits.
func (s Scheme) String() string {
	var name strings.Builder
	fmt.Fprintf(&name, "w%d", s.Bits)
	if s.Bits != 8 || s.Group != DefaultGroup8 {
		fmt.Fprintf(&name, "g%d", s.Group)
	}
	for _, part := range []struct {
		has    bool
		suffix string
	}{{s.Asym, "a"}, {s.Codebook, "nl"}, {s.TwoLevel, "k"}, {s.Static, "-s8"}} {
		if part.has {
			name.WriteString(part.suffix)
		}
	}
	return name.String()
}

// Groups is the number of groups of a row of cols weights.
func (s Scheme) Groups(cols int) int { return (cols + s.Group - 1) / s.Group }

// Span is the number of weights of a row under one half-precision scale.
func (s Scheme) Span() int {
	if s.TwoLevel {
		return Super
	}
	return s.Group
}

// Spans is the number of half-precision scales of a row.
func (s Scheme) Spans(cols int) int { return (cols + s.Span() - 1) / s.Span() }

// BlockBytes is the storage of the codes of one block of a panel.
func (s Scheme) BlockBytes() int { return Panel * Block * s.Bits / 8 }

// HeadBytes is the storage of the scales and zero points of one span of n weights of a panel.
func (s Scheme) HeadBytes(n int) int {
	switch {
	case s.TwoLevel:
		groups := s.Groups(n)
		return Panel * (2 + (groups+1)/2 + (groups+3)/4)
	case s.Asym:
		return 3 * Panel
	}
	return 2 * Panel
}

// PreludeBytes is the storage before the panels.
func (s Scheme) PreludeBytes() int {
	if s.Codebook || s.Static {
		return prelude
	}
	return 0
}

// PanelBytes is the storage of a panel of rows of cols weights.
func (s Scheme) PanelBytes(cols int) int {
	n := cols/s.Span()*s.HeadBytes(s.Span()) + blocks(cols)*s.BlockBytes()
	if rest := cols % s.Span(); rest > 0 {
		n += s.HeadBytes(rest)
	}
	return n
}

// Bytes is the storage of a matrix, padding included.
func (s Scheme) Bytes(rows, cols int) int {
	n := s.PreludeBytes() + (rows+Panel-1)/Panel*s.PanelBytes(cols)
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
	case s.Bits < 8:
		return 0, 1<<s.Bits - 1
	case s.Asym:
		return -128, 127
	}
	return -127, 127
}

// Zero is what is subtracted from a code before it is scaled, given the stored zero point of its
// group, which a symmetric scheme has not. A codebook has none.
func (s Scheme) Zero(stored uint8) float32 {
	switch {
	case s.Codebook:
		return 0
	case s.Bits < 8 && s.Asym:
		return float32(stored) / 16
	case s.Bits < 8:
		return float32(int(1) << (s.Bits - 1))
	case s.Asym:
		return float32(stored) - 128
	}
	return 0
}

func blocks(cols int) int { return (cols + Block - 1) / Block }
