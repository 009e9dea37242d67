// Command qtool compresses trained models for CPUs and proves how much accuracy is left by
// running the compressed file.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses. They are a contract with scripts.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitGate   = 3
)

// errGate means that an accuracy gate did not hold; the report has already been printed.
var errGate = errors.New("accuracy gate not met")

// usageError marks a mistake in the command line itself.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// usagef returns a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitStatus is the one table from error to exit status.
func exitStatus(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errGate):
		return exitGate
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailed
}

func main() { os.Exit(run()) }

func run() int {
	// The first signal asks the command to stop in a state it can resume from; a second one ends
	// it at once, since stop restores the default action.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRoot()
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "qtool:", message(ctx, err))
		var usage usageError
		if errors.As(err, &usage) {
			fmt.Fprintf(os.Stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		}
	}
	return exitStatus(err)
}

// errResumable says of an interrupted job that it is not lost.
var errResumable = errors.New("the same command goes on from here")

// resumable marks the error of a job that was interrupted and can be taken up.
func resumable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w; %w", err, errResumable)
	}
	return err
}

// message is what the user reads of an error.
func message(ctx context.Context, err error) string {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		if errors.Is(err, errResumable) {
			return "interrupted; " + errResumable.Error()
		}
		return "interrupted"
	}
	return err.Error()
}

// newRoot builds the command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "qtool",
		Short: "Compress models for CPUs, and prove what accuracy is left",
		Long: `qtool takes the trained weights of a LLaMA-family model (Hugging Face safetensors
or GGUF), quantizes them to 8, 4 or 3 bits, writes one packed file, and measures on
that very file, run by its own CPU engine, how much accuracy is left.

A model is a path (a directory or a file), else a name looked up in
$QTOOL_MODELS, else in the Hugging Face cache. Everything works offline.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 an accuracy gate was not met.`,
		Example: `  qtool quantize --bits 4 llama-7b
  qtool eval llama-7b-w4.qpk --baseline llama-7b --max-ppl-increase 1%
  qtool run llama-7b-w4.qpk -p "Once upon a time"`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newQuantize(), newCalibrate(), newEval(), newConvert(), newInspect(), newVerify(), newRun(), newBench(), newDoctor())
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	wrapArgs(root)
	return root
}

// wrapArgs makes a wrong number of arguments, or an unknown command, a usage error.
func wrapArgs(c *cobra.Command) {
	check := c.Args
	c.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
