//go:build linux

// Command tests is the first process of a virtual machine with AVX-512: it runs there each /PACKAGE/PACKAGE.test with the kernels of
// that level, prints how each test ended and a verdict, and turns the machine off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"qtool/runtime/kernel"
	"qtool/runtime/numa/proof"
)

const level = "avx512"

func main() { proof.First(prove) }

func prove() error {
	if err := os.Setenv(kernel.EnvLevel, level); err != nil {
		return err
	}
	// Tests pass over the levels that a machine lacks: here that would be a proof of nothing.
	if _, err := kernel.Best(); err != nil {
		return err
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "model name") || strings.HasPrefix(line, "flags") {
			fmt.Print(line)
		}
	}
	// Arguments of the tests are those of the kernel's command line behind "--", which it passes on.
	args := append([]string{"-test.v", "-test.short", "-test.timeout=0"}, os.Args[1:]...)
	programs, err := filepath.Glob("/*/*.test")
	if err != nil {
		return err
	}
	if len(programs) == 0 {
		return errors.New("there are no tests")
	}
	var failed []error
	for _, program := range programs {
		fmt.Println("== " + program + " " + strings.Join(args, " "))
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Dir(program), os.Stdout, os.Stderr
		start := time.Now()
		err := cmd.Run()
		fmt.Printf("== %s: %.0f s of the machine's own\n", program, time.Since(start).Seconds())
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", program, err))
		}
	}
	return errors.Join(failed...)
}
