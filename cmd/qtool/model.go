package main

import (
	"strings"

	"qtool/formats/hfdir"
)

// find gives the path of a model argument, which may be a name. Trailing separators are cut, so that a
// folder has a name.
func find(model string) (string, error) {
	path, err := hfdir.Resolve(model)
	if err != nil {
		return "", err
	}
	if cut := strings.TrimRight(path, "/"); cut != "" {
		return cut, nil
	}
	return path, nil
}
