package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// plainEvery is the time between two progress lines where there is no terminal to draw a bar on.
const plainEvery = 10 * time.Second

// progress shows how far a long job is: a bar on a terminal, now and then a line elsewhere,
// nothing when quiet. The zero value is quiet.
type progress struct {
	bar   *progressbar.ProgressBar
	out   io.Writer
	what  string
	total int64
	bytes bool
	next  time.Time
	start time.Time
	base  int64 // units that were done at the start, by an earlier run
}

// newProgress starts the display of a job of total units, bytes or things counted one by one.
func newProgress(what string, total int64, bytes, quiet bool) *progress {
	p := &progress{what: what, total: total, bytes: bytes, start: time.Now()}
	if quiet || total <= 0 {
		return p
	}
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		p.out, p.next = os.Stderr, p.start.Add(plainEvery)
		return p
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetPredictTime(false), // it would count what an earlier run had done
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionFullWidth(),
		progressbar.OptionShowCount(),
	}
	if bytes {
		options = append(options, progressbar.OptionShowBytes(true))
	}
	p.bar = progressbar.NewOptions64(total, options...)
	return p
}

// lateProgress is for a job that says how much there is to do when it first reports: report takes what is done, of how much, and a note.
func lateProgress(what string, bytes, quiet bool) (report func(done, total int64, note string), finish func()) {
	var p *progress
	report = func(done, total int64, note string) {
		if p == nil {
			p = newProgress(what, total, bytes, quiet)
			p.base = done
		}
		p.set(done, note)
	}
	return report, func() {
		if p != nil {
			p.finish()
		}
	}
}

// set moves the display to done units; note is shown behind the name of the job.
func (p *progress) set(done int64, note string) {
	switch {
	case p.bar != nil:
		text := p.what
		if note != "" {
			text += " " + note
		}
		if left := p.left(done, time.Since(p.start)); left != "" {
			text += ", " + left
		}
		p.bar.Describe(text)
		// The bar is display only: an error of the terminal is no reason to stop the work.
		_ = p.bar.Set64(min(done, p.total))
	case p.out != nil && time.Now().After(p.next):
		p.next = time.Now().Add(plainEvery)
		line := fmt.Sprintf("%s: %d of %d", p.what, done, p.total)
		if p.bytes {
			line = fmt.Sprintf("%s: %s of %s", p.what, sizeText(done), sizeText(p.total))
		}
		if left := p.left(done, time.Since(p.start)); left != "" {
			line += ", " + left
		}
		if note != "" {
			line += ", " + note
		}
		fmt.Fprintln(p.out, line)
	}
}

// left says how long the rest will take at the pace of this run; nothing where that is not known yet.
func (p *progress) left(done int64, passed time.Duration) string {
	if done <= p.base || done >= p.total || passed < time.Second {
		return ""
	}
	left := time.Duration(float64(passed) * float64(p.total-done) / float64(done-p.base))
	return fmt.Sprintf("about %s left", left.Round(time.Second))
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
