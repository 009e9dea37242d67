package numa

import (
	"fmt"
	"strings"
	"testing/fstest"
)

// tree is a file system of sysfs and procfs files.
type tree map[string]string

func (t tree) fs() fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range t {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return out
}

// with adds or replaces files; a text of "-" takes one away.
func (t tree) with(files tree) tree {
	out := tree{}
	for _, from := range []tree{t, files} {
		for name, text := range from {
			if text == "-" {
				delete(out, name)
			} else {
				out[name] = text
			}
		}
	}
	return out
}

// cpu adds a CPU that is online.
func (t tree) cpu(id, pkg int, siblings string) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", id)
	t[dir+"physical_package_id"] = fmt.Sprint(pkg)
	t[dir+"core_cpus_list"] = siblings
}

// node adds a node; gigabytes of 0 leave its memory out.
func (t tree) node(id int, cpus, distances string, gigabytes int) {
	dir := fmt.Sprintf("sys/devices/system/node/node%d/", id)
	t[dir+"cpulist"] = cpus
	t[dir+"distance"] = distances
	t[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        %d kB", id, gigabytes<<20, id, gigabytes<<19)
}

// xeonE5v4 is a server with four E5-4669 v4: 22 cores each, numbered node by node, and their second threads
// after all of the first. Nodes 0 and 3 are two links apart.
func xeonE5v4() tree {
	t := tree{"sys/devices/system/cpu/online": "0-175", "sys/devices/system/cpu/offline": "", "sys/devices/system/cpu/isolated": "",
		"sys/devices/system/node/online": "0-3"}
	for core := range 88 {
		pair := fmt.Sprintf("%d,%d", core, core+88)
		t.cpu(core, core/22, pair)
		t.cpu(core+88, core/22, pair)
	}
	for n, distances := range []string{"10 21 21 31", "21 10 31 21", "21 31 10 21", "31 21 21 10"} {
		t.node(n, fmt.Sprintf("%d-%d,%d-%d", 22*n, 22*n+21, 88+22*n, 88+22*n+21), distances, 128)
	}
	return t
}

// laptop has one node, four cores with two threads each, numbered core by core.
func laptop() tree {
	t := tree{"sys/devices/system/cpu/online": "0-7", "sys/devices/system/node/online": "0"}
	for id := range 8 {
		t.cpu(id, 0, fmt.Sprintf("%d-%d", id&^1, id|1))
	}
	t.node(0, "0-7", "10", 16)
	return t
}

// flat has cores without siblings, as virtual machines do.
func flat(cpus int, nodes ...string) tree {
	t := tree{"sys/devices/system/cpu/online": fmt.Sprintf("0-%d", cpus-1)}
	for id := range cpus {
		t.cpu(id, 0, fmt.Sprint(id))
	}
	for i, list := range nodes {
		t.node(i, list, strings.TrimSpace(strings.Repeat("10 ", len(nodes))), 8)
	}
	return t
}
