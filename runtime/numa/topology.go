// Package numa finds out how the CPUs and the memory of this machine belong together, chooses the CPUs that
// worker threads run on, and binds threads and memory to them.
//
// What it reads are the files of Linux (sysfs, procfs, control groups) below an fs.FS, so that any machine can
// be tested. What the system refuses is an error value, never a crash: a program runs unbound as well.
//
// Formats: Documentation/ABI/stable/sysfs-devices-node, Documentation/ABI/testing/sysfs-devices-system-cpu and
// Documentation/admin-guide/cputopology.rst of the Linux sources.
package numa

import (
	"cmp"
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"qtool/formats"
)

// CPU is a logical CPU, a thread of a core, that is online.
type CPU struct {
	ID      int
	Package int // socket; 0 where the system does not tell
	Core    int // lowest CPU of its core that is online: what SMT siblings share
	Node    int
}

// Node is a part of the memory and the CPUs that are near it.
type Node struct {
	ID     int
	CPUs   Set   // online ones; empty for a node that is memory only
	Memory int64 // bytes; 0 for a node without memory, or where the system does not tell
	Free   int64
	// Distances to each node that is online, by its id. A node's own is 10, by the ACPI's convention.
	Distances map[int]int
}

// Machine is what the system tells of its CPUs and memory, and what this process may use of them.
type Machine struct {
	CPUs     []CPU  // by id
	Nodes    []Node // by id, at least one
	Offline  Set
	Isolated Set // kept free of other work by the administrator (isolcpus)

	// Affinity is the mask of the thread that called Local; nil where that is not known.
	Affinity Set
	Group    Group // limits by control groups
}

