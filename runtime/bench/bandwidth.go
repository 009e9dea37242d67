package bench

import (
	"time"

	"qtool/runtime/kernel"
	"qtool/runtime/pool"
)

// busBytes is more than the caches of any machine of today, for each thread, as far as all threads together stay within
// busLimit.
const (
	busBytes = 256 << 20
	busLimit = 2 << 30
	busPiece = 1 << 16 // elements: what one call reads
)

// bus measures how fast the threads of a pool read memory together.
type bus struct {
	pool    *pool.Pool
	set     *kernel.Set
	data    []float32
	sums    []float32 // of a thread, a cache line each
	best    float64   // bytes a second, of all passes so far
	weights int64     // bytes of weights that a step of the model reads
}

func newBus(p *pool.Pool) (*bus, error) {
	set, err := kernel.Best()
	if err != nil {
		return nil, err
	}
	threads := p.Threads()
	b := &bus{pool: p, set: set, data: make([]float32, min(threads*busBytes, busLimit)/4), sums: make([]float32, threads*32)}
	p.Run(len(b.data)/busPiece, func(_, i int) { // touched by the threads that will read it, so that pages are real
		part := b.data[i*busPiece : (i+1)*busPiece]
		for k := range part {
			part[k] = float32(k & 7)
		}
	})
	return b, nil
}

// measure gives the bytes a second that the threads read, the best of some passes.
func (b *bus) measure(passes int) (best float64) {
	for range passes {
		start := time.Now()
		b.pool.Run(len(b.data)/busPiece/2, func(w, i int) {
			// Two streams, as a product of two vectors reads them.
			b.sums[32*w] += b.set.Dot(b.data[2*i*busPiece:(2*i+1)*busPiece], b.data[(2*i+1)*busPiece:(2*i+2)*busPiece])
		})
		best = max(best, float64(4*len(b.data))/time.Since(start).Seconds())
	}
	b.best = max(b.best, best)
	return best
}
