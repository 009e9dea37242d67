package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"qtool/calibrate/qcal"
	"qtool/formats/safetensors"
)

// calibrationFile is what `qtool inspect --json` prints of a .qcal file. Keys may be added, none renamed.
type calibrationFile struct {
	File   string       `json:"file"`
	Digest string       `json:"digest"`
	Tokens int          `json:"tokens"`
	Header *qcal.Header `json:"header"`
}

// isCalibration reports whether a file is one of statistics: by what it says of itself, or by its name where it cannot be read.
func isCalibration(path string) bool {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return strings.HasSuffix(path, ".qcal")
	}
	defer func() { _ = f.Close() }() // only looked at
	return qcal.IsStatistics(f)
}

// inspectCalibration shows what a file of statistics was gathered of.
func inspectCalibration(w io.Writer, path string, asJSON bool) (err error) {
	f, err := qcal.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := f.Header()
	v := calibrationFile{File: path, Digest: f.Digest().String(), Tokens: h.Context * h.Sequences, Header: h}
	if asJSON {
		return writeJSON(w, v)
	}
	t := newTable(w)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("statistics", "%s (qcal), digest %s", path, v.Digest)
	line("made by", "%s, %s kernels", h.Tool, h.Kernels)
	line("data", "%d × %d tokens, digest %s", h.Sequences, h.Context, h.Data)
	line("model", "%d tensors, tokenizer %s", len(h.Model), h.Tokenizer)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w)
	fmt.Fprintln(t, "input\tchannels\tlayers")
	for _, in := range h.Inputs {
		fmt.Fprintf(t, "%s\t%d\t%s\n", in.Name, in.Channels, strings.Join(in.Layers, ", "))
	}
	return t.Flush()
}
