package llama

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"qtool/runtime/kernel"
)

// KVType is how a session keeps its keys and values.
type KVType string

// Types of the cache.
const (
	KVF32 KVType = "f32"  // exactly as computed: the reference
	KVF16 KVType = "f16"  // half the memory; rounds to 11 bits
	KVI8  KVType = "int8" // a quarter: 8-bit codes, a scale for each head of each position; keys as differences
)

// ParseKVType reads the name of a type.
func ParseKVType(name string) (KVType, error) {
	types := []string{string(KVF32), string(KVF16), string(KVI8)}
	for _, t := range types {
		if t == name {
			return KVType(t), nil
		}
	}
	return "", fmt.Errorf("type %q of keys and values: expected one of %s", name, strings.Join(types, ", "))
}

// page is the number of positions that the cache grows by, and that attention scores at a time.
const page = 64

// cache keeps the keys and values of the positions of a sequence.
type cache interface {
	// reserve makes room for n positions; room that is there stays.
	reserve(n int)
	// put keeps the key and the value of a head; it may change key. origin is the key of the first position of the page
	// where that is put at the same time, nil where it is there already. Different heads and positions may be put at the
	// same time.
	put(layer, head, position int, key, value, origin []float32) error
	// scores sets the rows of out, page elements apart, to the products of queries with the keys of n positions from
	// first on, of one page, less shifts, one a query. first is a multiple of 4.
	scores(out, shifts, q []float32, queries, layer, head, first, n int)
	// mix multiplies out, a row a query, by factors and adds the values of n positions weighted by the rows of p, which
	// it may change.
	mix(out, factors, p []float32, queries, layer, head, first, n int)
	// clone makes a cache with the same contents.
	clone() cache
	// release gives the memory back; the cache is empty then.
	release()
}

// newCache makes an empty cache of so many layers.
func (e *Engine) newCache(layers int) cache {
	k, c := e.kernels, e.config
	s := shape{layers: layers, dim: padded(c.HeadDim), memory: &e.memory, ends: e.heads}
	for i := range len(e.heads) - 1 {
		for range e.heads[i+1] - e.heads[i] {
			s.part = append(s.part, i)
		}
	}
	switch e.kv {
	case KVF16:
		return &pages[uint16]{shape: s, kernels: k, loops: &k.F16, encode: func(dst []uint16, x []float32) (float32, error) {
			const beyond = 65520 // the least that rounds to infinity
			if most := k.Largest(x); most >= math.Float32bits(beyond) && most < math.Float32bits(float32(math.Inf(1))) {
				return 0, fmt.Errorf("a key or value of %g is beyond the range of f16: keep them as f32", math.Float32frombits(most))
			}
			k.EncodeF16(dst, x)
			return 1, nil
		}}
	case KVI8:
		return &pages[int8]{shape: s, kernels: k, loops: &k.I8, scaled: true, encode: func(dst []int8, x []float32) (float32, error) {
			most := math.Float32frombits(k.Largest(x))
			inverse := 127 / most
			if !(inverse > 0 && inverse <= math.MaxFloat32) { // nothing worth keeping; or no numbers, which the scale passes on
				clear(dst[:len(x)])
				return most * 0, nil
			}
			k.Encode(dst, x, inverse, -127, 127, 0)
			return most / 127, nil
		}}
	}
	return &pages[float32]{shape: s, kernels: k, loops: &k.F32, encode: func(dst, x []float32) (float32, error) {
		copy(dst, x)
		return 1, nil
	}}
}

// padded is the elements that a head takes in the cache: whole vectors, filled up with zeros.
func padded(dim int) int { return (dim + 7) &^ 7 }

// shape is what a cache holds for a position: a key and a value for each layer and head. Each part of the engine's pool
// has some of the heads in its charge, and the memory of its node has their keys and values.
type shape struct {
	layers, dim int
	ends        []int // part i has the heads ends[i] … ends[i+1]-1
	part        []int // of each head
	memory      *memory
}

// pages is a cache of one element type, in pieces of so many positions that growing moves nothing.
type pages[T float32 | uint16 | int8] struct {
	shape
	kernels *kernel.Set
	loops   *kernel.Vectors[T]
	// encode rounds a vector and gives the scale of its elements.
	encode func(dst []T, x []float32) (scale float32, err error)
	// scaled: scales are kept, else they are 1, and keys are the differences from that of their page's first position.
	// The keys of a head have much in common, some elements far larger than the others: so less is rounded.
	scaled bool
	list   [][]pageOf[T] // by positions, then by part
}

// pageOf holds neighbouring positions of the heads of a part: [layers][heads][page][dim] elements, [layers][heads][page]
// scales, [layers][heads][dim] origins.
type pageOf[T any] struct {
	block                  []byte // what all that follows is in, of the arena; nil for memory of Go's
	keys, values           []T
	keyScales, valueScales []float32
	origins                []float32
}

