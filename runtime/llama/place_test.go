package llama

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/half"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/runtime/numa"
	"qtool/runtime/pool"
	"qtool/testdata"
)

// machine is a system of so many nodes, whose CPUs are those of this machine in turn.
type machine struct {
	sync.Mutex
	nodes   []int         // of the workers
	refuse  map[int]error // to bind memory, by node
	absent  map[int]error // to give memory at all
	memory  int64         // that is free
	regions []*numa.Region
}

func (m *machine) host(t *testing.T) host {
	t.Helper()
	cpus, err := numa.Affinity()
	if err != nil {
		t.Skip(err)
	}
	plan := &numa.Plan{}
	for i, n := range m.nodes {
		plan.Workers = append(plan.Workers, numa.Worker{CPUs: numa.Set{cpus[i%len(cpus)]}, Node: n})
	}
	return host{
		pool: func(numa.Options) (*pool.Pool, error) { return pool.NewPlaced(plan), nil },
		region: func(size, node int) (*numa.Region, error) {
			m.Lock()
			defer m.Unlock()
			if err := m.absent[node]; err != nil {
				return nil, &numa.Refused{Call: "mmap", Err: err}
			}
			// The node that there is stands for all of them.
			r, err := numa.NewRegion(size, 0)
			if err != nil {
				return nil, err
			}
			r.Refused = nil
			if err := m.refuse[node]; err != nil {
				r.Refused = &numa.Refused{Call: "mbind", Err: err}
			}
			m.regions = append(m.regions, r)
			return r, nil
		},
		free: func() int64 { return m.memory },
	}
}

// logitsOf runs a prompt over several pages of the cache, a fork of it, and steps of both.
func logitsOf(t *testing.T, e *Engine) (out []float32) {
	t.Helper()
	tokens := make([]int32, 150)
	for i := range tokens {
		tokens[i] = int32((i*7 + 3) % min(60, e.Vocab()))
	}
	keep := func(_ int, l []float32) error {
		out = append(out, l...)
		return nil
	}
	s := e.NewSession(200)
	defer s.Close()
	require.NoError(t, s.Forward(tokens, 100, keep))
	f := s.Fork()
	for i := range 4 {
		require.NoError(t, e.Step([]*Session{s, f}, []int32{int32(i), int32(i + 5)}, keep))
	}
	f.Close()
	again := e.NewSession(200) // in the blocks that f gave back
	defer again.Close()
	require.NoError(t, again.Forward(tokens[:70], 0, keep))
	return out
}

// Where rows and heads are computed and kept changes no bit, for every family and type of the cache.
func TestNodesGiveTheSameBits(t *testing.T) {
	folders, err := filepath.Glob(testdata.Path("arch", "*", "config.json"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	folders = append(folders, testdata.Path("grammar-lm", "config.json"))
	if testing.Short() {
		folders = folders[len(folders)-1:]
	}
	for _, config := range folders {
		folder := filepath.Dir(config)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			m, err := checkpoint.Open(folder)
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			for _, kv := range []KVType{KVF32, KVF16, KVI8} {
				e, err := New(m, Options{Threads: 2, KV: kv})
				require.NoError(t, err)
				want := logitsOf(t, e)
				require.Equal(t, "off", e.NUMA())
				e.Close()
				for _, nodes := range [][]int{{0, 1}, {0, 1, 2, 3}, {0, 0, 0, 2}} {
					sim := &machine{nodes: nodes}
					e, err := newEngine(m, Options{KV: kv}, sim.host(t))
					require.NoError(t, err)
					require.True(t, slices.Equal(want, logitsOf(t, e)), "%v %s", nodes, kv)
					require.Empty(t, e.Shortfalls())
					require.Contains(t, e.NUMA(), "pinned; weights: ")
					e.Close()
					for _, r := range sim.regions {
						require.Nil(t, r.Data, "given back")
					}
				}
			}
		})
	}
}

