package llama

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/arch"
	"qtool/runtime/kernel"
	"qtool/runtime/pool"
)

// attentionOf makes an engine that has attention alone.
func attentionOf(t testing.TB, set *kernel.Set, kv KVType, c arch.Config, threads int) *Engine {
	t.Helper()
	c.Layers, c.RotaryDim, c.AttnScale, c.NormEps = 1, 2, 1/math.Sqrt(float64(c.HeadDim)), 1e-6
	c.Rope = arch.Rope{Kind: arch.RopeDefault, Theta: 10000}
	c.LayerSliding = []bool{c.SlidingWindow > 0}
	e := &Engine{config: &c, kernels: set, kv: kv, ropes: ropes(&c), layers: make([]layer, 1), pool: pool.New(threads), heads: []int{0, c.KVHeads}}
	e.scratch = make([]workerScratch, e.pool.Threads())
	t.Cleanup(e.Close)
	return e
}

// feed gives the rows of qkv to a session in batches of the given sizes, over and over, and returns what attention
// gathers for each. The rows are normalized and rotated in place.
func feed(t *testing.T, s *Session, qkv []float32, rows int, sizes ...int) []float32 {
	t.Helper()
	e, c := s.engine, s.engine.config
	stride, out := c.QDim()+2*c.KVDim(), make([]float32, 0, rows*c.QDim())
	for at, k := 0, 0; at < rows; k++ {
		n := min(sizes[k%len(sizes)], rows-at)
		s.cache.reserve(at + n)
		s.rows = s.rows[:0]
		for i := range n {
			s.rows = append(s.rows, row{s, at + i})
		}
		s.rotate()
		s.planAttention()
		s.qkv, s.mixed = qkv[at*stride:(at+n)*stride], room(s.mixed, n*c.QDim())
		e.pool.Run(n, s.steps.turn)
		e.pool.Run(n, s.steps.place)
		require.NoError(t, s.failed.take())
		p := s.planOf(0)
		e.pool.RunParts(p.counts, s.steps.attend)
		e.pool.Run(len(p.joins), s.steps.join)
		out = append(out, s.mixed[:n*c.QDim()]...)
		at += n
	}
	return out
}

// attended computes attention by its definition for one head of one row.
func attended(c *arch.Config, qkv []float32, row, head int) []float64 {
	stride, dim := c.QDim()+2*c.KVDim(), c.HeadDim
	kv := head / (c.Heads / c.KVHeads)
	first := 0
	if c.SlidingWindow > 0 {
		first = max(0, row-c.SlidingWindow+1)
	}
	scores, most := make([]float64, row+1), math.Inf(-1)
	for i := first; i <= row; i++ {
		for k := range dim {
			scores[i] += float64(qkv[row*stride+head*dim+k]) * float64(qkv[i*stride+c.QDim()+kv*dim+k])
		}
		scores[i] /= math.Sqrt(float64(dim))
		if limit := c.AttnSoftcap; limit > 0 {
			scores[i] = limit * math.Tanh(scores[i]/limit)
		}
		most = max(most, scores[i])
	}
	out, sum := make([]float64, dim), 0.0
	for i := first; i <= row; i++ {
		p := math.Exp(scores[i] - most)
		sum += p
		for k := range dim {
			out[k] += p * float64(qkv[i*stride+c.QDim()+c.KVDim()+kv*dim+k])
		}
	}
	for k := range out {
		out[k] /= sum
	}
	return out
}

// TestAttention compares attention with its definition, past the ends of pages and segments, and checks that a result is
// the same bits whatever the batches were and however many threads there are.
func TestAttention(t *testing.T) {
	const rows = 2*segment + 150
	for i, c := range []arch.Config{
		{Heads: 2, KVHeads: 2, HeadDim: 16},
		{Heads: 4, KVHeads: 1, HeadDim: 10},
		{Heads: 6, KVHeads: 2, HeadDim: 24, SlidingWindow: 100},
		{Heads: 5, KVHeads: 1, HeadDim: 8, SlidingWindow: segment + 77, AttnSoftcap: 3},
		{Heads: 40, KVHeads: 1, HeadDim: 8, SlidingWindow: 90, AttnSoftcap: 20},
	} {
		for _, set := range kernel.Available() {
			t.Run(fmt.Sprintf("%s/%d", set.Name, i), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				c := c
				stride := c.QDim() + 2*c.KVDim()
				input := make([]float32, rows*stride)
				for k := range input {
					input[k] = float32(r.NormFloat64()) * 2
				}
				qkv := append([]float32(nil), input...)
				got := feed(t, attentionOf(t, set, KVF32, c, 2).NewSession(rows), qkv, rows, batch)
				for at := 0; at < rows; at += 1 + at/7 {
					for h := range c.Heads {
						for k, want := range attended(&c, qkv, at, h) {
							require.InDelta(t, want, got[at*c.QDim()+h*c.HeadDim+k], 2e-5, "row %d, head %d", at, h)
						}
					}
				}
				again := feed(t, attentionOf(t, set, KVF32, c, 1).NewSession(rows), append([]float32(nil), input...), rows, 1, 3, 90, 1, 7)
				require.Equal(t, got, again)
				for kv, limit := range map[KVType]float64{KVF16: 1e-3, KVI8: 0.03} {
					other := feed(t, attentionOf(t, set, kv, c, 2).NewSession(rows), append([]float32(nil), input...), rows, 77, 1)
					require.NotEqual(t, got, other)
					var square float64
					for k, v := range other {
						square += float64(v-got[k]) * float64(v-got[k])
					}
					require.Less(t, math.Sqrt(square/float64(len(got))), limit, "%s", kv)
				}
			})
		}
	}
}

