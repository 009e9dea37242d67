// Package mapped gives read-only memory maps of files, and turns the fault that a file cut short
// under its map raises into an error.
package mapped

import (
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is a read-only map of a whole file.
type File struct {
	path string
	file *os.File
	data []byte
	size int64
}

// Advice says how a part of a map will be read.
type Advice int

const (
	// Sequential is from front to back, once.
	Sequential Advice = unix.MADV_SEQUENTIAL
	// WillNeed is soon; the kernel may read ahead.
	WillNeed Advice = unix.MADV_WILLNEED
	// DontNeed is not again for now; pages may leave the process. They are read from the file
	// again when touched.
	DontNeed Advice = unix.MADV_DONTNEED
)

// open holds every map of the process by its address, since a fault gives nothing but one.
var open struct {
	sync.Mutex
	files map[*File]struct{}
}

// Open maps the file at path. Whatever is not a regular file is an error that says so. An empty
// file has an empty map.
func Open(path string) (*File, error) {
	// Not to hang on a named pipe, look before opening.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: expected a regular file, found %s", path, kind(info.Mode()))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, closeAfter(f, err)
	}
	m := &File{path: path, file: f, size: info.Size()}
	if m.size == 0 {
		return m, nil
	}
	if int64(int(m.size)) != m.size {
		return nil, closeAfter(f, fmt.Errorf("%s: %d bytes do not fit this machine's address space", path, m.size))
	}
	m.data, err = unix.Mmap(int(f.Fd()), 0, int(m.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, closeAfter(f, fmt.Errorf("map %s: %w", path, err))
	}
	open.Lock()
	defer open.Unlock()
	if open.files == nil {
		open.files = make(map[*File]struct{})
	}
	open.files[m] = struct{}{}
	return m, nil
}

// closeAfter closes f on the way out with err, which matters more than how the close went.
func closeAfter(f *os.File, err error) error {
	_ = f.Close()
	return err
}

// kind names what a file is that is not a regular one.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}

// Path is the path that Open was given.
func (f *File) Path() string { return f.path }

// Bytes gives the content, valid until Close. Where the file may be cut short meanwhile, read it
// within Guard.
func (f *File) Bytes() []byte { return f.data }

// CheckSize reports, as an error, a file whose size has changed since Open.
func (f *File) CheckSize() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != f.size {
		return fmt.Errorf("%s: the file had %d bytes when it was opened and has %d now: another program changes it", f.path, f.size, info.Size())
	}
	return nil
}

// Advise tells the kernel how length bytes from offset on will be read. It is a hint: bounds are
// clipped, and an error of the kernel means only that it has no use for it.
func (f *File) Advise(offset, length int64, a Advice) error {
	page := int64(os.Getpagesize())
	begin, end := max(offset, 0), min(offset+length, f.size)
	if a == DontNeed {
		// A neighbour's bytes in the same page are still wanted.
		begin, end = (begin+page-1)/page*page, end/page*page
	} else {
		begin = begin / page * page
	}
	if begin >= end {
		return nil
	}
	return unix.Madvise(f.data[begin:end], int(a))
}

// Close unmaps the file.
func (f *File) Close() error {
	open.Lock()
	delete(open.files, f)
	open.Unlock()
	if f.file == nil {
		return nil
	}
	var err error
	if f.data != nil {
		err = unix.Munmap(f.data)
	}
	if e := f.file.Close(); err == nil {
		err = e
	}
	f.data, f.file = nil, nil
	return err
}

// FaultError is a read of a map that the file behind it no longer backs.
type FaultError struct {
	Path   string
	Offset int64
}

// Error names the file and the offset.
func (e *FaultError) Error() string {
	return fmt.Sprintf("%s: cannot read byte %d: the file was cut short while in use, or its disk failed", e.Path, e.Offset)
}

// Guard runs fn and returns its error. A fault within any map of this package becomes a
// FaultError; any other panic goes on. The goroutines that fn starts are not guarded: those of
// runtime/pool pass the fault on to their caller.
func Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if fault, ok := v.(interface{ Addr() uintptr }); ok {
			if e := locate(fault.Addr()); e != nil {
				err = e
				return
			}
		}
		panic(v)
	}()
	return fn()
}

// locate finds the map that holds an address, nil where none does.
func locate(addr uintptr) *FaultError {
	open.Lock()
	defer open.Unlock()
	for f := range open.files {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(f.data)))
		// The kernel gives the address of the access, which may be in the last, partial page.
		if addr >= start && addr-start < uintptr(len(f.data)) {
			return &FaultError{Path: f.path, Offset: int64(addr - start)}
		}
	}
	return nil
}
