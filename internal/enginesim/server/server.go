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
	// KVEvents are where the ranks publish their KV events, one for each; none publish
	// none. Serve closes them.
	KVEvents []KVPort
	// Failures are what goes wrong, in the form KIND[@TIME][,KEY=VALUE...] that FailureHelp describes.
	Failures []string
	// Seed changes all answers, the choices of the blind balancer, and which requests fail.
	Seed uint64
}

const (
	defaultVersion      = "0.32.0"
	defaultModel        = "sim"
	defaultAnswerTokens = 160

	maxSpeed = 10_000
)

// Server is one simulated vLLM server: one process after another, as failures end them and bring them
// back. Serve runs it.
type Server struct {
	params        enginesim.Params
	tokenizer     enginesim.Tokenizer
	speed         float64
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
	kvPorts       []KVPort      // by rank
	kvTaken       []atomic.Bool // by rank: whether a process has had them

	current   atomic.Pointer[process]
	tally     tally
	ambushes  ambushes
	scheduled []failure // of the options
	// listen is net.Listen but in tests.
	listen func(network, address string) (net.Listener, error)

	mu      sync.Mutex
	running bool           // guarded by mu
	begun   uint64         // guarded by mu: failures until now
	failing sync.WaitGroup // failures that take their course; grows only while running
	stopped chan struct{}  // closed when Serve ends
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
	if n := len(o.KVEvents); n != 0 && n != o.Replicas {
		errs = append(errs, fmt.Errorf("%d ports for KV events and %d ranks: each rank needs one", n, o.Replicas))
	}
	var scheduled []failure
	for _, spec := range o.Failures {
		f, err := parseFailure(spec)
		if err == nil {
			err = f.check(o.Replicas)
		}
		scheduled, errs = append(scheduled, f), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("simulated server: %w", err)
	}
	if o.Params.Balancer != enginesim.BalancerBlind {
		o.Params.Balancer = version.balancer(o.Params.Balancer)
	}
	s := &Server{
		params:        o.Params,
		tokenizer:     enginesim.Tokenizer{BytesPerToken: o.Params.BytesPerToken},
		speed:         o.Speed,
		models:        o.Models,
		version:       version,
		responsesRank: o.ResponsesRank || version.atLeast(0, 33),
		details:       !o.OmitPromptTokensDetails,
		apiKey:        o.APIKey,
		sseKeepAlive:  o.SSEKeepAlive,
		maxQueued:     o.MaxQueuedReqs,
		answerTokens:  o.AnswerTokens,
		seed:          o.Seed,
		scheduled:     scheduled,
		kvPorts:       o.KVEvents,
		kvTaken:       make([]atomic.Bool, len(o.KVEvents)),
		listen:        net.Listen,
		stopped:       make(chan struct{}),
	}
	s.build = fmt.Sprintf("%08x", uint32(s.hash(nil, o.Replicas)))
	s.routes = s.makeRoutes()
	first, err := s.newProcess(o.Replicas)
	if err != nil {
		return nil, fmt.Errorf("simulated server: %w", err)
	}
	s.current.Store(first)
	return s, nil
}

// newProcess returns a process with that many ranks, all of them idle and empty.
func (s *Server) newProcess(ranks int) (*process, error) {
	box, err := enginesim.NewBox(enginesim.BoxOptions{
		Params: s.params, Ranks: ranks, Rand: rand.New(rand.NewPCG(s.seed, 1)),
	})
	if err != nil {
		return nil, err
	}
	e := newEngine(box, s.speed, s.params.ModelLen())
	if len(s.kvPorts) > 0 {
		box.RecordKVEvents()
		for rank := range ranks {
			e.kv = append(e.kv, newPublisher(rank, s.params.BlockTokens, s.version))
		}
	}
	return newProcess(e), nil
}

// process is the one that runs, or the last one that did.
func (s *Server) process() *process { return s.current.Load() }

// Serve answers on l until ctx ends. When failures end the server it closes l, and listens on the same
// address again once it is back. In the end it closes every connection at once, and returns when the last
// request has left. It can be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	for _, f := range s.scheduled {
		s.begin(f)
	}
	err := s.serveProcesses(ctx, l)
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	close(s.stopped)
	s.failing.Wait()
	if err != nil {
		return fmt.Errorf("simulated server on %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Server) serveProcesses(ctx context.Context, l net.Listener) error {
	for p := s.process(); ; {
		stopKV := s.publishKV(ctx, p)
		err := p.serve(ctx, l, http.HandlerFunc(s.handle))
		stopKV()
		if err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case p = <-p.successor:
		case <-ctx.Done():
			return nil
		}
		if l, err = s.listenAgain(ctx, l.Addr()); l == nil {
			return err
		}
		s.current.Store(p)
	}
}

// listenAgain takes an address that was free for a while. Somebody's outgoing connection may have it,
// which passes, so it tries for some time. It returns nil without an error when ctx ends.
func (s *Server) listenAgain(ctx context.Context, address net.Addr) (net.Listener, error) {
	const attempts, pause = 100, 100 * time.Millisecond
	for i := 1; ; i++ {
		l, err := s.listen(address.Network(), address.String())
		if err == nil || i == attempts {
			return l, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// scaled is how long a time of the engine is on the clock.
func (s *Server) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / s.speed) }
