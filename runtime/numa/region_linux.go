package numa

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the huge pages that a region is aligned for.
const hugePage = 2 << 20

// Region is anonymous memory, cleared, that comes from one node as far as the system does that.
type Region struct {
	Data []byte
	// Refused is why the system would not bind the memory to its node; nil where it did. Pages are then of the node
	// that touches them first.
	Refused error
	all     []byte
}

// NewRegion takes size bytes of memory from a node. Memory that cannot be had at all is an error; that it may be of
// another node is not. While the node has no free page, pages come from others. Of node −1 it is bound to none.
func NewRegion(size, node int) (*Region, error) { return newRegion(size, node, BindMemory) }

func newRegion(size, node int, bind func([]byte, Policy, Set) error) (*Region, error) {
	page := os.Getpagesize()
	size = (max(size, 1) + page - 1) / page * page
	room := size
	if size >= hugePage {
		room += hugePage // to begin where a huge page may
	}
	all, err := unix.Mmap(-1, 0, room, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, &Refused{Call: "mmap", Err: err}
	}
	r := &Region{Data: all, all: all}
	if size >= hugePage {
		start := int(-uintptr(unsafe.Pointer(unsafe.SliceData(all))) & (hugePage - 1))
		r.Data = all[start : start+size : start+size]
		// Without huge pages it is as well, only slower: systems that have none say so here.
		_ = unix.Madvise(r.Data, unix.MADV_HUGEPAGE)
	}
	if node >= 0 {
		r.Refused = bind(r.Data, PolicyPreferred, Set{node})
	}
	return r, nil
}

// Close gives the memory back.
func (r *Region) Close() error {
	if r.all == nil {
		return nil
	}
	err := unix.Munmap(r.all)
	r.Data, r.all = nil, nil
	return err
}
