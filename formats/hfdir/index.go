package hfdir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/strictjson"
)

// maxIndex bounds the bytes of an index; those of the largest models have a few megabytes.
const maxIndex = 256 << 20

// index is what model.safetensors.index.json says: the file of each tensor.
type index struct {
	path  string
	names []string // tensors, in the order of the index
	shard []string // file name of each
}

// sharded reads an index and gives the paths of the shards that it names, sorted.
func sharded(path string) ([]string, *index, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxIndex {
		return nil, nil, formats.Malformed(path, "", "expected a regular file of at most %d bytes", maxIndex)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	x, err := parseIndex(data, path)
	if err != nil {
		return nil, nil, err
	}
	shards := slices.Compact(slices.Sorted(slices.Values(x.shard)))
	var missing []string
	paths := make([]string, len(shards))
	for i, name := range shards {
		paths[i] = filepath.Join(filepath.Dir(path), name)
		if _, err := os.Stat(paths[i]); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		n := len(missing)
		if n > 10 {
			missing = append(missing[:10], "…")
		}
		return nil, nil, formats.Malformed(path, "", "%d of %d shards are missing: %s", n, len(shards), strings.Join(missing, ", ")).
			WithHint("download the whole model")
	}
	return paths, x, nil
}

// parseIndex reads the JSON of an index. metadata.total_size is not looked at: it says nothing that
// the shards do not.
func parseIndex(data []byte, path string) (*index, error) {
	root, err := strictjson.Parse(data, strictjson.Options{File: path, MaxDepth: 16})
	if err != nil {
		return nil, err
	}
	m, ok := root.Get("weight_map")
	if !ok || m.Kind != strictjson.Object {
		return nil, formats.Malformed(path, "weight_map", "expected an object from tensor names to file names, found %s", m.Kind)
	}
	if len(m.Members) == 0 {
		return nil, formats.Malformed(path, "weight_map", "is empty")
	}
	x := &index{path: path}
	for _, e := range m.Members {
		name, err := e.Value.Str()
		if err != nil {
			return nil, formats.Malformed(path, e.Key, "%v", err).At(int64(e.Value.Offset))
		}
		if !plainName(name) {
			return nil, formats.Malformed(path, e.Key, "%q is not the plain name of a .safetensors file beside the index", name).At(int64(e.Value.Offset))
		}
		x.names, x.shard = append(x.names, e.Key), append(x.shard, name)
	}
	return x, nil
}

// plainName reports whether name stays within its folder.
func plainName(name string) bool {
	return strings.HasSuffix(name, ".safetensors") && !strings.ContainsAny(name, "/\\\x00") && filepath.IsLocal(name) && !strings.HasPrefix(name, ".")
}

// check holds the index against what the shards contain.
func (x *index) check(d *Dir) error {
	for i, name := range x.names {
		t, ok := d.Tensor(name)
		if !ok {
			return formats.Malformed(x.path, name, "%s does not hold this tensor", x.shard[i])
		}
		if found := filepath.Base(d.ShardPath(t)); found != x.shard[i] {
			return formats.Malformed(x.path, name, "the tensor is in %s, not in %s", found, x.shard[i])
		}
	}
	if len(x.names) == len(d.tensors) {
		return nil
	}
	known := make(map[string]bool, len(x.names))
	for _, name := range x.names {
		known[name] = true
	}
	for _, t := range d.tensors {
		if !known[t.Name] {
			return formats.Malformed(d.ShardPath(t), t.Name, "the index does not name this tensor")
		}
	}
	return nil
}