// TestCacheRounds checks what the types of the cache keep, and what they cannot.
func TestCacheRounds(t *testing.T) {
	for _, set := range kernel.Available() {
		for kv, relative := range map[KVType]float64{KVF32: 0, KVF16: 1. / 2048, KVI8: 1. / 254} {
			c := attentionOf(t, set, kv, arch.Config{Heads: 2, KVHeads: 2, HeadDim: 12}, 1).NewSession(200).cache
			c.reserve(130)
			r := rand.New(rand.NewPCG(3, 4))
			kept := make(map[[2]int][]float32)
			for position := range 130 {
				for h := range 2 {
					x := make([]float32, 24)
					for i := range x {
						x[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(20)-10)))
					}
					if position == 64 {
						clear(x)
					}
					kept[[2]int{position, h}] = x
					require.NoError(t, c.put(0, h, position, slices.Clone(x[:12]), x[12:], nil))
				}
			}
			c.reserve(129) // what is there stays
			for position := range 130 {
				for h := range 2 {
					x := kept[[2]int{position, h}]
					for i := range 12 {
						var most float64 // of the vector, or for f16 of the element
						origin := kept[[2]int{position &^ (page - 1), h}]
						for k, v := range x[:12] {
							most = max(most, math.Abs(float64(v-origin[k])))
						}
						if position%page == 0 {
							most = 0
						}
						if kv == KVF16 {
							most = math.Abs(float64(x[i])) + 1e-4
						}
						q, scores, shift := make([]float32, 16), make([]float32, page), make([]float32, 1)
						q[i] = 1
						c.scores(scores, shift, q, 1, 0, h, position&^3, position%4+1)
						require.InDelta(t, x[i], scores[position%4]+shift[0], most*relative*1.001, "%s: key %d, element %d", kv, position, i)
					}
					out, weights := make([]float32, 16), make([]float32, page)
					weights[position%4] = 1
					c.mix(out, []float32{0}, weights, 1, 0, h, position&^3, position%4+1)
					var most float64
					for _, v := range x[12:] {
						most = max(most, math.Abs(float64(v)))
					}
					for i := range 12 {
						require.InDelta(t, x[12+i], out[i], most*relative*1.001, "%s: value %d", kv, position)
					}
				}
			}
			large := []float32{1, 65519, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			require.NoError(t, c.put(0, 0, 0, slices.Clone(large), large, nil))
			large[1] = 65520
			if err := c.put(0, 0, 0, slices.Clone(large), large, nil); kv == KVF16 {
				require.ErrorContains(t, err, "f16")
			} else {
				require.NoError(t, err)
			}
			large[1] = float32(math.Inf(1)) // must not become a number
			require.NoError(t, c.put(0, 0, 0, slices.Clone(large), large, nil))
			scores, shift := make([]float32, page), make([]float32, 1)
			c.scores(scores, shift, []float32{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1, 0, 0, 0, 1)
			require.False(t, math.Abs(float64(scores[0]+shift[0])) <= math.MaxFloat32)
		}
	}
	_, err := ParseKVType("f8")
	require.ErrorContains(t, err, "f8")
}

// BenchmarkAttention computes one token, and a batch of them, at the end of a long sequence.
func BenchmarkAttention(b *testing.B) {
	const depth = 1 << 16
	set, err := kernel.Best()
	require.NoError(b, err)
	for _, kv := range []KVType{KVF32, KVF16, KVI8} {
		for _, n := range []int{1, batch} {
			b.Run(fmt.Sprintf("%s/%d", kv, n), func(b *testing.B) {
				e := attentionOf(b, set, kv, arch.Config{Heads: 16, KVHeads: 4, HeadDim: 64}, 1)
				c, s := e.config, e.NewSession(depth)
				r := rand.New(rand.NewPCG(1, 2))
				x := make([]float32, n*(c.QDim()+2*c.KVDim()))
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				s.cache.reserve(depth)
				for i := range depth {
					for h := range c.KVHeads {
						at := (i*31 + h*7) % (c.QDim() - 128)
						require.NoError(b, s.cache.put(0, h, i, slices.Clone(x[at:at+64]), x[at+64:at+128], nil))
					}
				}
				for i := range n {
					s.rows = append(s.rows, row{s, depth - n + i})
				}
				s.qkv, s.mixed = x, make([]float32, n*c.QDim())
				b.ReportAllocs()
				for b.Loop() {
					s.planAttention()
					p := s.planOf(0)
					e.pool.RunParts(p.counts, s.steps.attend)
					e.pool.Run(len(p.joins), s.steps.join)
				}
				b.ReportMetric(float64(2*n*depth*c.QDim())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}
