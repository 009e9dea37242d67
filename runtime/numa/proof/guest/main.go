//go:build linux

// Command guest is the first process of a virtual machine with several nodes: it runs qtool there, looks at what the
// kernel tells of it, prints that and a verdict, and turns the machine off.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"qtool/runtime/numa"
	"qtool/runtime/numa/proof"
)

func main() { proof.First(prove) }

// scenario is a run of qtool and what has to be true of it.
type scenario struct {
	name    string
	args    []string
	threads int
	single  bool
	figures string // that the line of --stats has
}

func prove() error {
	nodes, weights, err := commandLine()
	if err != nil {
		return err
	}
	show("/proc/version")
	show("/sys/devices/system/node/online")
	for node, cpus := range nodes {
		list, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node))
		if err != nil || strings.TrimSpace(string(list)) != cpus.String() {
			return fmt.Errorf("the machine is not as ordered: node %d has CPUs %q", node, list)
		}
	}
	n := len(nodes)
	cases := []scenario{
		{"a thread for each core", nil, 2 * n, true, fmt.Sprintf("%d nodes, %d threads pinned; weights: %d nodes, ", n, 2*n, n)},
		{"a thread for each node", []string{"-t", strconv.Itoa(n)}, n, false, fmt.Sprintf("%d nodes, %d threads bound to their nodes; weights: %d nodes, ", n, n, n)},
		{"off", []string{"--numa", "off", "-t", strconv.Itoa(n)}, 0, false, "NUMA off)"},
	}
	var first string
	for _, c := range cases {
		fmt.Println("\n== " + c.name)
		text, err := run(c, nodes, weights)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if first == "" {
			first = text
		}
		if text != first {
			return fmt.Errorf("%s: another text was generated: %q, before %q", c.name, text, first)
		}
	}
	return nil
}

// commandLine reads proof.node=ID:CPUS and proof.weights=BYTES of the kernel's command line.
func commandLine() (nodes map[int]numa.Set, weights int64, err error) {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, 0, err
	}
	nodes = make(map[int]numa.Set)
	for _, f := range strings.Fields(string(text)) {
		if list, ok := strings.CutPrefix(f, "proof.node="); ok {
			id, cpus, _ := strings.Cut(list, ":")
			n, err := strconv.Atoi(id)
			if err != nil {
				return nil, 0, err
			}
			if nodes[n], err = numa.ParseSet(cpus); err != nil {
				return nil, 0, err
			}
		}
		if value, ok := strings.CutPrefix(f, "proof.weights="); ok {
			if weights, err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, 0, err
			}
		}
	}
	return nodes, weights, nil
}

// snapshot is what the kernel told at one moment.
type snapshot struct {
	ranges  []proof.Range
	threads []proof.Thread
	bytes   int64
}

// run runs qtool, looks at it all the while, and checks the moment at which it had most.
func run(c scenario, nodes map[int]numa.Set, weights int64) (string, error) {
	args := append([]string{"run", "/model.qpk", "-p", "the small dog sees", "-n", "40", "--temperature", "0", "--stats"}, c.args...)
	fmt.Println("qtool", strings.Join(args, " "))
	cmd := exec.Command("/qtool", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var best snapshot
	for done := false; !done; {
		select {
		case err := <-ended:
			if err != nil {
				return "", fmt.Errorf("%w: %s", err, stderr.String())
			}
			done = true
		case <-time.After(250 * time.Millisecond):
			s, err := look(cmd.Process.Pid)
			if err != nil {
				return "", err
			}
			// Threads that are about to end have given their masks back: the moment has to have memory and threads.
			if s.bytes > best.bytes || s.bytes == best.bytes && len(s.threads) >= len(best.threads) {
				best = s
			}
		}
	}
	fmt.Printf("%.0f s; %s", time.Since(start).Seconds(), stderr.String())
	for _, r := range best.ranges {
		fmt.Printf("memory %x, %d kB of addresses: prefers node %d, has kB by node %v\n", r.Start, r.Bytes>>10, r.Node, kilobytes(r.Pages))
	}
	free := 0
	for _, t := range best.threads {
		if t.CPUs.String() == online(nodes).String() {
			free++
			continue
		}
		fmt.Printf("thread %d may run on CPUs %s\n", t.ID, t.CPUs)
	}
	fmt.Printf("%d other threads may run anywhere\n", free)
	e := proof.Expectation{Nodes: nodes, Threads: c.threads, Single: c.single, Weights: weights, Arena: 60 << 20}
	if faults := proof.Check(e, best.ranges, best.threads); len(faults) > 0 {
		return "", fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	if !strings.Contains(stderr.String(), c.figures) {
		return "", fmt.Errorf("the report does not say %q", c.figures)
	}
	return stdout.String(), nil
}

// online gives the CPUs of all nodes.
func online(nodes map[int]numa.Set) (all numa.Set) {
	for _, cpus := range nodes {
		all = all.Or(cpus)
	}
	return all
}

func kilobytes(pages map[int]int64) map[int]int64 {
	out := make(map[int]int64)
	for node, n := range pages {
		out[node] = n >> 10
	}
	return out
}

// look asks the kernel about a process; nothing where it has just ended.
func look(pid int) (s snapshot, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	numaMaps, err := os.ReadFile(dir + "/numa_maps")
	maps, err2 := os.ReadFile(dir + "/maps")
	if err != nil || err2 != nil {
		return s, nil
	}
	if s.ranges, err = proof.Ranges(string(numaMaps), string(maps)); err != nil {
		return s, err
	}
	for _, r := range s.ranges {
		for _, n := range r.Pages {
			s.bytes += n
		}
	}
	files, _ := filepath.Glob(dir + "/task/*/status")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // ended meanwhile
		}
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				cpus, err := numa.ParseSet(list)
				if err != nil {
					return s, err
				}
				id, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
				s.threads = append(s.threads, proof.Thread{ID: id, CPUs: cpus})
			}
		}
	}
	return s, nil
}

// show prints a file.
func show(name string) {
	text, _ := os.ReadFile(name)
	fmt.Printf("%s: %s\n", name, bytes.TrimSpace(text))
}
