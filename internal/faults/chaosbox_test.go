package faults

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
)

// chaosSpeed is how much faster than a real engine the simulated ones run and
// fail: what takes a dying vLLM 5.8 s takes these 0.29 s.
const chaosSpeed = 20

// simulated is a simulated server of the chaos run, with its lives and deaths.
type simulated struct {
	t       testing.TB
	tap     *tap
	address string
	first   int // of its replicas
	ranks   int
	// disturbed counts the beginnings and the ends of what was done to it: odd
	// while something is.
	disturbed atomic.Int64

	mu   sync.Mutex
	live *server.Server // guarded by mu
	stop func()         // guarded by mu; ends its life and waits
}

func newSimulated(t testing.TB, tap *tap, first, ranks int) *simulated {
	t.Helper()
	s := &simulated{t: t, tap: tap, address: "127.0.0.1:0", first: first, ranks: ranks, stop: func() {}}
	s.restart()
	t.Cleanup(s.kill)
	return s
}

// restart ends the server's life, if it lives, and begins another on the same
// address, with a cold cache.
func (s *simulated) restart() {
	s.kill()
	params, err := enginesim.Preset("tiny-fast")
	if err != nil {
		s.t.Fatal(err)
	}
	live, err := server.New(server.Options{
		Params: params, Replicas: s.ranks, Models: []string{modelName}, Speed: chaosSpeed, AnswerTokens: 16, Version: "0.33.0",
	})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := live.Serve(ctx, &tapListener{l, s.tap}); err != nil {
			s.t.Errorf("simulated engine: %v", err)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live, s.stop = live, func() { cancel(); <-done }
}

// kill ends the server's life at once, with all connections.
func (s *simulated) kill() {
	s.mu.Lock()
	stop := s.stop
	s.mu.Unlock()
	stop()
}

// fail makes something go wrong in the words of server.FailureHelp.
func (s *simulated) fail(spec string) {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	if err := live.Fail(spec); err != nil {
		s.t.Errorf("failure %s: %v", spec, err)
	}
}

// failing says which failures of requests are on.
func (s *simulated) failing() error {
	s.mu.Lock()
	live := s.live
	s.mu.Unlock()
	if on := live.State().Failures; len(on) > 0 {
		return fmt.Errorf("still %v", on)
	}
	return nil
}

// tap keeps what engines write on their connections, by request.
type tap struct {
	mu     sync.Mutex
	traces map[string][]*trace // guarded by mu: by request id, one for each attempt
}

// trace is what an engine wrote as the answer to one attempt.
type trace struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// take returns the attempts of a request and forgets them.
func (p *tap) take(id string) []*trace {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.traces[id]
	delete(p.traces, id)
	return all
}

func (p *tap) begin(id string) *trace {
	t := new(trace)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traces[id] = append(p.traces[id], t)
	return t
}

// answer is what was written, as a client would read it. The error says that it
// is not whole.
func (t *trace) answer() (answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(t.text.Bytes())), nil)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: string(body)}, err
}

type tapListener struct {
	net.Listener
	tap *tap
}

func (l *tapListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tapConn{Conn: c, tap: l.tap}, nil
}

// tapConn is an engine's end of a connection. Requests follow each other on it,
// so what is written belongs to the last one whose head was read.
type tapConn struct {
	net.Conn
	tap *tap

	mu      sync.Mutex
	head    []byte // guarded by mu: of the request that begins
	current *trace // guarded by mu: what is written goes there; nil while a head is read
	wrote   bool   // guarded by mu
}

func (c *tapConn) SetLinger(seconds int) error { return c.Conn.(*net.TCPConn).SetLinger(seconds) }

func (c *tapConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrote && n > 0 { // the next request
		c.head, c.current, c.wrote = c.head[:0], nil, false
	}
	if c.current == nil {
		c.head = append(c.head, b[:n]...)
		if head, _, whole := bytes.Cut(c.head, []byte("\r\n\r\n")); whole {
			_, id, _ := strings.Cut(string(head)+"\r\n", "\r\nX-Request-Id: ")
			id, _, _ = strings.Cut(id, "\r\n")
			c.current = new(trace)
			if id != "" { // not a probe
				c.current = c.tap.begin(id)
			}
		}
	}
	return n, err
}

func (c *tapConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.wrote = true
	t := c.current
	c.mu.Unlock()
	if t != nil {
		t.mu.Lock()
		t.text.Write(b)
		t.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// replicas names the replicas of a server, for messages.
func (s *simulated) String() string {
	return fmt.Sprintf("the server of replicas %d to %d", s.first, s.first+s.ranks-1)
}
