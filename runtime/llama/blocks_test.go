package llama_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// archModels names the models of every family.
func archModels(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(testdata.Path("arch"))
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if _, err := os.Stat(testdata.Path("arch", e.Name(), "config.json")); err == nil {
			out = append(out, e.Name())
		}
	}
	require.GreaterOrEqual(t, len(out), 19)
	return append(out, filepath.Join("..", "grammar-lm"))
}

// engine opens a model of testdata/arch.
func engine(t *testing.T, name string) *llama.Engine {
	t.Helper()
	m, err := checkpoint.Open(testdata.Path("arch", name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	e, err := llama.New(m, llama.Options{Threads: 2, KV: llama.KVF32})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// forward gives the logits of a sequence, one position after the other.
func forward(t *testing.T, e *llama.Engine, ids []int32) []float32 {
	t.Helper()
	var out []float32
	require.NoError(t, e.NewSession(len(ids)).Forward(ids, 0, func(_ int, l []float32) error {
		out = append(out, l...)
		return nil
	}))
	return out
}

// blockwise gives them block by block, or half by half.
func blockwise(t *testing.T, b *llama.Blocks, ids []int32, halves bool, tap llama.Tap) (logits, hidden []float32) {
	t.Helper()
	x := make([]float32, len(ids)*b.Config().Hidden)
	require.NoError(t, b.Embed(x, ids))
	for layer := range b.Count() {
		if !halves {
			require.NoError(t, b.Run(layer, x, len(ids), tap))
			continue
		}
		for _, h := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
			require.NoError(t, b.RunHalf(layer, h, x, len(ids), tap))
		}
	}
	require.NoError(t, b.Predict(x, len(ids), 0, func(i int, l []float32) error {
		require.Equal(t, len(logits)/len(l), i)
		logits = append(logits, l...)
		return nil
	}))
	return logits, x
}

// TestBlocks: block by block, or half by half, every model gives the logits of a session to the bit, for sequences on both sides of windows and
// of a rope's original length, one after another in the same runner, longer and shorter.
func TestBlocks(t *testing.T) {
	for _, name := range archModels(t) {
		for _, set := range kernel.Available() {
			t.Run(filepath.Base(name)+"/"+set.Name, func(t *testing.T) {
				t.Setenv(kernel.EnvLevel, set.Name)
				e := engine(t, name)
				b := e.Blocks()
				require.Equal(t, e.Config().Layers, b.Count())
				for i, n := range []int{11, 53, 1, 16, 17, 9, 100} {
					ids := made(n, i+1, e.Vocab())
					want := forward(t, e, ids)
					for _, halves := range []bool{false, true} {
						var names, due []string
						tap := func(name string, x []float32, tokens, cols int) error {
							names = append(names, name)
							require.Equal(t, n, tokens)
							require.GreaterOrEqual(t, len(x), tokens*cols)
							return nil
						}
						got, x := blockwise(t, b, ids, halves, tap)
						require.Equal(t, want, got, "%d tokens, by halves %v", n, halves)
						for layer := range b.Count() {
							for _, group := range b.Linears(layer) {
								due = append(due, group[0])
							}
						}
						require.Equal(t, due, names, "each input is seen once, in order")
						requireHead(t, b, x, n, e)
					}
				}
				require.NotContains(t, slices.Collect(linears(b)), "", "all have names")
			})
		}
	}
}

// TestFinish: a half of a block ends in the same bits from the input of its last layer on.
func TestFinish(t *testing.T) {
	for _, name := range archModels(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			e := engine(t, name)
			b, ids := e.Blocks(), made(19, 4, e.Vocab())
			x := make([]float32, len(ids)*e.Config().Hidden)
			require.NoError(t, b.Embed(x, ids))
			for layer := range b.Count() {
				for _, h := range []llama.Half{llama.AttentionHalf, llama.FeedForwardHalf} {
					last := b.Linears(layer)[2*h+1][0]
					var input []float32
					again := append([]float32(nil), x...)
					require.NoError(t, b.RunHalf(layer, h, x, len(ids), func(name string, in []float32, _, _ int) error {
						if name == last {
							input = append(input, in...)
						}
						return nil
					}))
					require.NotEmpty(t, input)
					require.NoError(t, b.Finish(layer, h, again, input, len(ids)))
					require.Equal(t, x, again)
				}
			}
		})
	}
}

// requireHead looks at the head's input: norms, and the factors of the final one, are those of Predict, which visits from any position on.
func requireHead(t *testing.T, b *llama.Blocks, x []float32, n int, e *llama.Engine) {
	t.Helper()
	kept := append([]float32(nil), x...)
	in := make([]float32, len(x))
	b.HeadInput(in, x, n)
	require.Equal(t, kept, x)
	h := b.Config().Hidden
	for i := range n {
		var square float64
		for _, v := range in[i*h : (i+1)*h] {
			require.Zero(t, v-v)
			square += float64(v) * float64(v)
		}
		require.Positive(t, square)
	}
	seen := n / 2
	require.NoError(t, b.Predict(x, n, seen, func(i int, l []float32) error {
		require.Equal(t, seen, i)
		require.Len(t, l, e.Vocab())
		seen++
		return nil
	}))
	require.Equal(t, n, seen)
	require.Equal(t, kept, x)
}

