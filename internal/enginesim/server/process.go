package server

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// idleTimeout is after how long uvicorn closes a connection on which it answered.
	idleTimeout = 5 * time.Second
	// maxHeaderBytes is the engine's --h11-max-incomplete-event-size.
	maxHeaderBytes = 4 << 20
)

// process is one life of the simulated server: an API server and its engine. A restart is another
// process, with an empty cache and counters at zero.
type process struct {
	engine *engine

	open    atomic.Int64 // requests being answered
	refused atomic.Int64 // by the queue limit

	condition atomic.Int32  // a condition
	ending    atomic.Bool   // connections are cut by this side
	leaving   chan struct{} // closed by leave
	leave     func()        // ends it as its own shutdown does: no new connections, and over when the last request is
	killed    chan struct{} // closed by kill
	kill      func()        // ends it at once
	ended     chan struct{} // closed when serve has returned

	successor chan *process // holds the process that comes after it
}

// condition is what a process tells those who ask it for something new.
type condition int32

const (
	serving  condition = iota
	draining           // told to stop, and still busy with what it has
	dead               // an engine of it is
)

func newProcess(e *engine) *process {
	p := &process{
		engine: e, leaving: make(chan struct{}), killed: make(chan struct{}),
		ended: make(chan struct{}), successor: make(chan *process, 1),
	}
	p.leave = sync.OnceFunc(func() { close(p.leaving) })
	p.kill = sync.OnceFunc(func() { close(p.killed) })
	return p
}

func (p *process) is(c condition) bool { return condition(p.condition.Load()) == c }
func (p *process) become(c condition)  { p.condition.Store(int32(c)) }
func (p *process) succeed(next *process) {
	select {
	case p.successor <- next:
	default: // another failure was faster to bring it back
	}
}

// die is the moment at which the API server notices that an engine is dead.
func (p *process) die() {
	p.become(dead)
	p.engine.lose(errEngineDead)
}

// serve runs the engine and answers on l, which it closes, until ctx ends, the process ends, or l
// fails. It returns when the last request has left.
func (p *process) serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	var connections sync.WaitGroup
	web := &http.Server{
		Handler:        handler,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       log.New(io.Discard, "", 0), // cutting connections is its business
		ConnContext:    withConnection,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed: // its handler has returned
				connections.Done()
			}
		},
	}
	defer close(p.ended)
	var running sync.WaitGroup
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	running.Go(func() { p.engine.run(engineCtx) })
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() {
		select {
		case <-p.killed:
			cancel()
		case <-ctx.Done():
		}
	})
	failed := make(chan error, 1)
	running.Go(func() { failed <- web.Serve(l) })

	var err error
	select {
	case <-ctx.Done():
	case <-p.leaving:
		_ = web.Shutdown(ctx) // fails only when ctx ends, which cuts below what is left
	case err = <-failed:
	}
	p.ending.Store(true)
	web.Close() // before the engine stops, or handlers would still find words for it
	cancel()
	stopEngine()
	running.Wait()
	connections.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
