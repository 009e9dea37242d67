// Package atomicfile replaces a file as a whole: the new content is written beside it, synced and
// renamed into place, so that a reader, a crash or a full disk never meets half of it.
package atomicfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a file under construction.
type File struct {
	*os.File
	path string // where it will be
}

// Create starts a file that Commit will put at path, and removes what others that were killed have left of it. Its folder must exist.
func Create(path string, perm fs.FileMode) (*File, error) {
	f, err := create(path, func() (*os.File, error) { return os.CreateTemp(filepath.Dir(path), temporary(path)) })
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	a := &File{File: f, path: path}
	if err := f.Chmod(perm); err != nil {
		return nil, a.fail(err)
	}
	return a, nil
}

// Commit syncs the content to the disk and renames it into place. On an error nothing is left
// and the old file is as it was.
func (f *File) Commit() error {
	if err := f.Sync(); err != nil {
		return f.fail(err)
	}
	if err := Rename(f.Name(), f.path); err != nil { // while it is locked
		return f.fail(err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return nil
}

// Abort removes the unfinished file.
func (f *File) Abort() { _ = f.fail(nil) }

// fail cleans up and gives err the name of the file.
func (f *File) fail(err error) error {
	_ = os.Remove(f.Name())
	_ = f.Close()
	if err == nil {
		return nil
	}
	return fmt.Errorf("write %s: %w", f.path, err)
}

// Rename moves a synced file into place and syncs the folder, which makes the new name last.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir makes the names in a folder last.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	// Some file systems have nothing to sync here and say so with an error; the rename itself
	// has happened.
	_ = d.Sync()
	return d.Close()
}

// Write makes data the content of path.
func Write(path string, data []byte, perm fs.FileMode) error {
	return WriteFrom(path, perm, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom makes what fill writes the content of path; where fill fails, nothing is changed.
func WriteFrom(path string, perm fs.FileMode, fill func(w io.Writer) error) error {
	f, err := Create(path, perm)
	if err != nil {
		return err
	}
	if err := fill(f); err != nil {
		return f.fail(err)
	}
	return f.Commit()
}
