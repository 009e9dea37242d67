package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/zeebo/xxh3"

	"qtool/formats/checkpoint"
	"qtool/formats/mapped"
	"qtool/formats/packed"
)

// chunkBytes is about how much output one piece of work makes.
const chunkBytes = 512 << 10

// slots is how many pieces may be in work or wait to be written.
func slots(threads int) int { return 4 * max(threads, 1) }

// item is one tensor to be written: how its rows become bytes.
type item struct {
	tensor *checkpoint.Tensor
	offset int64 // in the output
	size   int64
	// head, if set, gives what is written before the rows.
	head func() ([]byte, error)
	// unit is the number of rows that must be encoded together, and unitBytes what they become.
	unit      int
	unitBytes int
	// rowOf, if set, gives the row of the tensor that is written as row i.
	rowOf func(i int) int
	// encoder returns a function for one worker that encodes rows first … first+n-1, first a multiple of
	// unit, given their values.
	encoder func() func(dst []byte, values []float32, first, n int) (clamped int, err error)
}

// rowsPerChunk is the number of rows of a piece: it depends on the tensor alone, so that digests of pieces
// do too.
func (it *item) rowsPerChunk() int {
	cols := max(it.tensor.Cols(), 1)
	rows := min(chunkBytes/max(it.unitBytes, 1), (1<<20)/(cols*it.unit)) * it.unit
	return max(rows, it.unit)
}

// outcome is what a tensor that was written looks like.
type outcome struct {
	digest  packed.Digest // of the bytes written
	source  packed.Digest // of the values read
	clamped int
	// calibration, if not nil, says how quantizing by inputs went.
	calibration *CalibrationFigures
}

// streamer writes items to a file: several threads encode pieces, one writes them in order.
type streamer struct {
	out     io.WriterAt
	threads int
	// finished is called for each item in order once all of it is written.
	finished func(i int, o outcome) error
	// progress, if set, is told the values done after each piece.
	progress func(weights int64)

	spare chan []byte // buffers that have been written
}

// piece is one job: rows of an item, and the buffer that they go to.
type piece struct {
	item, first, n int
	buf            []byte
	source         packed.Digest
	clamped        int
	err            error
	done           chan struct{}
}

// run writes the items. After an error, or when ctx is done, nothing more is written.
func (s *streamer) run(ctx context.Context, items []item) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs, order := make(chan *piece), make(chan *piece, slots(s.threads))
	s.spare = make(chan []byte, slots(s.threads)+2*max(s.threads, 1)+2)
	var workers sync.WaitGroup
	for range max(s.threads, 1) {
		workers.Go(func() {
			w := worker{items: items, spare: s.spare, encoders: make(map[int]func([]byte, []float32, int, int) (int, error))}
			for p := range jobs {
				p.err = mapped.Guard(func() error { return w.do(p) })
				close(p.done)
			}
		})
	}
	go func() {
		defer close(order)
		defer close(jobs)
		for i := range items {
			it := &items[i]
			for first := 0; first < it.tensor.Rows(); first += it.rowsPerChunk() {
				p := &piece{item: i, first: first, n: min(it.rowsPerChunk(), it.tensor.Rows()-first), done: make(chan struct{})}
				select {
				case order <- p: // bounds what is in flight
				case <-ctx.Done():
					return
				}
				select {
				case jobs <- p:
				case <-ctx.Done():
					p.err = ctx.Err()
					close(p.done)
					return
				}
			}
		}
	}()
	err := s.write(ctx, items, order)
	cancel()
	for p := range order {
		<-p.done
	}
	workers.Wait()
	return err
}

