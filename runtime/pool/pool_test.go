package pool

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunVisitsEachIndexOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			p := New(threads)
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
func TestStepsAreOrdered(t *testing.T) {
	p := New(3)
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

func TestCallersTakeTurns(t *testing.T) {
	p := New(2)
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

func TestPanicReachesTheCaller(t *testing.T) {
	p := New(2)
	defer p.Close()
	cause := errors.New("broken weight")
	for range 50 {
		for _, bad := range []int{0, 5, 99} {
			func() {
				defer func() {
					failure, ok := recover().(*Panic)
					require.True(t, ok)
					require.ErrorIs(t, failure, cause)
					require.Contains(t, string(failure.Stack), "TestPanicReachesTheCaller")
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

func TestFaultIsPassedOnAsItIs(t *testing.T) {
	p := New(2)
	defer p.Close()
	require.PanicsWithValue(t, fault{}, func() {
		p.Run(8, func(_, _ int) { panic(fault{}) })
	})
}

func TestCloseEndsTheThreads(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		p := New(4)
		p.Run(4, func(_, _ int) {})
		p.Close()
		p.Close()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
	p := New(2)
	p.Close()
	require.Panics(t, func() { p.Run(3, func(_, _ int) {}) })
}

func TestRunDoesNotAllocate(t *testing.T) {
	p := New(2)
	defer p.Close()
	var sum atomic.Int64
	fn := func(_, i int) { sum.Add(int64(i)) }
	require.Zero(t, testing.AllocsPerRun(200, func() { p.Run(16, fn) }))
}

func TestQuota(t *testing.T) {
	cases := []struct {
		name  string
		files map[string]string
		want  float64
		ok    bool
	}{
		{"no cgroup", nil, 0, false},
		{"v2 limit", map[string]string{"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 1.5, true},
		{"v2 none", map[string]string{"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "max 100000\n"}, 0, false},
		{"v2 of a parent", map[string]string{
			"proc/self/cgroup":              "0::/a/b/c\n",
			"sys/fs/cgroup/a/cpu.max":       "200000 100000\n",
			"sys/fs/cgroup/a/b/cpu.max":     "max 100000\n",
			"sys/fs/cgroup/a/b/c/cpu.max":   "400000 100000\n",
			"sys/fs/cgroup/other/d/cpu.max": "1000 100000\n",
		}, 2, true},
		{"v2 path of the host", map[string]string{"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3, true},
		{"v1 limit", map[string]string{
			"proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/x\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us":  "50000\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
		}, 0.5, true},
		{"v1 none", map[string]string{
			"proc/self/cgroup":                    "1:cpu:/\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":  "-1\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, 0, false},
		{"nonsense", map[string]string{"proc/self/cgroup": "0::/../..\nrubbish\n", "sys/fs/cgroup/cpu.max": "x y z\n"}, 0, false},
		{"path above the mount", map[string]string{"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1, true},
		{"zero period", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100 0\n"}, 0, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for name, text := range c.files {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, ok := quota(tree)
			require.Equal(t, c.ok, ok)
			if ok {
				require.InDelta(t, c.want, got, 1e-12)
			}
		})
	}
	require.GreaterOrEqual(t, Available(), 1)
}

func TestPanicText(t *testing.T) {
	require.True(t, strings.HasSuffix((&Panic{Value: "boom"}).Error(), "boom"))
	require.NotEmpty(t, (&Panic{Value: 1}).Error())
}

func BenchmarkRun(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := New(threads)
			defer p.Close()
			fn := func(_, _ int) {}
			b.ReportAllocs()
			for b.Loop() {
				p.Run(threads, fn)
			}
		})
	}
}
