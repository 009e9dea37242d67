package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/ggml"
)

// raw builds GGUF files byte by byte.
type raw []byte

func (b raw) u32(v uint32) raw      { return binary.LittleEndian.AppendUint32(b, v) }
func (b raw) u64(v uint64) raw      { return binary.LittleEndian.AppendUint64(b, v) }
func (b raw) text(s string) raw     { return append(b.u64(uint64(len(s))), s...) }
func (b raw) zeros(n int) raw       { return append(b, make([]byte, n)...) }
func (b raw) pad() raw              { return b.zeros(int(alignUp(int64(len(b)), 32)) - len(b)) }
func head(tensors, keys uint64) raw { return raw("GGUF").u32(3).u64(tensors).u64(keys) }

// tensor appends the description of one.
func (b raw) tensor(name string, dims []uint64, typ uint32, offset uint64) raw {
	b = b.text(name).u32(uint32(len(dims)))
	for _, d := range dims {
		b = b.u64(d)
	}
	return b.u32(typ).u64(offset)
}

// key appends a key of type u32.
func (b raw) key(name string, v uint32) raw { return b.text(name).u32(uint32(TypeU32)).u32(v) }

var f32x4 = []uint64{4}

// bad lists files that must be refused, with a part of what the error must say.
var bad = []struct {
	name string
	data raw
	want string
	kind error
}{
	{"empty", nil, "empty", formats.ErrMalformed},
	{"magic alone", raw("GGUF"), "ends", formats.ErrMalformed},
	{"other magic", raw("GGUX").zeros(20), "not a GGUF file", formats.ErrMalformed},
	{"old format", raw("tjgg").zeros(20), "older than GGUF", formats.ErrMalformed},
	{"Git LFS pointer", raw("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull", formats.ErrMalformed},
	{"web page", raw("<html><body>"), "web page", formats.ErrMalformed},
	{"zip", raw("PK\x03\x04").zeros(20), "PyTorch", formats.ErrMalformed},
	{"version 0", raw("GGUF").u32(0).zeros(16), "version 0", formats.ErrMalformed},
	{"version 1", raw("GGUF").u32(1).zeros(16), "version 1", formats.ErrUnsupported},
	{"version 4", raw("GGUF").u32(4).zeros(16), "version 4", formats.ErrUnsupported},
	{"big-endian", raw("GGUF\x00\x00\x00\x03").zeros(16), "big-endian", formats.ErrUnsupported},
	{"2^48 tensors", head(1<<48, 0), "cannot fit", formats.ErrMalformed},
	{"2^64-1 tensors", head(math.MaxUint64, 0), "cannot fit", formats.ErrMalformed},
	{"2^48 keys", head(0, 1<<48), "keys", formats.ErrMalformed},
	{"2^64-1 keys", head(0, math.MaxUint64), "keys", formats.ErrMalformed},
	{"key of 2^63 bytes", head(0, 1).u64(1 << 63).zeros(20), "key", formats.ErrMalformed},
	{"key without a name", head(0, 1).text("").u32(0).zeros(20), "name", formats.ErrMalformed},
	{"key with NUL", head(0, 1).text("a\x00").u32(0).zeros(20), "name", formats.ErrMalformed},
	{"key with bad UTF-8", head(0, 1).text("a\xff").u32(0).zeros(20), "name", formats.ErrMalformed},
	{"key twice", head(0, 2).key("a", 1).key("a", 1), "second", formats.ErrMalformed},
	{"unknown value type", head(0, 1).text("a").u32(13).zeros(20), "value type", formats.ErrMalformed},
	{"string of 2^48 bytes", head(0, 1).text("a").u32(uint32(TypeString)).u64(1 << 48).zeros(20), "bytes", formats.ErrMalformed},
	{"string of 2^64-1 bytes", head(0, 1).text("a").u32(uint32(TypeString)).u64(math.MaxUint64).zeros(20), "bytes", formats.ErrMalformed},
	{"array of 2^48", head(0, 1).text("a").u32(uint32(TypeArray)).u32(uint32(TypeU8)).u64(1 << 48).zeros(20), "", formats.ErrMalformed},
	{"array of 2^64-1 strings", head(0, 1).text("a").u32(uint32(TypeArray)).u32(uint32(TypeString)).u64(math.MaxUint64).zeros(20), "", formats.ErrMalformed},
	{"array of 2^61 doubles", head(0, 1).text("a").u32(uint32(TypeArray)).u32(uint32(TypeF64)).u64(1 << 61).zeros(20), "", formats.ErrMalformed},
	{"arrays 100,000 deep", deep(100_000), "nested", formats.ErrMalformed},
	{"bool of 2", head(0, 1).text("a").u32(uint32(TypeBool)).zeros(0).byte(2).zeros(20), "", formats.ErrMalformed},
	{"alignment 0", head(0, 1).key("general.alignment", 0), "power of two", formats.ErrMalformed},
	{"alignment 13", head(0, 1).key("general.alignment", 13), "power of two", formats.ErrMalformed},
	{"alignment 2^31", head(0, 1).key("general.alignment", 1<<31), "power of two", formats.ErrMalformed},
	{"alignment twice", head(0, 2).key("general.alignment", 32).key("general.alignment", 64), "second", formats.ErrMalformed},
	{"alignment as text", head(0, 1).text("general.alignment").u32(uint32(TypeString)).text("32"), "power of two", formats.ErrMalformed},
	{"no dimensions", head(1, 0).tensor("t", nil, 0, 0).zeros(64), "0 dimensions", formats.ErrMalformed},
	{"five dimensions", head(1, 0).tensor("t", []uint64{1, 1, 1, 1, 1}, 0, 0).zeros(64), "5 dimensions", formats.ErrMalformed},
	{"2^32-1 dimensions", head(1, 0).text("t").u32(math.MaxUint32).zeros(64), "dimensions", formats.ErrMalformed},
	{"dimension of 2^63", head(1, 0).tensor("t", []uint64{1 << 63}, 0, 0).zeros(64), "elements", formats.ErrMalformed},
	{"product overflows", head(1, 0).tensor("t", []uint64{1 << 40, 1 << 40}, 0, 0).zeros(64), "elements", formats.ErrMalformed},
	{"product overflows to 0", head(1, 0).tensor("t", []uint64{1 << 32, 1 << 32}, 0, 0).zeros(64), "elements", formats.ErrMalformed},
	{"tensor past the end", head(1, 0).tensor("t", []uint64{1000}, 0, 0).pad().zeros(32), "past the end", formats.ErrMalformed},
	{"offset 2^63", head(1, 0).tensor("t", f32x4, 0, 1<<63).pad().zeros(32), "offset", formats.ErrMalformed},
	{"offset 2^62", head(1, 0).tensor("t", f32x4, 0, 1<<62).pad().zeros(32), "past the end", formats.ErrMalformed},
	{"offset not aligned", head(1, 0).tensor("t", f32x4, 0, 4).pad().zeros(64), "alignment", formats.ErrMalformed},
	{"overlap", head(2, 0).tensor("t", []uint64{16}, 0, 0).tensor("u", f32x4, 0, 32).pad().zeros(64), "overlaps", formats.ErrMalformed},
	{"tensor twice", head(2, 0).tensor("t", f32x4, 0, 0).tensor("t", f32x4, 0, 32).pad().zeros(64), "twice", formats.ErrMalformed},
	{"unknown type", head(1, 0).tensor("t", f32x4, 99, 0).pad().zeros(32), "99", formats.ErrUnsupported},
	{"removed type", head(1, 0).tensor("t", f32x4, 4, 0).pad().zeros(32), "removed", formats.ErrUnsupported},
	{"half a block", head(1, 0).tensor("t", []uint64{33}, uint32(ggml.Q4_0), 0).pad().zeros(64), "blocks hold 32", formats.ErrMalformed},
	{"half a large block", head(1, 0).tensor("t", []uint64{384, 2}, uint32(ggml.IQ4_KS), 0).pad().zeros(640), "blocks hold 256", formats.ErrMalformed},
	{"rows without their heads", head(1, 0).tensor("t", []uint64{256, 8}, uint32(ggml.IQ4_KS), 0).pad().zeros(8 * 136), "data of 1120 bytes", formats.ErrMalformed},
	{"name too long", head(1, 0).tensor(strings.Repeat("n", 300), f32x4, 0, 0).pad().zeros(32), "name", formats.ErrMalformed},
}

func (b raw) byte(v byte) raw { return append(b, v) }

// deep nests arrays of one element.
func deep(n int) raw {
	b := head(0, 1).text("a").u32(uint32(TypeArray))
	for range n {
		b = b.u32(uint32(TypeArray)).u64(1)
	}
	return b.u32(uint32(TypeU8)).u64(0)
}

// TestRefuses checks errors, and that a refusal takes neither time nor memory, whatever the file claims.
func TestRefuses(t *testing.T) {
	for _, c := range bad {
		path := filepath.Join(t.TempDir(), "bad.gguf")
		require.NoError(t, os.WriteFile(path, c.data, 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := Open(path)
		require.Less(t, time.Since(start), time.Second, c.name)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10), c.name)
		require.ErrorIs(t, err, c.kind, c.name)
		require.ErrorContains(t, err, c.want, c.name)
		require.ErrorContains(t, err, path, c.name)
	}
}

func TestCutAtEveryByte(t *testing.T) {
	m := &Metadata{}
	m.Set("a", String("text"))
	m.Set("b", Strings([]string{"x", "yz"}))
	l, err := Plan(m, []TensorInfo{{Name: "t", Shape: []int{2, 32}, Type: ggml.Q4_0}, {Name: "u", Shape: []int{8}, Type: ggml.F32}})
	require.NoError(t, err)
	data := append(raw(nil), l.Header...).zeros(int(l.Size) - len(l.Header))
	_, err = parse(data, "whole")
	require.NoError(t, err)
	for n := range data {
		_, err := parse(data[:n], "short")
		require.Error(t, err, "%d of %d bytes", n, len(data))
	}
	zero, err := parse(head(1, 0).tensor("none", []uint64{0, 3}, 0, 0).pad(), "empty tensor")
	require.NoError(t, err)
	require.Equal(t, []int{3, 0}, zero.tensors[0].Shape)
}

// shard writes shard i of n with one tensor.
func shard(t *testing.T, dir string, i, n int, change func(m *Metadata), tensor string) string {
	t.Helper()
	m := &Metadata{}
	m.Set("general.architecture", String("llama"))
	m.Set(keySplitNo, Uint16(uint16(i)))
	m.Set(keySplitCount, Uint16(uint16(n)))
	m.Set(keySplitTensors, Int32(int32(n)))
	if change != nil {
		change(m)
	}
	l, err := Plan(m, []TensorInfo{{Name: tensor, Shape: []int{8}, Type: ggml.F32}})
	require.NoError(t, err)
	path := filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, n))
	require.NoError(t, os.WriteFile(path, append(raw(nil), l.Header...).zeros(int(l.Size)-len(l.Header)), 0o600))
	return path
}

