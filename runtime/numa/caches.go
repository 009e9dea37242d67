package numa

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Cache is a kind of cache of the machine.
type Cache struct {
	Level int
	Type  string // Data, Instruction or Unified
	Bytes int64  // of one of them
	CPUs  int    // that share one
	Count int    // how many there are
}

// Caches lists the kinds of caches below root, by level. It reads a few files for each CPU, which is why Read
// leaves it.
func Caches(root fs.FS, m *Machine) ([]Cache, error) {
	r := reader{root: root}
	type place struct{ level, kind, cpus string }
	seen := make(map[place]bool)
	count := make(map[Cache]int)
	for _, c := range m.CPUs {
		base := path.Join(cpuDir, "cpu"+strconv.Itoa(c.ID), "cache")
		for _, index := range r.numbered(base, "index") {
			dir := path.Join(base, "index"+strconv.Itoa(index))
			level, ok := r.text(dir + "/level")
			kind, ok2 := r.text(dir + "/type")
			shared, ok3 := r.text(dir + "/shared_cpu_list")
			if !ok || !ok2 || !ok3 || seen[place{level, kind, shared}] {
				continue
			}
			seen[place{level, kind, shared}] = true
			one := Cache{Type: kind, Bytes: r.cacheSize(dir + "/size")}
			var err error
			if one.Level, err = strconv.Atoi(level); err != nil {
				r.fail(dir+"/level", "expected a number, found %q", level)
			}
			cpus, _ := r.set(dir + "/shared_cpu_list")
			one.CPUs = len(cpus)
			count[one]++
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	var out []Cache
	for c, n := range count {
		c.Count = n
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Cache) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Type, b.Type), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.CPUs, b.CPUs))
	})
	return out, nil
}

// cacheSize reads a size such as 32K; 0 where the system does not tell.
func (r *reader) cacheSize(name string) int64 {
	text, ok := r.text(name)
	if !ok || text == "" {
		return 0
	}
	digits := strings.TrimRight(text, "KM")
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 0 || len(text)-len(digits) > 1 {
		r.fail(name, "expected a size such as 32K, found %q", text)
		return 0
	}
	switch text[len(digits):] {
	case "K":
		n <<= 10
	case "M":
		n <<= 20
	}
	return n
}
