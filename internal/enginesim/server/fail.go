package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Fail makes something go wrong, in the form KIND[@TIME][,KEY=VALUE...] that FailureHelp describes. TIME counts
// from now. It reports what is wrong with the words and does not wait for the deed. The server
// must be serving; whether its process is alive does not matter.
func (s *Server) Fail(spec string) error {
	f, err := parseFailure(spec)
	if err != nil {
		return err
	}
	return s.failNow(f)
}

func (s *Server) failNow(f failure) error {
	if err := f.check(s.process().engine.ranks()); err != nil {
		return err
	}
	if !s.begin(f) {
		return errors.New("the simulated server does not run: let it serve before it fails")
	}
	return nil
}

// check compares a failure with the number of ranks.
func (f *failure) check(ranks int) error {
	if f.rank >= ranks {
		return fmt.Errorf("failure %q: there is no rank %d: choose one of 0 to %d", f.spec, f.rank, ranks-1)
	}
	return nil
}

// begin lets a failure take its course; false when the server does not run.
func (s *Server) begin(f failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		s.begun++
		number := s.begun
		s.failing.Go(func() { s.carryOut(f, number) })
	}
	return s.running
}

// carryOut is the course of the number-th failure.
func (s *Server) carryOut(f failure, number uint64) {
	if !s.sleep(s.scaled(f.at), nil) {
		return
	}
	if f.kind.answer != nil {
		b := &ambush{failure: f, rand: rand.New(rand.NewPCG(s.seed, number))}
		s.ambushes.lay(b)
		if f.lasts > 0 && s.sleep(s.scaled(f.lasts), nil) {
			s.ambushes.lift(b)
		}
		return
	}
	p := s.process()
	s.play(p.ended, f.kind.steps(p, f))
	if f.down == 0 {
		return
	}
	select {
	case <-p.ended:
	case <-s.stopped:
		return
	}
	if !s.sleep(s.scaled(f.down), nil) {
		return
	}
	ranks := f.ranks
	if ranks == 0 {
		ranks = p.engine.ranks()
	}
	if next, err := s.newProcess(ranks); err == nil { // the numbers were checked
		p.succeed(next)
	}
}

// play takes the steps at their times from now on, until over is closed.
func (s *Server) play(over <-chan struct{}, steps []step) {
	began := time.Now()
	for _, step := range steps {
		if !s.sleep(time.Until(began.Add(s.scaled(step.at))), over) {
			return
		}
		step.do()
	}
}

// sleep returns false when the server stops, or over is closed, before the time has passed.
func (s *Server) sleep(d time.Duration, over <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.stopped:
		return false
	case <-over:
		return false
	default:
	}
	select {
	case <-timer.C:
		return true
	case <-over:
		return false
	case <-s.stopped:
		return false
	}
}
