package pool

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"qtool/runtime/numa"
)

// kinds are the two ways to make a pool; every test of what they promise alike runs with both.
var kinds = map[string]func(threads int) *Pool{"floating": New, "placed": placed}

// placed binds threads to the CPUs of the machine in turn.
func placed(threads int) *Pool {
	cpus, err := numa.Affinity()
	if err != nil {
		cpus = numa.Set{0}
	}
	plan := &numa.Plan{}
	for i := range threads {
		plan.Workers = append(plan.Workers, numa.Worker{CPUs: numa.Set{cpus[i%len(cpus)]}})
	}
	return NewPlaced(plan)
}

func each(t *testing.T, test func(t *testing.T, open func(threads int) *Pool)) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

func TestRunVisitsEachIndexOnce(t *testing.T) { each(t, testRunVisitsEachIndexOnce) }

func testRunVisitsEachIndexOnce(t *testing.T, open func(threads int) *Pool) {
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			p := open(threads)
			defer p.Close()
			require.Equal(t, threads, p.Threads())
			for _, n := range []int{0, 1, 2, 7, 100, 1000} {
				seen := make([]atomic.Int32, n)
				busy := make([]atomic.Int32, threads)
				p.Run(n, func(worker, i int) {
					if busy[worker].Add(1) != 1 {
						panic("one worker number used twice at a time")
					}
					seen[i].Add(1)
					busy[worker].Add(-1)
				})
				for i := range seen {
					require.EqualValues(t, 1, seen[i].Load(), "index %d of %d", i, n)
				}
			}
		})
	}
}

// Plain variables written in one step and read in the next: the race detector checks that Run
// orders them.
func TestStepsAreOrdered(t *testing.T) { each(t, testStepsAreOrdered) }

func testStepsAreOrdered(t *testing.T, open func(threads int) *Pool) {
	p := open(3)
	defer p.Close()
	const n = 64
	a, b := make([]int, n), make([]int, n)
	for step := range 500 {
		p.Run(n, func(_, i int) { a[i] = b[n-1-i] + 1 })
		p.Run(n, func(_, i int) { b[i] = a[n-1-i] })
		if step%100 == 0 {
			time.Sleep(2 * spin) // workers park
		}
	}
	for i := range b {
		require.Equal(t, 500, b[i])
	}
}

func TestCallersTakeTurns(t *testing.T) { each(t, testCallersTakeTurns) }

func testCallersTakeTurns(t *testing.T, open func(threads int) *Pool) {
	p := open(2)
	defer p.Close()
	var inside sync.WaitGroup
	for range 4 {
		inside.Go(func() {
			var sum atomic.Int64
			for range 200 {
				p.Run(10, func(_, i int) { sum.Add(int64(i)) })
			}
			if sum.Load() != 200*45 {
				t.Errorf("sum is %d", sum.Load())
			}
		})
	}
	inside.Wait()
}

func TestPanicReachesTheCaller(t *testing.T) { each(t, testPanicReachesTheCaller) }

func testPanicReachesTheCaller(t *testing.T, open func(threads int) *Pool) {
	p := open(2)
	defer p.Close()
	cause := errors.New("broken weight")
	for range 50 {
		for _, bad := range []int{0, 5, 99} {
			func() {
				defer func() {
					failure, ok := recover().(*Panic)
					require.True(t, ok)
					require.ErrorIs(t, failure, cause)
					require.Contains(t, string(failure.Stack), "testPanicReachesTheCaller")
				}()
				p.Run(100, func(_, i int) {
					if i == bad {
						panic(cause)
					}
				})
			}()
		}
	}
	var sum atomic.Int64
	p.Run(10, func(_, i int) { sum.Add(int64(i)) })
	require.EqualValues(t, 45, sum.Load(), "the pool works on after a panic")
}

// fault stands for the runtime's error on a fault of mapped memory.
type fault struct{ error }

func (fault) Addr() uintptr { return 42 }

func TestFaultIsPassedOnAsItIs(t *testing.T) { each(t, testFaultIsPassedOnAsItIs) }

func testFaultIsPassedOnAsItIs(t *testing.T, open func(threads int) *Pool) {
	p := open(2)
	defer p.Close()
	require.PanicsWithValue(t, fault{}, func() {
		p.Run(8, func(_, _ int) { panic(fault{}) })
	})
}

func TestCloseEndsTheThreads(t *testing.T) { each(t, testCloseEndsTheThreads) }

func testCloseEndsTheThreads(t *testing.T, open func(threads int) *Pool) {
	before := runtime.NumGoroutine()
	for range 20 {
		p := open(4)
		p.Run(4, func(_, _ int) {})
		p.Close()
		p.Close()
	}
	// A thread says that it ends just before it is gone.
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
	p := open(2)
	p.Close()
	require.Panics(t, func() { p.Run(3, func(_, _ int) {}) })
}

func TestRunDoesNotAllocate(t *testing.T) { each(t, testRunDoesNotAllocate) }

func testRunDoesNotAllocate(t *testing.T, open func(threads int) *Pool) {
	p := open(2)
	defer p.Close()
	var sum atomic.Int64
	fn := func(_, i int) { sum.Add(int64(i)) }
	require.Zero(t, testing.AllocsPerRun(200, func() { p.Run(16, fn) }))
}

func TestAvailable(t *testing.T) {
	require.GreaterOrEqual(t, Available(), 1)
	require.LessOrEqual(t, Available(), runtime.GOMAXPROCS(0))
}

func TestPanicText(t *testing.T) {
	require.True(t, strings.HasSuffix((&Panic{Value: "boom"}).Error(), "boom"))
	require.NotEmpty(t, (&Panic{Value: 1}).Error())
}

func BenchmarkRun(b *testing.B) {
	for name, open := range kinds {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", name, threads), func(b *testing.B) {
				p := open(threads)
				defer p.Close()
				fn := func(_, _ int) {}
				b.ReportAllocs()
				p.Do(func() {
					for b.Loop() {
						p.Run(threads, fn)
					}
				})
			})
		}
	}
}
