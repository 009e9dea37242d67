package main

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/convert"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/testdata"
)

// TestVerifyFindsWhatIsNoNumber: digests that are right say nothing of the values.
func TestVerifyFindsWhatIsNoNumber(t *testing.T) {
	m, err := checkpoint.Open(testdata.Path("arch", "llama"))
	require.NoError(t, err)
	plan, err := convert.NewPlan(m, convert.DefaultRecipe("w4g32"))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "a.qpk")
	_, err = convert.Quantize(t.Context(), m, plan, convert.Options{Output: path, Threads: 1})
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = verify(t.Context(), path, true)
	require.NoError(t, err)
	const name = "model.layers.1.input_layernorm.weight"
	rewrite(t, path, name, func(data []byte) { binary.LittleEndian.PutUint32(data[4*7:], math.Float32bits(float32(math.Inf(1)))) })
	_, err = verify(t.Context(), path, true)
	require.ErrorContains(t, err, path+`: tensor "`+name+`": the value at row 0, column 7 is +Inf`)
}

// rewrite changes the data of a tensor of a packed file, and the digests with them.
func rewrite(t *testing.T, path, name string, change func(data []byte)) {
	t.Helper()
	p, err := packed.Open(path)
	require.NoError(t, err)
	c := packed.Contents{Provenance: p.Provenance()}
	data, digests := make(map[string][]byte), make(map[string]packed.Digest)
	for _, x := range p.Tensors() {
		c.Entries, data[x.Name] = append(c.Entries, x.Entry), slices.Clone(p.Data(x))
	}
	for _, file := range p.Files() {
		content, _ := p.File(file)
		c.Files, data[packed.FilePrefix+file] = append(c.Files, packed.SideFile{Name: file, Data: slices.Clone(content)}), slices.Clone(content)
	}
	change(data[name])
	for n, d := range data {
		digests[n] = packed.Sum(d)
	}
	layout, err := c.Layout(digests)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	out := make([]byte, layout.Size)
	copy(out, layout.Header)
	for _, x := range layout.Tensors {
		copy(out[x.Offset:], data[x.Name])
	}
	require.NoError(t, os.WriteFile(path, out, 0o600))
}
