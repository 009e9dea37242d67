package pool

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"qtool/runtime/numa"
)

// twoWorkers is a plan for CPUs 0 and 1 of two nodes.
func twoWorkers() *numa.Plan {
	return &numa.Plan{Workers: []numa.Worker{{CPUs: numa.Set{0}, Node: 0}, {CPUs: numa.Set{1}, Node: 1}}}
}

// masks gives the affinity of each thread of the process.
func masks(t *testing.T) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	files, err := fs.Glob(os.DirFS("/proc/self/task"), "*/status")
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile("/proc/self/task/" + name)
		if err != nil {
			continue // ended meanwhile
		}
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				out[strings.TrimSpace(list)] = true
			}
		}
	}
	return out
}

func TestThreadsArePinned(t *testing.T) {
	before, err := numa.Affinity()
	if err != nil {
		t.Skip("no affinity on this system:", err)
	}
	p := placed(3)
	require.Equal(t, "1 node, 3 threads pinned", p.Placement().String())
	seen := make([]numa.Set, 3)
	for range 200 {
		p.Run(64, func(worker, _ int) {
			if seen[worker] == nil {
				seen[worker], _ = numa.Affinity()
			}
			time.Sleep(time.Microsecond)
		})
	}
	for i, got := range seen {
		if got != nil {
			require.Equal(t, p.Placement().Workers[i].CPUs, got, "worker %d", i)
		}
	}
	require.NotNil(t, seen[0])
	now, err := numa.Affinity()
	require.NoError(t, err)
	require.Equal(t, before, now, "the caller's thread is left alone")
	p.Close()
	// Threads that end do so on their own.
	require.Eventually(t, func() bool {
		m := masks(t)
		return len(m) == 1 && m[before.String()]
	}, 5*time.Second, 10*time.Millisecond, "masks after Close: %v", masks(t))
}

// pins records what threads are bound to.
type pins struct {
	sync.Mutex
	calls []string
	fail  map[string]error
}

func (p *pins) pin(cpus numa.Set) (numa.Set, error) {
	p.Lock()
	defer p.Unlock()
	p.calls = append(p.calls, cpus.String())
	if err := p.fail[cpus.String()]; err != nil {
		return nil, &numa.Refused{Call: "sched_setaffinity", Err: err}
	}
	return numa.Set{0, 1, 2, 3}, nil
}

func TestMaskComesBackOnClose(t *testing.T) {
	var r pins
	p := newPlaced(twoWorkers(), r.pin)
	require.ElementsMatch(t, []string{"0", "1"}, r.calls)
	require.Equal(t, "2 nodes, 2 threads pinned", p.Placement().String())
	p.Close()
	require.Equal(t, []string{"0-3", "0-3"}, r.calls[2:])
}

func TestRefusal(t *testing.T) {
	cases := []struct {
		name, text string
		fail       map[string]error
		unbound    []int
	}{
		{"all", "pinning refused: operation not permitted", map[string]error{"0": syscall.EPERM, "1": syscall.EPERM}, []int{0, 1}},
		{"one", "1 node, 1 thread pinned, 1 refused: invalid argument", map[string]error{"1": syscall.EINVAL}, []int{1}},
		{"not there", "pinning refused: function not implemented", map[string]error{"0": syscall.ENOSYS, "1": syscall.ENOSYS}, []int{0, 1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := pins{fail: c.fail}
			p := newPlaced(twoWorkers(), r.pin)
			got := p.Placement()
			require.Equal(t, c.text, got.String())
			var refused *numa.Refused
			require.ErrorAs(t, got.Refused, &refused)
			for _, id := range c.unbound {
				require.Equal(t, numa.Worker{Node: -1}, got.Workers[id])
			}
			var sum atomic.Int64
			p.Run(10, func(_, i int) { sum.Add(int64(i)) })
			require.EqualValues(t, 45, sum.Load())
			p.Close()
			require.Len(t, r.calls, 4-len(c.unbound), "what was not changed is not put back")
		})
	}
}

func TestDo(t *testing.T) { each(t, testDo) }

