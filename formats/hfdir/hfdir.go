// Package hfdir reads Hugging Face model directories: safetensors weights in one file or in shards,
// and the configuration and tokenizer files beside them.
package hfdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/mapped"
	"qtool/formats/safetensors"
)

// Names of the files that weights are found by.
const (
	ConfigName = "config.json"
	singleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
)

// maxSideFile bounds the files beside the weights.
const maxSideFile = 64 << 20

// Tensor is a tensor of the model and the shard that holds it.
type Tensor struct {
	safetensors.Tensor
	Shard int
}

// SideFile is a file that belongs to the model beside its weights.
type SideFile struct {
	Name string
	Path string
	Size int64
}

// Dir is an open model directory.
type Dir struct {
	path    string // of the folder
	shards  []*safetensors.File
	tensors []Tensor
	indices map[string]int
}

// Open opens the model in the folder at path, or the one whose weights file or index path names.
// All shards are opened and held against the index. Errors are formats.FileError where a file is at
// fault.
func Open(path string) (*Dir, error) {
	files, index, err := weights(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: filepath.Dir(files[0]), indices: make(map[string]int)}
	for i, file := range files {
		f, err := safetensors.Open(file)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.shards = append(d.shards, f)
		for _, t := range f.Tensors() {
			if other, ok := d.indices[t.Name]; ok {
				err := formats.Malformed(file, t.Name, "the tensor is in %s too", filepath.Base(d.shards[d.tensors[other].Shard].Path()))
				return nil, errors.Join(err, d.Close())
			}
			d.indices[t.Name] = len(d.tensors)
			d.tensors = append(d.tensors, Tensor{t, i})
		}
	}
	if index != nil {
		if err := index.check(d); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// weights finds the weight files of a model, sorted by name, and its index if it has one.
func weights(path string) ([]string, *index, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		if strings.HasSuffix(path, ".index.json") {
			return sharded(path)
		}
		return []string{path}, nil, nil
	}
	single, listed := filepath.Join(path, singleName), filepath.Join(path, IndexName)
	switch {
	case exists(single) && exists(listed):
		return nil, nil, formats.Malformed(path, "", "holds both %s and %s", singleName, IndexName).
			WithHint("remove one of them, or name the one that counts")
	case exists(single):
		return []string{single}, nil, nil
	case exists(listed):
		return sharded(listed)
	}
	return onlyWeights(path)
}

func exists(path string) bool {
	_, err := os.Lstat(path) // a dangling link counts: opening it says what is wrong
	return err == nil
}

// onlyWeights takes the one safetensors file of a folder that has none of the usual names.
func onlyWeights(path string) ([]string, *index, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, err
	}
	byExtension := make(map[string][]string)
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		byExtension[ext] = append(byExtension[ext], e.Name())
	}
	found := byExtension[".safetensors"]
	switch {
	case len(found) == 1:
		return []string{filepath.Join(path, found[0])}, nil, nil
	case len(found) > 1:
		return nil, nil, formats.Malformed(path, "", "holds %d safetensors files and no %s that says how they belong together", len(found), IndexName)
	case len(byExtension[".gguf"]) > 0:
		return nil, nil, formats.Unsupported(path, "", "the folder has no safetensors weights").
			WithHint("give the GGUF file itself: %s", filepath.Join(path, byExtension[".gguf"][0]))
	case len(byExtension[".qpk"]) > 0:
		return nil, nil, formats.Unsupported(path, "", "the folder has no safetensors weights").
			WithHint("give the packed file itself: %s", filepath.Join(path, byExtension[".qpk"][0]))
	case len(byExtension[".bin"])+len(byExtension[".pt"])+len(byExtension[".pth"]) > 0:
		return nil, nil, formats.Unsupported(path, "", "the weights are PyTorch pickles, which are not read").WithHint("save the model as safetensors")
	}
	return nil, nil, formats.Malformed(path, "", "the folder has no weights: neither %s nor %s", singleName, IndexName)
}

// Path is the folder of the model.
func (d *Dir) Path() string { return d.path }

// Paths lists the weight files.
func (d *Dir) Paths() []string {
	out := make([]string, len(d.shards))
	for i, f := range d.shards {
		out[i] = f.Path()
	}
	return out
}

// Tensors lists the tensors, shard by shard in the order of their data. The slice must not be changed.
func (d *Dir) Tensors() []Tensor { return d.tensors }

// Tensor finds a tensor by its name.
func (d *Dir) Tensor(name string) (Tensor, bool) {
	i, ok := d.indices[name]
	if !ok {
		return Tensor{}, false
	}
	return d.tensors[i], true
}

// Data gives the bytes of a tensor that d listed: see safetensors.File.Data.
func (d *Dir) Data(t Tensor) []byte { return d.shards[t.Shard].Data(t.Tensor) }

// Mapped gives the map that holds a tensor that d listed.
func (d *Dir) Mapped(t Tensor) *mapped.File { return d.shards[t.Shard].Mapped() }

// ShardPath is the file that holds a tensor that d listed.
func (d *Dir) ShardPath(t Tensor) string { return d.shards[t.Shard].Path() }

// Metadata is that of the first weight file.
func (d *Dir) Metadata() []safetensors.Pair { return d.shards[0].Metadata() }

// CheckSize reports a weight file that has changed its size since Open.
func (d *Dir) CheckSize() error {
	var errs []error
	for _, f := range d.shards {
		errs = append(errs, f.CheckSize())
	}
	return errors.Join(errs...)
}

// Close unmaps the weights.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range d.shards {
		errs = append(errs, f.Close())
	}
	d.shards = nil
	return errors.Join(errs...)
}

// Config reads config.json.
func (d *Dir) Config() ([]byte, error) {
	data, err := d.ReadFile(ConfigName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, formats.Malformed(d.path, ConfigName, "the file is missing beside the weights").
			WithHint("download the whole model, not the weights alone")
	}
	return data, err
}

// ReadFile reads a file beside the weights; a missing one matches fs.ErrNotExist.
func (d *Dir) ReadFile(name string) ([]byte, error) {
	path := filepath.Join(d.path, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, formats.Malformed(path, "", "expected a regular file")
	}
	if info.Size() > maxSideFile {
		return nil, formats.Malformed(path, "", "the file has %d bytes, at most %d are read", info.Size(), maxSideFile)
	}
	return os.ReadFile(path)
}

// SideFiles lists what belongs to the model beside its weights, sorted by name: configuration,
// tokenizer, chat template, model card and licence. Weights in other formats, texts to evaluate on
// and hidden files are left out.
func (d *Dir) SideFiles() ([]SideFile, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var out []SideFile
	for _, e := range entries {
		if !belongs(e.Name()) {
			continue
		}
		path := filepath.Join(d.path, e.Name())
		info, err := os.Stat(path) // through the links of the hub's cache
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		if info.Size() > maxSideFile {
			return nil, formats.Malformed(path, "", "the file has %d bytes, at most %d are taken along", info.Size(), maxSideFile)
		}
		out = append(out, SideFile{Name: e.Name(), Path: path, Size: info.Size()})
	}
	return out, nil
}

// belongs reports whether a file is part of a model.
func belongs(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".index.json") {
		return false
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json", ".jinja", ".model", ".tiktoken":
		return true
	}
	return slices.Contains([]string{"merges.txt", "vocab.txt", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "README.md"}, name)
}
