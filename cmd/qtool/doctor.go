package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"qtool/runtime/doctor"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine, and say what could be set better",
		Long: `doctor prints what the machine has for running models: instructions, cores, memory by
NUMA nodes, limits of this process, and settings of the system that cost speed, each
with what to change and why. It changes nothing itself.

A finding is ok, advice, or unknown where the system does not tell.`,
		Example: `  qtool doctor
  qtool doctor --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := doctor.Local()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return printDoctor(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func printDoctor(w io.Writer, r *doctor.Report) error {
	t := newTable(w)
	if len(r.Nodes) > 0 {
		fmt.Fprint(t, "node\tCPUs\tmemory\tfree")
		for _, n := range r.Nodes {
			fmt.Fprintf(t, "\tto %d", n.ID)
		}
		fmt.Fprintln(t)
		for _, n := range r.Nodes {
			cpus := n.CPUs
			if cpus == "" {
				cpus = "none"
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%s", n.ID, cpus, sizeText(n.MemoryBytes), sizeText(n.FreeBytes))
			for _, to := range r.Nodes {
				distance := "?"
				if d, ok := n.Distances[strconv.Itoa(to.ID)]; ok {
					distance = strconv.Itoa(d)
				}
				fmt.Fprintf(t, "\t%s", distance)
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if len(r.Caches) > 0 {
		var caches []string
		for _, c := range r.Caches {
			caches = append(caches, fmt.Sprintf("%d × L%d %s %d KiB", c.Count, c.Level, strings.ToLower(c.Type), c.SizeBytes>>10))
		}
		fmt.Fprintf(t, "caches\t%s\n", strings.Join(caches, ", "))
	}
	if r.Workers != "" {
		fmt.Fprintf(t, "by default\t%s\n", r.Workers)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, f.Name, f.Found)
		if f.Change != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", f.Change)
		}
		if f.Why != "" {
			fmt.Fprintf(t, "\t\t  because %s\n", f.Why)
		}
	}
	return t.Flush()
}
