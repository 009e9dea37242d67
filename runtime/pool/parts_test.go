package pool

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"qtool/runtime/numa"
)

// onNodes is a pool whose workers are of the given nodes.
func onNodes(nodes ...int) *Pool {
	plan := &numa.Plan{}
	for _, n := range nodes {
		plan.Workers = append(plan.Workers, numa.Worker{CPUs: numa.Set{n}, Node: n})
	}
	return newPlaced(plan, (&pins{}).pin)
}

func TestParts(t *testing.T) {
	p := New(3)
	defer p.Close()
	require.Equal(t, []Part{{Node: -1, Workers: 1}}, p.Parts(), "of a pool that binds nothing")

	p = onNodes(1, 1, 5, 7)
	defer p.Close()
	require.Equal(t, []Part{{1, 2, numa.Set{1}}, {5, 1, numa.Set{5}}, {7, 1, numa.Set{7}}}, p.Parts())

	r := pins{fail: map[string]error{"1": syscall.EPERM}}
	plan := twoWorkers()
	plan.Workers = append(plan.Workers, numa.Worker{CPUs: numa.Set{2}, Node: 2})
	p = newPlaced(plan, r.pin)
	defer p.Close()
	require.Equal(t, []Part{{0, 1, numa.Set{0}}, {2, 1, numa.Set{2}}}, p.Parts(), "a node that no thread is bound to has no part")

	r.fail = map[string]error{"0": syscall.EPERM, "1": syscall.EPERM}
	p = newPlaced(twoWorkers(), r.pin)
	defer p.Close()
	require.Equal(t, []Part{{Node: -1, Workers: 1}}, p.Parts())
}

func TestRunPartsVisitsEachIndexOnce(t *testing.T) {
	for _, nodes := range [][]int{{0}, {0, 1}, {0, 0, 1}, {0, 1, 2, 3}} {
		p := onNodes(nodes...)
		defer p.Close()
		parts := len(p.Parts())
		for _, counts := range [][]int{{1, 0, 0, 0}, {0, 3, 0, 1}, {100, 7, 1, 50}, {2, 2, 2, 2}, {0, 0, 0, 0}} {
			counts = counts[:parts]
			seen := make([][]atomic.Int32, parts)
			for i, n := range counts {
				seen[i] = make([]atomic.Int32, n)
			}
			for range 20 {
				p.RunParts(counts, func(_, part, i int) { seen[part][i].Add(1) })
				p.Run(5, func(_, _ int) {})
			}
			for i := range seen {
				for k := range seen[i] {
					require.EqualValues(t, 20, seen[i][k].Load())
				}
			}
		}
		require.Panics(t, func() { p.RunParts(make([]int, parts+1), func(_, _, _ int) {}) })
	}
}

// Each worker begins with its own part, and a part whose worker is held up is done by others.
func TestOwnPartFirst(t *testing.T) {
	p := onNodes(0, 1)
	defer p.Close()
	const n = 40
	var helped, own atomic.Int32
	for range 50 {
		first := [2]atomic.Int32{}
		p.RunParts([]int{n, n}, func(worker, part, _ int) {
			if first[worker].CompareAndSwap(0, int32(part+1)) && part == p.partOf[worker] {
				own.Add(1)
			}
			if part != p.partOf[worker] {
				helped.Add(1)
			}
			if worker == 1 {
				time.Sleep(time.Millisecond) // the neighbour has its CPU
			}
		})
	}
	require.Positive(t, helped.Load())
	require.GreaterOrEqual(t, own.Load(), int32(50), "the lead at the least begins at home")
}

func TestRunPartsFails(t *testing.T) {
	p := onNodes(0, 1)
	defer p.Close()
	cause := errors.New("broken")
	for range 20 {
		require.PanicsWithError(t, "panic in a worker: broken", func() {
			p.RunParts([]int{9, 9}, func(_, part, i int) {
				if part == 1 && i == 3 {
					panic(cause)
				}
			})
		})
	}
	var sum atomic.Int32
	p.RunParts([]int{2, 3}, func(_, _, _ int) { sum.Add(1) })
	require.EqualValues(t, 5, sum.Load())
	counts := []int{4, 4}
	fn := func(_, _, _ int) { sum.Add(1) }
	require.Zero(t, testing.AllocsPerRun(100, func() { p.RunParts(counts, fn) }))
}