func testDo(t *testing.T, open func(threads int) *Pool) {
	p := open(2)
	defer p.Close()
	var outside sync.WaitGroup
	sum, mine := 0, 0
	for range 4 {
		outside.Go(func() {
			for range 50 {
				var part atomic.Int64
				p.Run(10, func(_, i int) { part.Add(int64(i)) })
				if part.Load() != 45 {
					t.Errorf("sum is %d", part.Load())
				}
			}
		})
	}
	for range 50 {
		p.Do(func() {
			mine++
			p.Do(func() {
				var part [10]int
				p.Run(10, func(_, i int) { part[i] = i })
				for _, v := range part {
					sum += v
				}
			})
		})
	}
	outside.Wait()
	require.Equal(t, 50, mine)
	require.Equal(t, 50*45, sum)
	cause := errors.New("broken")
	for _, raise := range []func(){
		func() { p.Run(4, func(_, _ int) { panic(cause) }) },
		func() { p.Run(1, func(_, _ int) { panic(cause) }) },
	} {
		func() {
			defer func() {
				failure, ok := recover().(*Panic)
				require.True(t, ok)
				require.ErrorIs(t, failure, cause)
				require.ErrorIs(t, failure.Value.(error), cause, "wrapped once")
			}()
			p.Do(raise)
		}()
	}
	require.PanicsWithValue(t, fault{}, func() { p.Do(func() { panic(fault{}) }) })
	require.Panics(t, func() { p.Do(func() { panic("boom") }) })
	ran := false
	p.Do(func() { ran = true })
	require.True(t, ran, "the pool works on after a panic")
}

func TestDoRunsOnTheLead(t *testing.T) {
	if numa.ThreadID() == 0 {
		t.Skip("threads have no number on this system")
	}
	p := placed(2)
	defer p.Close()
	p.Do(func() {
		thread := numa.ThreadID()
		for range 100 {
			p.Run(8, func(worker, _ int) {
				if (numa.ThreadID() == thread) != (worker == 0) {
					panic("worker 0 is the lead, and no other")
				}
			})
		}
	})
	require.Panics(t, func() { p.Run(1, func(_, _ int) { p.Run(2, func(_, _ int) {}) }) }, "a step within a step would mix them up")
}

func TestGoexitInDo(t *testing.T) {
	p := placed(2)
	require.PanicsWithError(t, "panic in a worker: pool: runtime.Goexit in Do", func() { p.Do(runtime.Goexit) })
	require.Panics(t, func() { p.Run(2, func(_, _ int) {}) })
	p.Close()
	require.Panics(t, func() { placedAndClosed().Do(func() {}) })
}

func placedAndClosed() *Pool {
	p := placed(1)
	p.Close()
	return p
}

func TestPlace(t *testing.T) {
	off, err := Place(numa.Options{Threads: 2})
	require.NoError(t, err)
	defer off.Close()
	require.Equal(t, "off", off.Placement().String())
	require.Equal(t, 2, off.Threads())

	many, err := Place(numa.Options{Threads: 500, NUMA: numa.Selection{Auto: true}})
	require.NoError(t, err)
	defer many.Close()
	require.Equal(t, 500, many.Threads())

	auto, err := Place(numa.Options{NUMA: numa.Selection{Auto: true}})
	require.NoError(t, err)
	defer auto.Close()
	require.LessOrEqual(t, auto.Threads(), Available())

	_, err = Place(numa.Options{CPUs: numa.Set{numa.MaxID}})
	require.ErrorContains(t, err, "not online")
	_, err = Place(numa.Options{NUMA: numa.Selection{Nodes: numa.Set{numa.MaxID}}})
	require.ErrorContains(t, err, "there is no node")
}

func TestPlacementText(t *testing.T) {
	whole := Placement{Workers: []numa.Worker{{CPUs: numa.Set{0, 1}, Node: 0}, {CPUs: numa.Set{2, 3}, Node: 1}}}
	require.Equal(t, "2 nodes, 2 threads bound to their nodes", whole.String())
	require.Equal(t, "off: 3 threads for 2 CPUs", Placement{Why: "off: 3 threads for 2 CPUs"}.String())
}
