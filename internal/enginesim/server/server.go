// Package server is the HTTP face of the simulated vLLM: the routes, bodies, streams,
// errors and metrics of an API server in front of an enginesim.Box, close enough to the
// recorded original that a gateway cannot tell them apart. One Server is one URL with one or more
// ranks behind it; several ports with one rank each are several Servers.
//
// It is for tests, demonstrations and measurements. What the simulated model says is
// noise, steered by markers in the newest user message (see marker.go).
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"lmwarden/internal/enginesim"
)

// Options describe one simulated server.
type Options struct {
	// Params are the engine's, usually enginesim.Preset's. Their ModelLen is the context that the server
	// announces.
	Params enginesim.Params
	// Replicas is the number of ranks behind the URL; 0 is 1.
	Replicas int
	// Models are the served names. The first stands in answers and metrics. None is "sim".
	Models []string
	// Version is the release of vLLM to play, like "0.32.0" (the default). Before 0.33 the
	// rank header is ignored on /v1/responses and errors of /v1/messages have OpenAI's names; before
	// 0.27 the balancer is an older one, unless Params asks for the blind one.
	Version string
	// ResponsesRank honours the rank header on /v1/responses whatever the version.
	ResponsesRank bool
	// OmitPromptTokensDetails leaves the cache counts out of the usage of chat, completions and
	// messages, as a server without --enable-prompt-tokens-details does.
	OmitPromptTokensDetails bool
	// APIKey guards the /v1 routes; empty lets everyone in.
	APIKey string
	// Speed makes the engine's time run that many times as fast, up to 10,000; 0 is 1. Times in the
	// metrics are those of the clock.
	Speed float64
	// SSEKeepAlive sends a comment on chat and completions streams after that much silence;
	// 0 never does.
	SSEKeepAlive time.Duration
	// MaxQueuedReqs answers 503 to requests beyond that many open ones; 0 is no limit.
	MaxQueuedReqs int
	// AnswerTokens is the mean length of answers that neither max tokens nor a marker limit; they
	// are between 2/5 and 8/5 of it. 0 is 160.
	AnswerTokens int
	// Seed changes all answers and the choices of the blind balancer.
	Seed uint64
}

const (
	defaultVersion      = "0.32.0"
	defaultModel        = "sim"
	defaultAnswerTokens = 160

	maxSpeed = 10_000
)

// Server is one simulated vLLM server. It answers once Start or Serve was called.
type Server struct {
	params        enginesim.Params
	tokenizer     enginesim.Tokenizer
	replicas      int
	models        []string
	version       version
	build         string // the last part of the fingerprint
	responsesRank bool
	details       bool
	apiKey        string
	sseKeepAlive  time.Duration
	maxQueued     int
	answerTokens  int
	seed          uint64
	routes        map[string]route
	engine        *engine

	open    atomic.Int64 // requests being answered
	refused atomic.Int64 // by the queue limit

	start   func() // once
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New returns a server that does not run yet. It reports everything that is wrong with the options.
func New(o Options) (*Server, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if len(o.Models) == 0 {
		o.Models = []string{defaultModel}
	}
	if o.Version == "" {
		o.Version = defaultVersion
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.AnswerTokens == 0 {
		o.AnswerTokens = defaultAnswerTokens
	}
	version, err := parseVersion(o.Version)
	errs := []error{err, o.Params.Validate()}
	if o.Replicas < 1 {
		errs = append(errs, fmt.Errorf("replicas is %d: it must be at least 1", o.Replicas))
	}
	if !(o.Speed > 0 && o.Speed <= maxSpeed) { // NaN fails every comparison
		errs = append(errs, fmt.Errorf("speed is %g: it must be above 0 and at most %d", o.Speed, maxSpeed))
	}
	if o.AnswerTokens < 1 {
		errs = append(errs, fmt.Errorf("answer tokens is %d: it must be at least 1", o.AnswerTokens))
	}
	if o.MaxQueuedReqs < 0 {
		errs = append(errs, fmt.Errorf("max queued requests is %d: it must be at least 1, or 0 for no limit", o.MaxQueuedReqs))
	}
	if o.SSEKeepAlive < 0 {
		errs = append(errs, fmt.Errorf("the keep-alive interval is %s: it must not be negative", o.SSEKeepAlive))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("simulated server: %w", err)
	}
	if o.Params.Balancer != enginesim.BalancerBlind {
		o.Params.Balancer = version.balancer(o.Params.Balancer)
	}
	box, err := enginesim.NewBox(enginesim.BoxOptions{
		Params: o.Params, Ranks: o.Replicas, Rand: rand.New(rand.NewPCG(o.Seed, 1)),
	})
	if err != nil {
		return nil, fmt.Errorf("simulated server: %w", err)
	}
	s := &Server{
		params:        o.Params,
		tokenizer:     enginesim.Tokenizer{BytesPerToken: o.Params.BytesPerToken},
		replicas:      o.Replicas,
		models:        o.Models,
		version:       version,
		responsesRank: o.ResponsesRank || version.atLeast(0, 33),
		details:       !o.OmitPromptTokensDetails,
		apiKey:        o.APIKey,
		sseKeepAlive:  o.SSEKeepAlive,
		maxQueued:     o.MaxQueuedReqs,
		answerTokens:  o.AnswerTokens,
		seed:          o.Seed,
	}
	s.build = fmt.Sprintf("%08x", uint32(s.hash(nil, o.Replicas)))
	s.engine = newEngine(box, o.Speed, o.Params.ModelLen())
	s.routes = s.makeRoutes()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.start = sync.OnceFunc(func() { s.running.Go(func() { s.engine.run(ctx) }) })
	return s, nil
}

// Start makes the engine run. Every Server that was started must be stopped.
func (s *Server) Start() { s.start() }

// Stop ends the engine for good and waits for it. Requests that wait for an answer are cut off
// in the middle or get an error, and so do later ones.
func (s *Server) Stop() {
	s.cancel()
	s.start() // an engine that never ran must refuse, too
	s.running.Wait()
}

// Handler answers as the simulated server does, on connections that somebody else holds. Where the original
// cuts a connection it panics with http.ErrAbortHandler, which net/http understands.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Serve starts the engine and answers on l until ctx ends. Then it closes l and every connection
// at once, stops the engine, and returns when the last request has left.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var connections sync.WaitGroup
	web := &http.Server{
		Handler:        s.Handler(),
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       log.New(io.Discard, "", 0), // cutting connections is its business
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed: // its handler has returned
				connections.Done()
			}
		},
	}
	s.Start()
	disarm := context.AfterFunc(ctx, func() { web.Close() })
	err := web.Serve(l)
	disarm()
	web.Close() // when it was the listener that failed
	s.Stop()
	connections.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("simulated server on %s: %w", l.Addr(), err)
}

const (
	// idleTimeout is after how long uvicorn closes a connection on which it answered.
	idleTimeout = 5 * time.Second
	// maxHeaderBytes is the engine's --h11-max-incomplete-event-size.
	maxHeaderBytes = 4 << 20
)
