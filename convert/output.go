package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// CheckOutput refuses an output that would destroy the source or one of the other files that a run reads, or cannot be a file.
func CheckOutput(path string, m *checkpoint.Model, reads []string) error {
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("output %s: its folder: %w", path, err)
	} else if !info.IsDir() {
		return fmt.Errorf("output %s: %s is not a folder", path, dir)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	if info.IsDir() {
		return fmt.Errorf("output %s is a folder; name a file in it", path)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("output %s is no regular file and would be replaced; choose another name", path)
	}
	same := func(other string) bool {
		found, err := os.Stat(other)
		return err == nil && os.SameFile(info, found)
	}
	sources := m.Paths()
	if m.Container() == checkpoint.HuggingFace {
		names, err := m.Files()
		if err != nil {
			return err
		}
		for _, name := range names {
			sources = append(sources, filepath.Join(filepath.Dir(sources[0]), name))
		}
	}
	for _, source := range sources {
		if same(source) {
			return fmt.Errorf("output %s is the same file as the source %s; choose another name", path, source)
		}
	}
	for _, other := range reads {
		if other != "" && same(other) {
			return fmt.Errorf("output %s is the same file as %s, which is read; choose another name", path, other)
		}
	}
	return nil
}

// OutputName is the name of the packed file that is made of a model when none is given: that of the model,
// with the bits of the linear layers, or what a budget allows.
func OutputName(model string, r Recipe) string {
	suffix := string(r.Linear)
	if s, err := packed.ParseScheme(suffix); err == nil {
		suffix = fmt.Sprintf("w%d", s.Bits)
	}
	switch b := r.Budget; {
	case b == nil:
	case b.BitsPerWeight > 0:
		suffix = strconv.FormatFloat(b.BitsPerWeight, 'f', -1, 64) + "bpw"
	default:
		suffix = "mixed"
	}
	return modelName(model) + "-" + suffix + ".qpk"
}

// StatisticsName is the name of the file of statistics that is made of a model when none is given.
func StatisticsName(model string) string { return modelName(model) + ".qcal" }

// modelName is what a model is called: the name of its folder or file, without what says how it is stored. Other dots are part of a name.
func modelName(model string) string {
	if whole, err := filepath.Abs(model); err == nil {
		model = whole // "." has a name
	}
	parts := strings.Split(filepath.ToSlash(filepath.Clean(model)), "/")
	name := parts[len(parts)-1]
	for i := 1; i < len(parts); i++ {
		// A folder of the hub's cache is named by a revision; its model by models--organisation--name.
		if repo := parts[i-1]; parts[i] == "snapshots" && strings.HasPrefix(repo, "models--") {
			name = repo[strings.LastIndex(repo, "--")+len("--"):]
		}
	}
	for _, ext := range []string{".gguf", ".index.json", ".safetensors", ".qpk"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name
}
