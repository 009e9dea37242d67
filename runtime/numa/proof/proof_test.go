package proof

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/runtime/numa"
)

const maps = `7f0000000000-7f0000200000 rw-p 00000000 00:00 0
7f0000400000-7f0000600000 rw-p 00000000 00:00 0
7f0010000000-7f0014000000 rw-p 00000000 00:00 0
7f0020000000-7f0024000000 rw-p 00000000 00:00 0
7f0030000000-7f0030001000 r--s 00000000 00:02 7 /model.qpk
`

const numaMaps = `7f0000000000 prefer:0 anon=100 dirty=100 active=0 N0=100 kernelpagesize_kB=4
7f0000400000 prefer (many):1 anon=100 dirty=100 N1=100 kernelpagesize_kB=4
7f0010000000 prefer:0 anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7f0020000000 prefer:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=4
7f0030000000 default file=/model.qpk mapped=1 N0=1 kernelpagesize_kB=4
`

func expected() Expectation {
	return Expectation{
		Nodes: map[int]numa.Set{0: {0, 1}, 1: {2, 3}}, Threads: 4, Single: true, Weights: 200 << 12, Arena: 64 << 20,
	}
}

func threads(masks ...numa.Set) []Thread {
	out := []Thread{{ID: 1, CPUs: numa.Set{0, 1, 2, 3}}}
	for i, m := range masks {
		out = append(out, Thread{ID: 2 + i, CPUs: m})
	}
	return out
}

func TestCheck(t *testing.T) {
	each := threads(numa.Set{0}, numa.Set{1}, numa.Set{2}, numa.Set{3})
	whole := threads(numa.Set{0, 1}, numa.Set{2, 3})
	toNodes := expected()
	toNodes.Threads, toNodes.Single = 2, false
	off := expected()
	off.Threads = 0
	cases := []struct {
		name    string
		e       Expectation
		numa    string
		threads []Thread
		fault   string // empty for none
	}{
		{"as it should be", expected(), numaMaps, each, ""},
		{"bound to nodes", toNodes, numaMaps, whole, ""},
		{"off", off, "7f0030000000 default file=/model.qpk N0=1 kernelpagesize_kB=4\n", threads(), ""},
		{"off, but bound", off, numaMaps, threads(), "although nothing should be"},
		{"page elsewhere", expected(), strings.Replace(numaMaps, "N0=100", "N0=99 N1=1", 1), each, "4096 bytes of it are on node 1"},
		{"no weights", expected(), strings.Replace(numaMaps, "N1=100", "", 1), each, "node 1 has 0 bytes of weights"},
		{"huge pages count", expected(), strings.Replace(numaMaps, "N1=100 kernelpagesize_kB=4", "N1=100 kernelpagesize_kB=2048", 1), each, "node 1 has 209715200 bytes"},
		{"no keys", expected(), strings.Replace(numaMaps, "N1=1 ", "", 1), each, "node 1 has no keys"},
		{"node without CPUs", expected(), strings.Replace(numaMaps, "prefer:1", "prefer:7", 1), each, "prefers node 7, which has no CPU"},
		{"too few threads", expected(), numaMaps, each[:4], "3 threads are bound instead of 4"},
		{"two on a CPU", expected(), numaMaps, threads(numa.Set{0}, numa.Set{0}, numa.Set{2}, numa.Set{3}), "two threads are bound to CPU 0"},
		{"across nodes", expected(), numaMaps, threads(numa.Set{0}, numa.Set{1, 2}, numa.Set{2}, numa.Set{3}), "of more than one node"},
		{"not a single CPU", expected(), numaMaps, threads(numa.Set{0, 1}, numa.Set{1}, numa.Set{2}, numa.Set{3}), "instead of one"},
		{"not the whole node", toNodes, numaMaps, threads(numa.Set{0}, numa.Set{2, 3}), "its node has 0-1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ranges, err := Ranges(c.numa, maps)
			require.NoError(t, err)
			faults := Check(c.e, ranges, c.threads)
			if c.fault == "" {
				require.Empty(t, faults)
				return
			}
			require.Contains(t, strings.Join(faults, "\n"), c.fault)
		})
	}
	_, err := Ranges("7f00 prefer:x N0=1", "")
	require.ErrorContains(t, err, "expected one node")
	_, err = Ranges("", "what")
	require.ErrorContains(t, err, "expected an extent")
}