func (c *pages[T]) reserve(n int) {
	for len(c.list)*page < n {
		parts := make([]pageOf[T], len(c.ends)-1)
		for i := range parts {
			parts[i] = c.take(i)
		}
		c.list = append(c.list, parts)
	}
}

// take makes room for a page of the heads of a part.
func (c *pages[T]) take(part int) (p pageOf[T]) {
	heads := c.layers * (c.ends[part+1] - c.ends[part])
	if heads == 0 {
		return p
	}
	vectors := heads * page
	count, scaleCount := 2*vectors*c.dim, 0
	if c.scaled {
		scaleCount = 2*vectors + heads*c.dim
	}
	var elements []T
	var scales []float32
	if len(c.ends) > 2 {
		// Elements are whole vectors of 8, so that scales behind them lie where they may.
		size := count * int(unsafe.Sizeof(*new(T)))
		p.block = c.memory.kv.take(size+4*scaleCount, c.memory.parts[part].Node)
		elements = unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p.block))), count)
		if c.scaled {
			scales = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(p.block[size:]))), scaleCount)
		}
	} else {
		elements, scales = make([]T, count), make([]float32, scaleCount)
	}
	p.keys, p.values = elements[:vectors*c.dim], elements[vectors*c.dim:]
	if c.scaled {
		p.keyScales, p.valueScales, p.origins = scales[:vectors], scales[vectors:2*vectors], scales[2*vectors:]
	}
	return p
}

func (c *pages[T]) release() {
	for _, parts := range c.list {
		for i, p := range parts {
			if p.block != nil {
				c.memory.kv.give(p.block, c.memory.parts[i].Node)
			}
		}
	}
	c.list = nil
}

func (c *pages[T]) clone() cache {
	out := *c
	out.list = nil
	out.reserve(len(c.list) * page)
	for i, parts := range c.list {
		for k, p := range parts {
			to := &out.list[i][k]
			copy(to.keys, p.keys)
			copy(to.values, p.values)
			copy(to.keyScales, p.keyScales)
			copy(to.valueScales, p.valueScales)
			copy(to.origins, p.origins)
		}
	}
	return &out
}

// at finds the page of a position and the vector in it.
func (c *pages[T]) at(layer, head, position int) (p *pageOf[T], vector int) {
	return &c.list[position/page][c.part[head]], c.local(layer, head)*page + position%page
}

// local is the number of a head among those of its part.
func (c *pages[T]) local(layer, head int) int {
	part := c.part[head]
	return layer*(c.ends[part+1]-c.ends[part]) + head - c.ends[part]
}

// origin is what the keys of a head are differences from.
func (c *pages[T]) origin(p *pageOf[T], layer, head int) []float32 {
	h := c.local(layer, head)
	return p.origins[h*c.dim : (h+1)*c.dim]
}

func (c *pages[T]) put(layer, head, position int, key, value, origin []float32) error {
	p, v := c.at(layer, head, position)
	if !c.scaled {
		if _, err := c.encode(p.keys[v*c.dim:(v+1)*c.dim], key); err != nil {
			return err
		}
		_, err := c.encode(p.values[v*c.dim:(v+1)*c.dim], value)
		return err
	}
	own := c.origin(p, layer, head)
	if origin == nil {
		origin = own
	}
	var err error
	if position%page == 0 { // key stays as it is: others may be taking their differences
		copy(own, key)
		clear(p.keys[v*c.dim : (v+1)*c.dim])
		p.keyScales[v] = 0
	} else {
		subtract(key, origin)
		p.keyScales[v], err = c.encode(p.keys[v*c.dim:(v+1)*c.dim], key)
	}
	if err == nil {
		p.valueScales[v], err = c.encode(p.values[v*c.dim:(v+1)*c.dim], value)
	}
	return err
}

func subtract(x, y []float32) {
	for i := range x {
		x[i] -= y[i]
	}
}

func (c *pages[T]) scores(out, shifts, q []float32, queries, layer, head, first, n int) {
	p, v := c.at(layer, head, first)
	c.loops.Scores(out, page, q, queries, c.dim, p.keys[v*c.dim:], p.values[v*c.dim:], n)
	if c.scaled {
		origin := c.origin(p, layer, head)
		for j := range queries {
			c.kernels.Multiply(out[j*page:j*page+n], p.keyScales[v:])
			shifts[j] = c.kernels.Dot(origin, q[j*c.dim:])
		}
	}
}

func (c *pages[T]) mix(out, factors, weights []float32, queries, layer, head, first, n int) {
	p, v := c.at(layer, head, first)
	if c.scaled {
		for j := range queries {
			c.kernels.Multiply(weights[j*page:j*page+n], p.valueScales[v:])
		}
	}
	var ahead []T // the keys of the next page
	if next := first/page + 1; next < len(c.list) {
		ahead = c.list[next][c.part[head]].keys[(v-first%page)*c.dim:]
	}
	c.loops.Mix(out, factors, weights, page, queries, c.dim, p.values[v*c.dim:], ahead, n)
}
