package numa

import (
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
)

func TestGroup(t *testing.T) {
	cases := []struct {
		name    string
		files   tree
		quota   float64
		threads int
		cpus    string // "" for no limit
	}{
		{"no control groups", tree{}, 0, 0, ""},
		{"v2 limit, rounded up", tree{"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": "150000 100000"}, 1.5, 2, ""},
		{"v2 less than a CPU", tree{"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": "20000 100000"}, 0.2, 1, ""},
		{"v2 none", tree{"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": "max 100000"}, 0, 0, ""},
		{"v2 of a parent", tree{
			"proc/self/cgroup":              "0::/a/b/c",
			"sys/fs/cgroup/a/cpu.max":       "200000 100000",
			"sys/fs/cgroup/a/b/cpu.max":     "max 100000",
			"sys/fs/cgroup/a/b/c/cpu.max":   "400000 100000",
			"sys/fs/cgroup/other/d/cpu.max": "1000 100000",
		}, 2, 2, ""},
		{"v2 path of the host", tree{"proc/self/cgroup": "0::/host/only", "sys/fs/cgroup/cpu.max": "300000 100000"}, 3, 3, ""},
		{"v2 beside v1", tree{
			"proc/self/cgroup":                  "4:memory:/m\n0::/box",
			"proc/self/mountinfo":               "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n33 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
			"sys/fs/cgroup/unified/box/cpu.max": "250000 100000",
		}, 2.5, 3, ""},
		{"v1 limit", tree{
			"proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/x",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us":  "50000",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
		}, 0.5, 1, ""},
		{"v1 none", tree{
			"proc/self/cgroup":                    "1:cpu:/",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":  "-1",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
		}, 0, 0, ""},
		{"v1 whose mount shows the container's group", tree{
			"proc/self/cgroup":                            "7:cpuset:/docker/4f\n3:cpu,cpuacct:/docker/4f",
			"proc/self/mountinfo":                         "36 35 0:30 /docker/4f /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:11 - cgroup cgroup rw,cpu,cpuacct\n37 35 0:31 /docker/4f /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "400000",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
			"sys/fs/cgroup/cpuset/cpuset.cpus":            "8-11",
			"sys/fs/cgroup/cpuset/cpuset.mems":            "1",
		}, 4, 4, "8-11"},
		{"v2 cpuset, the tightest", tree{
			"proc/self/cgroup":                        "0::/a/b",
			"sys/fs/cgroup/cpuset.cpus.effective":     "0-63",
			"sys/fs/cgroup/a/cpuset.cpus.effective":   "0-15",
			"sys/fs/cgroup/a/b/cpuset.cpus.effective": "",
			"sys/fs/cgroup/a/b/cpuset.cpus":           "4-5",
		}, 0, 0, "4-5"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g, err := ReadGroup(c.files.fs())
			require.NoError(t, err)
			require.InDelta(t, c.quota, g.Quota, 1e-12)
			require.Equal(t, c.threads, g.Threads())
			require.Equal(t, c.cpus, g.CPUs.String())
			require.Equal(t, c.cpus == "", g.CPUs == nil)
		})
	}
}

func TestGroupMalformed(t *testing.T) {
	for _, text := range []string{"1 2 3", "x 100000", "100000 0", "-5 100000", "100000 x"} {
		_, err := ReadGroup(tree{"proc/self/cgroup": "0::/b", "sys/fs/cgroup/b/cpu.max": text}.fs())
		require.ErrorIs(t, err, formats.ErrMalformed, text)
	}
	_, err := Read(laptop().with(tree{"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpuset.cpus.effective": "1-"}).fs())
	require.ErrorIs(t, err, formats.ErrMalformed)
}
