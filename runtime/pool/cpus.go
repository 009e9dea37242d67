package pool

import (
	"os"
	"runtime"

	"qtool/runtime/numa"
)

// Available returns how many threads can run at once here: the CPUs that the affinity mask allows, no more than
// the CPU time that the control group grants, rounded up, no more than GOMAXPROCS. It is at least 1. A limit
// that cannot be read is none.
func Available() int {
	n := runtime.GOMAXPROCS(0)
	if cpus, err := numa.Affinity(); err == nil && len(cpus) > 0 {
		n = min(n, len(cpus))
	}
	if group, err := numa.ReadGroup(os.DirFS("/")); err == nil && group.Threads() > 0 {
		n = min(n, group.Threads())
	}
	return n
}
