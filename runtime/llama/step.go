package llama

import (
	"errors"
	"fmt"
)

// ErrSessions means sessions that cannot be advanced together.
var ErrSessions = errors.New("sessions that cannot be advanced together")

// Step advances each session by its token in one pass, so that weights are read once for all of them, and calls visit in
// order for each session i with the logits that follow, [Vocab]; the slice is valid during the call only. What a session
// gets is the same bits as from Forward. Errors: ErrSessions, ErrContextFull and ErrToken before anything has changed,
// visit's own, and a *mapped.FaultError where the file of the weights was cut short.
func (e *Engine) Step(sessions []*Session, tokens []int32, visit func(i int, logits []float32) error) error {
	if len(sessions) != len(tokens) {
		return fmt.Errorf("%w: %d of them, but %d tokens", ErrSessions, len(sessions), len(tokens))
	}
	if err := e.checkStep(sessions, tokens); err != nil {
		return err
	}
	if len(sessions) == 0 {
		return nil
	}
	return e.run(work{sessions: sessions, tokens: tokens, visit: visit})
}

// checkStep looks for what would keep a step from ending well.
func (e *Engine) checkStep(sessions []*Session, tokens []int32) (err error) {
	for i, s := range sessions {
		switch {
		case s.engine != e:
			err = fmt.Errorf("%w: number %d belongs to another engine", ErrSessions, i)
		case s.taken:
			err = fmt.Errorf("%w: number %d is among those before", ErrSessions, i)
		default:
			s.taken = true
			err = s.check(tokens[i : i+1])
		}
		if err != nil {
			sessions = sessions[:i+1]
			break
		}
	}
	for _, s := range sessions {
		s.taken = false
	}
	return err
}

func (e *Engine) step(sessions []*Session, tokens []int32, visit func(i int, logits []float32) error) error {
	if e.joint == nil {
		e.joint = e.newSession(0, nil)
	}
	j := e.joint
	j.rows = j.rows[:0]
	for _, s := range sessions {
		if err := s.prepare(len(s.tokens) + 1); err != nil {
			return err
		}
		j.rows = append(j.rows, row{s, len(s.tokens)})
	}
	if err := j.layers(tokens, 0); err != nil {
		return err
	}
	for i, s := range sessions {
		s.tokens = append(s.tokens, tokens[i])
	}
	return j.predict(len(tokens), 0, visit)
}
