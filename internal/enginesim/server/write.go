package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// write sends what it can: a client that is gone is noticed by its context.
func write(w http.ResponseWriter, b []byte) { _, _ = w.Write(b) }

func writeJSON(w http.ResponseWriter, status int, body object) {
	b := encode(body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	write(w, b) // net/http leaves it out for HEAD
}

// writeDetail is an error of the framework itself.
func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, object{{"detail", detail}})
}

// refuse answers with an error in the shape of OpenAI's dialects.
func (s *Server) refuse(w http.ResponseWriter, e *apiError) {
	if e.kind == kindDetail {
		writeDetail(w, e.status, e.message)
		return
	}
	writeJSON(w, e.status, e.openAI())
}

// refuseAnthropic answers with an error in the shape of /v1/messages, unless the error came
// from a layer that knows only one shape.
func (s *Server) refuseAnthropic(w http.ResponseWriter, e *apiError) {
	if e.schema || e.kind == kindDetail {
		s.refuse(w, e)
		return
	}
	writeJSON(w, e.status, e.anthropic(s.version))
}

// refuseOn answers with an error in the shape of the request's route.
func (s *Server) refuseOn(w http.ResponseWriter, r *http.Request, e *apiError) {
	if r.URL.Path == "/v1/messages" {
		s.refuseAnthropic(w, e)
		return
	}
	s.refuse(w, e)
}

// stream writes server-sent events, each in an HTTP chunk of its own.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  []byte
}

// openStream sends the headers. The engine does so before it queues the request: a status of
// 200 says nothing about what follows.
func openStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	out := &stream{w: w, control: http.NewResponseController(w)}
	out.flush()
	return out
}

// flush can only fail when the client is gone or the writer cannot stream; both end the
// request in other ways.
func (s *stream) flush() { _ = s.control.Flush() }

func (s *stream) raw(event string) {
	write(s.w, []byte(event))
	s.flush()
}

// data writes an event without a name, as OpenAI's chat and completions have them.
func (s *stream) data(v object) { s.event("", v) }

// event writes an event with a name, as /v1/messages and /v1/responses have them.
func (s *stream) event(name string, v object) {
	b := s.buffer[:0]
	if name != "" {
		b = append(b, "event: "...)
		b = append(b, name...)
		b = append(b, '\n')
	}
	b = append(b, "data: "...)
	b = appendJSON(b, v, compact)
	b = append(b, "\n\n"...)
	write(s.w, b)
	s.flush()
	s.buffer = b
}

func (s *stream) done() { s.raw("data: [DONE]\n\n") }

// cut ends the response without the chunk that would say that it is complete.
func (s *stream) cut() {
	s.flush()
	panic(http.ErrAbortHandler) // net/http's own way to do so
}

// follow calls each for what the generation brings until all of its sequences are done, and
// writes keep-alive comments when nothing came for idle. A client that left ends it early: false.
// So does the death of the engine, after a call of die. When the server itself ends the stream is cut.
func (s *stream) follow(ctx context.Context, g *generation, idle time.Duration, each func(event), die func()) bool {
	for g.left > 0 {
		events, err := g.next(ctx, idle)
		switch {
		case errors.Is(err, errIdle):
			s.raw(": keep-alive\n\n")
			continue
		case errors.Is(err, errEngineDead):
			die()
			return false
		case errors.Is(err, errEngineGone):
			s.cut()
		case err != nil:
			return false
		}
		for _, e := range events {
			each(e)
		}
	}
	return true
}
