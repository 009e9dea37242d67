package doctor

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// memory looks at the modules and at how the kernel deals with memory.
func (e *examiner) memory() {
	e.channels()
	e.balancing()
	e.hugePages()
	e.swap()
}

// channels counts the memory channels that hold modules, by the kernel's error detection driver.
//
// Formats: Documentation/admin-guide/RAS/main.rst of the Linux sources (dimm_location, max_location, size).
func (e *examiner) channels() {
	const name = "memory-channels"
	controllers := e.glob("sys/devices/system/edac/mc/mc[0-9]*")
	filled, there, modules := 0, 0, 0
	for _, mc := range controllers {
		seen := make(map[int]bool)
		for _, location := range append(e.glob(mc+"/dimm[0-9]*/dimm_location"), e.glob(mc+"/rank[0-9]*/dimm_location")...) {
			text, _ := e.text(location)
			channel, ok := layer(text, "channel")
			if size, sized := e.number(path.Join(path.Dir(location), "size")); !ok || sized && size == 0 {
				continue
			}
			seen[channel] = true
			modules++
		}
		filled += len(seen)
		text, _ := e.text(mc + "/max_location")
		if last, ok := layer(text, "channel"); ok {
			there += last + 1
		}
	}
	found := fmt.Sprintf("%d of %d filled, %s", filled, there, count(modules, "module"))
	switch {
	case modules == 0:
		e.unknown(name, "the system shows no memory controllers (EDAC)", "load the EDAC driver of the chipset, or look with dmidecode -t memory")
	case there == 0:
		e.ok(name, "%d filled, %s", filled, count(modules, "module"))
	case filled < there:
		e.advice(name, found, "put a module into every channel", "generating text is as fast as memory is read, and each channel adds its bandwidth")
	default:
		e.ok(name, "%s", found)
	}
}

// layer finds the number of a layer in a text such as "channel 1 slot 0".
func layer(text, name string) (int, bool) {
	fields := strings.Fields(text)
	for i := range fields[:max(len(fields)-1, 0)] {
		if fields[i] == name {
			n, err := strconv.Atoi(fields[i+1])
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// balancing looks at what moves pages between nodes.
func (e *examiner) balancing() {
	one := len(e.machine.Nodes) < 2
	switch v, ok := e.number("proc/sys/kernel/numa_balancing"); {
	case !ok && one:
		e.ok("numa-balancing", "not there, and there is one node")
	case !ok:
		e.ok("numa-balancing", "not in this kernel")
	case v == 0:
		e.ok("numa-balancing", "off")
	case one:
		e.ok("numa-balancing", "on, without effect on one node")
	default:
		e.advice("numa-balancing", fmt.Sprintf("on (%d)", v), "sysctl kernel.numa_balancing=0",
			"the kernel keeps unmapping pages to see which thread reads them, and moves them; each such fault stops a thread")
	}
	if v, ok := e.number("proc/sys/vm/zone_reclaim_mode"); ok && v != 0 && !one {
		e.advice("zone-reclaim", fmt.Sprintf("on (%d)", v), "sysctl vm.zone_reclaim_mode=0",
			"a node that is full drops the pages of the model's file rather than use the memory of another node")
	}
}

// hugePages looks at transparent and at reserved ones.
func (e *examiner) hugePages() {
	text, ok := e.text("sys/kernel/mm/transparent_hugepage/enabled")
	mode := text
	if at := strings.IndexByte(text, '['); at >= 0 {
		mode, _, _ = strings.Cut(text[at+1:], "]")
	}
	switch {
	case !ok:
		e.unknown("transparent-huge-pages", "the kernel does not tell", "")
	case mode == "never":
		e.advice("transparent-huge-pages", mode, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
			"large tables of keys, values and weights then need far fewer entries of the TLB")
	default:
		e.ok("transparent-huge-pages", "%s", mode)
	}
	total, ok := e.field("proc/meminfo", "HugePages_Total")
	pages, err := strconv.ParseInt(total, 10, 64)
	size, _ := e.kilobytes("Hugepagesize")
	switch {
	case !ok || err != nil:
		e.unknown("huge-pages", "the kernel does not tell", "")
	case pages == 0:
		e.ok("huge-pages", "none reserved")
	default:
		free, _ := e.field("proc/meminfo", "HugePages_Free")
		e.advice("huge-pages", fmt.Sprintf("%d of %d kB reserved, %s of them free", pages, size, free),
			"sysctl vm.nr_hugepages=0, unless another program needs them", "qtool does not use reserved pages, and nothing else can hold a model in them")
	}
}

// swap looks at how soon the kernel writes memory to disk.
func (e *examiner) swap() {
	v, ok := e.number("proc/sys/vm/swappiness")
	total, known := e.kilobytes("SwapTotal")
	switch {
	case !ok:
		e.unknown("swappiness", "the kernel does not tell", "")
	case known && total == 0:
		e.ok("swappiness", "%d, without effect: there is no swap", v)
	case v > 10:
		e.advice("swappiness", strconv.FormatInt(v, 10), "sysctl vm.swappiness=10",
			"reading a large model fills the file cache, and the kernel then swaps out keys and values that are needed at the next token")
	default:
		e.ok("swappiness", "%d", v)
	}
}
