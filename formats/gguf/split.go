package gguf

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"qtool/formats"
	"qtool/formats/mapped"
)

// Keys of the files of a split model, as llama.cpp's gguf-split writes them.
const (
	keySplitNo      = "split.no"
	keySplitCount   = "split.count"
	keySplitTensors = "split.tensors.count"
)

// shardName matches the name that gguf-split gives to shard 1 ≤ i ≤ n of n.
var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// split says which shard of how many a file is: shard no (from 0) of count, whose names start
// with prefix. A count below two is a whole model.
type split struct {
	prefix    string
	no, count int
	tensors   int // of the whole model, -1 where the file does not say
}

// path is the path of shard i, from 0.
func (s split) path(i int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", s.prefix, i+1, s.count)
}

// splitOf reads the split keys of a file and holds them against its name.
func splitOf(m *Metadata, path string) (split, error) {
	s := split{tensors: -1}
	name := shardName.FindStringSubmatch(filepath.Base(path))
	if !m.Has(keySplitCount) {
		if name != nil && name[3] != "00001" {
			return s, formats.Malformed(path, keySplitCount, "the file is named as a shard of %s but lacks this key", name[3]).
				WithHint("if it is a whole model, give it another name")
		}
		return s, nil
	}
	var err error
	if s.count, err = splitNumber(m, keySplitCount, 0, 99999); err != nil || s.count < 2 {
		return s, err
	}
	if s.no, err = splitNumber(m, keySplitNo, 0, s.count-1); err != nil {
		return s, err
	}
	if m.Has(keySplitTensors) {
		if s.tensors, err = splitNumber(m, keySplitTensors, 0, maxItems); err != nil {
			return s, err
		}
	}
	if name != nil {
		s.prefix = filepath.Join(filepath.Dir(path), name[1])
	}
	if name == nil || name[2] != fmt.Sprintf("%05d", s.no+1) || name[3] != fmt.Sprintf("%05d", s.count) {
		return s, formats.Malformed(path, keySplitNo, "shard %d of %d must be named NAME-%05d-of-%05d.gguf", s.no+1, s.count, s.no+1, s.count).
			WithHint("give the shards their names back; the others are found by them")
	}
	return s, nil
}

// splitNumber reads an integer from low to high.
func splitNumber(m *Metadata, key string, low, high int) (int, error) {
	n, err := m.Int(key)
	if err != nil {
		return 0, err
	}
	if n < int64(low) || n > int64(high) {
		return 0, formats.Malformed(m.file, key, "expected %d to %d, found %d", low, high, n)
	}
	return int(n), nil
}

// openSplit opens all shards of the model of which f has opened one, whose header is given. It
// returns the header of the whole: the first shard's metadata without the split keys, the
// tensors of all. Missing shards are listed together. On an error f holds what was opened.
func (f *File) openSplit(s split, opened *header) (*header, error) {
	var missing []string
	for i := range s.count {
		if _, err := os.Stat(s.path(i)); os.IsNotExist(err) {
			missing = append(missing, filepath.Base(s.path(i)))
		}
	}
	if len(missing) > 0 {
		return nil, formats.Malformed(f.path, "", "%d of %d shards are missing: %s", len(missing), s.count, list(missing)).
			WithHint("put all shards into one folder")
	}
	shards := make([]*mapped.File, s.count) // those not yet opened stay nil
	shards[s.no] = f.shards[0]
	f.shards = shards
	whole := &header{}
	seen := make(map[string]int)
	for i := range shards {
		h := opened
		if i != s.no {
			var err error
			if shards[i], h, err = openShard(s.path(i)); err != nil {
				return nil, err
			}
		}
		if err := addShard(whole, h, i, s, seen); err != nil {
			return nil, err
		}
		if i == 0 {
			f.version, f.alignment = h.version, h.alignment
		}
	}
	if s.tensors >= 0 && s.tensors != len(whole.tensors) {
		return nil, formats.Malformed(f.path, keySplitTensors, "the shards hold %d tensors, expected %d", len(whole.tensors), s.tensors)
	}
	return whole, nil
}

// addShard adds shard i to the whole model after checking that it belongs there.
func addShard(whole, h *header, i int, s split, seen map[string]int) error {
	file := s.path(i)
	for _, want := range []struct {
		key string
		n   int
	}{{keySplitNo, i}, {keySplitCount, s.count}} {
		n, err := h.metadata.Int(want.key)
		if err != nil {
			return err
		}
		if n != int64(want.n) {
			return formats.Malformed(file, want.key, "expected %d, found %d", want.n, n)
		}
	}
	for _, t := range h.tensors {
		if other, ok := seen[t.Name]; ok {
			return formats.Malformed(file, t.Name, "the tensor is in shard %d too", other+1)
		}
		seen[t.Name] = i
		t.Shard = i
		whole.tensors = append(whole.tensors, t)
	}
	if i == 0 {
		whole.metadata = h.metadata.Clone()
		for _, key := range []string{keySplitNo, keySplitCount, keySplitTensors} {
			whole.metadata.Remove(key)
		}
	}
	return nil
}

// list joins names, at most ten of them.
func list(names []string) string {
	if len(names) > 10 {
		return strings.Join(names[:10], ", ") + " and " + strconv.Itoa(len(names)-10) + " more"
	}
	return strings.Join(names, ", ")
}
