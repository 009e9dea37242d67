package doctor

import (
	"fmt"
	"path"
	"strings"
)

// sensor is a temperature in degrees Celsius.
type sensor struct {
	name  string
	value float64
	limit float64 // where throttling begins; 0 where the sensor does not tell
}

// throttling is where CPUs without a limit of their own are taken to be hot.
const throttling = 95

// heat looks at temperatures, and at whether the CPU had to slow down.
//
// Formats: Documentation/hwmon/sysfs-interface.rst and Documentation/driver-api/thermal/sysfs-api.rst of the
// Linux sources.
func (e *examiner) heat() {
	var inlet, cores []sensor
	for _, s := range e.sensors() {
		if isAir(s.name) {
			inlet = append(inlet, s)
		} else {
			cores = append(cores, s)
		}
	}
	if len(inlet) > 0 {
		s := hottest(inlet)
		// 35 °C is the upper end of class A2 of ASHRAE, what servers are commonly made for.
		if s.value > 35 {
			e.advice("inlet-temperature", fmt.Sprintf("%.0f °C (%s)", s.value, s.name), "cool the room, clear the air's way in",
				"servers are commonly made for at most 35 °C")
		} else {
			e.ok("inlet-temperature", "%.0f °C (%s)", s.value, s.name)
		}
	} else {
		e.unknown("inlet-temperature", "no sensor is shown", "ask the board's controller: ipmitool sdr type temperature")
	}
	if len(cores) > 0 {
		s := hottest(cores)
		limit := s.limit
		if limit <= 0 {
			limit = throttling
		}
		found := fmt.Sprintf("%.0f °C, the hottest of %s (%s, limit %.0f °C)", s.value, count(len(cores), "sensor"), s.name, limit)
		if s.value > limit-10 {
			e.advice("cpu-temperature", found, "look at fans, dust and thermal paste", "near its limit a CPU lowers its clock")
		} else {
			e.ok("cpu-temperature", "%s", found)
		}
	} else {
		e.unknown("cpu-temperature", "no sensor is shown, as in most virtual machines", "look at the host")
	}
	e.throttled()
}

// throttled sums how often CPUs slowed down for heat since the start; each package counts for all its CPUs.
func (e *examiner) throttled() {
	files := e.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/package_throttle_count")
	var most int64
	for _, name := range files {
		if n, ok := e.number(name); ok {
			most = max(most, n)
		}
	}
	if most > 0 {
		e.advice("throttling", fmt.Sprintf("a package slowed down %d times for heat since the start", most),
			"look at fans, dust and thermal paste", "measurements vary while that happens")
	} else if len(files) > 0 {
		e.ok("throttling", "none since the start")
	}
}

// sensors reads those of the CPUs and of the air, from hwmon, or thermal zones where hwmon has none.
func (e *examiner) sensors() []sensor {
	var out []sensor
	for _, input := range e.glob("sys/class/hwmon/hwmon[0-9]*/temp[0-9]*_input") {
		dir, prefix := path.Dir(input), strings.TrimSuffix(input, "_input")
		chip, _ := e.text(dir + "/name")
		label, _ := e.text(prefix + "_label")
		name := strings.TrimSpace(chip + " " + label)
		if !isCPU(chip) && !isAir(name) {
			continue
		}
		s := sensor{name: name}
		milli, ok := e.number(input)
		if !ok {
			continue
		}
		s.value = float64(milli) / 1000
		for _, kind := range []string{"_max", "_crit"} {
			if limit, ok := e.number(prefix + kind); ok && limit > 0 && s.limit == 0 {
				s.limit = float64(limit) / 1000
			}
		}
		out = append(out, s)
	}
	if len(out) > 0 {
		return out
	}
	for _, zone := range e.glob("sys/class/thermal/thermal_zone[0-9]*") {
		kind, _ := e.text(zone + "/type")
		milli, ok := e.number(zone + "/temp")
		if ok && (isCPU(kind) || isAir(kind)) {
			out = append(out, sensor{name: kind, value: float64(milli) / 1000})
		}
	}
	return out
}

// isCPU knows the drivers of sensors in CPUs.
func isCPU(name string) bool {
	switch name {
	case "coretemp", "k10temp", "k8temp", "zenpower", "x86_pkg_temp", "cpu_thermal", "cpu-thermal":
		return true
	}
	return false
}

func isAir(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "inlet") || strings.Contains(name, "ambient")
}

func hottest(sensors []sensor) sensor {
	out := sensors[0]
	for _, s := range sensors {
		if s.value > out.value {
			out = s
		}
	}
	return out
}
