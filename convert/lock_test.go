package convert_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/formats/checkpoint"
	"qtool/testdata"
)

// lockedOutput is the variable that makes a process of this test one that writes the output that it names.
const lockedOutput = "QTOOL_TEST_LOCKED_OUTPUT"

// TestOneOutputTwoProcesses: of two processes that are started on one output, one writes it, and the other says that it cannot.
func TestOneOutputTwoProcesses(t *testing.T) {
	if out := os.Getenv(lockedOutput); out != "" {
		writeLocked(t, out)
		return
	}
	out := filepath.Join(t.TempDir(), "out.qpk")
	type process struct {
		cmd   *exec.Cmd
		input io.WriteCloser
		lines *bufio.Reader
	}
	var both [2]process
	for i := range both {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOneOutputTwoProcesses$")
		cmd.Env = append(os.Environ(), lockedOutput+"="+out)
		input, err := cmd.StdinPipe()
		require.NoError(t, err)
		output, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		both[i] = process{cmd, input, bufio.NewReader(output)}
	}
	working, refused := 0, 0
	for _, p := range both { // the one that works goes on when its input ends
		line, err := p.lines.ReadString('\n')
		require.NoError(t, err)
		switch line = strings.TrimSpace(line); line {
		case "at work":
			working++
		case fmt.Sprintf("write %s: %s.work: another qtool is at work on this output", out, out):
			refused++
		default:
			require.Fail(t, line)
		}
	}
	require.Equal(t, 1, working)
	require.Equal(t, 1, refused)
	require.NoFileExists(t, out)
	finished := false
	for _, p := range both {
		require.NoError(t, p.input.Close())
		rest, err := io.ReadAll(p.lines)
		require.NoError(t, err)
		require.NoError(t, p.cmd.Wait())
		finished = finished || strings.HasPrefix(string(rest), "done\n")
	}
	require.True(t, finished)
	require.NoDirExists(t, out+".work")
	alone := filepath.Join(t.TempDir(), "alone.qpk")
	m := open(t, testdata.Path("arch", "llama"))
	_, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g32")), convert.Options{Output: alone, Threads: 1})
	require.NoError(t, err)
	require.Equal(t, content(t, alone), content(t, out))
}

// writeLocked is one of the processes: it says how it goes, and waits in the middle of the work for the end of its input.
func writeLocked(t *testing.T, out string) {
	t.Helper()
	m, err := checkpoint.Open(testdata.Path("arch", "llama"))
	require.NoError(t, err)
	var once sync.Once
	o := convert.Options{Output: out, Threads: 1, Progress: func(int64, int64, string) {
		once.Do(func() {
			fmt.Println("at work")
			_, _ = io.Copy(io.Discard, os.Stdin)
		})
	}}
	if _, err := convert.Quantize(t.Context(), m, plan(t, m, convert.DefaultRecipe("w4g32")), o); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("done")
	}
	require.NoError(t, m.Close())
}