func TestSplit(t *testing.T) {
	dir := t.TempDir()
	first, second := shard(t, dir, 0, 2, nil, "a"), shard(t, dir, 1, 2, nil, "b")
	for _, path := range []string{first, second} {
		f, err := Open(path)
		require.NoError(t, err)
		require.Len(t, f.Tensors(), 2)
		require.Equal(t, []string{first, second}, f.Paths())
		require.False(t, f.Metadata().Has(keySplitCount))
		require.NoError(t, f.Close())
	}
	for name, c := range map[string]struct {
		make func(dir string) string
		want string
	}{
		"missing": {func(dir string) string { return shard(t, dir, 0, 3, nil, "a") }, "m-00002-of-00003.gguf, m-00003-of-00003.gguf"},
		"one byte short": {func(dir string) string {
			path := shard(t, dir, 1, 2, nil, "b")
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, info.Size()-1))
			return shard(t, dir, 0, 2, nil, "a")
		}, "m-00002-of-00002.gguf"},
		"other count": {func(dir string) string {
			shard(t, dir, 1, 2, func(m *Metadata) { m.Set(keySplitCount, Uint16(3)) }, "b")
			return shard(t, dir, 0, 2, nil, "a")
		}, "expected 2, found 3"},
		"other number": {func(dir string) string {
			shard(t, dir, 1, 2, func(m *Metadata) { m.Set(keySplitNo, Uint16(0)) }, "b")
			return shard(t, dir, 0, 2, nil, "a")
		}, "expected 1, found 0"},
		"tensor twice": {func(dir string) string { shard(t, dir, 1, 2, nil, "a"); return shard(t, dir, 0, 2, nil, "a") }, "in shard 1 too"},
		"tensors missing": {func(dir string) string {
			shard(t, dir, 1, 2, nil, "b")
			return shard(t, dir, 0, 2, func(m *Metadata) { m.Set(keySplitTensors, Int32(5)) }, "a")
		}, "hold 2 tensors, expected 5"},
		"renamed": {func(dir string) string {
			path := shard(t, dir, 0, 2, nil, "a")
			require.NoError(t, os.Rename(path, filepath.Join(dir, "x.gguf")))
			return filepath.Join(dir, "x.gguf")
		}, "must be named"},
	} {
		_, err := Open(c.make(t.TempDir()))
		require.ErrorIs(t, err, formats.ErrMalformed, name)
		require.ErrorContains(t, err, c.want, name)
	}
}

// FuzzParse: no input makes it panic or take much memory, and what it accepts lies within the file.
func FuzzParse(f *testing.F) {
	for _, c := range bad {
		if len(c.data) < 10_000 {
			f.Add([]byte(c.data))
		}
	}
	f.Add([]byte(head(1, 1).key("general.alignment", 32).tensor("t", f32x4, 0, 0).pad().zeros(32)))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parse(data, "f")
		if err != nil {
			require.True(t, errors.Is(err, formats.ErrMalformed) || errors.Is(err, formats.ErrUnsupported), "%v", err)
			return
		}
		for _, x := range h.tensors {
			require.LessOrEqual(t, x.Offset+x.Size, int64(len(data)))
		}
		text, err := h.metadata.MarshalTyped()
		require.NoError(t, err)
		back, err := ParseTyped(text, "f")
		require.NoError(t, err)
		require.True(t, h.metadata.Equal(back))
	})
}
