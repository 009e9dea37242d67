package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/zeebo/xxh3"

	"qtool/formats/arch"
	"qtool/formats/checkpoint"
	"qtool/formats/packed"
	"qtool/formats/safetensors"
	"qtool/runtime/kernel"
)

// Options of a run.
type Options struct {
	Output string // path of the file to be written
	// Reads are files besides the source that the run stands on: the output must not be one of them.
	Reads   []string
	Threads int
	Version string // of the program, kept in the file
	// Calibration, if not nil, is what linear layers are quantized by; else rows are rounded as they stand.
	Calibration *Calibration
	// Statistics, if not nil, are what they are quantized by in the place of Calibration.
	Statistics *Statistics
	// Progress, if set, is told how many weights are done of all, and the tensor at hand.
	Progress func(done, total int64, tensor string)
}

// provenance is what a packed file says of its making.
type provenance struct {
	Tool   string          `json:"tool"`
	Source string          `json:"source"` // digest of all values, in the order of the plan
	Recipe json.RawMessage `json:"recipe"`
}

// Quantize carries out the plan and writes the packed file: beside the output first, then in its place. A run
// that was stopped is taken up where it was, and ends in the same bytes. Errors leave an older output as it
// was.
func Quantize(ctx context.Context, m *checkpoint.Model, p *Plan, o Options) (*Result, error) {
	if err := CheckOutput(o.Output, m, o.Reads); err != nil {
		return nil, err
	}
	if err := verify(ctx, m); err != nil {
		return nil, err
	}
	m = p.Model
	files, warnings, err := Files(m)
	if err != nil {
		return nil, err
	}
	if err := o.Calibration.check(m); err != nil {
		return nil, err
	}
	if o.Statistics != nil {
		if err := o.Statistics.adopt(m, p, o.Calibration); err != nil {
			return nil, err
		}
	}
	if o.Calibration != nil || o.Statistics != nil {
		set, err := kernel.Best()
		if err != nil {
			return nil, err
		}
		p.Recipe.Kernels = set.Name
	}
	q := &quantization{model: m, plan: p, options: o, result: &Result{Warnings: warnings, TooLong: o.Calibration.tooLong(m), Single: o.Calibration.single(p.Recipe)}}
	q.contents = packed.Contents{Files: files}
	for _, d := range p.Decisions {
		q.contents.Entries = append(q.contents.Entries, packed.Entry{Name: d.Tensor.Name, Shape: d.Tensor.Shape, Scheme: d.Scheme, DType: d.DType})
	}
	if err := q.run(ctx); err != nil {
		return nil, fmt.Errorf("write %s: %w", o.Output, err)
	}
	return q.result, nil
}

// quantization is one run of Quantize.
type quantization struct {
	model    *checkpoint.Model
	plan     *Plan
	options  Options
	contents packed.Contents
	layout   *safetensors.Layout
	places   map[string]safetensors.Tensor
	work     *work
	result   *Result
}

func (q *quantization) run(ctx context.Context) (err error) {
	if err := q.lay(packed.Digest{}, nil); err != nil {
		return err
	}
	key, err := q.key()
	if err != nil {
		return err
	}
	q.work, err = openWork(q.options.Output, key, q.layout.Size, func(name string) (int64, int64, bool) {
		t, ok := q.places[name]
		return t.Offset, t.Size, ok
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.work.close()) }()
	q.result.Discarded, q.result.Damaged = q.work.discarded, q.work.damaged
	q.result.Resumed = len(q.work.done)
	if q.options.Calibration != nil || q.options.Statistics != nil {
		if err := q.checkVectors(); err != nil {
			return err
		}
		if err := q.calibrate(ctx); err != nil {
			return err
		}
	}
	if err := q.tensors(ctx); err != nil {
		return err
	}
	// A source that changed under us may have been read half old, half new.
	if err := q.model.CheckSize(); err != nil {
		return err
	}
	return q.finish()
}

// checkVectors looks for values that are not finite in norms and biases, which are few, before the model is run: what they make of the inputs of
// layers would be found, but not whence it came.
func (q *quantization) checkVectors() error {
	for _, d := range q.plan.Decisions {
		t := d.Tensor
		if d.Scheme != nil || len(t.Shape) > 1 {
			continue
		}
		values := make([]float32, t.Elements())
		var r checkpoint.Reader
		if err := readGuarded(t, values, 0, t.Rows(), &r); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if err := checkFinite(t, 0, values); err != nil {
			return err
		}
	}
	return nil
}

// lay plans the file with the digests known so far.
func (q *quantization) lay(source packed.Digest, digests map[string]packed.Digest) (err error) {
	recipe, err := q.plan.Recipe.json()
	if err != nil {
		return err
	}
	q.contents.Provenance, err = json.Marshal(provenance{Tool: "qtool " + q.options.Version, Source: source.String(), Recipe: recipe})
	if err != nil {
		return err
	}
	if q.layout, err = q.contents.Layout(digests); err != nil {
		return err
	}
	q.places = make(map[string]safetensors.Tensor, len(q.layout.Tensors))
	for _, t := range q.layout.Tensors {
		q.places[t.Name] = t
	}
	return nil
}

