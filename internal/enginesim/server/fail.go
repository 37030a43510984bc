package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Fail makes something go wrong, in the form KIND[@TIME][,KEY=VALUE...] that FailureHelp describes. TIME counts
// from now; without one it has begun when Fail returns. The server must be serving; whether its process is
// alive does not matter. The error says what is wrong with the words.
func (s *Server) Fail(spec string) error {
	f, err := parseFailure(spec)
	if err != nil {
		return err
	}
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

// begin lets a failure take its course; false when the server does not run. A failure that is to
// happen now has happened when begin returns.
func (s *Server) begin(f failure) bool {
	happened := make(chan struct{})
	s.mu.Lock()
	running := s.running
	if running {
		s.begun++
		rand := rand.New(rand.NewPCG(s.seed, s.begun))
		s.failing.Go(func() { s.carryOut(f, rand, sync.OnceFunc(func() { close(happened) })) })
	}
	s.mu.Unlock()
	if running && f.at == 0 {
		<-happened
	}
	return running
}

// carryOut is the course of a failure. It calls happened when what the failure does at once is done, or never
// will be.
func (s *Server) carryOut(f failure, rand *rand.Rand, happened func()) {
	defer happened()
	if !s.sleep(s.scaled(f.at), nil) {
		return
	}
	if f.kind.answer != nil {
		a := &ambush{failure: f, rand: rand}
		s.ambushes.lay(a)
		happened()
		if f.lasts > 0 && s.sleep(s.scaled(f.lasts), nil) {
			s.ambushes.lift(a)
		}
		return
	}
	p := s.process()
	steps := f.kind.steps(p, f)
	s.play(p.ended, steps, happened)
	if len(steps) > 0 && f.down > 0 {
		s.bringBack(p, f)
	}
}

// play takes the steps at their times from now on, until over is closed. It calls happened when it has
// taken those that are due at once.
func (s *Server) play(over <-chan struct{}, steps []step, happened func()) {
	began := time.Now()
	defer happened()
	for _, step := range steps {
		if step.at > 0 {
			happened()
		}
		if !s.sleep(time.Until(began.Add(s.scaled(step.at))), over) {
			return
		}
		step.do()
	}
}

// bringBack starts another process when p has been over for the time that the failure says.
func (s *Server) bringBack(p *process, f failure) {
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
	if next, err := s.newProcess(ranks); err == nil { // New has checked the parameters
		p.succeed(next)
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
