package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"qtool/runtime/numa"
)

// tree is a file system of sysfs and procfs files.
type tree map[string]string

// with adds or replaces files; a text of "-" takes one away.
func (t tree) with(files tree) tree {
	out := maps.Clone(t)
	for name, text := range files {
		if text == "-" {
			delete(out, name)
		} else {
			out[name] = text
		}
	}
	return out
}

func (t tree) fs() fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range t {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return out
}

const (
	cpus  = "sys/devices/system/cpu/"
	nodes = "sys/devices/system/node/"
	edac  = "sys/devices/system/edac/mc/"
)

// server has two packages of two cores with two threads, everything set as it should be.
func server() tree {
	t := tree{
		cpus + "online": "0-7", cpus + "smt/active": "1", nodes + "online": "0-1",
		"proc/cpuinfo":                               "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2699 v4\nflags\t\t: sse fma f16c avx2\n\nprocessor\t: 1",
		"proc/meminfo":                               "MemTotal: 1 kB\nSwapTotal:  8000 kB\nHugePages_Total:   0\nHugePages_Free:  0\nHugepagesize:  2048 kB",
		"proc/sys/vm/swappiness":                     "10",
		"proc/sys/vm/zone_reclaim_mode":              "0",
		"proc/sys/kernel/numa_balancing":             "0",
		"proc/self/cgroup":                           "0::/",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
		cpus + "intel_pstate/no_turbo":               "0",
		edac + "mc0/max_location":                    "channel 1 slot 2 ",
		edac + "mc1/max_location":                    "channel 1 slot 2 ",
		"sys/class/hwmon/hwmon0/name":                "coretemp",
		"sys/class/hwmon/hwmon0/temp1_input":         "41000",
		"sys/class/hwmon/hwmon0/temp1_label":         "Package id 0",
		"sys/class/hwmon/hwmon0/temp1_max":           "84000",
		"sys/class/hwmon/hwmon0/temp1_crit":          "94000",
		"sys/class/hwmon/hwmon1/name":                "acpi",
		"sys/class/hwmon/hwmon1/temp1_input":         "24000",
		"sys/class/hwmon/hwmon1/temp1_label":         "Inlet Temp",
		"sys/class/hwmon/hwmon2/name":                "nvme",
		"sys/class/hwmon/hwmon2/temp1_input":         "99000",
	}
	for id := range 8 {
		dir := fmt.Sprintf("%scpu%d/", cpus, id)
		t[dir+"topology/core_cpus_list"] = fmt.Sprintf("%d,%d", id%4, id%4+4)
		t[dir+"topology/physical_package_id"] = fmt.Sprint(id % 4 / 2)
		t[dir+"cpufreq/scaling_governor"] = "performance"
		t[dir+"thermal_throttle/package_throttle_count"] = "0"
		t[dir+"cache/index3/level"], t[dir+"cache/index3/type"], t[dir+"cache/index3/size"] = "3", "Unified", "56320K"
		t[dir+"cache/index3/shared_cpu_list"] = []string{"0-1,4-5", "2-3,6-7"}[id%4/2]
	}
	for n := range 2 {
		dir := fmt.Sprintf("%snode%d/", nodes, n)
		t[dir+"cpulist"] = []string{"0-1,4-5", "2-3,6-7"}[n]
		t[dir+"distance"] = []string{"10 21", "21 10"}[n]
		t[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal: 67108864 kB\nNode %d MemFree: 33554432 kB", n, n)
		for channel := range 2 {
			dimm := fmt.Sprintf("%smc%d/dimm%d/", edac, n, 3*channel)
			t[dimm+"dimm_location"] = fmt.Sprintf("channel %d slot 0 ", channel)
			t[dimm+"size"] = "32768"
		}
	}
	return t
}

var avx2 = Environment{Levels: []string{"generic", "avx2"}}

func TestServerAsItShouldBe(t *testing.T) {
	r := Examine(server().fs(), avx2)
	for _, f := range r.Findings {
		require.Equal(t, OK, f.State, "%+v", f)
		require.Empty(t, f.Change)
	}
	require.Equal(t, CPU{
		Model: "Intel(R) Xeon(R) CPU E5-2699 v4", Features: []string{"avx2", "fma", "f16c"}, Kernels: "avx2",
		Packages: 2, Cores: 4, Threads: 8, Allowed: "0-7",
	}, r.CPU)
	require.Equal(t, []Cache{{Level: 3, Type: "Unified", SizeBytes: 56320 << 10, Threads: 4, Count: 2}}, r.Caches)
	require.Equal(t, []Node{
		{ID: 0, CPUs: "0-1,4-5", MemoryBytes: 64 << 30, FreeBytes: 32 << 30, Distances: map[string]int{"0": 10, "1": 21}},
		{ID: 1, CPUs: "2-3,6-7", MemoryBytes: 64 << 30, FreeBytes: 32 << 30, Distances: map[string]int{"0": 21, "1": 10}},
	}, r.Nodes)
	require.Equal(t, "node 0: 2 threads on CPUs 0-1; node 1: 2 threads on CPUs 2-3", r.Workers)
}

// find gives the finding of a name.
func find(t *testing.T, r *Report, name string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding %q among %v", name, r.Findings)
	return Finding{}
}

func TestFindings(t *testing.T) {
	oneNode := tree{nodes + "online": "0", nodes + "node0/cpulist": "0-7", nodes + "node0/distance": "10"}
	cases := []struct {
		name, finding string
		files         tree
		env           Environment
		state         State
		found, change string // parts of the text
	}{
		{"level lowered", "kernels", nil, Environment{Levels: avx2.Levels, Limit: "generic"}, Advice, "generic, by QTOOL_CPU; the machine can run avx2", "unset QTOOL_CPU"},
		{"level not there", "kernels", nil, Environment{Levels: avx2.Levels, Limit: "avx512"}, Advice, "cannot run", "generic, avx2"},
		{"level hidden", "kernels", tree{"proc/cpuinfo": "flags: sse hypervisor"}, Environment{Levels: []string{"generic"}}, Advice, "virtual machine", "host's CPU model"},
		{"old machine", "kernels", tree{"proc/cpuinfo": "flags: sse"}, Environment{Levels: []string{"generic"}}, OK, "generic", ""},
		{"no cpuinfo", "cpu", tree{"proc/cpuinfo": "-"}, avx2, Unknown, "no model", ""},
		{"malformed topology", "topology", tree{cpus + "online": "0-x"}, avx2, Unknown, "/sys/devices/system/cpu/online", ""},
		{"malformed cache", "caches", tree{cpus + "cpu0/cache/index3/size": "big"}, avx2, Unknown, "index3/size", ""},
		{"node without memory", "nodes", tree{nodes + "node1/meminfo": "Node 1 MemTotal: 0 kB"}, avx2, Advice, "nodes 1 have CPUs but no memory", "every socket"},
		{"uneven memory", "nodes", tree{nodes + "node1/meminfo": "Node 1 MemTotal: 16777216 kB"}, avx2, Advice, "64 GiB, another 16 GiB", "evenly"},
		{"interleaved", "nodes", oneNode, avx2, Advice, "1 node, 2 packages", "node interleaving off"},
		{"no nodes shown", "nodes", tree{nodes + "online": "-", nodes + "node0/cpulist": "-", nodes + "node0/distance": "-", nodes + "node0/meminfo": "-",
			nodes + "node1/cpulist": "-", nodes + "node1/distance": "-", nodes + "node1/meminfo": "-"}, avx2, Unknown, "taken for one", ""},
		{"no siblings", "smt", tree{cpus + "online": "0-3", cpus + "smt/active": "0"}, avx2, OK, "off or absent, 4 cores", ""},
		{"siblings hidden", "smt", tree{cpus + "online": "0-3"}, avx2, Unknown, "does not tell", ""},
		{"offline", "offline", tree{cpus + "online": "0-5", cpus + "offline": "6-7"}, avx2, Advice, "CPUs 6-7", "cpu6/online"},
		{"mask", "allowed", nil, Environment{Levels: avx2.Levels, Affinity: numa.Set{0, 1, 2}}, OK, "3 of 8 CPUs (0-2)", ""},
		{"mask of siblings", "allowed", nil, Environment{Levels: avx2.Levels, Affinity: numa.Set{0, 4}}, Advice, "threads of only 1 core", "first thread"},
		{"nothing allowed", "allowed", nil, Environment{Levels: avx2.Levels, Affinity: numa.Set{99}}, Advice, "no CPU", "widen"},
		{"memory elsewhere", "mems", tree{"sys/fs/cgroup/cpuset.mems.effective": "1"}, avx2, Advice, "nodes 0, but memory of nodes 1 only", "cpuset.mems"},
		{"memory as allowed", "mems", tree{"sys/fs/cgroup/cpuset.mems.effective": "0-1"}, avx2, OK, "memory of nodes 0-1", ""},
		{"quota", "quota", tree{"sys/fs/cgroup/cpu.max": "150000 100000"}, avx2, Advice, "1.5 CPUs of 4 cores", "cpu.max"},
		{"wide quota", "quota", tree{"sys/fs/cgroup/cpu.max": "600000 100000"}, avx2, OK, "6 CPUs", ""},
		{"governor", "governor", tree{cpus + "cpu5/cpufreq/scaling_governor": "powersave"}, avx2, Advice, "performance, powersave", "cpupower"},
		{"governor with preference", "governor", preferring(), avx2, OK, "powersave, preference performance", ""},
		{"no turbo", "turbo", tree{cpus + "intel_pstate/no_turbo": "1"}, avx2, Advice, "off", "no_turbo"},
		{"no boost", "turbo", tree{cpus + "cpufreq/boost": "0"}, avx2, Advice, "off", "boost"},
		{"channels empty", "memory-channels", tree{edac + "mc1/dimm3/size": "0"}, avx2, Advice, "3 of 4 filled, 3 modules", "every channel"},
		{"channels full", "memory-channels", nil, avx2, OK, "4 of 4 filled, 4 modules", ""},
		{"channels of unknown number", "memory-channels", tree{edac + "mc0/max_location": "-", edac + "mc1/max_location": "-"}, avx2, OK, "4 filled", ""},
		{"balancing", "numa-balancing", tree{"proc/sys/kernel/numa_balancing": "1"}, avx2, Advice, "on (1)", "kernel.numa_balancing=0"},
		{"balancing on one node", "numa-balancing", oneNode.with(tree{"proc/sys/kernel/numa_balancing": "1"}), avx2, OK, "without effect", ""},
		{"no balancing", "numa-balancing", tree{"proc/sys/kernel/numa_balancing": "-"}, avx2, OK, "not in this kernel", ""},
		{"zone reclaim", "zone-reclaim", tree{"proc/sys/vm/zone_reclaim_mode": "1"}, avx2, Advice, "on (1)", "zone_reclaim_mode=0"},
		{"no huge pages", "transparent-huge-pages", tree{"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}, avx2, Advice, "never", "madvise"},
		{"huge pages hidden", "transparent-huge-pages", tree{"sys/kernel/mm/transparent_hugepage/enabled": "-"}, avx2, Unknown, "", ""},
		{"reserved pages", "huge-pages", tree{"proc/meminfo": "HugePages_Total: 512\nHugePages_Free: 500\nHugepagesize: 2048 kB"}, avx2, Advice, "512 of 2048 kB reserved, 500 of them free", "nr_hugepages=0"},
		{"swappiness", "swappiness", tree{"proc/sys/vm/swappiness": "60"}, avx2, Advice, "60", "vm.swappiness=10"},
		{"no swap", "swappiness", tree{"proc/sys/vm/swappiness": "60", "proc/meminfo": "SwapTotal: 0 kB"}, avx2, OK, "no swap", ""},
		{"swappiness not a number", "swappiness", tree{"proc/sys/vm/swappiness": "much"}, avx2, Unknown, "", ""},
		{"warm inlet", "inlet-temperature", tree{"sys/class/hwmon/hwmon1/temp1_input": "38000"}, avx2, Advice, "38 °C (acpi Inlet Temp)", "cool the room"},
		{"hot cores", "cpu-temperature", tree{"sys/class/hwmon/hwmon0/temp1_input": "79500"}, avx2, Advice, "80 °C, the hottest of 1 sensor (coretemp Package id 0, limit 84 °C)", "fans"},
		{"zones", "cpu-temperature", bare().with(tree{"sys/class/thermal/thermal_zone0/type": "x86_pkg_temp", "sys/class/thermal/thermal_zone0/temp": "50000",
			"sys/class/thermal/thermal_zone1/type": "iwlwifi", "sys/class/thermal/thermal_zone1/temp": "90000"}), avx2, OK, "50 °C, the hottest of 1 sensor (x86_pkg_temp, limit 95 °C)", ""},
		{"throttled", "throttling", tree{cpus + "cpu1/thermal_throttle/package_throttle_count": "17"}, avx2, Advice, "17 times", "fans"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := find(t, Examine(server().with(c.files).fs(), c.env), c.finding)
			require.Equal(t, c.state, got.State, "%+v", got)
			require.Contains(t, got.Found, c.found)
			require.Contains(t, got.Change, c.change)
			require.Equal(t, c.state == Advice, got.Why != "", "advice has a reason: %+v", got)
			require.False(t, c.state == OK && got.Change != "")
		})
	}
}

// preferring has a governor that is told to prefer performance.
func preferring() tree {
	t := tree{}
	for id := range 8 {
		t[fmt.Sprintf("%scpu%d/cpufreq/scaling_governor", cpus, id)] = "powersave"
		t[fmt.Sprintf("%scpu%d/cpufreq/energy_performance_preference", cpus, id)] = "performance"
	}
	return t
}

// bare takes the sensors away.
func bare() tree {
	return tree{"sys/class/hwmon/hwmon0/temp1_input": "-", "sys/class/hwmon/hwmon1/temp1_input": "-"}
}

// A system that shows nothing, or whose files hold anything at all, has a report all the same.
func TestStrangeSystems(t *testing.T) {
	r := Examine(fstest.MapFS{}, Environment{Levels: []string{"generic"}})
	require.Equal(t, Unknown, find(t, r, "topology").State)
	require.Equal(t, Unknown, find(t, r, "memory-channels").State)
	require.Equal(t, Unknown, find(t, r, "cpu-temperature").State)
	require.Equal(t, Unknown, find(t, r, "governor").State)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(text), "null")

	for name := range server() {
		for _, odd := range []string{"", "-7", "x", "\x00\xff", "99999999999999999999"} {
			r := Examine(server().with(tree{name: odd}).fs(), avx2)
			require.NotEmpty(t, r.Findings)
		}
	}
	require.Equal(t, Unknown, find(t, Examine(server().fs(), Environment{}), "kernels").State)
}

func TestLocal(t *testing.T) {
	r := Local()
	require.NotEmpty(t, r.Findings)
	require.NotEmpty(t, r.CPU.Kernels)
}
