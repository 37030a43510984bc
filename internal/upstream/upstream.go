// Package upstream sends requests to engines over HTTP/1.1 connections that it
// keeps for reuse. The goroutine of the request writes it and reads its answer;
// a connection has none of its own, which is what makes it cheap.
//
// It chooses no engine, knows no dialect, follows no redirect and speaks no
// HTTP/2. Requests are repeated in one case only: the engine had closed the
// connection.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"lmwarden/internal/rawtcp"
)

// ErrLocal marks a connection that was not made for want of something on this
// machine: file descriptors, ports, memory. It says nothing about the engine,
// and the errors of the network under it are not in its chain.
var ErrLocal = errors.New("this machine is out of connections")

const (
	// maxIdle bounds the unused connections to one server.
	maxIdle = 1024
	// staleWithin is how soon a connection that the engine had closed shows
	// itself. A reset that comes later is the engine's answer to this request.
	staleWithin = time.Second
	// handshakeWithin bounds the TLS handshake.
	handshakeWithin = 5 * time.Second
)

// DialFunc opens a connection, as (*net.Dialer).DialContext does.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options are what New needs.
type Options struct {
	// Dial opens connections; required.
	Dial DialFunc
	// IdleFor is how long an unused connection is kept; required. It must be less
	// than the time after which the engine closes it.
	IdleFor time.Duration
}

// Client sends requests. Safe for concurrent use.
type Client struct {
	dial    DialFunc
	idleFor time.Duration
	roots   *x509.CertPool // nil for those of the system

	mu     sync.Mutex
	idle   map[server][]*conn // oldest first; guarded by mu
	sweeps *time.Timer        // runs while there are idle connections; guarded by mu
	closed bool               // guarded by mu
}

// server is where a connection leads.
type server struct{ scheme, host string }

// New makes a client. Close it at the end.
func New(o Options) *Client {
	return &Client{dial: o.Dial, idleFor: o.IdleFor, idle: map[server][]*conn{}}
}

// Request is one request.
type Request struct {
	// To has the scheme, host and port of the engine; the rest is not read.
	To *url.URL
	// Method is that of the head.
	Method string
	// Head is the request line and the headers, each with its CRLF, and the empty
	// line. It must tell the body's length and ask for no upgrade. A body that has
	// room behind it in its array is copied there, to go out in one piece.
	Head []byte
	Body []byte
	// Until is when the request must be sent and its answer's first bytes read;
	// zero for no limit.
	Until time.Time
}

// Send sends a request and returns when the head of its answer is in. The answer
// must be closed. When ctx ends, the connection is closed at once, and so until
// the answer is closed or read to its end. Head and Body are not read after the
// return.
//
// An engine that answers before it has read the body is heard when it reads on
// or closes the connection.
func (c *Client) Send(ctx context.Context, r Request) (*Answer, error) {
	to := server{r.To.Scheme, r.To.Host}
	start := time.Now()
	if kept := c.take(to, start); kept != nil {
		a, err := c.try(ctx, kept, &r)
		stale := err != nil && !kept.heard && errors.Is(err, errEnded) &&
			ctx.Err() == nil && time.Since(start) < staleWithin
		if !stale {
			return a, err
		}
	}
	fresh, err := c.connect(ctx, to)
	if err != nil {
		return nil, err
	}
	return c.try(ctx, fresh, &r)
}

// try sends the request over one connection.
func (c *Client) try(ctx context.Context, conn *conn, r *Request) (*Answer, error) {
	a := &Answer{client: c, conn: conn}
	a.uncancel = context.AfterFunc(ctx, func() { conn.Close() })
	h, err := conn.roundTrip(r)
	if err != nil {
		a.Close()
		return nil, err
	}
	a.begin(h)
	return a, nil
}

// connect opens a connection.
func (c *Client) connect(ctx context.Context, to server) (*conn, error) {
	host, port := to.host, "80"
	if to.scheme == "https" {
		port = "443"
	}
	if h, p, err := net.SplitHostPort(to.host); err == nil {
		host, port = h, p
	}
	nc, err := c.dial(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		if isLocal(err) {
			// %v, so that nobody takes it for the engine's fault.
			err = fmt.Errorf("%w: %v", ErrLocal, err)
		}
		return nil, err
	}
	nc = rawtcp.Wrap(nc)
	if to.scheme == "https" {
		secure := tls.Client(nc, &tls.Config{ServerName: host, RootCAs: c.roots})
		ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		return newConn(secure, nc, to), nil
	}
	return newConn(nc, nc, to), nil
}

func isLocal(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// take is a kept connection that the engine has not closed, the latest used
// first, or nil.
func (c *Client) take(to server, now time.Time) *conn {
	for {
		c.mu.Lock()
		kept := c.idle[to]
		if len(kept) == 0 {
			c.mu.Unlock()
			return nil
		}
		last := kept[len(kept)-1]
		kept[len(kept)-1] = nil
		c.idle[to] = kept[:len(kept)-1]
		c.mu.Unlock()
		if now.Sub(last.idleSince) < c.idleFor && last.quiet() {
			return last
		}
		last.Close()
	}
}

// keep takes a connection back that is ready for another request.
func (c *Client) keep(conn *conn) {
	conn.idleSince = time.Now()
	c.mu.Lock()
	kept := c.idle[conn.to]
	full := c.closed || len(kept) >= maxIdle
	if !full {
		c.idle[conn.to] = append(kept, conn)
		if c.sweeps == nil {
			c.sweeps = time.AfterFunc(c.idleFor, c.sweep)
		}
	}
	c.mu.Unlock()
	if full {
		conn.Close()
	}
}

// sweep closes connections that were not used for too long.
func (c *Client) sweep() {
	now := time.Now()
	next := time.Duration(-1)
	var old []*conn
	c.mu.Lock()
	for to, kept := range c.idle {
		n := 0
		for n < len(kept) && now.Sub(kept[n].idleSince) >= c.idleFor {
			n++
		}
		old = append(old, kept[:n]...)
		if n == len(kept) {
			delete(c.idle, to)
			continue
		}
		kept = slices.Delete(kept, 0, n)
		c.idle[to] = kept
		if left := c.idleFor - now.Sub(kept[0].idleSince); next < 0 || left < next {
			next = left
		}
	}
	if c.sweeps = nil; next >= 0 && !c.closed {
		c.sweeps = time.AfterFunc(next, c.sweep)
	}
	c.mu.Unlock()
	for _, conn := range old {
		conn.Close()
	}
}

// Close closes the idle connections; those in use are closed with their answers.
func (c *Client) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	if c.sweeps != nil {
		c.sweeps.Stop()
		c.sweeps = nil
	}
	c.mu.Unlock()
	for _, kept := range idle {
		for _, conn := range kept {
			conn.Close()
		}
	}
}