// A part's rows come from memory of its node, each row in one part, and other nodes get nothing.
func TestSharesAreTheRows(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	sim := &machine{nodes: []int{1, 1, 1, 4}}
	e, err := newEngine(m, Options{}, sim.host(t))
	require.NoError(t, err)
	defer e.Close()
	require.Equal(t, []int{3, 1}, e.memory.weights)
	require.Len(t, e.memory.regions, 2)
	whole := e.layers[0].gate
	require.Len(t, whole.shares, 2)
	row := 0
	var want, got []float32
	for i := range whole.shares {
		s := &whole.shares[i]
		require.Equal(t, row, s.first)
		require.Equal(t, s.first, s.base)
		require.Equal(t, s.rows, s.tensor.Rows())
		require.Zero(t, s.first%rowsPerTile)
		in := e.memory.regions[i].Data
		require.True(t, within(in, s.tensor.Raw()), "share %d is in the memory of its node", i)
		part := make([]float32, s.rows*whole.cols)
		require.NoError(t, s.tensor.ReadAll(part))
		got = append(got, part...)
		row += s.rows
	}
	require.Equal(t, whole.rows, row)
	require.InDelta(t, 0.75, float64(whole.shares[0].rows)/float64(row), 0.05)
	want = make([]float32, whole.rows*whole.cols)
	require.NoError(t, whole.tensor.ReadAll(want))
	require.Equal(t, want, got)
}

// within reports whether part lies inside all.
func within(all, part []byte) bool {
	for i := range all {
		if &all[i] == &part[0] {
			return i+len(part) <= len(all)
		}
	}
	return false
}

// What the system refuses is survived and shown.
func TestPlacementRefused(t *testing.T) {
	cases := []struct {
		name             string
		sim              machine
		numa, shortfalls string
	}{
		{"nothing", machine{}, `^4 nodes, 4 threads pinned; weights: 4 nodes, \d\.\d MB (each|to \d\.\d MB)$`, ""},
		{"denied", machine{refuse: map[int]error{0: syscall.EPERM, 1: syscall.EPERM, 2: syscall.EPERM, 3: syscall.EPERM}},
			"pinned; weights not bound: operation not permitted$", "could not be bound to nodes: operation not permitted"},
		{"not there", machine{refuse: map[int]error{0: syscall.ENOSYS, 1: syscall.ENOSYS, 2: syscall.ENOSYS, 3: syscall.ENOSYS}},
			"weights not bound: function not implemented$", "function not implemented"},
		{"one node", machine{refuse: map[int]error{2: syscall.EINVAL}},
			`weights: 4 nodes, .*, 1 of them not bound: invalid argument$`, "could not be bound to nodes: invalid argument"},
		{"no memory", machine{absent: map[int]error{3: syscall.ENOMEM}},
			"weights in the file's map: cannot allocate memory$", "could not be copied to their nodes: cannot allocate memory"},
		{"too little", machine{memory: 500e3},
			`weights in the file's map: a copy of \d\.\d MB for the nodes does not fit the 0\.5 MB that are free$`, "does not fit"},
	}
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	e, err := New(m, Options{Threads: 2})
	require.NoError(t, err)
	defer e.Close()
	want := logitsOf(t, e)
	for i := range cases {
		c := &cases[i]
		t.Run(c.name, func(t *testing.T) {
			c.sim.nodes = []int{0, 1, 2, 3}
			e, err := newEngine(m, Options{}, c.sim.host(t))
			require.NoError(t, err)
			defer e.Close()
			require.Regexp(t, c.numa, e.NUMA())
			if c.shortfalls == "" {
				require.Empty(t, e.Shortfalls())
			} else {
				require.Len(t, e.Shortfalls(), 1)
				require.Contains(t, e.Shortfalls()[0], c.shortfalls)
			}
			require.True(t, slices.Equal(want, logitsOf(t, e)))
		})
	}
}

// Keys and values that their node has no room for are elsewhere, which is said.
func TestCacheRefused(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	for name, kind := range map[string]func(*machine){
		"no memory": func(s *machine) { s.absent = map[int]error{0: syscall.ENOMEM, 1: syscall.ENOMEM} },
		"not bound": func(s *machine) { s.refuse = map[int]error{0: syscall.ENOMEM, 1: syscall.ENOMEM} },
	} {
		t.Run(name, func(t *testing.T) {
			s := &machine{nodes: []int{0, 1}}
			e, err := newEngine(m, Options{}, s.host(t))
			require.NoError(t, err)
			defer e.Close()
			kind(s)
			require.Empty(t, e.Shortfalls())
			require.NotEmpty(t, logitsOf(t, e))
			require.Equal(t, []string{"keys and values could not be bound to nodes: cannot allocate memory"}, e.Shortfalls())
		})
	}
}

