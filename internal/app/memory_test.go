package app

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
)

// memory is a network without a kernel. In it, inside a bubble of synctest,
// gateways, engines and clients run in a time that passes when all of them wait:
// what the machine is otherwise busy with changes nothing.
type memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener // guarded by mu, by address
}

// inMemory runs a test in a bubble.
func inMemory(t *testing.T, test func(t *testing.T, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &memory{listeners: map[string]*memoryListener{}}) })
}

type memoryListener struct {
	address  memoryAddress
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

type memoryAddress string

func (a memoryAddress) Network() string { return "tcp" }
func (a memoryAddress) String() string  { return string(a) }

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error   { l.close(); return nil }
func (l *memoryListener) Addr() net.Addr { return l.address }

func (m *memory) listen(address string) net.Listener {
	l := &memoryListener{address: memoryAddress(address), accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[address] = l
	return l
}

func (m *memory) dial(ctx context.Context, _, address string) (net.Conn, error) {
	m.mu.Lock()
	l := m.listeners[address]
	m.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: memoryAddress(address), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	near, far := net.Pipe()
	select {
	case l.accepted <- far:
		return near, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
