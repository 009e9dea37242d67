package numa

// Refused says that the system did not do what was asked. It is a fact to report, not a reason to stop: memory
// and threads then stay where the system puts them.
type Refused struct {
	Call string // the system call
	Err  error  // EPERM in many containers, ENOSYS, EINVAL for CPUs or nodes that are not to be had
}

// Error gives the call and the reason.
func (r *Refused) Error() string { return r.Call + ": " + r.Err.Error() }

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Err }

// Policy says from which nodes memory comes.
type Policy int

// The policies that qtool uses, see set_mempolicy(2).
const (
	PolicyDefault   Policy = iota // of the node that touches a page first
	PolicyPreferred               // of the first node given while it has free memory, then of others
	PolicyBind                    // of the given nodes and no other
	PolicyInterleave
)