// key tells this job from any other: everything that decides the bytes, with size and times of change of the
// source's files in place of their content.
func (q *quantization) key() (string, error) {
	h := xxh3.New()
	_, _ = h.Write(q.layout.Header)
	for _, f := range q.contents.Files {
		_, _ = h.Write(f.Data)
	}
	if c := q.options.Calibration; c != nil {
		for _, s := range c.Sequences {
			_ = binary.Write(h, binary.LittleEndian, s) // a hash takes everything
		}
	}
	if err := hashSource(h, q.model); err != nil {
		return "", err
	}
	return packed.Digest(h.Sum128().Bytes()).String(), nil
}

// hashSource adds size and times of change of a model's files. The time of the inode is among them, which no program can set: a file whose content was
// replaced and whose time of modification was put back, as rsync and tar do, is another one. What changes it without the content (chmod, a new hard
// link, a copy to another place) costs the work that was done, nothing else.
func hashSource(h *xxh3.Hasher, m *checkpoint.Model) error {
	for _, path := range m.Paths() {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		times := []int64{info.Size(), info.ModTime().UnixNano()}
		if inode, ok := info.Sys().(*syscall.Stat_t); ok {
			times = append(times, inode.Ctim.Nano())
		}
		_ = binary.Write(h, binary.LittleEndian, times) // a hash takes everything
	}
	return nil
}

// tensors writes what is not finished yet.
func (q *quantization) tensors(ctx context.Context) error { return q.streamed(ctx, q.plan.Decisions) }

// streamed writes those of the tensors that are not finished yet.
func (q *quantization) streamed(ctx context.Context, decisions []Decision) error {
	set, err := kernel.Best()
	if err != nil {
		return err
	}
	var items []item
	var total, done int64
	for _, d := range q.plan.Decisions {
		total += int64(d.Tensor.Elements())
		if _, ok := q.work.done[d.Tensor.Name]; ok {
			done += int64(d.Tensor.Elements())
		}
	}
	for _, d := range decisions {
		if _, ok := q.work.done[d.Tensor.Name]; ok {
			continue
		}
		it, err := d.item(set, q.plan.Recipe)
		if err != nil {
			return err
		}
		it.offset = q.places[d.Tensor.Name].Offset
		items = append(items, it)
	}
	current := ""
	if len(items) > 0 {
		current = items[0].tensor.Name
	}
	s := &streamer{
		out: q.work.data, threads: q.options.Threads,
		finished: func(i int, o outcome) error {
			if i+1 < len(items) {
				current = items[i+1].tensor.Name
			}
			return q.work.finish(items[i].tensor.Name, o)
		},
		progress: func(weights int64) {
			done += weights
			if q.options.Progress != nil {
				q.options.Progress(done, total, current)
			}
		},
	}
	return s.run(ctx, items)
}

// item gives what carries the decision out.
func (d Decision) item(k *kernel.Set, r Recipe) (item, error) {
	switch {
	case d.Scheme == nil:
		it, err := plain(d.Tensor, d.DType, r.Clamp)
		return checked(it), err
	case d.Tensor.Packed() && d.Tensor.Matrix().Scheme == *d.Scheme:
		return copying(d.Tensor), nil
	}
	return packing(k, d.Tensor, *d.Scheme, r.Rule), nil
}

// finish writes the files that ride along and the header, and puts the output in its place.
func (q *quantization) finish() error {
	digests := make(map[string]packed.Digest)
	source := xxh3.New()
	for _, d := range q.plan.Decisions {
		o := q.work.done[d.Tensor.Name]
		digests[d.Tensor.Name] = o.digest
		if d.Tensor.Origin().Name == d.Tensor.Name { // not the head that a rotation made of the embedding
			_, _ = source.Write(o.source[:])
		}
		q.result.Clamped += o.clamped
		q.tally(d, o)
	}
	for _, f := range q.contents.Files {
		name := packed.FilePrefix + f.Name
		digests[name] = packed.Sum(f.Data)
		if _, err := q.work.data.WriteAt(f.Data, q.places[name].Offset); err != nil {
			return err
		}
	}
	planned := q.layout.Size
	if err := q.lay(packed.Digest(source.Sum128().Bytes()), digests); err != nil {
		return err
	}
	if q.layout.Size != planned {
		return fmt.Errorf("the header grew from %d to %d bytes", planned, q.layout.Size)
	}
	if _, err := q.work.data.WriteAt(q.layout.Header, 0); err != nil {
		return err
	}
	q.result.Bytes = q.layout.Size
	return q.work.commit(q.options.Output)
}

// tally takes up how quantizing a tensor by its inputs went, and what is less than was asked for.
func (q *quantization) tally(d Decision, o outcome) {
	if q.options.Calibration == nil && q.options.Statistics == nil || d.Scheme == nil {
		return
	}
	role := d.Tensor.Role
	if f := o.calibration; f != nil && f.zeroInputs() {
		q.result.ZeroInputs = append(q.result.ZeroInputs, d.Tensor.Name)
	} else if f != nil {
		if q.result.Calibrated == nil {
			q.result.Calibrated = make(map[string]CalibrationFigures)
		}
		q.result.Calibrated[d.Tensor.Name] = *f
	} else if !d.Tensor.Packed() && (role == arch.Linear || role == arch.Head || role == arch.Embedding && q.model.Config().TieEmbeddings) {
		if q.options.Statistics != nil {
			q.result.Unknown = append(q.result.Unknown, d.Tensor.Name)
			return
		}
		q.result.RoundedOnly = append(q.result.RoundedOnly, d.Tensor.Name)
	}
}
