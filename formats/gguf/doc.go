// Package gguf reads and writes GGUF, the model format of ggml and llama.cpp, as its
// specification (docs/gguf.md in the ggml repository) and the gguf Python package describe it:
// little-endian, versions 2 and 3, one file or several shards. Reading trusts no number in the
// file; whatever does not hold is a formats.FileError.
package gguf
