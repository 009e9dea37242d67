package numa

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Group is what the control groups of the process limit, each the tightest of the group's own and those above.
type Group struct {
	CPUs  Set     // of the cpuset; nil where there is none
	Nodes Set     // with memory that may be used; nil where there is no limit
	Quota float64 // CPUs' worth of time in a unit of time; 0 where there is no limit
}

// Threads is how many threads the quota keeps busy: rounded up, since a thread that is stopped for part of the
// time still does more than none; at least 1. 0 stands for no limit.
func (g Group) Threads() int {
	if g.Quota <= 0 {
		return 0
	}
	// Not to make a thread of the error of a division.
	return max(1, int(math.Ceil(g.Quota-1e-9)))
}

// ReadGroup reads the limits of the process's control groups below root.
func ReadGroup(root fs.FS) (Group, error) {
	r := reader{root: root}
	g := r.group()
	return g, r.err
}

// group follows /proc/self/cgroup to the folders of the groups, of version 1, 2 or both.
//
// Formats: cgroups(7), cpuset(7); Documentation/admin-guide/cgroup-v2.rst of the Linux sources.
func (r *reader) group() Group {
	var g Group
	table, _ := r.text("proc/self/cgroup")
	mounts := r.groupMounts()
	for line := range strings.Lines(table) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		list, group, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		controllers := strings.Split(list, ",")
		unified := id == "0" && list == ""
		if unified || slices.Contains(controllers, "cpu") {
			quota := r.quotaV1
			if unified {
				quota = r.quotaV2
			}
			for dir := range mounts.folders(list, "cpu", group) {
				if q, ok := quota(dir); ok && (g.Quota == 0 || q < g.Quota) {
					g.Quota = q
				}
			}
		}
		if unified || slices.Contains(controllers, "cpuset") {
			for dir := range mounts.folders(list, "cpuset", group) {
				narrow(&g.CPUs, r, dir, "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
				narrow(&g.Nodes, r, dir, "cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems")
			}
		}
	}
	return g
}

// narrow cuts a set down to what the first of the files that holds a list says. An empty one, of a group that
// inherits, says nothing.
func narrow(s *Set, r *reader, dir string, names ...string) {
	for _, name := range names {
		found, ok := r.set(path.Join(dir, name))
		if !ok || len(found) == 0 {
			continue
		}
		if *s != nil {
			found = found.And(*s)
		}
		*s = found
		return
	}
}

// quotaV2 reads "quota period" or "max period", in microseconds, from cpu.max.
func (r *reader) quotaV2(dir string) (float64, bool) {
	name := path.Join(dir, "cpu.max")
	text, ok := r.text(name)
	if !ok {
		return 0, false
	}
	limit, period, two := strings.Cut(text, " ")
	if limit == "max" {
		return 0, false
	}
	if !two {
		period = "100000" // the kernel's default; it always prints both
	}
	return r.ratio(name, limit, period)
}

// quotaV1 reads the two files of version 1; a quota of -1 is none.
func (r *reader) quotaV1(dir string) (float64, bool) {
	name := path.Join(dir, "cpu.cfs_quota_us")
	limit, ok := r.text(name)
	if !ok || limit == "-1" {
		return 0, false
	}
	period, ok := r.text(path.Join(dir, "cpu.cfs_period_us"))
	if !ok {
		return 0, false
	}
	return r.ratio(name, limit, period)
}

// ratio divides two positive numbers.
func (r *reader) ratio(name, limit, period string) (float64, bool) {
	l, err := strconv.ParseInt(limit, 10, 64)
	p, err2 := strconv.ParseInt(strings.TrimSpace(period), 10, 64)
	if err != nil || err2 != nil || l <= 0 || p <= 0 {
		r.fail(name, "expected a quota and a period in microseconds, found %q of %q", limit, period)
		return 0, false
	}
	return float64(l) / float64(p), true
}

// groupMounts is where control groups are mounted.
type groupMounts []groupMount

type groupMount struct {
	root        string // the group that the folder shows
	folder      string // path without the leading slash
	controllers []string
	unified     bool
}

// groupMounts reads the mounts of control groups from /proc/self/mountinfo, or takes the customary places.
func (r *reader) groupMounts() groupMounts {
	var out groupMounts
	text, _ := r.text("proc/self/mountinfo")
	for line := range strings.Lines(text) {
		// "36 35 98:0 root folder options optional … - type source super-options"
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 6 || dash+3 >= len(fields) {
			continue
		}
		kind := fields[dash+1]
		if kind == "cgroup" || kind == "cgroup2" {
			out = append(out, groupMount{
				root: path.Clean(fields[3]), folder: strings.TrimPrefix(path.Clean(fields[4]), "/"),
				controllers: strings.Split(fields[dash+3], ","), unified: kind == "cgroup2",
			})
		}
	}
	return out
}

// folders gives the folders of a group and of those above it, as far up as the mount shows. list is the group's
// controllers as /proc/self/cgroup has them, empty for version 2.
func (m groupMounts) folders(list, controller, group string) func(yield func(string) bool) {
	mount := groupMount{root: "/", folder: path.Join("sys/fs/cgroup", list)}
	for _, known := range m {
		if list == "" && known.unified || list != "" && !known.unified && slices.Contains(known.controllers, controller) {
			mount = known
			break
		}
	}
	// Inside a container the group's path may be the host's, which is not there: its parents up to the mount
	// are looked at in any case.
	group = path.Clean("/" + group)
	if below, ok := strings.CutPrefix(group, mount.root); ok && (below == "" || below[0] == '/') {
		group = path.Clean("/" + below)
	}
	return func(yield func(string) bool) {
		for dir := path.Join(mount.folder, group); yield(dir) && dir != mount.folder; dir = path.Dir(dir) {
			if len(dir) <= len(mount.folder) {
				return
			}
		}
	}
}
