package numa

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	cases := []struct {
		n       int
		weights []int
		want    []int
	}{
		{8, []int{1}, []int{0, 8}},
		{8, []int{2, 2, 2, 2}, []int{0, 2, 4, 6, 8}},
		{8, []int{3, 1}, []int{0, 6, 8}},
		{10, []int{1, 1, 1}, []int{0, 3, 7, 10}},
		{1, []int{1, 1, 1, 1}, []int{0, 0, 1, 1, 1}},
		{2, []int{22, 22, 22, 22}, []int{0, 1, 1, 2, 2}},
		{0, []int{1, 1}, []int{0, 0, 0}},
		{5, []int{0, 1}, []int{0, 0, 5}},
		{1 << 30, []int{1 << 12, 1 << 12}, []int{0, 1 << 29, 1 << 30}},
	}
	for _, c := range cases {
		require.Equal(t, c.want, Split(c.n, c.weights), "%d by %v", c.n, c.weights)
	}
	for n := range 60 {
		for _, weights := range [][]int{{1, 2, 3}, {7, 1, 1, 4}, {5}} {
			ends, total := Split(n, weights), 0
			for _, w := range weights {
				total += w
			}
			require.Equal(t, n, ends[len(weights)])
			for i, w := range weights {
				require.InDelta(t, float64(n*w)/float64(total), ends[i+1]-ends[i], 1)
			}
		}
	}
}

func TestFreeMemory(t *testing.T) {
	host := tree{"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB"}
	limited := tree{
		"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/memory.max": "409600", "sys/fs/cgroup/a/memory.current": "204800",
		"sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 102400\nactive_file 5", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "1",
	}
	cases := []struct {
		name string
		tree tree
		want int64
	}{
		{"nothing known", tree{}, 0},
		{"no group", host, 600 << 10},
		{"group above", host.with(limited), 300 << 10},
		{"group alone", limited, 300 << 10},
		{"a wider group", host.with(limited).with(tree{"sys/fs/cgroup/a/memory.max": "40960000"}), 600 << 10},
		{"a group that is full", host.with(limited).with(tree{"sys/fs/cgroup/a/memory.current": "900000"}), 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, FreeMemory(c.tree.fs())) })
	}
}
