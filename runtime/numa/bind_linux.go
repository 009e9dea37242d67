package numa

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Affinity gives the CPUs that the calling thread may run on.
func Affinity() (Set, error) {
	// The kernel refuses a buffer that is shorter than its own mask, however few CPUs there are.
	for size := 1024; size <= 2*(MaxID+1); size *= 2 {
		mask := unix.NewCPUSet(size)
		err := retry(func() error { return unix.SchedGetaffinityDynamic(0, mask) })
		if errors.Is(err, unix.EINVAL) {
			continue
		}
		if err != nil {
			return nil, &Refused{Call: "sched_getaffinity", Err: err}
		}
		s := Set{}
		for id := range size {
			if mask.IsSet(id) {
				s = append(s, id)
			}
		}
		return s, nil
	}
	return nil, &Refused{Call: "sched_getaffinity", Err: unix.EINVAL}
}

// Pin binds the calling thread to the CPUs and returns what it could run on before, for another Pin. The
// goroutine must be locked to its thread, and should not be unlocked afterwards: the Go runtime would give the
// thread to others. Where Pin is refused nothing has changed.
func Pin(cpus Set) (before Set, err error) {
	if len(cpus) == 0 {
		return nil, &Refused{Call: "sched_setaffinity", Err: unix.EINVAL}
	}
	if before, err = Affinity(); err != nil {
		return nil, err
	}
	mask := unix.NewCPUSet(cpus[len(cpus)-1] + 1)
	for _, id := range cpus {
		mask.Set(id)
	}
	if err := retry(func() error { return unix.SchedSetaffinityDynamic(0, mask) }); err != nil {
		return nil, &Refused{Call: "sched_setaffinity", Err: err}
	}
	return before, nil
}

// ThreadID identifies the calling thread.
func ThreadID() int { return unix.Gettid() }

// modes are the kernel's numbers of the policies.
var modes = map[Policy]uintptr{
	PolicyDefault: unix.MPOL_DEFAULT, PolicyPreferred: unix.MPOL_PREFERRED,
	PolicyBind: unix.MPOL_BIND, PolicyInterleave: unix.MPOL_INTERLEAVE,
}

// BindMemory sets from which nodes the pages of data come that nobody has touched yet. data must begin at a page
// and hold whole pages, as memory from mmap does.
func BindMemory(data []byte, policy Policy, nodes Set) error {
	if len(data) == 0 {
		return nil
	}
	start := unsafe.Pointer(unsafe.SliceData(data))
	if page := uintptr(os.Getpagesize()); uintptr(start)%page != 0 || uintptr(len(data))%page != 0 {
		return &Refused{Call: "mbind", Err: unix.EINVAL}
	}
	mask, bits := nodeMask(nodes)
	err := retry(func() error {
		_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(start), uintptr(len(data)), modes[policy], uintptr(unsafe.Pointer(mask)), bits, 0)
		return errno(e)
	})
	if err != nil {
		return &Refused{Call: "mbind", Err: err}
	}
	return nil
}

// SetMemoryPolicy sets from which nodes the calling thread's memory comes, where BindMemory says nothing else. As
// with Pin, the goroutine must be locked to its thread.
func SetMemoryPolicy(policy Policy, nodes Set) error {
	mask, bits := nodeMask(nodes)
	err := retry(func() error {
		_, _, e := unix.Syscall(unix.SYS_SET_MEMPOLICY, modes[policy], uintptr(unsafe.Pointer(mask)), bits)
		return errno(e)
	})
	if err != nil {
		return &Refused{Call: "set_mempolicy", Err: err}
	}
	return nil
}

// nodeMask gives the nodes as the kernel's array of unsigned long, and the number of bits to tell it: it reads
// one fewer than it is told. No nodes are a nil mask.
func nodeMask(nodes Set) (*uintptr, uintptr) {
	if len(nodes) == 0 {
		return nil, 0
	}
	const word = 8 * int(unsafe.Sizeof(uintptr(0)))
	mask := make([]uintptr, nodes[len(nodes)-1]/word+1)
	for _, id := range nodes {
		mask[id/word] |= 1 << (id % word)
	}
	return &mask[0], uintptr(len(mask)*word + 1)
}

// retry calls again what a signal has interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errno makes an error of a system call's result, nil of none.
func errno(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}
