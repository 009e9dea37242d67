package llama

import (
	"sync"

	"qtool/runtime/numa"
)

// arenaBytes is what an arena takes from a node at once: address space, memory only as it is used.
const arenaBytes = 64 << 20

// arena is memory for keys and values near the workers of each part of the pool. Sessions take blocks of it as they grow
// and give them back by Close; what they do not give back is the engine's until it closes.
type arena struct {
	region  func(size, node int) (*numa.Region, error)
	mutex   sync.Mutex
	regions []*numa.Region
	room    map[int][]byte      // what is left of the last region, by node
	free    map[[2]int][][]byte // blocks given back, by node and size
	refused error               // the first refusal of memory of a node
}

// refusal is why keys and values are not all in memory of their nodes; nil where they are.
func (a *arena) refusal() error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.refused
}

// take gives cleared memory, of the node as far as the system does that.
func (a *arena) take(size, node int) []byte {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	size = aligned(size)
	if blocks := a.free[[2]int{node, size}]; len(blocks) > 0 {
		block := blocks[len(blocks)-1]
		a.free[[2]int{node, size}] = blocks[:len(blocks)-1]
		clear(block)
		return block
	}
	if len(a.room[node]) < size {
		r, err := a.region(max(size, arenaBytes), node)
		if err != nil {
			a.refuse(err)
			return make([]byte, size)
		}
		a.refuse(r.Refused)
		a.regions = append(a.regions, r)
		if a.room == nil {
			a.room = make(map[int][]byte)
		}
		a.room[node] = r.Data
	}
	block := a.room[node][:size:size]
	a.room[node] = a.room[node][size:]
	return block
}

func (a *arena) refuse(err error) {
	if a.refused == nil {
		a.refused = err
	}
}

// give takes back a block.
func (a *arena) give(block []byte, node int) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.free == nil {
		a.free = make(map[[2]int][][]byte)
	}
	key := [2]int{node, len(block)}
	a.free[key] = append(a.free[key], block)
}
