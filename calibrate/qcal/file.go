package qcal

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"

	"qtool/calibrate"
	"qtool/formats"
	"qtool/formats/mapped"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/formats/strictjson"
)

// File is an open file of statistics.
type File struct {
	f       *safetensors.File
	header  Header
	digests map[string]string
	digest  packed.Digest
}

// IsStatistics reports whether a safetensors file says that it holds statistics.
func IsStatistics(f *safetensors.File) bool {
	v, _ := f.Meta(keyFormat)
	return v == formatName
}

// Open opens a file and checks all but the numbers, which Read does. Errors match formats.ErrMalformed or formats.ErrUnsupported.
func Open(path string) (*File, error) {
	s, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{f: s}
	if err := f.check(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return f, nil
}

// Path is the path that Open was given.
func (f *File) Path() string { return f.f.Path() }

// Header says what the statistics are of. It must not be changed.
func (f *File) Header() *Header { return &f.header }

// Digest is that of the file's header, which has those of all data: so of everything that Read accepts.
func (f *File) Digest() packed.Digest { return f.digest }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// check reads the metadata and holds the tensors against them.
func (f *File) check() error {
	path := f.Path()
	if v, _ := f.f.Meta(keyFormat); v != formatName {
		return formats.Malformed(path, keyFormat, "expected %q, found %q", formatName, v).WithHint("is this a file of qtool calibrate?")
	}
	if v, _ := f.f.Meta(keyVersion); v != strconv.Itoa(version) {
		return formats.Unsupported(path, keyVersion, "expected %d, found %q", version, v)
	}
	if err := f.object(keyHeader, &f.header); err != nil {
		return err
	}
	if err := f.object(keyDigests, &f.digests); err != nil {
		return err
	}
	if err := f.header.check(path); err != nil {
		return err
	}
	found := len(f.f.Tensors())
	for _, in := range f.header.Inputs {
		for _, want := range in.parts() {
			t, ok := f.f.Tensor(want.Name)
			if !ok {
				return formats.Malformed(path, want.Name, "the header lists it, the file has no such tensor")
			}
			if t.DType != want.DType || !slices.Equal(t.Shape, want.Shape) {
				return formats.Malformed(path, want.Name, "expected %s of shape %v, found %s of %v", want.DType, want.Shape, t.DType, t.Shape)
			}
			if _, err := packed.ParseDigest(f.digests[want.Name]); err != nil {
				return formats.Malformed(path, keyDigests, "%s: %v", want.Name, err)
			}
			found--
		}
	}
	if found != 0 {
		return formats.Malformed(path, "", "%d tensors that the header does not list", found)
	}
	return mapped.Guard(func() error {
		f.digest = packed.Sum(f.f.Mapped().Bytes()[:f.f.DataStart()])
		return nil
	})
}

// object reads a JSON object of the metadata, which must be readable in one way only and have no other keys than it is to have.
func (f *File) object(key string, to any) error {
	text, ok := f.f.Meta(key)
	if !ok {
		return formats.Malformed(f.Path(), key, "the metadata lack this key")
	}
	if _, err := strictjson.Parse([]byte(text), strictjson.Options{File: f.Path(), MaxDepth: 8}); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return formats.Malformed(f.Path(), key, "%v", err)
	}
	return nil
}

// check says what is wrong with a header.
func (h *Header) check(path string) error {
	fail := func(format string, args ...any) error { return formats.Malformed(path, keyHeader, format, args...) }
	if h.Context < 1 || h.Sequences < 1 || h.Context > maxNumber || h.Sequences > maxNumber {
		return fail("context and sequences: expected 1 or more, found %d and %d", h.Context, h.Sequences)
	}
	for _, d := range []struct{ key, digest string }{{"tokenizer", h.Tokenizer}, {"data", h.Data}} {
		if _, err := packed.ParseDigest(d.digest); err != nil {
			return fail("%s: %v", d.key, err)
		}
	}
	shapes := make(map[string][]int, len(h.Model))
	for _, s := range h.Model {
		if shapes[s.Name] != nil {
			return fail("model: tensor %q is listed twice", s.Name)
		}
		if n, err := formats.Elements(s.Shape); err != nil || n == 0 {
			return fail("model: tensor %q has shape %v", s.Name, s.Shape)
		}
		if _, err := packed.ParseDigest(s.Digest); err != nil {
			return fail("model: tensor %q: %v", s.Name, err)
		}
		shapes[s.Name] = s.Shape
	}
	seen := make(map[string]bool)
	for _, in := range h.Inputs {
		if in.Channels < 1 || in.Channels > maxChannels {
			return fail("inputs: %q has %d channels, expected 1 to %d", in.Name, in.Channels, maxChannels)
		}
		if len(in.Layers) == 0 || in.Layers[0] != in.Name {
			return fail("inputs: %q is not the first of its layers %q", in.Name, in.Layers)
		}
		for _, l := range in.Layers {
			if s := shapes[l]; len(s) != 2 || s[1] != in.Channels || seen[l] {
				return fail("inputs: layer %q: expected a matrix of the model with %d columns, listed once, found shape %v", l, in.Channels, s)
			}
			seen[l] = true
		}
	}
	return nil
}

