package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"qtool/formats"
	"qtool/formats/atomicfile"
	"qtool/formats/checkpoint"
	"qtool/formats/hfdir"
	"qtool/formats/safetensors"
)

// defaultShard is the size of weight files that the transformers library writes by default.
const defaultShard = 5_000_000_000

// directory writes a Hugging Face directory: under another name first, then in its place.
func (x *export) directory(ctx context.Context) (err error) {
	out := filepath.Clean(x.options.Output)
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is a folder that is not empty; name a new one", out)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	files, warnings, err := Files(x.model)
	if err != nil {
		return err
	}
	x.result.Warnings = append(x.result.Warnings, warnings...)
	unfinished, err := atomicfile.CreateDir(out, 0o755)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			unfinished.Abort()
		}
	}()
	dir := unfinished.Name()
	if err := x.shards(ctx, dir); err != nil {
		return err
	}
	for _, f := range files {
		if f.Name == checkpoint.Annotations {
			continue // in the metadata of the weights again
		}
		if strings.ContainsAny(f.Name, "/\\\x00") || !filepath.IsLocal(f.Name) {
			return formats.Malformed(x.model.Path(), f.Name, "is not the plain name of a file")
		}
		if err := atomicfile.Write(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			return err
		}
		x.result.Bytes += int64(len(f.Data))
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty folder
		return err
	}
	return unfinished.Commit()
}

// shards writes the weights, in as many files as their size asks for, and the index of these.
func (x *export) shards(ctx context.Context, dir string) error {
	limit := x.options.MaxShard
	if limit <= 0 {
		limit = defaultShard
	}
	var shards [][]item
	var types [][]formats.DType
	var size, total int64
	for _, t := range x.model.Tensors() {
		d := x.plainType(t)
		it, err := plain(t, d, x.options.Clamp)
		if err != nil {
			return err
		}
		if len(shards) == 0 || size > 0 && size+it.size > limit {
			shards, types, size = append(shards, nil), append(types, nil), 0
		}
		n := len(shards) - 1
		shards[n], types[n] = append(shards[n], it), append(types[n], d)
		size += it.size
		total += it.size
	}
	where := make(map[string]string)
	for i, items := range shards {
		name := "model.safetensors"
		if len(shards) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		for _, it := range items {
			where[it.tensor.Name] = name
		}
		if err := x.shard(ctx, filepath.Join(dir, name), items, types[i]); err != nil {
			return err
		}
		x.result.Files = append(x.result.Files, filepath.Join(x.options.Output, name))
	}
	if len(shards) == 1 {
		return nil
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": where}, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, hfdir.IndexName), append(index, '\n'), 0o644)
}

// plainType is the type that a tensor gets in a safetensors file.
func (x *export) plainType(t *checkpoint.Tensor) formats.DType {
	if d := plainTypes[x.options.Type]; d != "" {
		return d
	}
	if d, ok := t.DType(); ok {
		return d
	}
	x.result.Changed++
	return formats.F32
}

// shard writes one weight file.
func (x *export) shard(ctx context.Context, path string, items []item, types []formats.DType) error {
	tensors := make([]safetensors.Tensor, len(items))
	for i, it := range items {
		tensors[i] = safetensors.Tensor{Name: it.tensor.Name, DType: types[i], Shape: it.tensor.Shape}
	}
	// The transformers library refuses files that do not say what wrote them.
	annotations, err := x.model.Annotations()
	if err != nil {
		return err
	}
	metadata := append([]safetensors.Pair{{Key: "format", Value: "pt"}}, annotations...)
	l, err := safetensors.Plan(tensors, safetensors.LayoutOptions{Metadata: metadata})
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path, 0o644)
	if err != nil {
		return err
	}
	for i := range items {
		items[i].offset = l.Tensors[i].Offset
	}
	if _, err = f.WriteAt(l.Header, 0); err == nil {
		err = x.stream(ctx, f, items)
	}
	if err != nil {
		f.Abort()
		return err
	}
	x.result.Bytes += l.Size
	return f.Commit()
}
