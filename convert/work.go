package convert

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"qtool/formats/atomicfile"
	"qtool/formats/packed"
)

// workSuffix makes the name of the folder that a job keeps beside its output.
const workSuffix = ".work"

// work is that folder: the output as far as it has come, and a journal of the tensors that are finished.
// The journal's first line has the key of the job; a folder of another job is discarded. A tensor counts as
// finished only if its data still have the digest that the journal says, so that nothing depends on what a
// crash left of either file.
type work struct {
	dir     string
	lock    *os.File
	data    *os.File
	journal *os.File
	done    map[string]outcome
	// discarded is set where a folder of another job was found.
	discarded bool
	// damaged is set where a line of the journal was: it and what followed is made again.
	damaged bool
}

// journalLine is one line of the journal.
type journalLine struct {
	Key     string `json:"key,omitempty"` // first line only
	Tensor  string `json:"tensor,omitempty"`
	Digest  string `json:"digest,omitempty"`
	Source  string `json:"source,omitempty"`
	Clamped int    `json:"clamped,omitempty"`

	Calibration *CalibrationFigures `json:"calibration,omitempty"`
}

// openWork opens or makes the folder for an output of size bytes. place gives the offset and size of a
// tensor in it.
func openWork(output, key string, size int64, place func(tensor string) (offset, n int64, ok bool)) (*work, error) {
	w := &work{dir: output + workSuffix, done: make(map[string]outcome)}
	var err error
	if w.lock, err = lockFolder(w.dir); err != nil {
		return nil, err
	}
	if err := w.open(key, size, place); err != nil {
		if len(w.done) == 0 {
			w.remove() // while it is locked
		}
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// lockFolder makes a work folder where there is none, and keeps others out of it until the file that it gives is closed.
func lockFolder(dir string) (*os.File, error) {
	for try := 1; ; try++ {
		lock, err := tryLock(dir)
		if !errors.Is(err, errFolderGone) || try == lockTries {
			return lock, err
		}
	}
}

// lockTries is how often a folder is looked for that others take away: each time one of them has done its work.
const lockTries = 100

// errFolderGone says that whoever had a folder took it away before it was locked.
var errFolderGone = errors.New("the folder was taken away")

// tryLock is lockFolder, once. A lock counts only where its file is still the one of that name: another process that was done may have removed that, and a
// third made a new one, since it was opened.
func tryLock(dir string) (*os.File, error) {
	switch err := os.MkdirAll(dir, 0o777); {
	case errors.Is(err, fs.ErrExist): // there was one, and then none
		return nil, fmt.Errorf("%w: %w", errFolderGone, err)
	case err != nil:
		return nil, err
	}
	path := filepath.Join(dir, "lock")
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errFolderGone, err)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another qtool is at work on this output", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	opened, err := lock.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, named) {
			err = errFolderGone
		}
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// remove takes the folder away, as far as it can: what is left of it is found and discarded next time. Measurements stay, and the folder with them.
func (w *work) remove() {
	entries, _ := os.ReadDir(w.dir)
	for _, e := range entries {
		if name := e.Name(); name == "data" || name == "journal" || strings.HasPrefix(name, statesPrefix) {
			_ = os.Remove(filepath.Join(w.dir, name))
		}
	}
	_ = os.Remove(filepath.Join(w.dir, "lock")) // the last, for from then on the folder may be another's
	_ = os.Remove(w.dir)
}

func (w *work) open(key string, size int64, place func(string) (int64, int64, bool)) error {
	var err error
	if w.data, err = os.OpenFile(filepath.Join(w.dir, "data"), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	if w.journal, err = os.OpenFile(filepath.Join(w.dir, "journal"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666); err != nil {
		return err
	}
	info, err := w.data.Stat()
	if err != nil {
		return err
	}
	var lines []journalLine
	fresh, damaged, err := readJournal(w.journal, key, func(text []byte) {
		var l journalLine
		if json.Unmarshal(text, &l) == nil { // what a line that cannot be read was of is made again
			lines = append(lines, l)
		}
	})
	if err != nil {
		return err
	}
	w.damaged = damaged
	if fresh || info.Size() != size {
		w.discarded = info.Size() > 0 && !damaged
		if err := w.begin(key, size); err != nil {
			return err
		}
		return nil
	}
	for _, l := range lines {
		if err := w.recall(l, place); err != nil {
			return err
		}
	}
	return nil
}

// readJournal gives each line of a journal with this key to a function, or reports that it has another or none, or none that is sound. A line that was torn at the
// end is cut off, so that the next one begins at its own start. Of one that is damaged, by its checksum, neither it nor what follows is used, and
// that is reported.
func readJournal(f *os.File, key string, each func(line []byte)) (fresh, damaged bool, err error) {
	r := bufio.NewReader(f)
	whole := int64(0)
	for n := 0; ; n++ {
		text, err := r.ReadBytes('\n')
		if err == io.EOF {
			if len(text) > 0 {
				return n == 0, false, f.Truncate(whole)
			}
			return n == 0, false, nil
		}
		if err != nil {
			return false, false, err
		}
		line, sound := journalText(text)
		if n == 0 {
			var first journalLine
			if !sound {
				return true, true, nil
			}
			if json.Unmarshal(line, &first) != nil || first.Key != key {
				return true, false, nil
			}
		} else {
			if !sound {
				return false, true, f.Truncate(whole)
			}
			each(line)
		}
		whole += int64(len(text))
	}
}

// journalText gives what a line of a journal says, and whether that has the checksum that it begins with.
func journalText(line []byte) ([]byte, bool) {
	sum, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
	return text, ok && string(sum) == packed.Sum(text).String()
}

// appendJournal adds a line to a journal: its checksum, a space, and JSON.
func appendJournal(f *os.File, line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s\n", packed.Sum(text), text)
	return err
}

// begin starts the job from nothing.
func (w *work) begin(key string, size int64) error {
	if err := w.data.Truncate(0); err != nil {
		return err
	}
	if err := w.journal.Truncate(0); err != nil {
		return err
	}
	if err := reserve(w.data, size); err != nil {
		return err
	}
	return w.note(journalLine{Key: key})
}

// reserve takes the disk space for size bytes, where the file system can, so that a full disk is found at
// once and not after hours.
func reserve(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return f.Truncate(size)
	}
	if err != nil {
		return &fs.PathError{Op: fmt.Sprintf("reserve %d bytes for", size), Path: f.Name(), Err: err}
	}
	return nil
}

// recall takes a finished tensor over if its data are what the journal says.
func (w *work) recall(l journalLine, place func(string) (int64, int64, bool)) error {
	offset, n, ok := place(l.Tensor)
	if !ok {
		return nil
	}
	var o outcome
	var err error
	if o.digest, err = packed.ParseDigest(l.Digest); err != nil {
		return nil // a damaged line: the tensor is made again
	}
	if o.source, err = packed.ParseDigest(l.Source); err != nil {
		return nil
	}
	h := xxh3.New()
	if _, err := io.Copy(h, io.NewSectionReader(w.data, offset, n)); err != nil {
		return err
	}
	if packed.Digest(h.Sum128().Bytes()) == o.digest {
		o.clamped, o.calibration = l.Clamped, l.Calibration
		w.done[l.Tensor] = o
	}
	return nil
}

// finish notes that a tensor is written.
func (w *work) finish(tensor string, o outcome) error {
	w.done[tensor] = o
	return w.note(journalLine{Tensor: tensor, Digest: o.digest.String(), Source: o.source.String(), Clamped: o.clamped, Calibration: o.calibration})
}

func (w *work) note(l journalLine) error { return appendJournal(w.journal, l) }

// sync makes what is finished last, and the journal of it.
func (w *work) sync() error { return errors.Join(w.data.Sync(), w.journal.Sync()) }

// commit makes the finished data the output and removes the folder.
func (w *work) commit(output string) error {
	if err := w.data.Sync(); err != nil {
		return err
	}
	if err := atomicfile.Rename(w.data.Name(), output); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(w.dir, measuredName))
	w.remove()
	return nil
}

// close ends the job; what is finished stays for the next one.
func (w *work) close() error {
	var errs []error
	for _, f := range []*os.File{w.data, w.journal, w.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
