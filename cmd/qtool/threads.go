package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// maxThreads is how many threads a command may be asked for. Go ends a program that has more than 10,000, and four pools of so many are at work at
// most: two engines, the model and its baseline or the source of calibration, and what quantizes beside them. No machine that runs this has more CPUs.
const maxThreads = 2048

// threadCount is the value of a flag for a number of threads: 0 leaves it to the machine.
type threadCount int

// addThreads declares the flag.
func addThreads(f *pflag.FlagSet, n *int, usage string) {
	f.VarP((*threadCount)(n), "threads", "t", usage)
}

func (n *threadCount) String() string { return strconv.Itoa(int(*n)) }
func (n *threadCount) Type() string   { return "int" }

// Set reads the flag.
func (n *threadCount) Set(s string) error {
	v, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("expected a number of threads")
	}
	if err := checkThreads(v, 0); err != nil {
		return err
	}
	*n = threadCount(v)
	return nil
}

// checkThreads says what is wrong with a number of threads.
func checkThreads(n, least int) error {
	if n < least || n > maxThreads {
		return fmt.Errorf("expected %d to %d threads, found %d", least, maxThreads, n)
	}
	return nil
}
