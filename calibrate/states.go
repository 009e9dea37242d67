package calibrate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"
)

// States holds the hidden states of sequences between two blocks: in memory, or in a temporary file where they are more than that is to
// take.
type States struct {
	n      int // sequences
	size   int // elements of a sequence
	held   [][]float32
	file   *os.File
	buffer []float32
}

// NewStates makes room for n sequences of size elements each. Beyond maxMemory bytes (0: no limit) they are kept in a file of the folder
// dir that has no name, so that it is gone with the process, whatever happens.
func NewStates(n, size int, maxMemory int64, dir string) (*States, error) {
	s := &States{n: n, size: size}
	if maxMemory > 0 && int64(n)*int64(size)*4 > maxMemory {
		f, err := os.CreateTemp(dir, ".states-*")
		if err != nil {
			return nil, fmt.Errorf("hidden states: %w", err)
		}
		if err := errors.Join(os.Remove(f.Name()), f.Truncate(int64(n)*int64(size)*4)); err != nil {
			return nil, errors.Join(fmt.Errorf("hidden states: %w", err), f.Close())
		}
		s.file = f
		s.buffer = make([]float32, size)
		return s, nil
	}
	s.held = make([][]float32, n)
	for i := range s.held {
		s.held[i] = make([]float32, size)
	}
	return s, nil
}

// Spilled reports whether the states are in a file.
func (s *States) Spilled() bool { return s.file != nil }

// Get gives the states of sequence i, to be changed at will; they are kept only by Put, and valid until the next Get.
func (s *States) Get(i int) ([]float32, error) {
	if s.file == nil {
		if s.buffer == nil {
			s.buffer = make([]float32, s.size)
		}
		copy(s.buffer, s.held[i])
		return s.buffer, nil
	}
	_, err := s.file.ReadAt(asBytes(s.buffer), int64(i)*int64(s.size)*4)
	if err != nil {
		return nil, fmt.Errorf("read hidden states: %w", err)
	}
	return s.buffer, nil
}

// Put keeps the states of sequence i.
func (s *States) Put(i int, x []float32) error {
	if s.file == nil {
		copy(s.held[i], x[:s.size])
		return nil
	}
	if _, err := s.file.WriteAt(asBytes(x[:s.size]), int64(i)*int64(s.size)*4); err != nil {
		return fmt.Errorf("write hidden states: %w", err)
	}
	return nil
}

// Close gives the room back.
func (s *States) Close() error {
	s.held = nil
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// asBytes shows numbers as the bytes that they are in memory: the file is read by the process that wrote it.
func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// WriteTo writes the states of all sequences as ReadFrom of the same program reads them.
func (s *States) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for i := range s.n {
		x, err := s.Get(i)
		if err != nil {
			return total, err
		}
		n, err := w.Write(asBytes(x))
		total += int64(n)
		if err != nil {
			return total, fmt.Errorf("write hidden states: %w", err)
		}
	}
	return total, nil
}

// ReadFrom reads the states of all sequences.
func (s *States) ReadFrom(r io.Reader) (int64, error) {
	var total int64
	x := make([]float32, s.size)
	for i := range s.n {
		n, err := io.ReadFull(r, asBytes(x))
		total += int64(n)
		if err != nil {
			return total, fmt.Errorf("read hidden states: %w", err)
		}
		if err := s.Put(i, x); err != nil {
			return total, err
		}
	}
	return total, nil
}
