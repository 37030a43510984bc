package live

import (
	"slices"
	"sync"
	"time"

	"lmwarden/internal/bench"
)

// Status is what can be seen of a step while it runs.
type Status struct {
	Step                        bench.Step
	Elapsed                     time.Duration // since its load began
	Open, Finished, Failed, Cut int           // requests
	Output                      int           // tokens of finished ones, as far as they are known
	Prompt, Cached              int           // of those that told both
	TTFBP50                     time.Duration // negative when no token has come
	LastError                   string
	Awaiting                    bool      // started engines, until they are ready
	Running, Waiting            []float64 // by replica, NaN where not known; nil when no engine is
}

// Status is safe to be called from any goroutine.
func (s *System) Status() Status {
	st := s.status.now(s.Now())
	st.Running, st.Waiting = s.engines.load()
	return st
}

type status struct {
	mu    sync.Mutex
	began time.Duration   // guarded by mu
	seen  Status          // guarded by mu
	ttfb  []time.Duration // guarded by mu
}

func (s *status) begin(step bench.Step, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.ttfb, s.seen = now, nil, Status{Step: step}
}

func (s *status) await(engines bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.Awaiting = engines
}

func (s *status) sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.Open++
}

func (s *status) ended(r bench.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.Open--
	if r.First >= 0 {
		s.ttfb = append(s.ttfb, r.First-r.Sent)
	}
	switch r.End {
	case bench.Finished:
		s.seen.Finished++
		s.seen.Output += max(r.Output, 0)
		if r.Prompt >= 0 && r.Cached >= 0 {
			s.seen.Prompt += r.Prompt
			s.seen.Cached += r.Cached
		}
	case bench.Cut:
		s.seen.Cut++
	case bench.Failed:
		s.seen.Failed++
		s.seen.LastError = r.Error
	}
}

func (s *status) now(now time.Duration) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.seen
	st.Elapsed, st.TTFBP50 = now-s.began, -1
	if n := len(s.ttfb); n > 0 {
		sorted := slices.Sorted(slices.Values(s.ttfb))
		st.TTFBP50 = sorted[(n-1)/2]
	}
	return st
}
