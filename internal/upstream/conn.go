package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"lmwarden/internal/rawtcp"
)

// maxInterim bounds the interim answers (1xx) before the answer.
const maxInterim = 5

// keptHead is how much memory for heads an idle connection may hold.
const keptHead = 8 << 10

var (
	errLongHead = errors.New("the headers of the answer are too long")
	// errEnded marks errors of a connection that the engine ended.
	errEnded = errors.New("connection ended")
)

// conn is one connection. One request uses it at a time.
type conn struct {
	net.Conn
	to   server
	r    *bufio.Reader
	wire net.Conn // under TLS

	head  []byte // the last one read
	heard bool   // bytes of the answer have come

	idleSince time.Time // while it is kept
}

// newConn takes the connection and what it runs over.
func newConn(nc, under net.Conn, to server) *conn {
	return &conn{Conn: nc, to: to, r: bufio.NewReader(nc), wire: under}
}

// roundTrip sends a request and reads the head of its answer.
func (c *conn) roundTrip(r *Request) (head, error) {
	c.heard = false
	if err := c.SetDeadline(r.Until); err != nil {
		return head{}, err
	}
	written := c.write(r)
	h, err := c.readHead(r.Method)
	if err != nil {
		if written != nil {
			err = written
		}
		if ended(err) {
			err = fmt.Errorf("%w: %w", errEnded, err)
		}
		return head{}, err
	}
	// An engine may refuse a body that it has not read to its end.
	h.last = h.last || written != nil
	return h, nil
}

func (c *conn) write(r *Request) error {
	if len(r.Body) <= cap(r.Head)-len(r.Head) {
		_, err := c.Conn.Write(append(r.Head, r.Body...))
		return err
	}
	return rawtcp.Write(c.Conn, r.Head, r.Body)
}

// readHead reads the answer's head, over interim answers.
func (c *conn) readHead(method string) (head, error) {
	for range maxInterim {
		if err := c.readLines(); err != nil {
			return head{}, err
		}
		h, err := parseHead(c.head, method)
		switch {
		case err != nil:
			return head{}, err
		case h.status == 101:
			return head{}, fmt.Errorf("%w: a switch of protocols", errMalformed)
		case h.status >= 200:
			return h, nil
		}
	}
	return head{}, fmt.Errorf("%w: too many interim answers", errMalformed)
}

// readLines reads up to and with an empty line, into head.
func (c *conn) readLines() error {
	if c.head = c.head[:0]; cap(c.head) > keptHead {
		c.head = nil
	}
	for {
		start := len(c.head)
		for {
			part, err := c.r.ReadSlice('\n')
			c.head = append(c.head, part...)
			c.heard = c.heard || len(part) > 0
			switch {
			case len(c.head) > maxHead:
				return errLongHead
			case err == io.EOF:
				return io.ErrUnexpectedEOF
			case err != nil && err != bufio.ErrBufferFull:
				return err
			}
			if err == nil {
				break
			}
		}
		if line := string(c.head[start:]); line == "\r\n" || line == "\n" {
			return nil
		}
	}
}

// quiet reports whether nothing has come since the last answer: no end, and no
// bytes that would be taken for the next answer.
func (c *conn) quiet() bool {
	return c.r.Buffered() == 0 && rawtcp.Quiet(c.wire)
}

// ended reports whether the other side ended the connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}