const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// Local reads the machine that the process runs on, and the affinity of the calling thread.
func Local() (*Machine, error) {
	m, err := Read(os.DirFS("/"))
	if err != nil {
		return nil, err
	}
	if m.Affinity, err = Affinity(); err != nil {
		m.Affinity = nil
	}
	if len(m.CPUs) == 0 {
		// A system without sysfs: as many CPUs as the Go runtime found, in one node.
		ids := m.Affinity
		if len(ids) == 0 {
			for id := range runtime.NumCPU() {
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			m.CPUs = append(m.CPUs, CPU{ID: id, Core: id})
		}
		m.Nodes[0].CPUs = ids
	}
	return m, nil
}

// Read reads the machine below root, the root of a file system with sys and proc. What is absent is left out: a
// machine without node files has one node, one without any files no CPU. A file that is there and malformed is
// an error.
func Read(root fs.FS) (*Machine, error) {
	r := reader{root: root}
	m := &Machine{}
	online, known := r.set(cpuDir + "/online")
	if !known {
		online = r.numbered(cpuDir, "cpu")
	}
	m.Offline, _ = r.set(cpuDir + "/offline")
	m.Isolated, _ = r.set(cpuDir + "/isolated")
	m.Isolated = m.Isolated.And(online)
	m.Nodes = r.nodes(online)
	nodeOf := make(map[int]int)
	for _, n := range m.Nodes {
		for _, id := range n.CPUs {
			nodeOf[id] = n.ID
		}
	}
	for _, id := range online {
		m.CPUs = append(m.CPUs, r.cpu(id, nodeOf[id], online))
	}
	m.Group = r.group()
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

// Online gives the CPUs that run.
func (m *Machine) Online() Set {
	s := make(Set, len(m.CPUs))
	for i, c := range m.CPUs {
		s[i] = c.ID
	}
	return s
}

// Allowed gives the CPUs that this process may run on: online, in the affinity mask and in the control group's
// cpuset. Isolated ones are among them where the mask has them.
func (m *Machine) Allowed() Set {
	s := m.Online()
	if m.Affinity != nil {
		s = s.And(m.Affinity)
	}
	if m.Group.CPUs != nil {
		s = s.And(m.Group.CPUs)
	}
	return s
}

// CPU finds a CPU by its number; false where it is not online.
func (m *Machine) CPU(id int) (CPU, bool) {
	at, found := slices.BinarySearchFunc(m.CPUs, id, func(c CPU, id int) int { return cmp.Compare(c.ID, id) })
	if !found {
		return CPU{}, false
	}
	return m.CPUs[at], true
}

// Node finds a node by its number.
func (m *Machine) Node(id int) (Node, bool) {
	at, found := slices.BinarySearchFunc(m.Nodes, id, func(n Node, id int) int { return cmp.Compare(n.ID, id) })
	if !found {
		return Node{}, false
	}
	return m.Nodes[at], true
}

// Packages counts the sockets that have CPUs online.
func (m *Machine) Packages() int {
	return m.distinct(func(c CPU) int { return c.Package })
}

// Cores counts the physical cores that are online.
func (m *Machine) Cores() int {
	return m.distinct(func(c CPU) int { return c.Core })
}

func (m *Machine) distinct(of func(CPU) int) int {
	seen := make(map[int]bool)
	for _, c := range m.CPUs {
		seen[of(c)] = true
	}
	return len(seen)
}

// nodes reads the nodes, or makes one of all CPUs where the system shows none.
func (r *reader) nodes(online Set) []Node {
	ids, known := r.set(nodeDir + "/online")
	if !known {
		ids = r.numbered(nodeDir, "node")
	}
	var nodes []Node
	assigned := Set{}
	for _, id := range ids {
		n := Node{ID: id, Distances: make(map[int]int)}
		dir := path.Join(nodeDir, "node"+strconv.Itoa(id))
		cpus, _ := r.set(dir + "/cpulist")
		n.CPUs = cpus.And(online)
		assigned = setOf(append(assigned, n.CPUs...))
		n.Memory = r.memory(dir+"/meminfo", "MemTotal:")
		n.Free = r.memory(dir+"/meminfo", "MemFree:")
		if text, ok := r.text(dir + "/distance"); ok {
			fields := strings.Fields(text)
			if len(fields) != len(ids) {
				r.fail(dir+"/distance", "expected %d distances, one for each node online, found %d", len(ids), len(fields))
			}
			for i, field := range fields[:min(len(fields), len(ids))] {
				d, err := strconv.Atoi(field)
				if err != nil || d < 0 {
					r.fail(dir+"/distance", "expected a distance, found %q", field)
				}
				n.Distances[ids[i]] = d
			}
		}
		nodes = append(nodes, n)
	}
	if len(nodes) == 0 {
		return []Node{{
			CPUs: online, Memory: r.memory("proc/meminfo", "MemTotal:"), Free: r.memory("proc/meminfo", "MemFree:"),
			Distances: map[int]int{0: 10},
		}}
	}
	// A CPU that no node claims still has to be near some memory: the first node that has CPUs.
	if rest := online.Without(assigned); len(rest) > 0 {
		at := max(0, slices.IndexFunc(nodes, func(n Node) bool { return len(n.CPUs) > 0 }))
		nodes[at].CPUs = setOf(slices.Concat(nodes[at].CPUs, rest))
	}
	return nodes
}

// cpu reads where a CPU stands. Kernels before 5.3 name a core's CPUs thread_siblings_list.
func (r *reader) cpu(id, node int, online Set) CPU {
	c := CPU{ID: id, Core: id, Node: node}
	dir := path.Join(cpuDir, "cpu"+strconv.Itoa(id), "topology")
	// The package is -1 on machines that do not tell.
	if text, ok := r.text(dir + "/physical_package_id"); ok {
		p, err := strconv.Atoi(text)
		if err != nil {
			r.fail(dir+"/physical_package_id", "expected a number, found %q", text)
		}
		c.Package = max(p, 0)
	}
	siblings, ok := r.set(dir + "/core_cpus_list")
	if !ok {
		siblings, _ = r.set(dir + "/thread_siblings_list")
	}
	if siblings = siblings.And(online); len(siblings) > 0 && siblings.Contains(id) {
		c.Core = siblings[0]
	}
	return c
}

// reader reads small files and keeps the first error.
type reader struct {
	root fs.FS
	err  error
}

// fail notes that a file is malformed.
func (r *reader) fail(name, format string, args ...any) {
	if r.err == nil {
		r.err = formats.Malformed("/"+name, "", format, args...)
	}
}

// text reads a file without the space around its content, and reports whether it is there. A file that may not
// be read counts as absent: containers hide parts of sysfs that way.
func (r *reader) text(name string) (string, bool) {
	data, err := fs.ReadFile(r.root, name)
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(data)), true
}

// set reads a file that holds a list.
func (r *reader) set(name string) (Set, bool) {
	text, ok := r.text(name)
	if !ok {
		return Set{}, false
	}
	s, err := ParseSet(text)
	if err != nil {
		r.fail(name, "%v", err)
		return Set{}, false
	}
	return s, true
}

// numbered lists the numbers of the entries of a folder that are called prefix and a number.
func (r *reader) numbered(dir, prefix string) Set {
	entries, err := fs.ReadDir(r.root, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Set{}
	}
	var ids []int
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), prefix); ok {
			if id, err := parseID(digits); err == nil {
				ids = append(ids, id)
			}
		}
	}
	return setOf(ids)
}

// memory reads a line such as "Node 0 MemTotal: 16 kB" or "MemTotal: 16 kB"; 0 where it is absent.
func (r *reader) memory(name, key string) int64 {
	text, ok := r.text(name)
	if !ok {
		return 0
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		at := slices.Index(fields, key)
		if at < 0 {
			continue
		}
		if at+2 >= len(fields) || fields[at+2] != "kB" {
			r.fail(name, "expected %q, a number and kB, found %q", key, strings.TrimSpace(line))
			return 0
		}
		n, err := strconv.ParseInt(fields[at+1], 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64>>10 {
			r.fail(name, "expected a size after %q, found %q", key, fields[at+1])
			return 0
		}
		return n << 10
	}
	return 0
}
