package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"qtool/runtime/kernel"
	"qtool/runtime/numa"
)

// features are the flags of /proc/cpuinfo that decide how fast kernels can be, on x86 and on ARM.
var features = []string{
	"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8",
	"asimd", "asimddp", "i8mm", "sve",
}

// processor names the CPU.
func (e *examiner) processor() {
	c := &e.report.CPU
	for _, key := range []string{"model name", "cpu model", "Processor", "cpu"} {
		if model, ok := e.field("proc/cpuinfo", key); ok {
			c.Model = model
			break
		}
	}
	flags, ok := e.flags()
	for _, f := range features {
		if slices.Contains(flags, f) {
			c.Features = append(c.Features, f)
		}
	}
	switch {
	case c.Model == "" && !ok:
		e.unknown("cpu", "/proc/cpuinfo names no model", "")
	default:
		e.ok("cpu", "%s", strings.TrimSpace(c.Model+" ("+strings.Join(c.Features, " ")+")"))
	}
}

func (e *examiner) flags() ([]string, bool) {
	flags, ok := e.field("proc/cpuinfo", "flags")
	if !ok {
		flags, ok = e.field("proc/cpuinfo", "Features")
	}
	return strings.Fields(flags), ok
}

// kernels tells which level of instructions is in use.
func (e *examiner) kernels() {
	if len(e.env.Levels) == 0 {
		e.unknown("kernels", "no level is known", "")
		return
	}
	best := e.env.Levels[len(e.env.Levels)-1]
	level := best
	if e.env.Limit != "" {
		level = e.env.Limit
	}
	e.report.CPU.Kernels = level
	flags, _ := e.flags()
	switch {
	case !slices.Contains(e.env.Levels, level):
		e.report.CPU.Kernels = ""
		e.advice("kernels", fmt.Sprintf("%s=%s, which this machine cannot run", kernel.EnvLevel, level),
			fmt.Sprintf("unset %s, or set one of %s", kernel.EnvLevel, strings.Join(e.env.Levels, ", ")), "models will not run at all")
	case level != best:
		e.advice("kernels", fmt.Sprintf("%s, by %s; the machine can run %s", level, kernel.EnvLevel, best),
			"unset "+kernel.EnvLevel, "the faster kernels give the same results")
	case best != "generic":
		e.ok("kernels", "%s", best)
	case slices.Contains(flags, "hypervisor"):
		e.advice("kernels", "generic: this virtual machine shows no AVX2, FMA and F16C",
			"give the virtual machine the host's CPU model (for instance -cpu host with QEMU)", "the portable kernels are several times slower")
	default:
		e.ok("kernels", "generic: the machine has none of the instructions that faster kernels need")
	}
}

// topology describes packages, cores, caches and nodes.
func (e *examiner) topology() {
	m, c := e.machine, &e.report.CPU
	c.Packages, c.Cores, c.Threads = m.Packages(), m.Cores(), len(m.CPUs)
	c.Offline, c.Isolated = m.Offline.String(), m.Isolated.String()
	caches, err := numa.Caches(e.root, m)
	if err != nil {
		e.unknown("caches", err.Error(), "")
	}
	for _, k := range caches {
		e.report.Caches = append(e.report.Caches, Cache{Level: k.Level, Type: k.Type, SizeBytes: k.Bytes, Threads: k.CPUs, Count: k.Count})
	}
	for _, n := range m.Nodes {
		out := Node{ID: n.ID, CPUs: n.CPUs.String(), MemoryBytes: n.Memory, FreeBytes: n.Free, Distances: make(map[string]int)}
		for id, d := range n.Distances {
			out.Distances[strconv.Itoa(id)] = d
		}
		e.report.Nodes = append(e.report.Nodes, out)
	}
	if len(m.CPUs) == 0 {
		return
	}
	e.nodes()
	smt, known := e.text("sys/devices/system/cpu/smt/active")
	switch {
	case c.Threads > c.Cores:
		e.ok("smt", "on, %d threads on %d cores; qtool takes one a core", c.Threads, c.Cores)
	case known && smt == "1":
		e.unknown("smt", "on, but the system does not tell which threads share a core", "")
	default:
		e.ok("smt", "off or absent, %s", count(c.Cores, "core"))
	}
	if len(m.Offline) > 0 {
		e.advice("offline", fmt.Sprintf("CPUs %s are there but switched off", m.Offline),
			fmt.Sprintf("echo 1 > /sys/devices/system/cpu/cpu%d/online, and so on", m.Offline[0]), "every core adds speed, unless they were switched off on purpose, as for SMT")
	} else {
		e.ok("offline", "none")
	}
}

