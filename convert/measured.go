package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// measuredName is the file of measurements in a work folder.
const measuredName = "sensitivities"

// measurement is what is known of a tensor once it has been measured.
type measurement struct {
	Sensitivity
	Costs []float64 `json:"costs"` // divergence that each of the choices is expected to cost, in their order
}

// measured keeps measurements in the work folder of an output, a line each as they are made. Its first line has the key of what was measured; one of
// anything else is begun anew. The zero value keeps nothing.
type measured struct {
	done    map[string]measurement
	journal *os.File
	lock    *os.File
	damaged bool // a line was, and what followed is measured again
	// discarded is set where the file was of something else.
	discarded bool
}

// openMeasured opens or makes the file for an output, of at least so many bytes to come: that these may be written is known before anything
// is measured. Without an output nothing is kept.
func openMeasured(output string, least int64, key func() (string, error)) (*measured, error) {
	k := &measured{done: make(map[string]measurement)}
	if output == "" {
		return k, nil
	}
	dir := output + workSuffix
	if err := room(output, least); err != nil {
		return nil, err
	}
	want, err := key()
	if err != nil {
		return nil, err
	}
	if k.lock, err = lockFolder(dir); err != nil {
		return nil, err
	}
	if err := k.open(filepath.Join(dir, measuredName), want); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *measured) open(path, key string) (err error) {
	if k.journal, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666); err != nil {
		return err
	}
	fresh, damaged, err := readJournal(k.journal, key, func(line []byte) {
		var l measurement
		if json.Unmarshal(line, &l) == nil {
			k.done[l.Tensor] = l
		}
	})
	k.damaged = damaged
	if err != nil || !fresh {
		return err
	}
	info, err := k.journal.Stat() // a first line that was torn is cut off by now
	if err != nil {
		return err
	}
	k.discarded = info.Size() > 0 && !damaged
	if err := k.journal.Truncate(0); err != nil {
		return err
	}
	return appendJournal(k.journal, journalLine{Key: key})
}

// note keeps a measurement.
func (k *measured) note(m measurement) error {
	k.done[m.Tensor] = m
	if k.journal == nil {
		return nil
	}
	return appendJournal(k.journal, m)
}

// close lets the folder go. What was measured stays; a folder with nothing in it does not.
func (k *measured) close() error {
	var errs []error
	if k.journal != nil && len(k.done) == 0 {
		errs = append(errs, os.Remove(k.journal.Name()))
		dir := filepath.Dir(k.journal.Name())
		if entries, err := os.ReadDir(dir); err == nil && len(entries) == 1 && k.lock != nil {
			errs = append(errs, os.Remove(k.lock.Name()), os.Remove(dir))
		}
	}
	for _, f := range []*os.File{k.journal, k.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// room says whether a disk holds so many bytes more for an output, with what an earlier run has reserved.
func room(output string, bytes int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(output), &disk); err != nil {
		return fmt.Errorf("output %s: its folder: %w", output, err)
	}
	free := int64(disk.Bavail) * disk.Bsize
	var own unix.Stat_t
	if err := unix.Stat(filepath.Join(output+workSuffix, "data"), &own); err == nil {
		free += own.Blocks * 512
	}
	if free < bytes {
		return fmt.Errorf("output %s: the smallest choice takes %d bytes, %d are free on its disk", output, bytes, free)
	}
	return nil
}
