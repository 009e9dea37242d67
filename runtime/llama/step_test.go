package llama_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/runtime/kernel"
	"qtool/runtime/llama"
	"qtool/testdata"
)

// made gives n token ids, others for another seed.
func made(n, seed, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*31 + seed*17 + i*i*seed) % vocab)
	}
	return out
}

// TestStep advances sequences of different lengths together, past windows and rotary sets, and each alone.
func TestStep(t *testing.T) {
	for _, name := range []string{"llama", "gemma2", "gemma3", "phi3-longrope", "qwen2-sliding", "../grammar-lm"} {
		for _, set := range kernel.Available() {
			for _, kv := range []llama.KVType{llama.KVF32, llama.KVF16, llama.KVI8} {
				t.Run(name+"/"+set.Name+"/"+string(kv), func(t *testing.T) {
					t.Setenv(kernel.EnvLevel, set.Name)
					m, err := checkpoint.Open(testdata.Path("arch", name))
					require.NoError(t, err)
					defer func() { require.NoError(t, m.Close()) }()
					e, err := llama.New(m, llama.Options{Threads: 2, KV: kv})
					require.NoError(t, err)
					defer e.Close()
					testStep(t, e)
				})
			}
		}
	}
}

func testStep(t *testing.T, e *llama.Engine) {
	const steps = 20
	lengths := []int{0, 1, 9, 30, 63, 5, 40}
	var together []*llama.Session
	var want [][]float32 // by session and step
	for i, n := range lengths {
		ids := made(n+steps, i+1, e.Vocab())
		alone := e.NewSession(len(ids))
		require.NoError(t, alone.Forward(ids[:n], n, nil))
		for _, id := range ids[n:] {
			require.NoError(t, alone.Forward([]int32{id}, 0, func(_ int, l []float32) error {
				want = append(want, append([]float32(nil), l...))
				return nil
			}))
		}
		s := e.NewSession(len(ids))
		require.NoError(t, s.Forward(ids[:n], n, nil))
		together = append(together, s)
	}
	for step := range steps {
		var tokens []int32
		for i, n := range lengths {
			tokens = append(tokens, made(n+steps, i+1, e.Vocab())[n+step])
		}
		next := 0
		require.NoError(t, e.Step(together, tokens, func(i int, l []float32) error {
			require.Equal(t, next, i)
			require.Equal(t, want[i*steps+step], l, "session %d, step %d", i, step)
			next++
			return nil
		}))
		require.Equal(t, len(lengths), next)
	}
	for i, s := range together {
		require.Equal(t, lengths[i]+steps, s.Len())
		// What is forked goes on as the other does, which is truncated and fed again.
		f := s.Fork()
		f.Truncate(f.Len() - 1)
		last := made(lengths[i]+steps, i+1, e.Vocab())[lengths[i]+steps-1:]
		for _, again := range []*llama.Session{f, s} {
			again.Truncate(lengths[i] + steps - 1)
			require.NoError(t, e.Step([]*llama.Session{again}, last, func(_ int, l []float32) error {
				require.Equal(t, want[(i+1)*steps-1], l)
				return nil
			}))
		}
	}
}

func TestStepErrors(t *testing.T) {
	e, _ := open(t, testdata.Path("grammar-lm"))
	other, _ := open(t, testdata.Path("grammar-lm"))
	a, b, full := e.NewSession(2), e.NewSession(2), e.NewSession(1)
	require.NoError(t, full.Forward([]int32{1}, 1, nil))
	none := func(int, []float32) error { return errors.New("visited") }
	require.ErrorIs(t, e.Step([]*llama.Session{a, b}, []int32{1}, none), llama.ErrSessions)
	require.ErrorIs(t, e.Step([]*llama.Session{a, b, a}, []int32{1, 2, 3}, none), llama.ErrSessions)
	require.ErrorIs(t, e.Step([]*llama.Session{a, other.NewSession(2)}, []int32{1, 2}, none), llama.ErrSessions)
	require.ErrorIs(t, e.Step([]*llama.Session{a, full}, []int32{1, 2}, none), llama.ErrContextFull)
	require.ErrorIs(t, e.Step([]*llama.Session{a, b}, []int32{1, 1 << 20}, none), llama.ErrToken)
	require.Zero(t, a.Len()+b.Len(), "an error leaves the sessions as they were")
	require.NoError(t, e.Step(nil, nil, none))
	require.EqualError(t, e.Step([]*llama.Session{a, b}, []int32{1, 2}, none), "visited")
	require.NoError(t, e.Step([]*llama.Session{b, a}, []int32{1, 2}, func(int, []float32) error { return nil }))
	_, err := llama.New(nil, llama.Options{KV: "f8"})
	require.ErrorContains(t, err, "f8")
}

// BenchmarkDecode generates one token after the other; room for them is there after the first round.
func BenchmarkDecode(b *testing.B) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(b, err)
	defer func() { require.NoError(b, m.Close()) }()
	for _, kv := range []llama.KVType{llama.KVF32, llama.KVF16, llama.KVI8} {
		b.Run(string(kv), func(b *testing.B) {
			decode, closed := decoding(b, m, llama.Options{Threads: 2, KV: kv})
			defer closed()
			b.ReportAllocs()
			for b.Loop() {
				decode()
			}
		})
	}
}

// decoding gives a function that generates a token in a sequence of 1000 … 1999, by Forward and by Step in turn.
func decoding(tb testing.TB, m *checkpoint.Model, o llama.Options) (decode, closed func()) {
	e, err := llama.New(m, o)
	require.NoError(tb, err)
	const least, most = 1000, 2000
	s := e.NewSession(most)
	prompt, one := made(least, 1, e.Vocab()), []int32{7}
	sum := float32(0)
	visit := func(_ int, l []float32) error { sum += l[0]; return nil }
	sessions := []*llama.Session{s}
	decode = func() {
		var err error
		switch {
		case s.Room() == 0 || s.Len() == 0:
			s.Reset()
			err = s.Forward(prompt, least, nil)
		case s.Len()%2 == 0:
			err = s.Forward(one, 0, visit)
		default:
			err = e.Step(sessions, one, visit)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	for range most - least + 2 { // until there is room for everything
		decode()
	}
	return decode, e.Close
}

// TestDecodeAllocatesNothing measures a sequence that has been as long before.
func TestDecodeAllocatesNothing(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	runs := 200
	if testing.Short() {
		runs = 20
	}
	for _, o := range []llama.Options{{Threads: 2, KV: llama.KVF16}, placed(t)} {
		decode, closed := decoding(t, m, o)
		defer closed()
		require.Zero(t, testing.AllocsPerRun(runs, decode))
	}
}
