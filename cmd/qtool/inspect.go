package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"qtool/formats/checkpoint"
	"qtool/formats/packed"
)

// inspection is what `qtool inspect --json` prints. Keys may be added, none renamed.
type inspection struct {
	Model        string `json:"model"`
	Container    string `json:"container"`
	Architecture string `json:"architecture"`
	Hidden       int    `json:"hidden"`
	Intermediate int    `json:"intermediate"`
	Layers       int    `json:"layers"`
	Heads        int    `json:"heads"`
	KVHeads      int    `json:"kv_heads"`
	HeadDim      int    `json:"head_dim"`
	Vocab        int    `json:"vocab"`
	MaxPositions int    `json:"max_positions"`
	Rope         string `json:"rope"`
	Tied         bool   `json:"tied"`
	Tokenizer    string `json:"tokenizer"` // its type; empty where there is none that can be read
	// TokenizerError says why it cannot be read.
	TokenizerError string          `json:"tokenizer_error,omitempty"`
	Weights        int64           `json:"weights"`
	SizeBytes      int64           `json:"size_bytes"`
	BitsPerWeight  float64         `json:"bits_per_weight"`
	Files          []string        `json:"files"`
	Provenance     json.RawMessage `json:"provenance,omitempty"`
	Tensors        []tensorLine    `json:"tensors"`
	Dropped        []string        `json:"dropped"`
	Warnings       []string        `json:"warnings"`
}

type tensorLine struct {
	Name          string  `json:"name"`
	Shape         []int   `json:"shape"`
	Storage       string  `json:"storage"`
	SizeBytes     int64   `json:"size_bytes"`
	BitsPerWeight float64 `json:"bits_per_weight"`
}

func newInspect() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect MODEL",
		Short: "Show what is in a model, or in a file of statistics",
		Long: `inspect opens a model in any container, checks its headers, and prints its
configuration, its tokenizer and its tensors with their storage. Of a .qcal file it
prints what its statistics were gathered of.`,
		Example: `  qtool inspect llama-7b-w4.qpk
  qtool inspect llama-7b.qcal
  qtool inspect model.gguf --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := locate(args[0])
			if err != nil {
				return err
			}
			if isCalibration(path) {
				return inspectCalibration(cmd.OutOrStdout(), path, asJSON)
			}
			v, err := inspect(path)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			return printInspection(cmd.OutOrStdout(), v)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// inspect gathers what is shown of a model.
func inspect(path string) (v *inspection, err error) {
	m, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	c := m.Config()
	v = &inspection{
		Model: path, Container: string(m.Container()), Architecture: c.Architecture, Hidden: c.Hidden, Intermediate: c.Intermediate, Layers: c.Layers,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Vocab: c.Vocab, MaxPositions: c.MaxPositions, Tied: c.TieEmbeddings,
		Rope: fmt.Sprintf("%s, theta %g", c.Rope.Kind, c.Rope.Theta), Dropped: m.Dropped(), Warnings: append([]string{}, m.Warnings()...),
	}
	v.SizeBytes, v.BitsPerWeight = m.Size()
	if v.Files, err = m.Files(); err != nil {
		return nil, err
	}
	if d, err := m.Vocabulary(); err != nil {
		v.TokenizerError = err.Error()
	} else {
		v.Tokenizer = d.String()
	}
	for _, t := range m.Tensors() {
		n := int64(t.Elements())
		v.Weights += n
		v.Tensors = append(v.Tensors, tensorLine{t.Name, t.Shape, t.Storage(), t.Bytes(), 8 * float64(t.Bytes()) / float64(max(n, 1))})
	}
	if m.Container() == checkpoint.Packed {
		p, err := packed.Open(path)
		if err != nil {
			return nil, err
		}
		v.Provenance = p.Provenance()
		if err := p.Close(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// printProvenance prints who made a packed file, of what and by which recipe. Of another program's it prints what there is.
func printProvenance(line func(name, format string, args ...any), raw json.RawMessage) {
	var p struct {
		Tool   string          `json:"tool"`
		Source string          `json:"source"`
		Recipe json.RawMessage `json:"recipe"`
	}
	if err := json.Unmarshal(raw, &p); err != nil || p.Tool == "" {
		line("made by", "%s", raw)
		return
	}
	line("made by", "%s", p.Tool)
	line("of values", "digest %s", p.Source)
	// A decoder, since keys are to stay in their order.
	d := json.NewDecoder(bytes.NewReader(p.Recipe))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		line("recipe", "%s", p.Recipe)
		return
	}
	var all []string
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			line("recipe", "%s", p.Recipe)
			return
		}
		all = append(all, fmt.Sprintf("%v %s", key, strings.Trim(string(value), `"`)))
	}
	line("recipe", "%s", strings.Join(all, ", "))
}

func printInspection(w io.Writer, v *inspection) error {
	t := newTable(w)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("model", "%s (%s)", v.Model, v.Container)
	line("architecture", "%s, %d layers, hidden %d, feed-forward %d", v.Architecture, v.Layers, v.Hidden, v.Intermediate)
	line("attention", "%d heads of %d, %d of keys and values, context %s", v.Heads, v.HeadDim, v.KVHeads, countText(int64(v.MaxPositions)))
	line("rope", "%s", v.Rope)
	head := "own weights"
	if v.Tied {
		head = "tied to the embedding"
	}
	line("vocabulary", "%s, head: %s", countText(int64(v.Vocab)), head)
	if v.TokenizerError != "" {
		line("tokenizer", "unreadable: %s", v.TokenizerError)
	} else {
		line("tokenizer", "%s", v.Tokenizer)
	}
	line("size", "%s of tensors, %s weights, %.3f bits per weight", sizeText(v.SizeBytes), countText(v.Weights), v.BitsPerWeight)
	if len(v.Provenance) > 0 {
		printProvenance(line, v.Provenance)
	}
	for _, f := range v.Files {
		line("file", "%s", f)
	}
	for _, name := range v.Dropped {
		line("not used", "%s", name)
	}
	for _, s := range v.Warnings {
		line("note", "%s", s)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w)
	fmt.Fprintln(t, "tensor\tshape\tstorage\tsize\tbits per weight")
	for _, x := range v.Tensors {
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%.3f\n", x.Name, x.Shape, x.Storage, sizeText(x.SizeBytes), x.BitsPerWeight)
	}
	return t.Flush()
}
