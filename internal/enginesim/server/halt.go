package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"lmwarden/internal/enginesim"
)

// What befalls the ranks of an engine from outside: they are stopped and continued, they are
// told to end what they do, or the API server finds out that they are dead.

// reasonAbort is why a sequence ended that the engine itself gave up.
const reasonAbort = "abort"

// halt is the state of a rank that makes no progress while held is above 0.
type halt struct {
	held    int           // how many failures hold it
	resumed chan struct{} // closed when none does any more

	// What the rank reported last.
	stats   enginesim.Stats
	figures figures
}

// hold stops a rank as SIGSTOP does: it takes sequences, does nothing, and reports nothing new. A
// killed one is held for ever.
func (e *engine) hold(rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.halts[rank]
	if h.held++; h.held == 1 {
		h.resumed = make(chan struct{})
		h.stats, h.figures = e.figuresOf(rank)
	}
}

// release undoes one hold.
func (e *engine) release(rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.halts[rank]
	if h.held--; h.held == 0 {
		close(h.resumed)
		*h = halt{}
	}
}

// slowness is what makes the steps of a rank last longer. The zero value does not.
type slowness struct {
	factor  float64
	changes int // tells who changed it last
}

func (s slowness) of(step time.Duration) time.Duration {
	if s.factor == 0 {
		return step
	}
	return time.Duration(float64(step) * s.factor)
}

// slow makes the steps of a rank that begin from now on take factor times as long.
// end undoes it, if nobody has slowed the rank again since.
func (e *engine) slow(rank int, factor float64) (end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.slowed[rank]
	s.factor = factor
	s.changes++
	mine := s.changes
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if s.changes == mine {
			s.factor = 1
		}
	}
}

// lockRunning locks mu at a moment at which nothing holds the rank. It returns false, without
// the lock, when ctx ends before.
func (e *engine) lockRunning(ctx context.Context, rank int) bool {
	for {
		e.mu.Lock()
		h := e.halts[rank]
		if h.held == 0 {
			return true
		}
		e.mu.Unlock()
		select {
		case <-h.resumed:
		case <-ctx.Done():
			return false
		}
	}
}

// abort ends all sequences of a rank with what they have so far, for the reason abort, as an engine
// does that shuts down. One that is held does not.
func (e *engine) abort(rank int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.halts[rank].held > 0 {
		return
	}
	for _, q := range e.sorted() {
		if q.rank != rank {
			continue
		}
		delete(e.live, q.id)
		e.box.Abort(q.id)
		e.aborted[rank]++
		q.job.deliver(event{part: q.part, done: true, reason: reasonAbort})
	}
	// The step in progress has nothing to bring any more. Its end frees the blocks at once, which the
	// gauges must show before the rank is held.
	e.box.End(e.now(), rank)
}

// lose tells the jobs of all live sequences that nothing will come any more and why, and takes no
// further one. Only the first reason counts.
func (e *engine) lose(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone == nil {
		e.gone = why
	}
	for _, q := range e.sorted() {
		e.box.Abort(q.id)
		q.job.lose(why)
	}
	clear(e.live)
}

// sorted are the live sequences in the order in which they came. Called with mu held.
func (e *engine) sorted() []*sequence {
	return slices.SortedFunc(maps.Values(e.live), func(a, b *sequence) int { return cmp.Compare(a.id, b.id) })
}