func linears(b *llama.Blocks) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for layer := range b.Count() {
			for _, name := range slices.Concat(b.Linears(layer)...) {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// TestHeadInput multiplies it by the head's weights, in double precision: the logits of Predict.
func TestHeadInput(t *testing.T) {
	for _, name := range []string{"llama", "llama-mqa-tied", "gemma3", "qwen2", "phi3"} {
		t.Run(name, func(t *testing.T) {
			m, err := checkpoint.Open(testdata.Path("arch", name))
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			e, err := llama.New(m, llama.Options{Threads: 1})
			require.NoError(t, err)
			defer e.Close()
			b, ids := e.Blocks(), made(20, 3, e.Vocab())
			logits, x := blockwise(t, b, ids, false, nil)
			in := make([]float32, len(x))
			b.HeadInput(in, x, len(ids))
			head, ok := m.Tensor(b.Head())
			require.True(t, ok)
			require.Equal(t, e.Config().TieEmbeddings, b.Head() == e.EmbeddingName())
			w := make([]float32, head.Elements())
			require.NoError(t, head.ReadAll(w))
			h := e.Config().Hidden
			for i := range ids {
				for v := range e.Vocab() {
					var want float64
					for k := range h {
						want += float64(in[i*h+k]) * float64(w[v*h+k])
					}
					require.InDelta(t, want, logits[i*e.Vocab()+v], 1e-4, "position %d, token %d", i, v)
				}
			}
		})
	}
}

// TestTapStops: where a tap returns an error the block ends, and hidden states are what they were; the next run knows nothing of it.
func TestTapStops(t *testing.T) {
	e := engine(t, "qwen3")
	b, ids := e.Blocks(), made(30, 2, e.Vocab())
	want := forward(t, e, ids)
	x := make([]float32, len(ids)*e.Config().Hidden)
	require.NoError(t, b.Embed(x, ids))
	kept := append([]float32(nil), x...)
	stop := errors.New("enough")
	for _, group := range b.Linears(1) {
		seen := 0
		require.ErrorIs(t, b.Run(1, x, len(ids), func(name string, _ []float32, _, _ int) error {
			if seen++; name == group[0] {
				return stop
			}
			return nil
		}), stop)
		require.Positive(t, seen)
		require.Equal(t, kept, x)
	}
	got, _ := blockwise(t, b, ids, false, nil)
	require.Equal(t, want, got)
	require.Equal(t, want, forward(t, e, ids), "sessions see nothing of the tap")
	for _, bad := range []int32{-1, int32(e.Vocab())} {
		require.ErrorIs(t, b.Embed(x, []int32{1, bad}), llama.ErrToken)
	}
}

// TestReplace: packed weights take the place of every linear layer's and the embedding's in turn, for sessions and blocks alike, and Restore
// takes that back, to the bit. What does not fit is refused.
func TestReplace(t *testing.T) {
	for _, name := range []string{"llama", "llama-mqa-tied", "phi3", "gemma2"} {
		t.Run(name, func(t *testing.T) {
			m, err := checkpoint.Open(testdata.Path("arch", name))
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			e, err := llama.New(m, llama.Options{Threads: 2})
			require.NoError(t, err)
			defer e.Close()
			b, ids := e.Blocks(), made(25, 5, e.Vocab())
			want := forward(t, e, ids)
			names := append(slices.Collect(linears(b)), e.EmbeddingName(), b.Head())
			s := packed.Scheme{Bits: 8, Group: 32}
			for _, n := range names {
				x, ok := m.Tensor(n)
				require.True(t, ok)
				// All weights are zero: nothing is closer to the source's than chance.
				zeros, err := packed.NewMatrix(s, x.Rows(), x.Cols(), make([]byte, s.Bytes(x.Rows(), x.Cols())))
				require.NoError(t, err)
				require.NoError(t, b.Replace(n, zeros))
				changed := forward(t, e, ids)
				require.NotEqual(t, want, changed, n)
				got, _ := blockwise(t, b, ids, false, nil)
				require.Equal(t, changed, got, n)
				require.NoError(t, b.Restore(n))
				require.Equal(t, want, forward(t, e, ids), n)

				wrong, err := packed.NewMatrix(s, x.Rows()+1, x.Cols(), make([]byte, s.Bytes(x.Rows()+1, x.Cols())))
				require.NoError(t, err)
				require.ErrorContains(t, b.Replace(n, wrong), n)
				require.Equal(t, want, forward(t, e, ids), n)
			}
			none, err := packed.NewMatrix(s, 1, 1, make([]byte, s.Bytes(1, 1)))
			require.NoError(t, err)
			require.ErrorContains(t, b.Replace("model.norm.weight", none), "model.norm.weight")
			require.ErrorContains(t, b.Restore("model.norm.weight"), "model.norm.weight")
		})
	}
}
