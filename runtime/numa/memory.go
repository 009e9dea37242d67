package numa

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// FreeMemory gives the bytes that the process may still take: what the system counts as available, or less where a
// control group's limit is nearer. 0 stands for not known.
//
// Formats: proc(5); Documentation/admin-guide/cgroup-v2.rst of the Linux sources.
func FreeMemory(root fs.FS) int64 {
	r := reader{root: root}
	free := r.memory("proc/meminfo", "MemAvailable:")
	table, _ := r.text("proc/self/cgroup")
	mounts := r.groupMounts()
	for line := range strings.Lines(table) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := range mounts.folders("", "memory", group) {
			limit, limited := r.bytes(path.Join(dir, "memory.max"))
			used, known := r.bytes(path.Join(dir, "memory.current"))
			if !limited || !known {
				continue
			}
			// Cached pages of files give way.
			left := max(limit-used+r.cached(path.Join(dir, "memory.stat")), 1)
			if free == 0 || left < free {
				free = left
			}
		}
	}
	return free
}

// bytes reads a file that holds one number; false for "max" or no file.
func (r *reader) bytes(name string) (int64, bool) {
	text, ok := r.text(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0
}

// cached reads how much of a group's memory is cached files that nobody has used lately.
func (r *reader) cached(name string) int64 {
	text, _ := r.text(name)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "inactive_file "); ok {
			n, _ := strconv.ParseInt(value, 10, 64)
			return max(n, 0)
		}
	}
	return 0
}
