//go:build !linux

package numa

import "errors"

// Region is memory of one node.
type Region struct {
	Data    []byte
	Refused error
}

// NewRegion is refused on this system.
func NewRegion(int, int) (*Region, error) {
	return nil, &Refused{Call: "memory of a node", Err: errors.ErrUnsupported}
}

// Close does nothing.
func (r *Region) Close() error { return nil }
