// Package packed stores quantized matrices the way the kernels read them, and the file that holds
// a model of them: .qpk, a safetensors file with a documented profile. SPEC.md in this folder
// specifies both.
package packed
