package convert

import (
	"bufio"
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
	if err := os.MkdirAll(w.dir, 0o777); err != nil {
		return nil, err
	}
	var err error
	if w.lock, err = os.OpenFile(filepath.Join(w.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(w.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = w.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another qtool is at work on this output", w.dir)
		}
		return nil, fmt.Errorf("lock %s: %w", w.dir, err)
	}
	if err := w.open(key, size, place); err != nil {
		err = errors.Join(err, w.close())
		if len(w.done) == 0 {
			w.remove()
		}
		return nil, err
	}
	return w, nil
}

// remove takes the folder away, as far as it can: what is left of it is found and discarded next time.
func (w *work) remove() {
	entries, _ := os.ReadDir(w.dir)
	for _, e := range entries {
		if name := e.Name(); name == "data" || name == "journal" || name == "lock" || strings.HasPrefix(name, statesPrefix) {
			_ = os.Remove(filepath.Join(w.dir, name))
		}
	}
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
	lines, fresh, err := w.read(key)
	if err != nil {
		return err
	}
	if fresh || info.Size() != size {
		w.discarded = !fresh || w.discarded
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

// read gives the lines of a journal with this key, or reports that there is none. Lines that cannot be read are passed over: what they were of is
// made again. A line that was torn at the end is cut off, so that the next one begins at its own start.
func (w *work) read(key string) (lines []journalLine, fresh bool, err error) {
	r := bufio.NewReader(w.journal)
	whole := int64(0)
	for n := 0; ; n++ {
		text, err := r.ReadBytes('\n')
		if err == io.EOF {
			if len(text) > 0 {
				err = w.journal.Truncate(whole)
			} else {
				err = nil
			}
			return lines, n == 0, err
		}
		if err != nil {
			return nil, false, err
		}
		whole += int64(len(text))
		var l journalLine
		bad := json.Unmarshal(text, &l) != nil
		if n == 0 {
			if bad || l.Key != key {
				w.discarded = true
				return nil, true, nil
			}
			continue
		}
		if !bad {
			lines = append(lines, l)
		}
	}
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

func (w *work) note(l journalLine) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = w.journal.Write(append(text, '\n'))
	return err
}

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
