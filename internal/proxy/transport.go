package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"time"
)

// idleFor is how long an idle engine connection is kept: less than the 5 s after
// which uvicorn, and so vLLM, closes it.
const idleFor = 4 * time.Second

// staleWithin is how soon a connection that the engine had closed shows itself.
// A reset that comes later is the engine's answer to this request.
const staleWithin = time.Second

// transport sends attempts to engines.
type transport struct {
	// kept reuses connections; fresh makes one per request, for the repeat of a
	// request that met a connection which the engine had closed.
	kept, fresh *http.Transport
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

func newTransport(dial dialFunc) *transport {
	kept := &http.Transport{
		DialContext:            dial,
		DisableCompression:     true,
		ForceAttemptHTTP2:      false,
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        idleFor,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		Protocols:              new(http.Protocols),
	}
	kept.Protocols.SetHTTP1(true)
	fresh := kept.Clone()
	fresh.DisableKeepAlives = true
	return &transport{kept: kept, fresh: fresh}
}

// send makes one attempt at one engine. A request that finds its connection
// closed by the engine is sent once more over a new one: generation has no side
// effects, and net/http repeats a POST only while nothing of it was written.
func (t *transport) send(ctx context.Context, build func(context.Context) *http.Request) (*http.Response, error) {
	var reused bool
	start := time.Now()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
	})
	res, err := t.kept.RoundTrip(build(traced))
	if err == nil || !reused || ctx.Err() != nil || time.Since(start) > staleWithin {
		return res, err
	}
	return t.fresh.RoundTrip(build(ctx))
}

func (t *transport) close() {
	t.kept.CloseIdleConnections()
	t.fresh.CloseIdleConnections()
}

// replay is a request body for one attempt. It lets go of the bytes when the
// transport has sent them, since a stream may stay open for minutes after. Close
// may run beside a Read that the transport no longer waits for.
type replay struct{ r atomic.Pointer[bytes.Reader] }

func newReplay(b []byte) *replay {
	p := new(replay)
	p.r.Store(bytes.NewReader(b))
	return p
}

func (p *replay) Read(b []byte) (int, error) {
	r := p.r.Load()
	if r == nil {
		return 0, io.ErrClosedPipe
	}
	return r.Read(b)
}

func (p *replay) Close() error {
	p.r.Store(nil)
	return nil
}

// isReset reports whether the other side ended the connection.
func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// describe says what a replica did wrong, without its address, which is not the
// client's to know.
func describe(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, errSilent):
		return "sent nothing for too long"
	case errors.Is(err, errAborted):
		return "cut its answer short"
	case errors.Is(err, errNotJSON):
		return "answered in a format that is not JSON"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused the connection"
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return "accepted no connection in time"
	case errors.As(err, &op) && op.Op == "dial":
		return "could not be reached"
	case errors.Is(err, errTruncated), isReset(err):
		return "ended the connection before its answer was complete"
	}
	return "did not answer in HTTP"
}
