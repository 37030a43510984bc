package server

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ambush is a failure of requests that waits for them.
type ambush struct {
	failure
	rand *rand.Rand // guarded by ambushes.mu
	hits int        // guarded by ambushes.mu
}

// ambushes are those that are laid.
type ambushes struct {
	mu  sync.Mutex
	all []*ambush // guarded by mu: in the order in which they were laid
}

func (a *ambushes) lay(b *ambush) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, b)
}

func (a *ambushes) lift(b *ambush) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.all {
		if a.all[i] == b {
			a.all = append(a.all[:i:i], a.all[i+1:]...)
			return
		}
	}
}

func (a *ambushes) state() []FailureState {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := []FailureState{}
	for _, b := range a.all {
		all = append(all, FailureState{b.spec, b.hits})
	}
	return all
}

// of returns the failures that hit a request, and counts it there.
func (a *ambushes) of(r *http.Request, generates bool) []failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	var hit []failure
	for _, b := range a.all {
		if b.awaits(r, generates) && b.rand.Float64() < b.share {
			b.hits++
			hit = append(hit, b.failure)
		}
	}
	return hit
}

func (b *ambush) awaits(r *http.Request, generates bool) bool {
	if b.count > 0 && b.hits >= b.count {
		return false
	}
	if b.reused {
		if c := connectionOf(r); c == nil || c.requests < 2 {
			return false
		}
	}
	if b.path == "" {
		return generates
	}
	return strings.HasPrefix(r.URL.Path, b.path)
}

// ambushed is how a request is answered when its failures, if it has any, have their way.
func (s *Server) ambushed(r *http.Request, at route) http.HandlerFunc {
	serve := at.serve
	for _, f := range s.ambushes.of(r, at.generates) {
		inner := serve
		serve = func(w http.ResponseWriter, r *http.Request) { f.kind.answer(s, f, w, r, inner) }
	}
	return serve
}

func resetConnection(_ *Server, _ failure, _ http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
	abandonConnection(r, true)
}

// abandonConnection ends the connection of a request at once.
func abandonConnection(r *http.Request, reset bool) {
	if c := connectionOf(r); c != nil && reset {
		c.resets()
	}
	panic(http.ErrAbortHandler) // net/http's own way to do so
}

// answerBusy answers as a server does whose queue is full.
func answerBusy(s *Server, f failure, w http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
	if _, refusal := readBody(r); refusal != nil {
		s.refuseOn(w, r, refusal)
		return
	}
	s.process().refused.Add(1)
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(f.retryAfter.Round(time.Second).Seconds())))
	}
	s.refuseOn(w, r, busy())
}

// slowHeaders holds the headers back, and with them whatever waits until they are sent.
func slowHeaders(s *Server, f failure, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	wait := sync.OnceFunc(func() {
		select {
		case <-time.After(s.scaled(f.delay)):
		case <-r.Context().Done():
		}
	})
	serve(&slowWriter{ResponseWriter: w, wait: wait}, r)
}

type slowWriter struct {
	http.ResponseWriter
	wait func()
}

func (w *slowWriter) WriteHeader(status int) {
	w.wait()
	w.ResponseWriter.WriteHeader(status)
}

func (w *slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// How an answer can be cut.
const (
	cutByClose = "close" // the connection is closed
	cutByReset = "reset" // and its peer is told so
	cutByEnd   = "end"   // the answer is complete for HTTP and for nobody else
)

func cutWays() []string { return []string{cutByClose, cutByReset, cutByEnd} }

// cutAnswer lets a part of an answer through and no more.
func cutAnswer(_ *Server, f failure, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	r = r.WithContext(ctx)
	serve(&cutWriter{ResponseWriter: w, request: r, left: f.after, how: f.how, leave: leave}, r)
}

type cutWriter struct {
	http.ResponseWriter
	request *http.Request
	left    int // events of a stream
	how     string
	leave   func() // makes the handler return as if its client had left
	cut     bool
}

// Write gets one event of a stream, or the whole of a body.
func (w *cutWriter) Write(b []byte) (int, error) {
	if w.cut {
		return len(b), nil
	}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		if w.left > 0 {
			w.left--
			return w.ResponseWriter.Write(b)
		}
	} else if n, err := w.ResponseWriter.Write(b[:len(b)/2]); err != nil {
		return n, err
	}
	w.cut = true
	if v := visitOf(w.request); v != nil {
		v.outcome = failed
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush() // fails only when the client is gone
	if w.how != cutByEnd {
		abandonConnection(w.request, w.how == cutByReset)
	}
	w.leave()
	return len(b), nil
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
