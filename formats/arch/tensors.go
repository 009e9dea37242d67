package arch

// Role says what a tensor does, which decides how it may be compressed.
type Role int

const (
	Embedding Role = iota // token embedding [vocab, hidden]
	Head                  // output projection [vocab, hidden]
	Linear                // weight of a linear layer [out, in]
	Norm                  // weight of an RMS norm [n]
	Bias                  // bias of a linear layer [out]
)

// String gives the role's name in lower case.
func (r Role) String() string {
	switch r {
	case Embedding:
		return "embedding"
	case Head:
		return "head"
	case Linear:
		return "linear"
	case Norm:
		return "norm"
	case Bias:
		return "bias"
	}
	return "unknown"
}

// TensorSpec is one tensor that a model of a given configuration has.
type TensorSpec struct {
	Name  string // Hugging Face's name
	GGUF  string // name in a GGUF file
	Shape []int  // row-major, output features first
	Role  Role
	Layer int // layer index, -1 for embedding, final norm and head

	// Permute is the number of heads whose rows GGUF stores with the two halves of each head
	// interleaved (q and k of llama and mistral); 0 when both containers agree.
	Permute int
	// NormPlusOne marks a norm whose weight GGUF stores with 1 added (gemma).
	NormPlusOne bool
	// Optional marks a tensor that a valid file may leave out (a tied head).
	Optional bool
}
