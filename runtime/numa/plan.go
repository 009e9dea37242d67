package numa

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Selection says which nodes work runs on, and whether threads are bound at all. The zero value is off.
type Selection struct {
	Auto  bool
	Nodes Set // an explicit choice; Auto is false then
}

// Off reports whether threads stay where the system puts them.
func (s Selection) Off() bool { return !s.Auto && len(s.Nodes) == 0 }

// ParseSelection reads auto, off or a list of nodes.
func ParseSelection(text string) (Selection, error) {
	switch text {
	case "auto":
		return Selection{Auto: true}, nil
	case "off":
		return Selection{}, nil
	}
	nodes, err := ParseSet(text)
	if err == nil && len(nodes) == 0 {
		err = fmt.Errorf("list %q names no node", text)
	}
	if err != nil {
		return Selection{}, fmt.Errorf("expected auto, off or a list of nodes such as 0-1: %w", err)
	}
	return Selection{Nodes: nodes}, nil
}

// String gives what ParseSelection reads.
func (s Selection) String() string {
	switch {
	case s.Auto:
		return "auto"
	case s.Off():
		return "off"
	}
	return s.Nodes.String()
}

// Options of a plan.
type Options struct {
	Threads int // workers; 0: one a physical core of what may be used, or one a CPU of CPUs
	CPUs    Set // run on these CPUs, isolated ones too; empty: on what may be used
	NUMA    Selection
	Limit   int // most workers where Threads is 0; 0 for no limit
}

// Plan says where workers run.
type Plan struct {
	Workers []Worker // by node, then by CPU
	// Why says why workers are not bound; empty where they are.
	Why string
}

// Worker is the place of one worker.
type Worker struct {
	CPUs Set // to be bound to: one CPU, or all that may be used of the node; empty for none
	Node int // -1 where the worker may run on any
}

// Bound reports whether workers are bound to CPUs.
func (p *Plan) Bound() bool { return p.Why == "" }

// Plan chooses CPUs for workers. Workers are spread over the nodes as evenly as the cores allow, because each
// node adds the bandwidth of its memory; each has a physical core for itself while there are enough.
//
// Automatic placement gives every worker a CPU of its own where workers fill all the cores that the process may
// use. With fewer, another process may have chosen the same ones, so a worker is bound to its whole node, and
// with one node not at all. An explicit choice of CPUs or nodes is kept as it is given.
func (m *Machine) Plan(o Options) (*Plan, error) {
	if o.Threads < 0 {
		return nil, fmt.Errorf("%d threads", o.Threads)
	}
	usable, err := m.usable(o)
	if err != nil {
		return nil, err
	}
	cores := m.byCore(usable)
	threads := o.Threads
	if threads == 0 {
		threads = len(cores)
		if len(o.CPUs) > 0 {
			threads = len(usable)
		} else if q := m.Group.Threads(); q > 0 {
			threads = min(threads, q)
		}
		if o.Limit > 0 && len(o.CPUs) == 0 {
			threads = min(threads, o.Limit)
		}
	}
	threads = max(threads, 1)
	explicit := len(o.CPUs) > 0 || len(o.NUMA.Nodes) > 0
	switch {
	case explicit && threads > len(usable):
		return nil, fmt.Errorf("%s for %s (%s)", count(threads, "thread"), count(len(usable), "CPU"), usable)
	case o.NUMA.Off() && len(o.CPUs) == 0:
		return floating(threads, "off"), nil
	case threads > len(usable):
		return floating(threads, fmt.Sprintf("off: %s for %s", count(threads, "thread"), count(len(usable), "CPU"))), nil
	}
	chosen := spread(cores, threads)
	plan := &Plan{}
	for _, c := range chosen {
		plan.Workers = append(plan.Workers, Worker{CPUs: Set{c.ID}, Node: c.Node})
	}
	if explicit || threads >= len(cores) {
		return plan, nil
	}
	if len(m.nodesOf(usable)) < 2 {
		return floating(threads, fmt.Sprintf("off: %s for the %d cores of one node", count(threads, "thread"), len(cores))), nil
	}
	for i := range plan.Workers {
		w := &plan.Workers[i]
		w.CPUs = usable.filter(func(id int) bool {
			c, _ := m.CPU(id)
			return c.Node == w.Node
		})
	}
	return plan, nil
}

// floating is a plan that binds nothing.
func floating(threads int, why string) *Plan {
	p := &Plan{Workers: make([]Worker, threads), Why: why}
	for i := range p.Workers {
		p.Workers[i].Node = -1
	}
	return p
}

