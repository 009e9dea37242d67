//go:build !linux

package numa

import "errors"

// Affinity is not known on this system.
func Affinity() (Set, error) { return nil, &Refused{Call: "affinity", Err: errors.ErrUnsupported} }

// Pin is refused on this system.
func Pin(Set) (before Set, err error) {
	return nil, &Refused{Call: "affinity", Err: errors.ErrUnsupported}
}

// ThreadID is not known on this system.
func ThreadID() int { return 0 }

// BindMemory is refused on this system.
func BindMemory([]byte, Policy, Set) error {
	return &Refused{Call: "memory policy", Err: errors.ErrUnsupported}
}

// SetMemoryPolicy is refused on this system.
func SetMemoryPolicy(Policy, Set) error {
	return &Refused{Call: "memory policy", Err: errors.ErrUnsupported}
}