// Find gives the input of a layer.
func (h *Header) Find(layer string) (Input, bool) {
	for _, in := range h.Inputs {
		if slices.Contains(in.Layers, layer) {
			return in, true
		}
	}
	return Input{}, false
}

// Count reads how many inputs were seen, and nothing else.
func (f *File) Count(in Input) (int64, error) {
	raw, err := f.part(in.parts()[0])
	if err != nil {
		return 0, err
	}
	var count int64
	if err := mapped.Guard(func() error { count = readInts(raw)[0]; return nil }); err != nil {
		return 0, err
	}
	return count, checkCount(f.Path(), in, count)
}

// part gives the data of a part once they have their digest. They are of the map of the file: see mapped.Guard.
func (f *File) part(part safetensors.Tensor) (raw []byte, err error) {
	t, ok := f.f.Tensor(part.Name)
	if !ok || !slices.Equal(t.Shape, part.Shape) {
		return nil, formats.Malformed(f.Path(), part.Name, "the file has no such tensor of shape %v", part.Shape)
	}
	var sum packed.Digest
	err = mapped.Guard(func() error {
		raw = f.f.Data(t)
		sum = packed.Sum(raw)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if want := f.digests[part.Name]; sum.String() != want {
		return nil, formats.Malformed(f.Path(), part.Name, "expected data with digest %s, found %s", want, sum).WithHint("the file is damaged: make it again with qtool calibrate")
	}
	return raw, nil
}

// Verify compares the data of every part with its digest, and calls progress, if set, after each. The error names the first part that differs.
func (f *File) Verify(progress func(done, total int64) error) error {
	var done, total int64
	for _, t := range f.f.Tensors() {
		total += t.Size
	}
	for _, in := range f.header.Inputs {
		for _, part := range in.parts() {
			raw, err := f.part(part)
			if err != nil {
				return err
			}
			done += int64(len(raw))
			if progress == nil {
				continue
			}
			if err := progress(done, total); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkCount says what is wrong with a number of inputs.
func checkCount(path string, in Input, count int64) error {
	if count < 0 || count > maxNumber {
		return formats.Malformed(path, in.Name+partCount, "expected 0 to %d, found %d", int64(maxNumber), count)
	}
	return nil
}

// Read reads the statistics of an input of the header and checks every number.
func (f *File) Read(in Input) (*Statistics, error) {
	data := make(map[string][]byte)
	for _, part := range in.parts() {
		raw, err := f.part(part)
		if err != nil {
			return nil, err
		}
		data[part.Name] = raw
	}
	s := &Statistics{}
	var counts []int64
	err := mapped.Guard(func() error {
		s.Count = readInts(data[in.Name+partCount])[0]
		s.Squares = readDoubles(data[in.Name+partSquares])
		s.Min, s.Max = readFloats(data[in.Name+partMin]), readFloats(data[in.Name+partMax])
		all := readFloats(data[in.Name+partPercentiles])
		for p := range calibrate.Percentiles {
			s.Percentiles = append(s.Percentiles, all[p*in.Channels:(p+1)*in.Channels])
		}
		s.Hessian = readFloats(data[in.Name+partHessian])
		counts = readInts(data[in.Name+partHistogram])
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.check(f.Path(), in, counts); err != nil {
		return nil, err
	}
	s.Histogram = calibrate.RestoreHistogram(counts, slices.Max(s.Magnitudes()))
	return s, nil
}

// check says what is wrong with the numbers.
func (s *Statistics) check(path string, in Input, counts []int64) error {
	fail := func(part, format string, args ...any) error {
		return formats.Malformed(path, in.Name+part, format, args...)
	}
	if err := checkCount(path, in, s.Count); err != nil {
		return err
	}
	var total int64
	for bin, n := range counts {
		if left := s.Count*int64(in.Channels) - total; n < 0 || n > left {
			return fail(partHistogram, "bin %d: expected 0 to %d, found %d", bin, left, n)
		}
		total += n
	}
	if total != s.Count*int64(in.Channels) {
		return fail(partHistogram, "expected %d inputs of %d channels, found %d values", s.Count, in.Channels, total)
	}
	for i, v := range s.Squares {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fail(partSquares, "channel %d: expected a finite number of 0 or more, found %g", i, v)
		}
	}
	for i := range s.Min {
		if lo, hi := s.Min[i], s.Max[i]; lo-lo != 0 || hi-hi != 0 || lo > hi {
			return fail(partMin, "channel %d: expected finite numbers in order, found %g and %g", i, lo, hi)
		}
		for p, v := range s.Percentiles {
			if !(v[i] >= 0) || v[i] > max(s.Max[i], -s.Min[i]) {
				return fail(partPercentiles, "channel %d: %g of the magnitudes: expected 0 to %g, found %g", i, calibrate.Percentiles[p], max(s.Max[i], -s.Min[i]), v[i])
			}
		}
	}
	at := 0
	for i := range in.Channels {
		if d := s.Hessian[at]; !(d >= 0) {
			return fail(partHessian, "channel %d: expected a diagonal of 0 or more, found %g", i, d)
		}
		for j, v := range s.Hessian[at : at+in.Channels-i] {
			if v-v != 0 {
				return fail(partHessian, "row %d, column %d: %g is not finite", i, i+j, v)
			}
		}
		at += in.Channels - i
	}
	return nil
}
