package server

import (
	"context"
	"errors"
	"sync"
	"time"
)

// event is what became of one sequence of a job since the event before it. When the
// handler is slow, several steps of the engine share one event, as they do in vLLM.
type event struct {
	part   int  // which sequence of the job
	tokens int  // answer tokens that came
	first  bool // the first token is among them; cached and created are set with it

	cached, created int

	done   bool
	reason string // with done: stop, length or abort
}

// job collects what the ranks deliver for the sequences of one request. Delivering
// never waits for the client.
type job struct {
	mu      sync.Mutex
	pending []event // guarded by mu
	lost    error   // guarded by mu: why nothing will come any more

	wake chan struct{} // holds one signal: something changed
}

var (
	// errIdle says that nothing came for the time the caller was ready to wait.
	errIdle = errors.New("nothing came in time")
	// errEngineDead says that the server noticed the death of an engine: it still tells its clients.
	errEngineDead = errors.New("the engine is dead")
	// errEngineGone says that the server itself ends, in the middle of answers.
	errEngineGone = errors.New("the engine is gone")
)

func newJob() *job { return &job{wake: make(chan struct{}, 1)} }

func (j *job) deliver(e event) {
	j.mu.Lock()
	merged := false
	for i := range j.pending {
		if p := &j.pending[i]; p.part == e.part {
			p.tokens += e.tokens
			if e.first {
				p.first, p.cached, p.created = true, e.cached, e.created
			}
			p.done, p.reason = e.done, e.reason
			merged = true
			break
		}
	}
	if !merged {
		j.pending = append(j.pending, e)
	}
	j.mu.Unlock()
	j.signal()
}

func (j *job) lose(why error) {
	j.mu.Lock()
	j.lost = why
	j.mu.Unlock()
	j.signal()
}

func (j *job) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// next waits for events and returns them in the order in which their sequences first had one.
// It fails with the context's error, with errEngineDead or errEngineGone, or with errIdle after
// idle (zero waits for ever).
func (j *job) next(ctx context.Context, idle time.Duration) ([]event, error) {
	var expired <-chan time.Time
	if idle > 0 {
		timer := time.NewTimer(idle)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		j.mu.Lock()
		events, lost := j.pending, j.lost
		j.pending = nil
		j.mu.Unlock()
		if len(events) > 0 {
			return events, nil
		}
		if lost != nil {
			return nil, lost
		}
		select {
		case <-j.wake:
		case <-expired:
			return nil, errIdle
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
