package numa

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onThread runs fn on a thread that ends afterwards.
func onThread(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
}

func TestPinAndBack(t *testing.T) {
	before, err := Affinity()
	require.NoError(t, err)
	require.NotEmpty(t, before)
	var results [3]Set
	var errs [5]error
	onThread(func() {
		var was Set
		was, errs[0] = Pin(Set{before[0]})
		results[0], errs[1] = Affinity()
		_, errs[2] = Pin(was)
		results[1], errs[3] = Affinity()
		results[2] = was
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, Set{before[0]}, results[0])
	require.Equal(t, before, results[1])
	require.Equal(t, before, results[2])
	after, err := Affinity()
	require.NoError(t, err)
	require.Equal(t, before, after, "other threads keep their mask")
}

func TestPinRefused(t *testing.T) {
	before, err := Affinity()
	require.NoError(t, err)
	onThread(func() {
		for _, cpus := range []Set{{}, {MaxID}} {
			_, err := Pin(cpus)
			var refused *Refused
			if !errors.As(err, &refused) || refused.Call != "sched_setaffinity" {
				t.Errorf("%v: %v", cpus, err)
			}
		}
		if now, err := Affinity(); err != nil || now.String() != before.String() {
			t.Errorf("a refused Pin left the mask %v, was %v", now, before)
		}
	})
}

func TestMemoryPolicies(t *testing.T) {
	data, err := unix.Mmap(-1, 0, 16<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(data)) }()
	m, err := Local()
	require.NoError(t, err)
	nodes := Set{m.Nodes[0].ID}
	// A sandbox may refuse; then it has to be a Refused, and the memory works all the same.
	accept := func(err error) {
		var refused *Refused
		if err != nil && (!errors.As(err, &refused) || !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS)) {
			t.Errorf("%v", err)
		}
	}
	for _, policy := range []Policy{PolicyBind, PolicyPreferred, PolicyInterleave} {
		accept(BindMemory(data, policy, nodes))
	}
	accept(BindMemory(data, PolicyDefault, nil))
	for i := range data {
		data[i] = byte(i)
	}
	require.NoError(t, BindMemory(nil, PolicyBind, nodes))
	require.ErrorIs(t, BindMemory(data[1:4097], PolicyBind, nodes), unix.EINVAL, "not at a page")
	require.ErrorIs(t, BindMemory(data[:100], PolicyBind, nodes), unix.EINVAL, "not whole pages")
	for _, bad := range []Set{{}, {m.Nodes[len(m.Nodes)-1].ID + 500}} {
		var refused *Refused
		require.ErrorAs(t, BindMemory(data, PolicyBind, bad), &refused)
		require.Equal(t, "mbind", refused.Call)
	}
	onThread(func() {
		accept(SetMemoryPolicy(PolicyPreferred, nodes))
		accept(SetMemoryPolicy(PolicyDefault, nil))
		var refused *Refused
		if !errors.As(SetMemoryPolicy(PolicyBind, nil), &refused) || refused.Call != "set_mempolicy" {
			t.Errorf("%v", refused)
		}
	})
}

func TestNodeMask(t *testing.T) {
	mask, bits := nodeMask(Set{0, 2, 65})
	require.EqualValues(t, 5, *mask)
	require.EqualValues(t, 129, bits)
	mask, bits = nodeMask(nil)
	require.Nil(t, mask)
	require.Zero(t, bits)
}

func TestRetry(t *testing.T) {
	calls := 0
	require.ErrorIs(t, retry(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EPERM
	}), unix.EPERM)
	require.Equal(t, 3, calls)
}

func TestLocal(t *testing.T) {
	m, err := Local()
	require.NoError(t, err)
	require.NotEmpty(t, m.Allowed())
	p, err := m.Plan(Options{NUMA: Selection{Auto: true}})
	require.NoError(t, err)
	require.NotEmpty(t, p.Workers)
}
