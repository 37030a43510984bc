package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/telemetry"
)

// SimParams are the parameters of the simulated engine.
type SimParams = enginesim.Params

// SimPresets lists the presets by name.
func SimPresets() []string { return enginesim.Presets() }

// SimOptions are the flags of warden sim.
type SimOptions struct {
	Listen   string // of the first server
	Replicas int
	// Ports gives each replica a server of its own, on ports that count up from
	// Listen's (each chosen by the system when that is 0).
	Ports  bool
	Preset string
	// Adjust changes the preset's parameters; nil leaves them.
	Adjust func(*SimParams)
	Speed  float64
	Models []string
	// Version is the release of vLLM to play.
	Version         string
	ResponsesRank   bool
	NoPromptDetails bool
	APIKey          string
	SSEKeepAlive    time.Duration
	MaxQueuedReqs   int
	AnswerTokens    int
	// KVEvents is the port on which the first rank publishes its KV events; further
	// ranks and servers count up from it. simReplayPorts above each, former ones are
	// sent again. 0 publishes none.
	KVEvents int
	Seed     uint64
	// Failures are [SERVER:]FAILURE, with the number of a server where there are several; without
	// one the failure is every server's. SimFailures describes the rest.
	Failures  []string
	LogFormat string
}

// SimFailures describes for a person what can go wrong with a simulated engine.
func SimFailures() string { return server.FailureHelp() }

// Sim runs a simulated vLLM until ctx ends.
func Sim(ctx context.Context, io IO, o SimOptions) error {
	logger, err := telemetry.NewLogger(io.Err, "info", o.LogFormat)
	if err != nil {
		return usageErrorf("%v", err)
	}
	if o.Replicas < 1 {
		return usageErrorf("--replicas %d: there must be at least 1", o.Replicas)
	}
	params, err := enginesim.Preset(o.Preset)
	if err != nil {
		return usageErrorf("--preset: %v", err)
	}
	if o.Adjust != nil {
		o.Adjust(&params)
	}
	servers, ranks := 1, o.Replicas
	if o.Ports {
		servers, ranks = o.Replicas, 1
	}
	addresses, err := portsFrom(o.Listen, servers)
	if err != nil {
		return err
	}

	failures, err := failuresByServer(o.Failures, servers)
	if err != nil {
		return err
	}

	box := simulatedBox{}
	kvEvents, err := box.kvEvents(o, ranks*servers)
	if err != nil {
		box.close()
		return err
	}
	for i, address := range addresses {
		s, err := server.New(server.Options{
			Params: params, Replicas: ranks, Models: o.Models, Version: o.Version, ResponsesRank: o.ResponsesRank,
			OmitPromptTokensDetails: o.NoPromptDetails, APIKey: o.APIKey, Speed: o.Speed, SSEKeepAlive: o.SSEKeepAlive,
			MaxQueuedReqs: o.MaxQueuedReqs, AnswerTokens: o.AnswerTokens, Seed: o.Seed + uint64(i),
			KVEvents: kvEvents[min(i*ranks, len(kvEvents)):min((i+1)*ranks, len(kvEvents))],
			Failures: failures[i],
		})
		if err != nil {
			box.close()
			return UsageError{err.Error()}
		}
		if err := box.listen(address, s); err != nil {
			box.close()
			return err
		}
	}
	for i, url := range box.urls() {
		listening(logger, fmt.Sprintf("engine %d", i), url)
	}
	return box.serve(ctx)
}

// failuresByServer hands out [SERVER:]FAILURE.
func failuresByServer(failures []string, servers int) ([][]string, error) {
	of := make([][]string, servers)
	for _, f := range failures {
		number, what, _ := strings.Cut(f, ":")
		i, err := strconv.Atoi(number)
		switch {
		case err != nil: // no number: the failure is all there is
			for i := range of {
				of[i] = append(of[i], f)
			}
		case i < 0 || i >= servers:
			return nil, usageErrorf("--fail %q: the server before the colon must be one of 0 to %d", f, servers-1)
		default:
			of[i] = append(of[i], what)
		}
	}
	return of, nil
}

// portsFrom counts n addresses up from the first.
func portsFrom(first string, n int) ([]string, error) {
	host, port, err := net.SplitHostPort(first)
	if err != nil {
		return nil, usageErrorf("--listen %q: give HOST:PORT", first)
	}
	base, err := strconv.Atoi(port)
	if err != nil || base < 0 || base+n-1 > 65535 {
		return nil, usageErrorf("--listen %q: the port must be a number, and %d ports from it at most 65535", first, n)
	}
	addresses := make([]string, n)
	for i := range addresses {
		p := 0
		if base > 0 {
			p = base + i
		}
		addresses[i] = net.JoinHostPort(host, strconv.Itoa(p))
	}
	return addresses, nil
}

// simulatedBox is simulated servers with their listeners.
type simulatedBox struct {
	servers   []*server.Server
	listeners []net.Listener // of the servers, in their order
	kv        []net.Listener // for KV events
}

func (b *simulatedBox) listen(address string, s *server.Server) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the simulated engine: %w", err)
	}
	b.servers, b.listeners = append(b.servers, s), append(b.listeners, l)
	return nil
}

func (b *simulatedBox) urls() []string {
	urls := make([]string, len(b.listeners))
	for i, l := range b.listeners {
		urls[i] = "http://" + l.Addr().String()
	}
	return urls
}

// serve answers until ctx ends or a server fails, and returns when all have
// ended.
func (b *simulatedBox) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(b.servers))
	var all sync.WaitGroup
	for i, s := range b.servers {
		all.Go(func() {
			defer cancel()
			errs[i] = s.Serve(ctx, b.listeners[i])
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// simReplayPorts is how far the port that sends former KV events again is above the
// one that publishes them.
const simReplayPorts = 100

// kvEvents listens for so many ranks on the addresses that the options say.
func (b *simulatedBox) kvEvents(o SimOptions, ranks int) ([]server.KVPort, error) {
	if o.KVEvents == 0 {
		return nil, nil
	}
	if o.KVEvents < 0 || o.KVEvents+simReplayPorts+ranks > 1<<16 || ranks > simReplayPorts {
		return nil, usageErrorf("--kv-events %d: the port must be a number, with %d ranks from it and from %d above it at most 65535, and at most %d ranks",
			o.KVEvents, ranks, simReplayPorts, simReplayPorts)
	}
	host, _, _ := net.SplitHostPort(o.Listen) // which was split before
	listen := func(port int) (net.Listener, error) {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("listen for the simulated engine's KV events: %w", err)
		}
		b.kv = append(b.kv, l)
		return l, nil
	}
	var ports []server.KVPort
	for rank := range ranks {
		events, err := listen(o.KVEvents + rank)
		if err != nil {
			return nil, err
		}
		replay, err := listen(o.KVEvents + simReplayPorts + rank)
		if err != nil {
			return nil, err
		}
		ports = append(ports, server.KVPort{Events: events, Replay: replay})
	}
	return ports, nil
}

// close lets go of listeners that never served.
func (b *simulatedBox) close() {
	for _, l := range append(b.listeners, b.kv...) {
		l.Close()
	}
}
