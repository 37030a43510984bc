// Package proxy is the data plane: it takes requests from clients, finds their
// conversation, holds a lease on a replica while an engine answers, and forwards
// the answer byte for byte. It retries what no client has seen yet, and never
// lets an answer that was cut short look finished.
//
// It decides nothing about placement (that is the routing core, behind pool),
// parses no message (llmapi), and knows nothing of pages or metrics: each
// finished request goes to a Recorder.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/upstream"
)

// Options are what New needs.
type Options struct {
	// Models finds pools; required. *pool.Set is one.
	Models Models
	// Sessions tells conversations apart; required.
	Sessions *session.Table
	// Access admits requests; nil admits everybody.
	Access Access
	// Recorder gets every finished request; nil for none.
	Recorder Recorder
	// Reader reads the prompts of answered turns; nil for none.
	Reader Reader
	// Tracer makes requests part of traces; nil passes a client's trace headers on
	// as they are.
	Tracer Tracer
	// Logger gets one line per finished request; nil for none.
	Logger *slog.Logger
	Limits Limits
	// Dial opens the connections to engines; nil is the network.
	Dial upstream.DialFunc
}

// Models finds the pool that serves a name.
type Models interface {
	// Lookup takes the name that a client sent, empty for none.
	Lookup(model string) (*pool.Pool, bool)
	Pools() []*pool.Pool
}

// Limits bound what one request may take. A zero field means its default, a
// negative duration means no limit. Those on stalling and silence may run a second
// longer.
type Limits struct {
	// MaxBody is the largest request body in bytes. Default 64 MiB.
	MaxBody int64
	// MaxBuffered is how many bytes the bodies of all requests may take that are
	// not yet answered; further requests are refused as overload. Default 1 GiB.
	MaxBuffered int64
	// BodyStall ends a request whose body brings no byte for so long. Default
	// 30 s.
	BodyStall time.Duration
	// Connect bounds the connection to an engine. Default 3 s.
	Connect time.Duration
	// FirstByte bounds the wait for the first byte of an answer, which an
	// announcement of it is not, queueing and prefill included, and the whole
	// generation when the answer is not streamed. Default 30 minutes.
	FirstByte time.Duration
	// Idle bounds the silence between two bytes of an answer from then on. Default 5
	// minutes.
	Idle time.Duration
	// EngineIdle is how long an unused connection to an engine is kept. It must be
	// less than the time after which the engine closes it, 5 s for vLLM. Default
	// 4 s.
	EngineIdle time.Duration
	// ClientStall ends an answer whose client takes no byte for so long. Default
	// 2 minutes.
	ClientStall time.Duration
	// KeepAlive is what a stream gets while its request is held, for the first time
	// after KeepAliveAfter (default 15 s) and then as often.
	KeepAlive      KeepAlive
	KeepAliveAfter time.Duration
}

func (l Limits) withDefaults() Limits {
	or := func(d *time.Duration, def time.Duration) {
		switch {
		case *d == 0:
			*d = def
		case *d < 0:
			*d = 0
		}
	}
	if l.MaxBody <= 0 {
		l.MaxBody = 64 << 20
	}
	if l.MaxBuffered <= 0 {
		l.MaxBuffered = 1 << 30
	}
	or(&l.BodyStall, 30*time.Second)
	or(&l.Connect, 3*time.Second)
	or(&l.FirstByte, 30*time.Minute)
	or(&l.Idle, 5*time.Minute)
	or(&l.EngineIdle, 4*time.Second)
	or(&l.ClientStall, 2*time.Minute)
	or(&l.KeepAliveAfter, 15*time.Second)
	return l
}

// Handler serves the client listener. Safe for concurrent use.
type Handler struct {
	models   models
	sessions *session.Table
	access   Access
	recorder Recorder
	reader   Reader
	tracer   Tracer
	logger   *slog.Logger
	limits   Limits
	engines  *upstream.Client
	bodies   bodies
	buffers  sync.Pool // of *[streamBuffer]byte
	open     open
	enlisted enlisted
}

// models, backend and lease are what the handler uses of pool.
type models interface {
	lookup(model string) (backend, bool)
	all() []backend
}

type backend interface {
	Name() string
	View() pool.View
	acquire(context.Context, pool.Request) (lease, error)
}

type lease interface {
	// Context is that of the attempt in force.
	Context() context.Context
	Decision() routing.Decision
	// target is where the attempt in force goes, and the name by which to ask there
	// for the model that the client called asked.
	target(asked string) (pool.Target, string)
	FirstByte()
	Progress()
	Failed(err error)
	Unmarked()
	Retry(err error) error
	End(routing.Outcome)
}

// New builds the handler and its connections to engines.
func New(o Options) (*Handler, error) {
	if o.Models == nil {
		return nil, errors.New("proxy: Options.Models is missing")
	}
	if o.Sessions == nil {
		return nil, errors.New("proxy: Options.Sessions is missing")
	}
	return newHandler(o, poolModels{o.Models}, o.Dial), nil
}

func newHandler(o Options, m models, dial upstream.DialFunc) *Handler {
	h := &Handler{
		models:   m,
		sessions: o.Sessions,
		access:   o.Access,
		recorder: o.Recorder,
		reader:   o.Reader,
		tracer:   o.Tracer,
		logger:   o.Logger,
		limits:   o.Limits.withDefaults(),
	}
	if h.logger == nil {
		h.logger = slog.New(slog.DiscardHandler)
	}
	if h.tracer == nil {
		h.tracer = untraced{}
	}
	if h.access == nil {
		h.access = everybody{}
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: h.limits.Connect, KeepAlive: 15 * time.Second}).DialContext
	}
	h.engines = upstream.New(upstream.Options{Dial: dial, IdleFor: h.limits.EngineIdle})
	h.bodies.limit = h.limits.MaxBuffered
	h.buffers.New = func() any { return new([streamBuffer]byte) }
	return h
}

// maxHead bounds a request's head, several times what any client sends; nobody has
// shown a key before it is read.
const maxHead = 64 << 10

// Server is an http.Server for the client listener with the time limits that
// agents and streams need: none on a whole request or answer (the handler limits
// each read and write), and long idle times, since agents think between turns
// and do not repeat a POST whose connection was closed under it.
func (h *Handler) Server() *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    maxHead,
		IdleTimeout:       15 * time.Minute,
		ErrorLog:          slog.NewLogLogger(h.logger.Handler(), slog.LevelWarn),
	}
}

// Stopping makes the handler refuse new requests; open ones go on to their end,
// and the channel is closed when they have come to it.
func (h *Handler) Stopping() (drained <-chan struct{}) { return h.open.stop() }

// Close lets go of idle connections to engines. Call it when the listener's
// server has shut down.
func (h *Handler) Close() { h.engines.Close() }
