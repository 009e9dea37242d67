package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImportsPointOneWay checks that no package imports one that stands above it:
// cmd → convert → calibrate → runtime → formats.
func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f",
		`{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "qtool/...").Output()
	require.NoError(t, err)
	rank := func(pkg string) int {
		part, _, _ := strings.Cut(strings.TrimPrefix(pkg, "qtool/"), "/")
		switch part {
		case "testdata":
			return 0
		case "formats":
			return 1
		case "runtime":
			return 2
		case "calibrate":
			return 3
		case "convert":
			return 4
		case "cmd":
			return 5
		}
		t.Errorf("%s lies outside the layout", pkg)
		return -1
	}
	packages := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		packages++
		for _, dep := range fields[1:] {
			if strings.HasPrefix(dep, "qtool/") {
				require.LessOrEqual(t, rank(dep), rank(fields[0]), "%s imports %s", fields[0], dep)
			}
			if dep == "qtool/runtime/repack" {
				require.Contains(t, []string{"qtool/runtime/llama", "qtool/runtime/repack"}, fields[0], "%s imports %s", fields[0], dep)
			}
		}
	}
	require.Greater(t, packages, 5)
}
