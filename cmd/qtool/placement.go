package main

import (
	"github.com/spf13/cobra"

	"qtool/runtime/numa"
)

// numaAuto lets the engine choose CPUs.
const numaAuto = "auto"

// placement is the flags that say where threads run.
type placement struct{ cpus, numa string }

// addPlacement declares the flags on a command.
func addPlacement(cmd *cobra.Command, p *placement) {
	f := cmd.Flags()
	f.StringVar(&p.cpus, "cpus", "", "bind a thread to each of these CPUs, such as 0-3,8 (with -t: to as many of them)")
	f.StringVar(&p.numa, "numa", numaAuto, "bind threads: auto (a core each, spread over the nodes), off, or a list of nodes to stay on")
}

// parse checks the flags. What the machine does not have shows when threads start.
func (p placement) parse(cmd *cobra.Command) (cpus numa.Set, selection numa.Selection, err error) {
	if selection, err = numa.ParseSelection(p.numa); err != nil {
		return nil, selection, usagef("--numa: %w", err)
	}
	if cmd.Flags().Changed("cpus") {
		if cpus, err = numa.ParseSet(p.cpus); err != nil {
			return nil, selection, usagef("--cpus: %w", err)
		}
		if len(cpus) == 0 {
			return nil, selection, usagef("--cpus: expected CPUs such as 0-3,8")
		}
		if !selection.Auto {
			return nil, selection, usagef("--cpus says where threads run: leave --numa %s out", p.numa)
		}
	}
	return cpus, selection, nil
}
