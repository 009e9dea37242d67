package numa

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
)

func read(t *testing.T, files tree) *Machine {
	t.Helper()
	m, err := Read(files.fs())
	require.NoError(t, err)
	return m
}

func TestReadServer(t *testing.T) {
	m := read(t, xeonE5v4())
	require.Len(t, m.CPUs, 176)
	require.Equal(t, 4, m.Packages())
	require.Equal(t, 88, m.Cores())
	require.Equal(t, CPU{ID: 110, Package: 1, Core: 22, Node: 1}, m.CPUs[110])
	require.Len(t, m.Nodes, 4)
	n, ok := m.Node(3)
	require.True(t, ok)
	require.Equal(t, "66-87,154-175", n.CPUs.String())
	require.Equal(t, int64(128<<30), n.Memory)
	require.Equal(t, int64(64<<30), n.Free)
	require.Equal(t, map[int]int{0: 31, 1: 21, 2: 21, 3: 10}, n.Distances)
	require.Empty(t, m.Offline)
	require.Empty(t, m.Isolated)
	require.Equal(t, "0-175", m.Allowed().String())
}

func TestReadShapes(t *testing.T) {
	cases := []struct {
		name  string
		files tree
		check func(t *testing.T, m *Machine)
	}{
		{"memory-only node", func() tree {
			f := flat(4, "0-3")
			f.node(0, "0-3", "10 17", 64)
			f.node(1, "", "17 10", 512)
			return f
		}(), func(t *testing.T, m *Machine) {
			require.Len(t, m.Nodes, 2)
			require.Empty(t, m.Nodes[1].CPUs)
			require.Equal(t, int64(512<<30), m.Nodes[1].Memory)
			require.Equal(t, 17, m.Nodes[0].Distances[1])
		}},
		{"node ids with gaps", func() tree {
			f := flat(4)
			f.node(0, "0-1", "10 40", 8)
			f.node(8, "2-3", "40 10", 8)
			f["sys/devices/system/node/online"] = "0,8"
			return f
		}(), func(t *testing.T, m *Machine) {
			require.Equal(t, "0,8", m.nodeIDs().String())
			require.Equal(t, 8, m.CPUs[3].Node)
			require.Equal(t, map[int]int{0: 40, 8: 10}, m.Nodes[1].Distances)
			_, ok := m.Node(1)
			require.False(t, ok)
		}},
		{"offline CPUs", laptop().with(tree{
			"sys/devices/system/cpu/online":                       "0,2-6",
			"sys/devices/system/cpu/offline":                      "1,7",
			"sys/devices/system/cpu/cpu1/topology/core_cpus_list": "-",
			"sys/devices/system/cpu/cpu7/topology/core_cpus_list": "-",
			"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0",
			"sys/devices/system/cpu/cpu6/topology/core_cpus_list": "6",
		}), func(t *testing.T, m *Machine) {
			require.Equal(t, "0,2-6", m.Online().String())
			require.Equal(t, "1,7", m.Offline.String())
			require.Equal(t, 4, m.Cores())
			require.Equal(t, "0,2-6", m.Nodes[0].CPUs.String())
			_, ok := m.CPU(7)
			require.False(t, ok)
		}},
		{"first thread of a core offline", laptop().with(tree{
			"sys/devices/system/cpu/online": "1-7",
		}), func(t *testing.T, m *Machine) {
			require.Equal(t, 1, m.CPUs[0].Core)
			require.Equal(t, 4, m.Cores())
		}},
		{"no nodes", flat(3).with(tree{"proc/meminfo": "MemTotal:  2048 kB\nMemFree: 1024 kB\nBuffers: 0 kB"}), func(t *testing.T, m *Machine) {
			require.Equal(t, []Node{{ID: 0, CPUs: Set{0, 1, 2}, Memory: 2 << 20, Free: 1 << 20, Distances: map[int]int{0: 10}}}, m.Nodes)
		}},
		{"more than 1024 CPUs", flat(2048, "0-1023", "1024-2047"), func(t *testing.T, m *Machine) {
			require.Len(t, m.CPUs, 2048)
			require.Equal(t, 1, m.CPUs[2047].Node)
			require.Equal(t, 2048, m.Cores())
		}},
		{"no online file", flat(12).with(tree{"sys/devices/system/cpu/online": "-", "sys/devices/system/cpu/cpufreq/x": ""}), func(t *testing.T, m *Machine) {
			require.Equal(t, "0-11", m.Online().String())
		}},
		{"CPUs without topology, old kernel, no package", flat(2).with(tree{
			"sys/devices/system/cpu/cpu0/topology/core_cpus_list":       "-",
			"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1",
			"sys/devices/system/cpu/cpu0/topology/physical_package_id":  "-1",
			"sys/devices/system/cpu/cpu1/topology/core_cpus_list":       "-",
			"sys/devices/system/cpu/cpu1/topology/physical_package_id":  "-",
		}), func(t *testing.T, m *Machine) {
			require.Equal(t, []CPU{{ID: 0, Core: 0}, {ID: 1, Core: 1}}, m.CPUs)
		}},
		{"a CPU that no node claims", flat(4, "0-1"), func(t *testing.T, m *Machine) {
			require.Equal(t, "0-3", m.Nodes[0].CPUs.String())
		}},
		{"nothing at all", tree{}, func(t *testing.T, m *Machine) {
			require.Empty(t, m.CPUs)
			require.Len(t, m.Nodes, 1)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, read(t, c.files)) })
	}
}

