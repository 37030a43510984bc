package proxy

import (
	"net/http"
	"time"

	"lmwarden/internal/routing"
)

// Tracer makes requests part of traces. Begin is called from many goroutines and
// must not block.
type Tracer interface {
	// Begin is told of a request on an engine's route when its head is in. It may
	// change the request's headers, which the engine gets. Nil is for a request that is
	// not traced.
	Begin(arrived time.Time, r *http.Request) Trace
}

// Trace is told what becomes of one request, by one goroutine and without
// waiting.
type Trace interface {
	// ID is that of the whole trace, for the log.
	ID() string
	// Attempt begins an attempt, Failed ends one that is made again elsewhere.
	Attempt(routing.Decision)
	Failed(cause error)
	// End is the last call. The record is the caller's.
	End(*Record)
}

// untraced is the Tracer of a gateway that traces nothing, and its Trace.
type untraced struct{}

func (untraced) Begin(time.Time, *http.Request) Trace { return untraced{} }
func (untraced) ID() string                           { return "" }
func (untraced) Attempt(routing.Decision)             {}
func (untraced) Failed(error)                         {}
func (untraced) End(*Record)                          {}
