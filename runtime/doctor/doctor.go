// Package doctor looks at the machine that qtool runs on and says what could be set better. It reads files of
// Linux and changes nothing.
package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"

	"qtool/runtime/kernel"
	"qtool/runtime/numa"
)

// State is what a finding means.
type State string

const (
	// OK needs nothing done.
	OK State = "ok"
	// Advice could be better: the finding says what to change and why.
	Advice State = "advice"
	// Unknown cannot be seen from here; the finding says how to find out where there is a way.
	Unknown State = "unknown"
)

// Finding is one thing that was looked at.
type Finding struct {
	Name   string `json:"name"` // what was looked at; never renamed
	State  State  `json:"state"`
	Found  string `json:"found"`
	Change string `json:"change,omitempty"` // what to do
	Why    string `json:"why,omitempty"`
}

// Report is what `qtool doctor --json` prints. Keys may be added, none renamed.
type Report struct {
	CPU      CPU       `json:"cpu"`
	Caches   []Cache   `json:"caches"`
	Nodes    []Node    `json:"nodes"`
	Workers  string    `json:"workers"` // where qtool's threads run by default
	Findings []Finding `json:"findings"`
}

// CPU is what calculates.
type CPU struct {
	Model    string   `json:"model"` // empty where the system does not tell
	Features []string `json:"features"`
	Kernels  string   `json:"kernels"` // level of the kernels in use: generic, avx2 or avx512
	Packages int      `json:"packages"`
	Cores    int      `json:"cores"`
	Threads  int      `json:"threads"`
	Offline  string   `json:"offline"`  // CPUs, as a list
	Isolated string   `json:"isolated"` // CPUs, as a list
	Allowed  string   `json:"allowed"`  // CPUs that this process may run on
	Quota    float64  `json:"quota"`    // CPUs' worth of time by the control group; 0 for no limit
}

// Cache is a kind of cache.
type Cache struct {
	Level     int    `json:"level"`
	Type      string `json:"type"`
	SizeBytes int64  `json:"size_bytes"`
	Threads   int    `json:"threads"` // that share one
	Count     int    `json:"count"`
}

// Node is a part of the memory and the CPUs near it.
type Node struct {
	ID          int            `json:"id"`
	CPUs        string         `json:"cpus"`
	MemoryBytes int64          `json:"memory_bytes"`
	FreeBytes   int64          `json:"free_bytes"`
	Distances   map[string]int `json:"distances"` // by the other node's id
}

// Environment is what the files do not tell.
type Environment struct {
	Levels   []string // of the kernels that the machine can run, the fastest last
	Limit    string   // value of QTOOL_CPU
	Affinity numa.Set // of the process; nil where that is not known
}

// Local examines the machine that the process runs on.
func Local() *Report {
	env := Environment{Limit: os.Getenv(kernel.EnvLevel)}
	for _, s := range kernel.Available() {
		env.Levels = append(env.Levels, s.Name)
	}
	if cpus, err := numa.Affinity(); err == nil {
		env.Affinity = cpus
	}
	return Examine(os.DirFS("/"), env)
}

// Examine looks at the machine whose sys and proc are below root.
func Examine(root fs.FS, env Environment) *Report {
	e := &examiner{root: root, env: env, report: &Report{Caches: []Cache{}, Nodes: []Node{}}}
	e.report.CPU.Features = []string{}
	machine, err := numa.Read(root)
	if err != nil {
		// The rest can be looked at all the same.
		e.unknown("topology", err.Error(), "")
		machine = &numa.Machine{}
	} else if len(machine.CPUs) == 0 {
		e.unknown("topology", fmt.Sprintf("this system (%s) has no /sys/devices/system/cpu", runtime.GOOS), "")
	}
	machine.Affinity = env.Affinity
	e.machine = machine
	e.processor()
	e.kernels()
	e.topology()
	e.limits()
	e.clocks()
	e.memory()
	e.heat()
	return e.report
}

// examiner collects findings.
type examiner struct {
	root    fs.FS
	env     Environment
	machine *numa.Machine
	report  *Report
}

func (e *examiner) ok(name, format string, args ...any) {
	e.report.Findings = append(e.report.Findings, Finding{Name: name, State: OK, Found: fmt.Sprintf(format, args...)})
}

func (e *examiner) advice(name, found, change, why string) {
	e.report.Findings = append(e.report.Findings, Finding{Name: name, State: Advice, Found: found, Change: change, Why: why})
}

func (e *examiner) unknown(name, found, change string) {
	e.report.Findings = append(e.report.Findings, Finding{Name: name, State: Unknown, Found: found, Change: change})
}

// text reads a small file without the space around its content, and reports whether that can be done.
func (e *examiner) text(name string) (string, bool) {
	data, err := fs.ReadFile(e.root, name)
	return strings.TrimSpace(string(data)), err == nil
}

// number reads a file that holds a number.
func (e *examiner) number(name string) (int64, bool) {
	text, ok := e.text(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// glob lists files; the pattern is well formed.
func (e *examiner) glob(pattern string) []string {
	names, _ := fs.Glob(e.root, pattern)
	return names
}

// field reads the first line "key : value" of a file.
func (e *examiner) field(name, key string) (string, bool) {
	text, ok := e.text(name)
	if !ok {
		return "", false
	}
	for line := range strings.Lines(text) {
		k, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// kilobytes reads a line such as "SwapTotal: 12 kB" of /proc/meminfo.
func (e *examiner) kilobytes(key string) (int64, bool) {
	value, ok := e.field("proc/meminfo", key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
	return n, err == nil
}

// count gives a number and what it counts.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