// Real calls for nodes that are not there.
func TestAbsentNodes(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	h := (&machine{nodes: []int{900, 901}}).host(t)
	h.region, h.free = system().region, system().free
	e, err := newEngine(m, Options{}, h)
	require.NoError(t, err)
	defer e.Close()
	require.Regexp(t, "weights not bound: (invalid argument|operation not permitted|function not implemented)$", e.NUMA())
	require.NotEmpty(t, logitsOf(t, e))
}

// A file that is cut short while its weights are copied is an error, not a crash.
func TestCopyOfACutFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(testdata.Path("grammar-lm", name))
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	m, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	sim := &machine{nodes: []int{0, 1}}
	h := sim.host(t)
	start := h.pool
	h.pool = func(o numa.Options) (*pool.Pool, error) {
		require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 64<<10))
		return start(o)
	}
	_, err = newEngine(m, Options{}, h)
	var fault *mapped.FaultError
	require.ErrorAs(t, err, &fault)
	for _, r := range sim.regions {
		require.Nil(t, r.Data, "given back")
	}
}

// packLinears puts packed matrices in the place of a model's, of several schemes in turn.
func packLinears(t *testing.T, e *Engine) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 8))
	k := 0
	for l := range e.linears() {
		names := []string{"w4g32", "w8", "w4g32nl", "w4g16nlk", "w3g32nl", "w4g32a", "w8g32"}
		s, err := packed.ParseScheme(names[k%len(names)])
		require.NoError(t, err)
		k++
		data := make([]byte, s.Bytes(l.rows, l.cols))
		var book [16]int8
		for i := range book {
			book[i] = int8(16*i - 120)
		}
		panels := packed.PutPrelude(s, data, &book, 0)
		for first, at := 0, 0; first < l.rows; first, at = first+packed.Panel, at+s.PanelBytes(l.cols) {
			var rows []packed.Codes
			for range min(packed.Panel, l.rows-first) {
				c := packed.NewCodes(s, l.cols)
				for i := range c.Codes {
					c.Codes[i] = int8(r.IntN(1 << s.Bits))
				}
				for i := range c.Scales {
					c.Scales[i] = half.F32ToF16(0.01 + 0.01*r.Float32())
				}
				for i := range c.Subs {
					c.Subs[i] = int8(r.IntN(4))
				}
				for i := range c.Zeros {
					c.Zeros[i] = uint8(r.IntN(256))
				}
				rows = append(rows, c)
			}
			packed.PackPanel(s, panels[at:at+s.PanelBytes(l.cols)], rows, l.cols)
		}
		m, err := packed.NewMatrix(s, l.rows, l.cols, data)
		require.NoError(t, err)
		l.matrix = &m
	}
}

// Packed matrices: the same bits, and no allocation for a token once memory is there.
func TestNodesWithPackedWeights(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("grammar-lm"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	var want []float32
	for _, nodes := range [][]int{{0}, {0, 1}, {0, 1, 2, 3}, {0, 2, 2, 2, 2}} {
		sim := &machine{nodes: nodes}
		h := sim.host(t)
		e, err := newEngine(m, Options{KV: KVF16}, h)
		require.NoError(t, err)
		packLinears(t, e)
		require.NoError(t, e.memory.release())
		e.memory = memory{}
		require.NoError(t, e.place(h))
		for l := range e.linears() {
			for i := range l.shares {
				s := &l.shares[i]
				if s.rows > 0 && len(nodes) > 1 {
					require.True(t, within(e.memory.regions[i].Data, s.matrix.Data))
				}
			}
		}
		got := logitsOf(t, e)
		if want == nil {
			want = got
		}
		require.True(t, slices.Equal(want, got), "%v", nodes)
		s := e.NewSession(60)
		sessions, tokens := []*Session{s}, []int32{1}
		step := func() {
			if err := e.Step(sessions, tokens, func(int, []float32) error { return nil }); err != nil {
				t.Error(err)
			}
		}
		for range 10 {
			step()
		}
		if info, _ := debug.ReadBuildInfo(); !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) { // which makes pools forget
			require.Zero(t, testing.AllocsPerRun(20, step), "%v", nodes)
		}
		e.Close()
	}
}