// write takes the pieces in order.
func (s *streamer) write(ctx context.Context, items []item, order <-chan *piece) error {
	next := 0
	var sum, source *xxh3.Hasher
	var at int64
	clamped := 0
	begin := func() error {
		sum, source, at, clamped = xxh3.New(), xxh3.New(), 0, 0
		if next == len(items) || items[next].head == nil {
			return nil
		}
		var head []byte
		err := mapped.Guard(func() (err error) { head, err = items[next].head(); return err })
		if err != nil {
			return err
		}
		_, _ = sum.Write(head) // a hash takes everything
		at = int64(len(head))
		_, err = s.out.WriteAt(head, items[next].offset)
		return err
	}
	end := func() error {
		it := &items[next]
		if rest := it.size - at; rest > 0 && rest < packed.Align { // the padding of a packed matrix
			pad := make([]byte, rest)
			_, _ = sum.Write(pad)
			if _, err := s.out.WriteAt(pad, it.offset+at); err != nil {
				return err
			}
		} else if rest != 0 {
			return fmt.Errorf("tensor %q: %d bytes were made, %d planned", it.tensor.Name, at, it.size)
		}
		err := s.finished(next, outcome{digest: packed.Digest(sum.Sum128().Bytes()), source: packed.Digest(source.Sum128().Bytes()), clamped: clamped})
		next++
		return errors.Join(err, begin())
	}
	if err := begin(); err != nil {
		return err
	}
	for p := range order {
		select {
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.err != nil {
			return p.err
		}
		for next < p.item { // items without rows, and the one before
			if err := end(); err != nil {
				return err
			}
		}
		_, _ = sum.Write(p.buf) // a hash takes everything
		_, _ = source.Write(p.source[:])
		if _, err := s.out.WriteAt(p.buf, items[p.item].offset+at); err != nil {
			return err
		}
		at += int64(len(p.buf))
		clamped += p.clamped
		select {
		case s.spare <- p.buf:
		default:
		}
		p.buf = nil
		if s.progress != nil {
			s.progress(int64(p.n) * int64(items[p.item].tensor.Cols()))
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for next < len(items) {
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// worker is the scratch space of one thread.
type worker struct {
	items    []item
	spare    <-chan []byte
	encoders map[int]func(dst []byte, values []float32, first, n int) (int, error)
	values   []float32
	source   []float32 // what a computed tensor is made of
	reader   checkpoint.Reader
}

// do reads the rows of a piece and encodes them.
func (w *worker) do(p *piece) error {
	it := &w.items[p.item]
	cols := it.tensor.Cols()
	encode, ok := w.encoders[p.item]
	if !ok {
		clear(w.encoders) // those of earlier items are not needed again
		encode = it.encoder()
		w.encoders[p.item] = encode
	}
	n := (p.n + it.unit - 1) / it.unit * it.unitBytes
	p.buf = w.buffer(n)
	if len(w.values) < p.n*cols {
		w.values = make([]float32, p.n*cols)
	}
	values := w.values[:p.n*cols]
	if err := w.read(it, values, p.first, p.n); err != nil {
		return err
	}
	p.source = sumFloats(values)
	if origin := it.tensor.Origin(); origin != it.tensor {
		if len(w.source) < p.n*cols {
			w.source = make([]float32, p.n*cols)
		}
		if err := origin.ReadRows(w.source, p.first, p.n, &w.reader); err != nil {
			return err
		}
		p.source = sumFloats(w.source[:p.n*cols])
	}
	var err error
	p.clamped, err = encode(p.buf, values, p.first, p.n)
	return err
}

// read gives the values of rows in the order in which they are written.
func (w *worker) read(it *item, values []float32, first, n int) error {
	if it.rowOf == nil {
		return it.tensor.ReadRows(values, first, n, &w.reader)
	}
	cols := it.tensor.Cols()
	for i := range n {
		if err := it.tensor.ReadRows(values[i*cols:(i+1)*cols], it.rowOf(first+i), 1, &w.reader); err != nil {
			return err
		}
	}
	return nil
}

// buffer gives n bytes, whatever they hold: the encoders write all of them.
func (w *worker) buffer(n int) []byte {
	select {
	case b := <-w.spare:
		if cap(b) >= n {
			return b[:n]
		}
	default:
	}
	return make([]byte, n)
}
