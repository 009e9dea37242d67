package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// temporary is the pattern of names for what is unfinished, as os.CreateTemp takes it.
func temporary(path string) string { return "." + filepath.Base(path) + ".*.tmp" }

// lockTries is how often something new is made that a sweep of another process has taken for a leftover before it was locked.
const lockTries = 100

// create makes something temporary for path and locks it: open gives it under a new name. Who dies leaves no lock, by which the next one for the same path knows
// that nobody works on what was left. On a file system without locks nothing is swept.
func create(path string, open func() (*os.File, error)) (*os.File, error) {
	sweep(path)
	for try := 1; ; try++ {
		f, err := open()
		if err != nil {
			return nil, err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || isNamed(f) || try == lockTries {
			return f, nil
		}
		_ = f.Close()
	}
}

// isNamed reports whether an open file is still the one of its name.
func isNamed(f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(opened, named)
}

// sweep removes what processes that are no more have left unfinished of path. It is a courtesy: what cannot be removed stays.
func sweep(path string) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	before, after, _ := strings.Cut(temporary(path), "*")
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), before)
		if !ok {
			continue
		}
		middle, ok = strings.CutSuffix(middle, after)
		if ok && middle != "" && strings.Trim(middle, "0123456789") == "" && (e.IsDir() || e.Type().IsRegular()) {
			remove(filepath.Join(dir, e.Name()))
		}
	}
}

// remove takes a leftover away, unless its maker is at work.
func remove(name string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && isNamed(f) {
		_ = os.RemoveAll(name)
	}
}

// Dir is a folder under construction.
type Dir struct {
	lock *os.File
	path string // where it will be
}

// CreateDir starts a folder that Commit will put at path, where nothing may be then. The folder around it must exist.
func CreateDir(path string, perm fs.FileMode) (*Dir, error) {
	lock, err := create(path, func() (*os.File, error) {
		name, err := os.MkdirTemp(filepath.Dir(path), temporary(path))
		if err != nil {
			return nil, err
		}
		return os.Open(name)
	})
	if err != nil {
		return nil, err
	}
	d := &Dir{lock: lock, path: path}
	if err := os.Chmod(d.Name(), perm); err != nil {
		d.Abort()
		return nil, err
	}
	return d, nil
}

// Name is where it is so far.
func (d *Dir) Name() string { return d.lock.Name() }

// Commit renames it into place. On an error nothing is left.
func (d *Dir) Commit() error {
	err := Rename(d.Name(), d.path)
	if err != nil {
		d.Abort()
		return err
	}
	return d.lock.Close()
}

// Abort removes the unfinished folder.
func (d *Dir) Abort() {
	_ = os.RemoveAll(d.Name())
	_ = d.lock.Close()
}
