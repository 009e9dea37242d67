package hfdir

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats"
	"qtool/formats/safetensors"
)

// weightsFile writes a file with tensors of two bytes each.
func weightsFile(t *testing.T, path string, names ...string) {
	t.Helper()
	var tensors []safetensors.Tensor
	for _, n := range names {
		tensors = append(tensors, safetensors.Tensor{Name: n, DType: formats.U8, Shape: []int{2}})
	}
	l, err := safetensors.Plan(tensors, safetensors.LayoutOptions{})
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(path, l, func(_ int, w io.Writer) error {
		_, err := w.Write([]byte{1, 2})
		return err
	}))
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

// sharded makes a folder with tensors a, b in shard 1, c in shard 2, and an index.
func shardedDir(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	weightsFile(t, filepath.Join(dir, "m-1.safetensors"), "a", "b")
	weightsFile(t, filepath.Join(dir, "m-2.safetensors"), "c")
	write(t, dir, IndexName, index)
	write(t, dir, ConfigName, "{}")
	return dir
}

const goodIndex = `{"metadata":{"total_size":99},"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}`

func TestSharded(t *testing.T) {
	dir := shardedDir(t, goodIndex)
	for _, path := range []string{dir, filepath.Join(dir, IndexName)} {
		d, err := Open(path)
		require.NoError(t, err)
		require.Len(t, d.Tensors(), 3)
		c, ok := d.Tensor("c")
		require.True(t, ok)
		require.Equal(t, filepath.Join(dir, "m-2.safetensors"), d.ShardPath(c))
		require.Equal(t, []byte{1, 2}, d.Data(c))
		require.NoError(t, d.CheckSize())
		require.NoError(t, d.Close())
	}
}

// badIndices are what an index must not say, with a part of the error.
var badIndices = map[string]string{
	``:                          "ends",
	`[]`:                        "object",
	`{"weight_map":{}}`:         "empty",
	`{"weight_map":[]}`:         "object",
	`{"Weight_Map":{}}`:         "object",
	`{"weight_map":{"a":1}}`:    "string",
	`{"weight_map":{"a":null}}`: "string",
	`{"weight_map":{"a":"../m-1.safetensors"}}`:                                          "plain name",
	`{"weight_map":{"a":"/etc/m-1.safetensors"}}`:                                        "plain name",
	`{"weight_map":{"a":"sub/m-1.safetensors"}}`:                                         "plain name",
	`{"weight_map":{"a":"..\\m-1.safetensors"}}`:                                         "plain name",
	`{"weight_map":{"a":"m\u0000.safetensors"}}`:                                         "plain name",
	`{"weight_map":{"a":""}}`:                                                            "plain name",
	`{"weight_map":{"a":"m.bin"}}`:                                                       "plain name",
	`{"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}}`:                       "twice",
	`{"weight_map":{"a":"m-1.safetensors"},"weight_map":{}}`:                             "twice",
	`{"weight_map":{"a":"m-3.safetensors","b":"m-4.safetensors"}}`:                       "2 of 2 shards are missing: m-3.safetensors, m-4.safetensors",
	`{"weight_map":{"a":"m-1.safetensors","b":"m-3.safetensors"}}`:                       "1 of 2 shards are missing: m-3.safetensors",
	`{"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-1.safetensors"}}`: "does not hold",
	`{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"}}`: "is in m-1.safetensors, not in m-2.safetensors",
	`{"weight_map":{"a":"m-1.safetensors","c":"m-2.safetensors"}}`:                       "does not name",
}

func TestBadIndex(t *testing.T) {
	for index, want := range badIndices {
		_, err := Open(shardedDir(t, index))
		require.ErrorIs(t, err, formats.ErrMalformed, index)
		require.ErrorContains(t, err, want, index)
	}
}

