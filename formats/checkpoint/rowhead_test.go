package checkpoint_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"qtool/formats/checkpoint"
	"qtool/formats/ggml"
	"qtool/formats/gguf"
)

// headed writes a llama of one layer whose matrices are of a type with a scale before each row.
func headed(t *testing.T, typ ggml.Type) (path string, data map[string][]byte) {
	t.Helper()
	const hidden = 256
	m := &gguf.Metadata{}
	m.Set("general.architecture", gguf.String("llama"))
	for key, n := range map[string]uint32{
		"block_count": 1, "context_length": 64, "embedding_length": hidden, "feed_forward_length": 512,
		"attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 8,
	} {
		m.Set("llama."+key, gguf.Uint32(n))
	}
	m.Set("llama.attention.layer_norm_rms_epsilon", gguf.Float32(1e-5))
	infos := []gguf.TensorInfo{
		{Name: "token_embd.weight", Shape: []int{8, hidden}, Type: typ},
		{Name: "blk.0.attn_q.weight", Shape: []int{hidden, hidden}, Type: typ},
		{Name: "blk.0.attn_k.weight", Shape: []int{hidden / 2, hidden}, Type: typ},
		{Name: "blk.0.attn_v.weight", Shape: []int{hidden / 2, hidden}, Type: typ},
		{Name: "blk.0.attn_output.weight", Shape: []int{hidden, hidden}, Type: typ},
		{Name: "blk.0.ffn_gate.weight", Shape: []int{512, hidden}, Type: typ},
		{Name: "blk.0.ffn_up.weight", Shape: []int{512, hidden}, Type: typ},
		{Name: "blk.0.ffn_down.weight", Shape: []int{hidden, 512}, Type: typ},
		{Name: "blk.0.attn_norm.weight", Shape: []int{hidden}, Type: ggml.F32},
		{Name: "blk.0.ffn_norm.weight", Shape: []int{hidden}, Type: ggml.F32},
		{Name: "output_norm.weight", Shape: []int{hidden}, Type: ggml.F32},
	}
	l, err := gguf.Plan(m, infos)
	require.NoError(t, err)
	file := make([]byte, l.Size)
	copy(file, l.Header)
	r := rand.New(rand.NewPCG(1, 2))
	data = make(map[string][]byte)
	for _, x := range l.Tensors {
		part := file[x.Offset : x.Offset+x.Size]
		data[x.Name] = part
		if x.Type != typ {
			continue
		}
		for i := range part {
			part[i] = byte(r.Uint32())
		}
		for i := range x.Rows() {
			binary.LittleEndian.PutUint32(part[i*len(part)/x.Rows():], math.Float32bits(float32(i+1)/1024))
		}
	}
	path = filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	return path, data
}

// TestRowsWithHeads: every row is decoded with its own scale, those of attention in Hugging Face's
// order.
func TestRowsWithHeads(t *testing.T) {
	path, data := headed(t, ggml.IQ4_KS)
	m, err := checkpoint.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	for name, stored := range map[string]struct {
		name string
		row  func(i int) int
	}{
		"model.layers.0.mlp.down_proj.weight": {"blk.0.ffn_down.weight", func(i int) int { return i }},
		// Heads of 64 rows: GGUF has row j of the first half at 2·j, of the second at 2·j + 1.
		"model.layers.0.self_attn.q_proj.weight": {"blk.0.attn_q.weight", func(i int) int { return i/64*64 + i%32*2 + i/32%2 }},
	} {
		x, ok := m.Tensor(name)
		require.True(t, ok, name)
		require.NoError(t, x.CanRead())
		size, err := ggml.IQ4_KS.RowBytes(x.Cols())
		require.NoError(t, err)
		require.EqualValues(t, size*x.Rows(), x.Bytes())
		want, row := make([]float32, x.Elements()), make([]byte, size)
		for i := range x.Rows() {
			at := stored.row(i) * size
			require.NoError(t, ggml.Dequantize(want[i*x.Cols():(i+1)*x.Cols()], data[stored.name][at:at+size], ggml.IQ4_KS))
			x.ReadRaw(row, i, 1)
			require.Equal(t, data[stored.name][at:at+size], row)
		}
		got := make([]float32, len(want))
		require.NoError(t, x.ReadAll(got))
		require.Equal(t, want, got, name)
		require.NoError(t, x.ReadRows(got, 5, 3, &checkpoint.Reader{}))
		require.Equal(t, want[5*x.Cols():8*x.Cols()], got[:3*x.Cols()], name)
	}
}
