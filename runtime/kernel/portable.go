//go:build !amd64 || noasm

package kernel

// machineSets lists the sets beyond the portable one that the machine can run, fastest last.
func machineSets() []*Set { return nil }