func TestBadFolders(t *testing.T) {
	for name, c := range map[string]struct {
		fill func(dir string)
		want string
		kind error
	}{
		"one byte short": {func(dir string) {
			weightsFile(t, filepath.Join(dir, "m-1.safetensors"), "a", "b")
			weightsFile(t, filepath.Join(dir, "m-2.safetensors"), "c")
			write(t, dir, IndexName, goodIndex)
			data, err := os.ReadFile(filepath.Join(dir, "m-2.safetensors"))
			require.NoError(t, err)
			write(t, dir, "m-2.safetensors", string(data[:len(data)-1]))
		}, "m-2.safetensors", formats.ErrMalformed},
		"twice": {func(dir string) {
			weightsFile(t, filepath.Join(dir, "m-1.safetensors"), "a", "b", "c")
			weightsFile(t, filepath.Join(dir, "m-2.safetensors"), "c")
			write(t, dir, IndexName, goodIndex)
		}, "is in m-1.safetensors too", formats.ErrMalformed},
		"both": {func(dir string) {
			weightsFile(t, filepath.Join(dir, "model.safetensors"), "a")
			write(t, dir, IndexName, goodIndex)
		}, "both", formats.ErrMalformed},
		"pickles": {func(dir string) { write(t, dir, "pytorch_model.bin", "x") }, "pickles", formats.ErrUnsupported},
		"gguf":    {func(dir string) { write(t, dir, "m.gguf", "x") }, "m.gguf", formats.ErrUnsupported},
		"qpk":     {func(dir string) { write(t, dir, "m.qpk", "x") }, "m.qpk", formats.ErrUnsupported},
		"nothing": {func(string) {}, "no weights", formats.ErrMalformed},
		"two":     {func(dir string) { write(t, dir, "x.safetensors", ""); write(t, dir, "y.safetensors", "") }, "2 safetensors files", formats.ErrMalformed},
		"pointer": {func(dir string) { write(t, dir, "model.safetensors", "version https://git-lfs.github.com/spec/v1\n") }, "Git LFS", formats.ErrMalformed},
	} {
		dir := t.TempDir()
		c.fill(dir)
		_, err := Open(dir)
		require.ErrorIs(t, err, c.kind, name)
		require.ErrorContains(t, err, c.want, name)
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "model.safetensors")))
	_, err := Open(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestSideFiles(t *testing.T) {
	dir := t.TempDir()
	weightsFile(t, filepath.Join(dir, "model.safetensors"), "a")
	for _, name := range []string{"config.json", "tokenizer.model", "chat_template.jinja", "merges.txt", "README.md", "eval.txt", ".hidden.json", "x.bin", "model.safetensors.index.json.bak", "notes.txt"} {
		write(t, dir, name, "{}")
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub.json"), 0o755))
	d, err := Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	files, err := d.SideFiles()
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"README.md", "chat_template.jinja", "config.json", "merges.txt", "tokenizer.model"}, names)
	_, err = d.ReadFile("absent.json")
	require.ErrorIs(t, err, fs.ErrNotExist)
	lone, err := Open(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	_, err = lone.Config()
	require.NoError(t, err)
	require.NoError(t, lone.Close())
}

// TestResolve finds models by path, in a folder of models, and in a cache of the hub with its links.
func TestResolve(t *testing.T) {
	models, home := t.TempDir(), t.TempDir()
	t.Setenv(EnvModels, models+string(os.PathListSeparator)+filepath.Join(models, "more"))
	for _, key := range []string{"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(key, "")
	}
	t.Setenv("HOME", home)
	require.NoError(t, os.MkdirAll(filepath.Join(models, "more", "tiny"), 0o755))
	write(t, models, "file.gguf", "x")

	repo := filepath.Join(home, ".cache", "huggingface", "hub", "models--org--big")
	snapshot := filepath.Join(repo, "snapshots", "abc")
	require.NoError(t, os.MkdirAll(snapshot, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(repo, "snapshots", "older"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(repo, "blobs"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(repo, "refs"), 0o755))
	write(t, repo, "refs/main", "abc\n")
	weightsFile(t, filepath.Join(repo, "blobs", "1234"), "a", "b")
	weightsFile(t, filepath.Join(repo, "blobs", "5678"), "c")
	index, err := json.Marshal(map[string]any{"weight_map": map[string]string{"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}})
	require.NoError(t, err)
	write(t, repo, "blobs/9abc", string(index))
	for link, blob := range map[string]string{"m-1.safetensors": "1234", "m-2.safetensors": "5678", IndexName: "9abc"} {
		require.NoError(t, os.Symlink("../../blobs/"+blob, filepath.Join(snapshot, link)))
	}
	for model, want := range map[string]string{
		"tiny": filepath.Join(models, "more", "tiny"), "file": filepath.Join(models, "file.gguf"), "org/big": snapshot, models: models,
	} {
		path, err := Resolve(model)
		require.NoError(t, err, model)
		require.Equal(t, want, path)
	}
	d, err := Open(snapshot)
	require.NoError(t, err, "links out of the folder are how the cache works")
	require.Len(t, d.Tensors(), 3)
	require.NoError(t, d.Close())

	require.NoError(t, os.Remove(filepath.Join(repo, "refs", "main")))
	require.NoError(t, os.RemoveAll(filepath.Join(repo, "snapshots", "older")))
	path, err := Resolve("org/big")
	require.NoError(t, err)
	require.Equal(t, snapshot, path)

	_, err = Resolve("org/absent")
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, place := range []string{"org/absent", filepath.Join(models, "org/absent"), filepath.Join(home, ".cache", "huggingface", "hub", "models--org--absent")} {
		require.ErrorContains(t, err, place)
	}
	t.Setenv("HF_HOME", filepath.Join(home, "elsewhere"))
	_, err = Resolve("org/big")
	require.ErrorContains(t, err, filepath.Join(home, "elsewhere", "hub"))
}

// FuzzIndex: no input makes it panic, and file names stay within the folder.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(goodIndex))
	for index := range badIndices {
		f.Add([]byte(index))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parseIndex(data, "index.json")
		if err != nil {
			require.ErrorIs(t, err, formats.ErrMalformed)
			return
		}
		for _, name := range x.shard {
			require.Equal(t, filepath.Base(name), name)
		}
	})
}
