package hfdir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// EnvModels is the environment variable that lists folders to look for models in.
const EnvModels = "QTOOL_MODELS"

// Resolve gives the path of a model: the argument itself where it exists, else the entry of that name in
// a folder of $QTOOL_MODELS, else the snapshot in the Hugging Face cache of a model named like
// "organisation/name". The error lists where it looked and matches fs.ErrNotExist.
func Resolve(model string) (string, error) {
	if _, err := os.Stat(model); err == nil {
		return model, nil
	}
	looked := []string{model}
	for _, dir := range filepath.SplitList(os.Getenv(EnvModels)) {
		for _, name := range []string{model, model + ".qpk", model + ".gguf"} {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
			looked = append(looked, path)
		}
	}
	for _, dir := range hubCaches() {
		repo := filepath.Join(dir, "models--"+strings.ReplaceAll(model, "/", "--"))
		if path, ok := snapshot(repo); ok {
			return path, nil
		}
		looked = append(looked, repo)
	}
	return "", fmt.Errorf("model %q: %w; looked for %s", model, fs.ErrNotExist, strings.Join(looked, ", "))
}

// hubCaches lists the folders where the Hugging Face hub's client keeps models, as its documentation
// gives them: the first that is set.
func hubCaches() []string {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return []string{dir}
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return []string{filepath.Join(dir, "hub")}
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return []string{filepath.Join(dir, "huggingface", "hub")}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(home, ".cache", "huggingface", "hub")}
}

// snapshot finds the files of a cached model: the revision that refs/main names, else the newest.
func snapshot(repo string) (string, bool) {
	snapshots := filepath.Join(repo, "snapshots")
	if ref, err := os.ReadFile(filepath.Join(repo, "refs", "main")); err == nil {
		path := filepath.Join(snapshots, filepath.Base(strings.TrimSpace(string(ref))))
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path, true
		}
	}
	entries, err := os.ReadDir(snapshots)
	if err != nil {
		return "", false
	}
	type revision struct {
		path string
		time int64
	}
	var found []revision
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.IsDir() {
			found = append(found, revision{filepath.Join(snapshots, e.Name()), info.ModTime().UnixNano()})
		}
	}
	if len(found) == 0 {
		return "", false
	}
	newest := slices.MaxFunc(found, func(a, b revision) int { return int(min(max(a.time-b.time, -1), 1)) })
	return newest.path, true
}
