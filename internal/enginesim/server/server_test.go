package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"lmwarden/internal/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded are the options under which a server is like the recorded one.
func recorded(t *testing.T) Options {
	t.Helper()
	p, err := enginesim.Preset("cpu-tiny")
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Params: p, Replicas: 2, Models: []string{"tiny"},
		AnswerTokens: 20_000, // the recorded model's greedy answers never end by themselves
	}
}

// network is a server and the way to it, in memory and thus in a synctest bubble.
type network struct {
	server *Server
	stop   func() // ends the server and waits

	mu       sync.Mutex
	listener *listener // guarded by mu: the newest
}

// listener accepts connections in memory until it is closed.
type listener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error { l.close(); return nil }

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "memory"} }

// serve runs a server until the test ends.
func serve(t *testing.T, o Options) *network {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	n := &network{server: s}
	s.listen = func(_, _ string) (net.Listener, error) { return n.listen(), nil }
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	l := n.listen()
	go func() { served <- s.Serve(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func (n *network) listen() net.Listener {
	l := &listener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listener = l
	return l
}

var errRefused = errors.New("connection refused")

// tryDial opens a connection, if somebody listens.
func (n *network) tryDial() (net.Conn, error) {
	n.mu.Lock()
	l := n.listener
	n.mu.Unlock()
	client, server := net.Pipe()
	select {
	case l.accepted <- server:
		return client, nil
	case <-l.closed:
		return nil, errRefused
	}
}

// dial opens a connection. One to a port that nobody listens on is closed.
func (n *network) dial() net.Conn {
	c, err := n.tryDial()
	if err != nil {
		client, server := net.Pipe()
		server.Close()
		return client
	}
	return c
}

// rawReply is everything that the server sends on a connection until it closes it.
func (n *network) rawReply(t *testing.T, raw []byte) []byte {
	t.Helper()
	c := n.dial()
	defer c.Close()
	go c.Write(raw)
	reply, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func fastPreset(f *testing.F) enginesim.Params {
	p, err := enginesim.Preset("tiny-fast")
	if err != nil {
		f.Fatal(err)
	}
	return p
}
