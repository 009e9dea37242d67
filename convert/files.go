package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"qtool/formats"
	"qtool/formats/checkpoint"
	"qtool/formats/hfdir"
	"qtool/formats/packed"
)

// Files gives the files that make a model complete beside its weights, in the form of a Hugging Face
// directory. Of a GGUF file they are made: the configuration, the tokenizer where tokenizer.json can say it,
// and the metadata with all its types, which is never lost. What could not be made is in the warnings.
func Files(m *checkpoint.Model) (files []packed.SideFile, warnings []string, err error) {
	names, err := m.Files()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		data, err := m.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, packed.SideFile{Name: name, Data: data})
	}
	has := func(name string) bool {
		return slices.ContainsFunc(files, func(f packed.SideFile) bool { return f.Name == name })
	}
	if m.Container() == checkpoint.HuggingFace {
		annotations, err := m.Annotations()
		if err != nil {
			return nil, nil, err
		}
		if len(annotations) > 0 && !has(checkpoint.Annotations) {
			object := make(map[string]string, len(annotations))
			for _, p := range annotations {
				object[p.Key] = p.Value
			}
			data, err := json.MarshalIndent(object, "", "  ") // sorted by key
			if err != nil {
				return nil, nil, err
			}
			files = append(files, packed.SideFile{Name: checkpoint.Annotations, Data: append(data, '\n')})
		}
	}
	if m.Container() == checkpoint.GGUF {
		if !has(hfdir.ConfigName) {
			data, err := m.Config().HFJSON()
			if err != nil {
				return nil, nil, err
			}
			files = append(files, packed.SideFile{Name: hfdir.ConfigName, Data: data})
		}
		if !has("tokenizer.json") && !has("tokenizer.model") { // either says all of the tokenizer
			more, err := tokenizerFiles(m)
			switch {
			case errors.Is(err, formats.ErrUnsupported):
				warnings = append(warnings, fmt.Sprintf("the tokenizer is kept as GGUF metadata only: %v", err))
			case err != nil:
				return nil, nil, err
			}
			for _, f := range more {
				if !has(f.Name) {
					files = append(files, f)
				}
			}
		}
		metadata, err := m.Metadata()
		if err != nil {
			return nil, nil, err
		}
		own := metadata.Clone()
		for _, key := range own.Keys() {
			if strings.HasPrefix(key, checkpoint.FileKey) {
				own.Remove(key)
			}
		}
		data, err := own.MarshalTyped()
		if err != nil {
			return nil, nil, err
		}
		files = append(files, packed.SideFile{Name: checkpoint.GGUFMetadata, Data: data})
	}
	slices.SortFunc(files, func(a, b packed.SideFile) int { return strings.Compare(a.Name, b.Name) })
	return files, warnings, nil
}

// verify compares the data of a source with its digests, if it has any, before work stands on them: a damaged file would become one that is whole by
// its own digests.
func verify(ctx context.Context, m *checkpoint.Model) error {
	return m.Verify(func(int64, int64) error { return ctx.Err() })
}

// tokenizerFiles writes the tokenizer of a GGUF file as files.
func tokenizerFiles(m *checkpoint.Model) ([]packed.SideFile, error) {
	d, err := m.Vocabulary()
	if err != nil {
		return nil, err
	}
	tokenizer, config, err := d.TokenizerJSON()
	if err != nil {
		return nil, err
	}
	return []packed.SideFile{{Name: "tokenizer.json", Data: tokenizer}, {Name: "tokenizer_config.json", Data: config}}, nil
}
