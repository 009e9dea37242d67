// Package proof checks, by what the kernel tells of a process, that its threads and its memory are on the nodes where
// they belong. See README.md.
package proof

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"qtool/runtime/numa"
)

// Range is memory of a process that has a policy of its own.
type Range struct {
	Start uint64
	Bytes int64         // of address space
	Node  int           // that the policy prefers
	Pages map[int]int64 // bytes that are in memory, by node
}

// bound gives how the policies that qtool asks for begin in numa_maps: kernels name preferred in two ways.
var bound = []string{"prefer:", "prefer=relative:", "prefer=static:", "prefer (many):"}

// Ranges reads /proc/PID/numa_maps and maps, and gives the ranges that prefer a node.
//
// Formats: numa_maps and maps of proc(5).
func Ranges(numaMaps, maps string) ([]Range, error) {
	sizes := make(map[uint64]int64)
	for line := range strings.Lines(maps) {
		extent, _, _ := strings.Cut(line, " ")
		first, last, _ := strings.Cut(extent, "-")
		start, err := strconv.ParseUint(first, 16, 64)
		end, err2 := strconv.ParseUint(last, 16, 64)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("maps: expected an extent, found %q", line)
		}
		sizes[start] = int64(end - start)
	}
	var out []Range
	for line := range strings.Lines(numaMaps) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		_, policy, _ := strings.Cut(strings.TrimSpace(line), " ")
		at := slices.IndexFunc(bound, func(name string) bool { return strings.HasPrefix(policy, name) })
		if at < 0 {
			continue
		}
		r := Range{Pages: make(map[int]int64)}
		var err error
		list, _, _ := strings.Cut(policy[len(bound[at]):], " ")
		if r.Node, err = strconv.Atoi(list); err != nil {
			return nil, fmt.Errorf("numa_maps: expected one node, found %q", line)
		}
		if r.Start, err = strconv.ParseUint(fields[0], 16, 64); err != nil {
			return nil, fmt.Errorf("numa_maps: expected an address, found %q", line)
		}
		size := int64(4 << 10)
		pages := make(map[int]int64)
		for _, f := range fields[2:] {
			key, value, found := strings.Cut(f, "=")
			n, err := strconv.ParseInt(value, 10, 64)
			if !found || err != nil {
				continue
			}
			if key == "kernelpagesize_kB" {
				size = n << 10
			} else if node, err := strconv.Atoi(strings.TrimPrefix(key, "N")); err == nil && key[0] == 'N' {
				pages[node] = n
			}
		}
		for node, n := range pages {
			r.Pages[node] = n * size
		}
		r.Bytes = sizes[r.Start]
		out = append(out, r)
	}
	return out, nil
}

// Thread is what the kernel tells of a thread.
type Thread struct {
	ID   int
	CPUs numa.Set // that it may run on
}

// Expectation is what has to be true.
type Expectation struct {
	Nodes   map[int]numa.Set // the nodes that have CPUs, and their CPUs
	Threads int              // that are bound, 0: none, and no memory either
	Single  bool             // each to a CPU of its own, else to the CPUs of its node
	Weights int64            // bytes of all nodes together, about
	Arena   int64            // address space of a range of keys and values, more than a node's weights take
}

// Check gives what is not as expected.
func Check(e Expectation, ranges []Range, threads []Thread) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	weights, kv := make(map[int]int64), make(map[int]int64)
	for _, r := range ranges {
		if _, known := e.Nodes[r.Node]; !known {
			fault("range %x prefers node %d, which has no CPU to run on", r.Start, r.Node)
		}
		for node, bytes := range r.Pages {
			if node != r.Node {
				fault("range %x prefers node %d, but %d bytes of it are on node %d", r.Start, r.Node, bytes, node)
			}
			if r.Bytes >= e.Arena {
				kv[node] += bytes
			} else {
				weights[node] += bytes
			}
		}
	}
	perNode, perCPU := make(map[int]int), make(map[string]int)
	all := numa.Set{}
	for _, cpus := range e.Nodes {
		all = all.Or(cpus)
	}
	boundThreads := 0
	for _, t := range threads {
		if len(t.CPUs.And(all)) == len(all) {
			continue // of the Go runtime, or not bound
		}
		boundThreads++
		node := -1
		for n, cpus := range e.Nodes {
			if len(t.CPUs.Without(cpus)) == 0 {
				node = n
			}
		}
		if node < 0 {
			fault("thread %d may run on CPUs %s, of more than one node", t.ID, t.CPUs)
			continue
		}
		perNode[node]++
		perCPU[t.CPUs.String()]++
		switch {
		case e.Single && len(t.CPUs) != 1:
			fault("thread %d may run on CPUs %s instead of one", t.ID, t.CPUs)
		case e.Single && perCPU[t.CPUs.String()] > 1:
			fault("two threads are bound to CPU %s", t.CPUs)
		case !e.Single && t.CPUs.String() != e.Nodes[node].String():
			fault("thread %d may run on CPUs %s, its node has %s", t.ID, t.CPUs, e.Nodes[node])
		}
	}
	if boundThreads != e.Threads {
		fault("%d threads are bound instead of %d", boundThreads, e.Threads)
	}
	if e.Threads == 0 {
		if len(ranges) > 0 {
			fault("%d ranges of memory are bound although nothing should be", len(ranges))
		}
		return faults
	}
	for node := range e.Nodes {
		due := e.Weights * int64(perNode[node]) / int64(e.Threads)
		if got := weights[node]; got < due*9/10 || got > due*11/10 {
			fault("node %d has %d bytes of weights, about %d are its share", node, got, due)
		}
		if kv[node] == 0 {
			fault("node %d has no keys and values", node)
		}
	}
	return faults
}