// usable gives the CPUs that the options choose among.
func (m *Machine) usable(o Options) (Set, error) {
	allowed := m.Allowed()
	if len(o.CPUs) > 0 {
		if len(o.NUMA.Nodes) > 0 {
			return nil, fmt.Errorf("CPUs %s and nodes %s are both given: one of them decides", o.CPUs, o.NUMA.Nodes)
		}
		if missing := o.CPUs.Without(m.Online()); len(missing) > 0 {
			return nil, fmt.Errorf("CPUs %s are not online; online are %s", missing, m.Online())
		}
		if missing := o.CPUs.Without(allowed); len(missing) > 0 {
			return nil, fmt.Errorf("this process may not run on CPUs %s, only on %s", missing, allowed)
		}
		return o.CPUs, nil
	}
	// A process that may run on nothing else was put there on purpose.
	if rest := allowed.Without(m.Isolated); len(rest) > 0 {
		allowed = rest
	}
	if len(allowed) == 0 {
		return nil, fmt.Errorf("no CPU is left: online %s, affinity mask %s, control group %s", m.Online(), m.Affinity, m.Group.CPUs)
	}
	if len(o.NUMA.Nodes) == 0 {
		return allowed, nil
	}
	chosen := Set{}
	for _, id := range o.NUMA.Nodes {
		n, ok := m.Node(id)
		if !ok {
			return nil, fmt.Errorf("there is no node %d; there are %s", id, m.nodeIDs())
		}
		if len(n.CPUs) == 0 {
			return nil, fmt.Errorf("node %d has memory only, no CPU", id)
		}
		cpus := n.CPUs.And(allowed)
		if len(cpus) == 0 {
			return nil, fmt.Errorf("this process may not run on the CPUs of node %d (%s), only on %s", id, n.CPUs, allowed)
		}
		chosen = append(chosen, cpus...)
	}
	return setOf(chosen), nil
}

func (m *Machine) nodeIDs() Set {
	s := make(Set, len(m.Nodes))
	for i, n := range m.Nodes {
		s[i] = n.ID
	}
	return s
}

// nodesOf gives the nodes of CPUs.
func (m *Machine) nodesOf(cpus Set) Set {
	var ids []int
	for _, id := range cpus {
		c, _ := m.CPU(id)
		ids = append(ids, c.Node)
	}
	return setOf(ids)
}

// byCore gathers CPUs by the core that they are threads of.
func (m *Machine) byCore(cpus Set) [][]CPU {
	at := make(map[int]int)
	var cores [][]CPU
	for _, id := range cpus {
		c, ok := m.CPU(id)
		if !ok {
			continue
		}
		i, seen := at[c.Core]
		if !seen {
			i = len(cores)
			at[c.Core] = i
			cores = append(cores, nil)
		}
		cores[i] = append(cores[i], c)
	}
	return cores
}

// spread takes n CPUs: the first thread of each core before any second one, from the nodes in turn.
func spread(cores [][]CPU, n int) []CPU {
	type place struct {
		cpu           CPU
		sibling, turn int
	}
	var places []place
	turns := make(map[[2]int]int)
	for _, core := range cores {
		for sibling, c := range core {
			key := [2]int{c.Node, sibling}
			places = append(places, place{cpu: c, sibling: sibling, turn: turns[key]})
			turns[key]++
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.sibling, b.sibling), cmp.Compare(a.turn, b.turn), cmp.Compare(a.cpu.Node, b.cpu.Node), cmp.Compare(a.cpu.ID, b.cpu.ID))
	})
	out := make([]CPU, n)
	for i := range out {
		out[i] = places[i].cpu
	}
	slices.SortFunc(out, func(a, b CPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// count gives a number and what it counts.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// String sums the plan up.
func (p *Plan) String() string {
	if !p.Bound() {
		return fmt.Sprintf("%s, %s", count(len(p.Workers), "thread"), p.Why)
	}
	var parts []string
	for i := 0; i < len(p.Workers); {
		node, cpus, first := p.Workers[i].Node, Set{}, i
		for ; i < len(p.Workers) && p.Workers[i].Node == node; i++ {
			cpus = setOf(append(cpus, p.Workers[i].CPUs...))
		}
		parts = append(parts, fmt.Sprintf("node %d: %s on CPUs %s", node, count(i-first, "thread"), cpus))
	}
	return strings.Join(parts, "; ")
}
