package llama

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
	"qtool/formats/half"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/runtime/kernel"
	"qtool/runtime/numa"
	"qtool/runtime/pool"
	"qtool/testdata"
)

// opened opens a model for the length of a test.
func opened(t *testing.T, path string) *checkpoint.Model {
	t.Helper()
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// oneNode gives the logits of an engine that binds nothing.
func oneNode(t *testing.T, m *checkpoint.Model, o Options) []float32 {
	t.Helper()
	o.Threads = 2
	e, err := New(m, o)
	require.NoError(t, err)
	defer e.Close()
	require.Empty(t, e.Shortfalls())
	return logitsOf(t, e)
}

// Where repacked matrices are kept changes no bit, each share is in its node's memory, and nothing is taken twice.
func TestNodesWithRepackedWeights(t *testing.T) {
	machines := [][]int{{0}, {0, 1}, {0, 0, 0, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}
	if testing.Short() {
		machines = [][]int{{0}, {0, 0, 0, 2}}
	}
	for _, types := range []map[string]ggml.Type{Types, MoreTypes} {
		m := opened(t, Quantized(t, types))
		for _, a := range []Activations{ActivationsAuto, ActivationsInt16, ActivationsF32} {
			o := Options{Repack: true, Activations: a}
			want := oneNode(t, m, o)
			for _, nodes := range machines {
				sim := &machine{nodes: nodes}
				e, err := newEngine(m, o, sim.host(t))
				require.NoError(t, err)
				repacked, loose := 0, int64(0)
				for l := range e.linears() {
					if !l.changed() {
						continue
					}
					repacked++
					require.Nil(t, l.matrix)
					for i := range l.shares {
						s := &l.shares[i]
						if s.rows > 0 {
							require.True(t, within(e.memory.regions[i].Data, s.data()), "%v share %d of %s", nodes, i, l.tensor.Name)
							require.Equal(t, s.first, s.base)
						}
					}
				}
				for _, r := range sim.regions {
					loose += int64(len(r.Data))
				}
				for _, w := range e.Weights() {
					loose -= w.RepackedBytes
				}
				require.Equal(t, a != ActivationsF32, repacked > 8)
				if len(nodes) == 1 {
					require.Less(t, loose, int64(8<<10), "no more memory than that of the matrices")
					require.Equal(t, a == ActivationsF32, len(sim.regions) == 0)
				}
				require.Empty(t, e.Shortfalls())
				require.True(t, slices.Equal(want, logitsOf(t, e)), "%v %s", nodes, a)
				noAllocation(t, e)
				e.Close()
				for _, r := range sim.regions {
					require.Nil(t, r.Data, "given back")
				}
			}
		}
	}
}

// data is what a repacked share is multiplied with.
func (s *share) data() []byte {
	switch {
	case s.foreign != nil:
		return s.foreign.Data
	case s.matrix != nil:
		return s.matrix.Data
	}
	return s.tensor.Raw()
}

// noAllocation checks that a step takes no memory.
func noAllocation(t *testing.T, e *Engine) {
	t.Helper()
	s := e.NewSession(60)
	defer s.Close()
	sessions, tokens := []*Session{s}, []int32{1}
	step := func() {
		if err := e.Step(sessions, tokens, func(int, []float32) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	for range 10 {
		step()
	}
	if info, _ := debug.ReadBuildInfo(); !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		require.Zero(t, testing.AllocsPerRun(20, step))
	}
}

// What the system refuses of repacked weights is survived and shown, with the same bits or those of decoded weights.
func TestRepackingRefused(t *testing.T) {
	m := opened(t, Quantized(t, Types))
	o := Options{Repack: true}
	repacked, decoded := oneNode(t, m, o), oneNode(t, m, Options{})
	require.NotEqual(t, repacked, decoded)
	all := map[int]error{0: syscall.ENOMEM, 1: syscall.ENOMEM, unbound: syscall.ENOMEM}
	for _, c := range []*struct {
		name       string
		sim        machine
		numa       string
		shortfalls []string
		want       []float32
	}{
		{"not bound", machine{nodes: []int{0, 1}, refuse: all}, "weights not bound: cannot allocate memory$", []string{"^memory could not be bound to nodes: cannot allocate"}, repacked},
		{"no memory of a node", machine{nodes: []int{0, 1}, absent: map[int]error{1: syscall.ENOMEM}},
			"weights on no node of their own: cannot allocate memory$", []string{"^weights could not be copied to their nodes: cannot allocate"}, repacked},
		{"no such memory at all", machine{nodes: []int{0, 1}, absent: all}, "weights on no node of their own: ", []string{"^weights could not be copied to their nodes: "}, repacked},
		{"one node without", machine{nodes: []int{0}, absent: all}, "1 thread pinned$", nil, repacked},
		{"too little", machine{nodes: []int{0, 1}, memory: 500e3}, "weights in the file's map: a copy of .* does not fit",
			[]string{"^weights could not be copied", `^quantized weights are decoded for each product, not repacked: that takes \d\.\d MB, and 0\.5 MB are free$`}, decoded},
		{"too little on one node", machine{nodes: []int{0}, memory: 500e3}, "1 thread pinned$", []string{"^quantized weights are decoded for each product"}, decoded},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := newEngine(m, o, c.sim.host(t))
			require.NoError(t, err)
			defer e.Close()
			require.Regexp(t, c.numa, e.NUMA())
			require.Len(t, e.Shortfalls(), len(c.shortfalls))
			for i, s := range c.shortfalls {
				require.Regexp(t, s, e.Shortfalls()[i])
			}
			require.True(t, slices.Equal(c.want, logitsOf(t, e)))
			for _, w := range e.Weights() {
				require.Equal(t, slices.Equal(c.want, repacked), w.RepackedBytes > 0, w)
			}
		})
	}
}

// A matrix with a weight that no panel can hold is decoded, wherever its shares end; the others are repacked.
func TestWeightNoPanelCanHold(t *testing.T) {
	path := Quantized(t, MoreTypes)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	at := int64(-1)
	for _, x := range f.Tensors() {
		if x.Name == "blk.1.attn_q.weight" {
			require.Equal(t, ggml.Q5_0, x.Type)
			at = x.Offset + x.Size - 22
		}
	}
	require.NoError(t, f.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, scale := range []float32{5000, float32(math.Inf(1)), float32(math.NaN())} {
		binary.LittleEndian.PutUint16(data[at:], half.F32ToF16(scale))
		require.NoError(t, os.WriteFile(path, data, 0o600))
		m := opened(t, path)
		finite := scale == 5000
		var want []float32
		if finite {
			want = oneNode(t, m, Options{Repack: true})
		}
		for _, nodes := range [][]int{{0}, {0, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}} {
			e, err := newEngine(m, Options{Repack: true}, (&machine{nodes: nodes}).host(t))
			require.NoError(t, err)
			var forms []string
			for _, w := range e.Weights() {
				if w.Type == "Q5_0" {
					forms = append(forms, w.String())
				}
			}
			require.Equal(t, []string{"1 tensor Q5_0 repacked, 5 bits, activations in int8", "1 tensor Q5_0 decoded to f32, activations in f32"}, forms)
			if finite {
				require.True(t, slices.Equal(want, logitsOf(t, e)), nodes)
			} else {
				require.ErrorIs(t, predicts(e), ErrNotFinite)
			}
			e.Close()
		}
	}
}

// A file that is cut short while it is repacked is an error, not a crash.
func TestRepackingACutFile(t *testing.T) {
	for _, nodes := range [][]int{{0}, {0, 1}} {
		path := Quantized(t, Types)
		m := opened(t, path)
		sim := &machine{nodes: nodes}
		h := sim.host(t)
		start := h.pool
		h.pool = func(o numa.Options) (*pool.Pool, error) {
			require.NoError(t, os.Truncate(path, 64<<10))
			return start(o)
		}
		_, err := newEngine(m, Options{Repack: true}, h)
		var fault *mapped.FaultError
		require.ErrorAs(t, err, &fault)
		require.NotEmpty(t, sim.regions)
		for _, r := range sim.regions {
			require.Nil(t, r.Data, "given back")
		}
	}
}

// packedModel writes grammar-lm as a packed file, its matrices with random codes, in several schemes.
func packedModel(t *testing.T) string {
	t.Helper()
	m := opened(t, testdata.Path("grammar-lm"))
	config, err := os.ReadFile(testdata.Path("grammar-lm", "config.json"))
	require.NoError(t, err)
	c := packed.Contents{Files: []packed.SideFile{{Name: "config.json", Data: config}}}
	var schemes []packed.Scheme
	for _, name := range []string{"w4g32", "w8", "w4g32nl", "w4g16nlk", "w3g32nl", "w4g32a", "w8g32"} {
		s, err := packed.ParseScheme(name)
		require.NoError(t, err)
		schemes = append(schemes, s)
	}
	for i, x := range m.Tensors() {
		e := packed.Entry{Name: x.Name, Shape: x.Shape, DType: formats.F32}
		if len(x.Shape) == 2 {
			e.DType, e.Scheme = "", &schemes[i%len(schemes)]
		}
		c.Entries = append(c.Entries, e)
	}
	l, err := c.Layout(nil)
	require.NoError(t, err)
	data := make([]byte, l.Size)
	digests := make(map[string]packed.Digest)
	for _, x := range l.Tensors {
		part := data[x.Offset : x.Offset+x.Size]
		switch stored, ok := m.Tensor(x.Name); {
		case !ok:
			copy(part, config)
		case len(stored.Shape) == 1:
			v := make([]float32, stored.Elements())
			require.NoError(t, stored.ReadAll(v))
			for i, f := range v {
				binary.LittleEndian.PutUint32(part[4*i:], math.Float32bits(f))
			}
		default:
			for i := range part {
				part[i] = byte(i*i+7*i) & 0x1f // also of scales, which are small then
			}
		}
		digests[x.Name] = packed.Sum(part)
	}
	final, err := c.Layout(digests)
	require.NoError(t, err)
	copy(data, final.Header)
	path := filepath.Join(t.TempDir(), "model.qpk")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// Packed matrices that are decoded, since activations are not to be rounded, are shared among nodes too.
func TestNodesWithDecodedWeights(t *testing.T) {
	m := opened(t, packedModel(t))
	o := Options{Activations: ActivationsF32}
	want := oneNode(t, m, o)
	require.NotEqual(t, want, oneNode(t, m, Options{}))
	for _, v := range want {
		require.False(t, math.IsNaN(float64(v)))
	}
	for _, nodes := range [][]int{{0, 1}, {0, 1, 2, 3}} {
		e, err := newEngine(m, o, (&machine{nodes: nodes}).host(t))
		require.NoError(t, err)
		require.Equal(t, "f32", Roundings(e.Weights()))
		for l := range e.linears() {
			for i := range l.shares {
				if s := &l.shares[i]; s.rows > 0 {
					require.True(t, within(e.memory.regions[i].Data, s.tensor.Matrix().Data))
				}
			}
		}
		require.True(t, slices.Equal(want, logitsOf(t, e)))
		e.Close()
	}
}

// Where there is memory for what is repacked alone, the rest is decoded for each product, and that is said.
func TestRoundedWeightsGiveWayFirst(t *testing.T) {
	m := opened(t, Quantized(t, Types))
	want := oneNode(t, m, Options{})
	for _, nodes := range [][]int{{0}, {0, 1}} {
		e, err := newEngine(m, Options{Repack: true}, (&machine{nodes: nodes}).host(t))
		require.NoError(t, err)
		total := int64(0)
		for _, w := range e.Weights() {
			total += w.RepackedBytes
		}
		e.Close()
		e, err = newEngine(m, Options{Repack: true}, (&machine{nodes: nodes, memory: total}).host(t))
		require.NoError(t, err)
		require.Len(t, e.Shortfalls(), 1)
		require.Regexp(t, `^quantized weights are decoded for each product, not repacked: that takes \d\.\d MB, and \d\.\d MB are free$`, e.Shortfalls()[0])
		for _, w := range e.Weights() {
			require.Equal(t, w.Type == "Q2_K", w.Form == "decoded to f32", w)
			require.Equal(t, w.Type == "Q2_K", w.RepackedBytes == 0, w)
		}
		require.InDeltaSlice(t, want, logitsOf(t, e), 0.2)
		e.Close()
	}
}

// Weights that half precision cannot hold are decoded, wherever their shares end.
func TestWeightsBeyondHalfPrecision(t *testing.T) {
	path := Quantized(t, Types)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	at := int64(-1)
	for _, x := range f.Tensors() {
		if x.Name == "blk.1.ffn_up.weight" {
			require.Equal(t, ggml.Q2_K, x.Type)
			at = x.Offset + x.Size - 84
		}
	}
	require.NoError(t, f.Close())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range 80 {
		data[at+int64(i)] = 0xff // the largest scales and codes
	}
	binary.LittleEndian.PutUint16(data[at+80:], half.F32ToF16(60000))
	binary.LittleEndian.PutUint16(data[at+82:], 0)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	m := opened(t, path)
	want := oneNode(t, m, Options{Repack: true})
	for _, nodes := range [][]int{{0}, {0, 1}, {0, 1, 2, 3, 4, 5, 6}} {
		e, err := newEngine(m, Options{Repack: true}, (&machine{nodes: nodes}).host(t))
		require.NoError(t, err)
		var forms []string
		for _, w := range e.Weights() {
			if w.Type == "Q2_K" {
				forms = append(forms, w.String())
			}
		}
		require.Equal(t, []string{"1 tensor Q2_K rounded to f16, activations in f32", "1 tensor Q2_K decoded to f32, activations in f32"}, forms)
		require.True(t, slices.Equal(want, logitsOf(t, e)))
		e.Close()
	}
}

// predicts gives the error of a short prompt.
func predicts(e *Engine) error {
	s := e.NewSession(40)
	defer s.Close()
	return s.Forward([]int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, func(int, []float32) error { return nil })
}

// A file of any bytes runs without a crash; numbers that are none are an error.
func TestDamagedBlocks(t *testing.T) {
	for _, types := range []map[string]ggml.Type{Types, MoreTypes} {
		path := Quantized(t, types)
		f, err := gguf.Open(path)
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(5, 6))
		for _, x := range f.Tensors() {
			for i := range x.Size {
				data[x.Offset+i] = byte(r.Uint32() | r.Uint32()) // many scales are no numbers
			}
		}
		require.NoError(t, f.Close())
		require.NoError(t, os.WriteFile(path, data, 0o600))
		m := opened(t, path)
		for _, set := range kernel.Available() {
			t.Setenv(kernel.EnvLevel, set.Name)
			for _, a := range []Activations{ActivationsAuto, ActivationsInt8, ActivationsInt16, ActivationsF32} {
				e, err := New(m, Options{Repack: true, Activations: a, Threads: 2})
				require.NoError(t, err)
				require.ErrorIs(t, predicts(e), ErrNotFinite)
				e.Close()
			}
		}
	}
}

// A type that nothing here can decode is an error before anything is loaded.
func TestTypesThatCannotBeRead(t *testing.T) {
	types := maps.Clone(Types)
	types["ffn_down"] = ggml.IQ2_XXS
	m := opened(t, Quantized(t, types))
	for _, o := range []Options{{}, {Repack: true}} {
		_, err := newEngine(m, o, host{})
		require.ErrorIs(t, err, formats.ErrUnsupported)
		require.ErrorContains(t, err, `"model.layers.0.mlp.down_proj.weight": element type IQ2_XXS cannot be decoded (quantize`)
	}
}