func TestReadMalformed(t *testing.T) {
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online":                            "0-x",
		"sys/devices/system/cpu/offline":                           "7-3",
		"sys/devices/system/cpu/isolated":                          "1,,2",
		"sys/devices/system/node/online":                           "zero",
		"sys/devices/system/node/node0/cpulist":                    "0-",
		"sys/devices/system/node/node0/distance":                   "10 20",
		"sys/devices/system/node/node0/meminfo":                    "Node 0 MemTotal: much kB",
		"sys/devices/system/cpu/cpu0/topology/physical_package_id": "none",
		"sys/devices/system/cpu/cpu3/topology/core_cpus_list":      "2;3",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(laptop().with(tree{name: text}).fs())
			require.ErrorIs(t, err, formats.ErrMalformed)
			require.ErrorContains(t, err, "/"+name)
		})
	}
	_, err := Read(laptop().with(tree{"sys/devices/system/node/node0/distance": "ten"}).fs())
	require.ErrorContains(t, err, `found "ten"`)
}

func TestCaches(t *testing.T) {
	files := laptop()
	for id := range 8 {
		for i, c := range []struct{ level, kind, size, shared string }{
			{"1", "Data", "32K", fmt.Sprintf("%d-%d", id&^1, id|1)},
			{"1", "Instruction", "32K", fmt.Sprintf("%d-%d", id&^1, id|1)},
			{"2", "Unified", "256K", fmt.Sprintf("%d-%d", id&^1, id|1)},
			{"3", "Unified", "8M", "0-7"},
		} {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index%d/", id, i)
			files[dir+"level"], files[dir+"type"], files[dir+"size"], files[dir+"shared_cpu_list"] = c.level, c.kind, c.size, c.shared
		}
	}
	m := read(t, files)
	caches, err := Caches(files.fs(), m)
	require.NoError(t, err)
	require.Equal(t, []Cache{
		{Level: 1, Type: "Data", Bytes: 32 << 10, CPUs: 2, Count: 4},
		{Level: 1, Type: "Instruction", Bytes: 32 << 10, CPUs: 2, Count: 4},
		{Level: 2, Type: "Unified", Bytes: 256 << 10, CPUs: 2, Count: 4},
		{Level: 3, Type: "Unified", Bytes: 8 << 20, CPUs: 8, Count: 1},
	}, caches)
	for _, size := range []string{"big", "32KK", "-1K"} {
		_, err = Caches(files.with(tree{"sys/devices/system/cpu/cpu0/cache/index0/size": size}).fs(), m)
		require.ErrorIs(t, err, formats.ErrMalformed, size)
	}
}