// nodes looks for memory that is not where the CPUs are.
func (e *examiner) nodes() {
	m := e.machine
	if _, err := fs.Stat(e.root, "sys/devices/system/node"); err != nil {
		e.unknown("nodes", "the system shows none; taken for one", "")
		return
	}
	found := fmt.Sprintf("%s, %s", count(len(m.Nodes), "node"), count(m.Packages(), "package"))
	var empty numa.Set
	least, most := int64(0), int64(0)
	for _, n := range m.Nodes {
		if len(n.CPUs) == 0 {
			continue
		}
		if n.Memory == 0 {
			empty = append(empty, n.ID)
			continue
		}
		if least == 0 || n.Memory < least {
			least = n.Memory
		}
		most = max(most, n.Memory)
	}
	switch {
	case len(m.Nodes) > 1 && len(empty) > 0:
		e.advice("nodes", fmt.Sprintf("%s; nodes %s have CPUs but no memory", found, empty),
			"put memory modules into the slots of every socket", "their CPUs read everything over the links between sockets")
	case len(m.Nodes) == 1 && m.Packages() > 1:
		e.advice("nodes", found+": memory is interleaved over the sockets, or the firmware hides the nodes",
			"switch node interleaving off in the firmware (NUMA on)", "threads can then read from the memory of their own socket")
	case most > least+least/4:
		e.advice("nodes", fmt.Sprintf("%s; one has %d GiB, another %d GiB", found, most>>30, least>>30),
			"spread the memory modules evenly", "the node with the least memory limits what each can hold of a model")
	default:
		e.ok("nodes", "%s", found)
	}
}

// limits tells what this process may use.
func (e *examiner) limits() {
	m := e.machine
	if len(m.CPUs) == 0 {
		return
	}
	allowed := m.Allowed()
	e.report.CPU.Allowed, e.report.CPU.Quota = allowed.String(), m.Group.Quota
	cores, nodes := make(map[int]bool), make(map[int]bool)
	for _, id := range allowed {
		c, _ := m.CPU(id)
		cores[c.Core], nodes[c.Node] = true, true
	}
	found := fmt.Sprintf("%d of %d CPUs (%s)", len(allowed), len(m.CPUs), allowed)
	siblings := len(allowed) > len(cores)
	switch {
	case len(allowed) == 0:
		e.advice("allowed", "no CPU: affinity mask "+m.Affinity.String()+", cpuset "+m.Group.CPUs.String(), "widen the cpuset", "nothing can run")
	case len(allowed) == len(m.CPUs):
		e.ok("allowed", "all %s", count(len(allowed), "CPU"))
	case siblings && len(cores) < m.Cores():
		e.advice("allowed", fmt.Sprintf("%s, threads of only %s", found, count(len(cores), "core")),
			"allow the first thread of as many cores instead", "two threads of a core share its arithmetic units")
	default:
		e.ok("allowed", "%s", found)
	}
	e.memoryNodes(nodes)
	if q := m.Group.Quota; q > 0 && q < float64(len(cores)) {
		e.advice("quota", fmt.Sprintf("control group grants the time of %.4g CPUs of %d cores", q, len(cores)),
			"limit by a cpuset instead (cpuset.cpus), or raise cpu.max", "threads that have used up the grant stop until the next period, and the others wait for them")
	} else if q > 0 {
		e.ok("quota", "the time of %.4g CPUs, no less than the %d cores", q, len(cores))
	} else {
		e.ok("quota", "none")
	}
	plan, err := m.Plan(numa.Options{NUMA: numa.Selection{Auto: true}})
	if err != nil {
		e.report.Workers = err.Error()
		return
	}
	e.report.Workers = plan.String()
}

// memoryNodes compares the nodes whose memory may be used with those of the CPUs.
func (e *examiner) memoryNodes(nodes map[int]bool) {
	if e.machine.Group.Nodes == nil {
		return
	}
	var away numa.Set
	for _, n := range e.machine.Nodes {
		if nodes[n.ID] && !e.machine.Group.Nodes.Contains(n.ID) {
			away = append(away, n.ID)
		}
	}
	if len(away) > 0 {
		e.advice("mems", fmt.Sprintf("the control group allows CPUs of nodes %s, but memory of nodes %s only", away, e.machine.Group.Nodes),
			"make cpuset.mems fit cpuset.cpus", "those CPUs read everything over the links between sockets")
		return
	}
	e.ok("mems", "memory of nodes %s", e.machine.Group.Nodes)
}

// clocks looks at what decides the clock rate.
func (e *examiner) clocks() {
	const dir = "sys/devices/system/cpu"
	governors := e.each(path.Join(dir, "cpu[0-9]*/cpufreq/scaling_governor"))
	preference := e.each(path.Join(dir, "cpu[0-9]*/cpufreq/energy_performance_preference"))
	why := "threads work in short bursts and wait for the slowest, so a clock that follows the load comes late"
	switch {
	case len(governors) == 0:
		e.unknown("governor", "the system shows no cpufreq, as in most virtual machines", "look at the host")
	case len(governors) == 1 && governors[0] == "performance":
		e.ok("governor", "performance")
	case len(preference) == 1 && preference[0] == "performance":
		e.ok("governor", "%s, preference performance", strings.Join(governors, ", "))
	default:
		e.advice("governor", strings.Join(governors, ", "), "cpupower frequency-set -g performance", why)
	}
	if v, ok := e.number(dir + "/intel_pstate/no_turbo"); ok && v != 0 {
		e.advice("turbo", "off", "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo", "cores may clock higher while it is cool enough")
	} else if v, ok := e.number(dir + "/cpufreq/boost"); ok && v == 0 {
		e.advice("turbo", "off", "echo 1 > /sys/devices/system/cpu/cpufreq/boost", "cores may clock higher while it is cool enough")
	}
}

// each reads files and gives the different contents.
func (e *examiner) each(pattern string) []string {
	var out []string
	for _, name := range e.glob(pattern) {
		if text, ok := e.text(name); ok && text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}
