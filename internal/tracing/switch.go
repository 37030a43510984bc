package tracing

import (
	"net/http"
	"sync"
	"time"

	"lmwarden/internal/proxy"
)

// Switch is a proxy.Tracer whose Tracer may change while requests are open: each
// ends with the one that it began with, which stops after the last of them. The zero
// Switch traces nothing. Safe for concurrent use.
type Switch struct {
	mu       sync.Mutex
	now      *reign         // guarded by mu; nil while nothing is traced
	former   map[*reign]any // guarded by mu; not yet stopped
	stopping sync.WaitGroup // one for each that stops in the background
}

// reign is the time of one Tracer. Its fields are guarded by Switch.mu.
type reign struct {
	*Tracer
	open int // requests that began in it
}

// Set starts a Tracer and puts it in force; nil traces nothing from now on. It does
// not wait for the former one.
func (s *Switch) Set(t *Tracer) {
	var next *reign
	if t != nil {
		t.Start()
		next = &reign{Tracer: t}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.now
	s.now = next
	if was == nil {
		return
	}
	if s.former == nil {
		s.former = map[*reign]any{}
	}
	s.former[was] = nil
	s.retire(was)
}

// retire stops a former Tracer whose last request has ended. Callers hold mu.
func (s *Switch) retire(r *reign) {
	if _, ok := s.former[r]; ok && r.open == 0 {
		delete(s.former, r)
		s.stopping.Go(r.Stop)
	}
}

// Stop traces nothing any more and waits until every span that has ended is sent or
// given up. Requests that are still open lose theirs.
func (s *Switch) Stop() {
	s.Set(nil)
	s.mu.Lock()
	for r := range s.former {
		s.stopping.Go(r.Stop)
	}
	clear(s.former)
	s.mu.Unlock()
	s.stopping.Wait()
}

// Begin implements proxy.Tracer.
func (s *Switch) Begin(arrived time.Time, r *http.Request) proxy.Trace {
	s.mu.Lock()
	in := s.now
	if in != nil {
		in.open++
	}
	s.mu.Unlock()
	if in == nil {
		return nil
	}
	return &counted{in.Begin(arrived, r), s, in}
}

// counted is the trace of a request that is open in a reign.
type counted struct {
	proxy.Trace
	s  *Switch
	in *reign
}

// End implements proxy.Trace.
func (c *counted) End(rec *proxy.Record) {
	c.Trace.End(rec)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.in.open--
	c.s.retire(c.in)
}
