package main

import (
	"fmt"
	"strings"

	"qtool/formats/hfdir"
)

// find gives the path of a model argument, which may be a name, and refuses what is a file of statistics: beside a model, it would pass for the model's weights.
func find(model string) (string, error) {
	path, err := locate(model)
	if err == nil && isCalibration(path) {
		return "", fmt.Errorf("%s is no model but a file of statistics, made by qtool calibrate: it is for quantize --calib %s MODEL", path, path)
	}
	return path, err
}

// locate gives the path of an argument that may be the name of a model. Trailing separators are cut, so that a
// folder has a name.
func locate(model string) (string, error) {
	path, err := hfdir.Resolve(model)
	if err != nil {
		return "", err
	}
	if cut := strings.TrimRight(path, "/"); cut != "" {
		return cut, nil
	}
	return path, nil
}
