package numa

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func set(t *testing.T, list string) Set {
	t.Helper()
	s, err := ParseSet(list)
	require.NoError(t, err)
	return s
}

func TestPlan(t *testing.T) {
	auto := Selection{Auto: true}
	container := flat(64, "0-31", "32-63").with(tree{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpuset.cpus.effective": "4,36"})
	isolated := flat(8, "0-7").with(tree{"sys/devices/system/cpu/isolated": "6-7"})
	memoryOnly := flat(4)
	memoryOnly.node(0, "0-3", "10 17", 64)
	memoryOnly.node(1, "", "17 10", 512)
	cases := []struct {
		name     string
		files    tree
		affinity string
		options  Options
		want     string
	}{
		{"server, a core each", xeonE5v4(), "", Options{NUMA: auto},
			"node 0: 22 threads on CPUs 0-21; node 1: 22 threads on CPUs 22-43; node 2: 22 threads on CPUs 44-65; node 3: 22 threads on CPUs 66-87"},
		{"server, siblings too", xeonE5v4(), "", Options{NUMA: auto, Threads: 92},
			"node 0: 23 threads on CPUs 0-21,88; node 1: 23 threads on CPUs 22-43,110; node 2: 23 threads on CPUs 44-65,132; node 3: 23 threads on CPUs 66-87,154"},
		{"server, few threads: each its node", xeonE5v4(), "", Options{NUMA: auto, Threads: 5},
			"node 0: 2 threads on CPUs 0-21,88-109; node 1: 1 thread on CPUs 22-43,110-131; node 2: 1 thread on CPUs 44-65,132-153; node 3: 1 thread on CPUs 66-87,154-175"},
		{"server, two nodes", xeonE5v4(), "", Options{NUMA: Selection{Nodes: Set{1, 3}}},
			"node 1: 22 threads on CPUs 22-43; node 3: 22 threads on CPUs 66-87"},
		{"server, one node, few threads", xeonE5v4(), "", Options{NUMA: Selection{Nodes: Set{2}}, Threads: 3},
			"node 2: 3 threads on CPUs 44-46"},
		{"server, CPUs", xeonE5v4(), "", Options{NUMA: auto, CPUs: Set{0, 22, 88}},
			"node 0: 2 threads on CPUs 0,88; node 1: 1 thread on CPUs 22"},
		{"server, CPUs and fewer threads", xeonE5v4(), "", Options{NUMA: auto, CPUs: Set{0, 22, 88}, Threads: 2},
			"node 0: 1 thread on CPUs 0; node 1: 1 thread on CPUs 22"},
		{"server, mask of one socket", xeonE5v4(), "22-43", Options{NUMA: auto}, "node 1: 22 threads on CPUs 22-43"},
		{"off", xeonE5v4(), "", Options{}, "88 threads, off"},
		{"off, CPUs bind all the same", laptop(), "", Options{CPUs: Set{1, 3}}, "node 0: 2 threads on CPUs 1,3"},
		{"laptop", laptop(), "", Options{NUMA: auto}, "node 0: 4 threads on CPUs 0,2,4,6"},
		{"laptop, few threads", laptop(), "", Options{NUMA: auto, Threads: 3}, "3 threads, off: 3 threads for the 4 cores of one node"},
		{"laptop, too many threads", laptop(), "", Options{NUMA: auto, Threads: 9}, "9 threads, off: 9 threads for 8 CPUs"},
		{"laptop, limit", laptop(), "", Options{NUMA: auto, Limit: 2}, "2 threads, off: 2 threads for the 4 cores of one node"},
		{"laptop, mask with half a core", laptop(), "1-3", Options{NUMA: auto}, "node 0: 2 threads on CPUs 1-2"},
		{"memory-only node", memoryOnly, "", Options{NUMA: auto}, "node 0: 4 threads on CPUs 0-3"},
		{"container of 2 of 64", container, "", Options{NUMA: auto}, "node 0: 1 thread on CPUs 4; node 1: 1 thread on CPUs 36"},
		{"quota of 1.5", flat(4, "0-3").with(tree{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}), "",
			Options{NUMA: auto}, "2 threads, off: 2 threads for the 4 cores of one node"},
		{"quota and explicit threads", flat(4, "0-3").with(tree{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}), "",
			Options{NUMA: auto, Threads: 4}, "node 0: 4 threads on CPUs 0-3"},
		{"isolated ones left alone", isolated, "", Options{NUMA: auto}, "node 0: 6 threads on CPUs 0-5"},
		{"isolated ones asked for", isolated, "", Options{NUMA: auto, CPUs: Set{5, 6}}, "node 0: 2 threads on CPUs 5-6"},
		{"only isolated ones allowed", isolated, "6-7", Options{NUMA: auto}, "node 0: 2 threads on CPUs 6-7"},
		{"more than 1024", flat(2048, "0-1023", "1024-2047"), "", Options{NUMA: Selection{Nodes: Set{1}}}, "node 1: 1024 threads on CPUs 1024-2047"},
		{"no nodes known", flat(2), "", Options{NUMA: auto}, "node 0: 2 threads on CPUs 0-1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := read(t, c.files)
			if c.affinity != "" {
				m.Affinity = set(t, c.affinity)
			}
			p, err := m.Plan(c.options)
			require.NoError(t, err)
			require.Equal(t, c.want, p.String())
			for i, w := range p.Workers {
				if !p.Bound() {
					require.Equal(t, Worker{Node: -1}, w)
				} else if i > 0 {
					require.LessOrEqual(t, p.Workers[i-1].Node, w.Node, "workers of a node are together")
				}
			}
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	memoryOnly := flat(4)
	memoryOnly.node(0, "0-3", "10 17", 64)
	memoryOnly.node(1, "", "17 10", 512)
	cases := []struct {
		files    tree
		affinity string
		options  Options
		message  string
	}{
		{laptop(), "", Options{CPUs: Set{7, 8, 9}}, "CPUs 8-9 are not online; online are 0-7"},
		{laptop(), "0-3", Options{CPUs: Set{2, 6}}, "may not run on CPUs 6, only on 0-3"},
		{laptop(), "", Options{CPUs: Set{2, 6}, Threads: 3}, "3 threads for 2 CPUs (2,6)"},
		{laptop(), "", Options{NUMA: Selection{Nodes: Set{0}}, Threads: 9}, "9 threads for 8 CPUs"},
		{laptop(), "", Options{NUMA: Selection{Nodes: Set{1}}}, "there is no node 1; there are 0"},
		{laptop(), "", Options{NUMA: Selection{Nodes: Set{0}}, CPUs: Set{1}}, "both given"},
		{laptop(), "", Options{Threads: -1}, "-1 threads"},
		{memoryOnly, "", Options{NUMA: Selection{Nodes: Set{1}}}, "node 1 has memory only"},
		{xeonE5v4(), "0-21", Options{NUMA: Selection{Nodes: Set{0, 1}}}, "may not run on the CPUs of node 1"},
		{laptop(), "9", Options{}, "no CPU is left"},
	}
	for _, c := range cases {
		t.Run(c.message, func(t *testing.T) {
			m := read(t, c.files)
			if c.affinity != "" {
				m.Affinity = set(t, c.affinity)
			}
			_, err := m.Plan(c.options)
			require.ErrorContains(t, err, c.message)
		})
	}
}

func TestParseSelection(t *testing.T) {
	for text, want := range map[string]Selection{"auto": {Auto: true}, "off": {}, "0,2-3": {Nodes: Set{0, 2, 3}}} {
		got, err := ParseSelection(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, fmt.Sprint(got))
	}
	for _, text := range []string{"", "Auto", "on", "0-", ","} {
		_, err := ParseSelection(text)
		require.ErrorContains(t, err, "auto, off or a list", text)
	}
}
