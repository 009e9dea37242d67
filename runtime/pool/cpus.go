package pool

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Available returns how many threads can run at once here: the CPUs that the affinity mask
// allows, no more than the CPU time that the control group grants, no more than GOMAXPROCS. It
// is at least 1.
func Available() int {
	n := runtime.GOMAXPROCS(0)
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil && set.Count() > 0 {
		n = min(n, set.Count())
	}
	if quota, ok := quota(os.DirFS("/")); ok {
		// Rounded down: a thread too many uses up the grant early, and all of them stall.
		n = min(n, max(1, int(quota)))
	}
	return n
}

// quota returns the CPUs' worth of time per unit of time that the process's control group and
// those above it grant, and false when there is no limit. root is the file system's root.
//
// Formats: cgroups(7); cpu.max of version 2, cpu.cfs_quota_us and cpu.cfs_period_us of version 1.
func quota(root fs.FS) (float64, bool) {
	table, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	least, found := math.Inf(1), false
	for line := range strings.Lines(string(table)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		var base string
		var read func(fs.FS, string) (float64, bool)
		switch {
		case id == "0" && controllers == "":
			base, read = "sys/fs/cgroup", quotaV2
		case controllers == "cpu" || strings.HasPrefix(controllers, "cpu,") || strings.Contains(controllers, ",cpu,") || strings.HasSuffix(controllers, ",cpu"):
			base, read = path.Join("sys/fs/cgroup", controllers), quotaV1
		default:
			continue
		}
		// Inside a container the group's path may be the host's, which is not there; its
		// parents up to the mount point are looked at in any case.
		for dir := path.Join(base, path.Clean("/"+group)); ; dir = path.Dir(dir) {
			if q, ok := read(root, dir); ok && q < least {
				least, found = q, true
			}
			if dir == base {
				break
			}
		}
	}
	return least, found
}

// quotaV2 reads "quota period" or "max period" from cpu.max.
func quotaV2(root fs.FS, dir string) (float64, bool) {
	text, err := fs.ReadFile(root, path.Join(dir, "cpu.max"))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return 0, false
	}
	return ratio(fields[0], fields[1])
}

// quotaV1 reads the two files of version 1; a quota of -1 is none.
func quotaV1(root fs.FS, dir string) (float64, bool) {
	limit, err := fs.ReadFile(root, path.Join(dir, "cpu.cfs_quota_us"))
	if err != nil {
		return 0, false
	}
	period, err := fs.ReadFile(root, path.Join(dir, "cpu.cfs_period_us"))
	if err != nil {
		return 0, false
	}
	return ratio(strings.TrimSpace(string(limit)), strings.TrimSpace(string(period)))
}

// ratio divides two positive decimal numbers of microseconds; anything else is no limit.
func ratio(limit, period string) (float64, bool) {
	l, err := strconv.ParseInt(limit, 10, 64)
	if err != nil || l <= 0 {
		return 0, false
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil || p <= 0 {
		return 0, false
	}
	return float64(l) / float64(p), true
}
