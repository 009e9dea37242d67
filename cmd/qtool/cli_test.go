package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"qtool/testdata"
)

// TestMain lets the scripts call this very program as a command.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"qtool": main})
}

// TestCommands runs the scripts in testdata, each as a user would type it.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("MODEL", testdata.Path("grammar-lm"))
			env.Setenv("ARCH", testdata.Path("arch"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":   status,
			"truncate": truncate,
			"flip":     flip,
			"utf16":    utf16,
		},
	})
}

// status runs qtool and checks its exit status: status N qtool ARGS…
func status(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := err.(interface{ ExitCode() int }); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit status %d, expected %s", got, args[0])
	}
}

// truncate cuts the last byte off a file.
func truncate(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	info, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.Truncate(path, info.Size()-1))
}

// utf16 writes a file as Windows saves text.
func utf16(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte("\xff\xfeA\x00n\x00n\x00a\x00"), 0o600))
}

// flip changes a byte in the middle of a file.
func flip(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(filepath.Clean(args[0]))
	data, err := os.ReadFile(path)
	ts.Check(err)
	data[len(data)/2] ^= 1
	ts.Check(os.WriteFile(path, data, 0o600))
}
