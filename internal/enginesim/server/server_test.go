package server

import (
	"context"
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
	server   *Server
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

// serve runs a server until the test ends.
func serve(t *testing.T, o Options) *network {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	n := &network{server: s, accepted: make(chan net.Conn), closed: make(chan struct{})}
	n.close = sync.OnceFunc(func() { close(n.closed) })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, n) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return n
}

// dial opens a connection.
func (n *network) dial() net.Conn {
	client, server := net.Pipe()
	select {
	case n.accepted <- server:
	case <-n.closed:
		server.Close()
	}
	return client
}

// Accept, Close and Addr make it a net.Listener.
func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepted:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error { n.close(); return nil }

func (n *network) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "memory"} }

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
