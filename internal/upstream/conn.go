package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"
)

// maxHead bounds the status line and the headers of an answer.
const maxHead = 1 << 20

// maxInterim bounds the interim answers (1xx) before the answer.
const maxInterim = 5

var (
	errLongHead = errors.New("the headers of the answer are too long")
	errSwitched = errors.New("the answer switches protocols")
	// errEnded marks errors of a connection that the engine ended.
	errEnded = errors.New("connection ended")
)

// conn is one connection. One request uses it at a time.
type conn struct {
	net.Conn
	to   server
	r    *bufio.Reader
	wire syscall.RawConn // under TLS; nil when it is not a socket

	left  int64 // bytes that may still be read
	heard bool  // bytes of the answer have come

	idleSince time.Time // while it is kept
}

// newConn takes the connection and what it runs over.
func newConn(nc, under net.Conn, to server) *conn {
	c := &conn{Conn: nc, to: to}
	c.r = bufio.NewReader(c)
	if s, ok := under.(syscall.Conn); ok {
		c.wire, _ = s.SyscallConn() // without it nobody looks whether it is quiet
	}
	return c
}

// Read implements io.Reader for the bufio.Reader.
func (c *conn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	c.heard = c.heard || n > 0
	return n, err
}

// roundTrip sends a request and reads the head of its answer.
func (c *conn) roundTrip(r *Request) (*http.Response, error) {
	c.heard = false
	if err := c.SetDeadline(r.Until); err != nil {
		return nil, err
	}
	written := c.write(r)
	res, err := c.readHead(r.Method)
	if err != nil {
		if written != nil {
			err = written
		}
		if ended(err) {
			err = fmt.Errorf("%w: %w", errEnded, err)
		}
		return nil, err
	}
	// An engine may refuse a body that it has not read to its end.
	res.Close = res.Close || written != nil
	return res, nil
}

func (c *conn) write(r *Request) error {
	if len(r.Body) <= cap(r.Head)-len(r.Head) {
		_, err := c.Conn.Write(append(r.Head, r.Body...))
		return err
	}
	pieces := net.Buffers{r.Head, r.Body}
	_, err := pieces.WriteTo(c.Conn)
	return err
}

// readHead reads the answer's head, over interim answers.
func (c *conn) readHead(method string) (*http.Response, error) {
	c.left = maxHead
	defer func() { c.left = math.MaxInt64 }()
	var req *http.Request
	if method == http.MethodHead {
		req = &http.Request{Method: method} // its answer has no body, whatever its length says
	}
	for range maxInterim {
		res, err := http.ReadResponse(c.r, req)
		switch {
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitched
		case res.StatusCode >= 200:
			return res, nil
		}
	}
	return nil, errors.New("too many interim answers")
}

// quiet reports whether nothing has come since the last answer: no end, and no
// bytes that would be taken for the next answer.
func (c *conn) quiet() bool {
	return c.r.Buffered() == 0 && (c.wire == nil || nothingToRead(c.wire))
}

// ended reports whether the other side ended the connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}
