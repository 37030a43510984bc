package upstream

import (
	"io"
	"net/http"
	"time"
)

// Answer is an engine's answer whose head is in. It is for one goroutine.
type Answer struct {
	Status int
	Header http.Header
	Length int64 // of the body in bytes, -1 when it is not told

	client   *Client
	conn     *conn // nil when it was given back
	uncancel func() bool
	body     io.ReadCloser
	reusable bool // after the body's end
}

// Read reads the body. It returns io.EOF only at the end of a body that is
// complete, as far as its framing tells.
func (a *Answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err == io.EOF {
		a.release(a.reusable)
	}
	return n, err
}

// SetReadDeadline bounds the reads from now on; zero for no limit.
func (a *Answer) SetReadDeadline(t time.Time) {
	if a.conn != nil {
		_ = a.conn.SetReadDeadline(t) // fails on a closed connection, as the next read will
	}
}

// Close ends the answer. A connection whose answer was not read to its end is
// closed with it, so that the engine stops.
func (a *Answer) Close() { a.release(false) }

func (a *Answer) release(reusable bool) {
	conn := a.conn
	if conn == nil {
		return
	}
	a.conn = nil
	// When it can no longer be stopped, the connection is being closed.
	if a.uncancel() && reusable {
		a.client.keep(conn)
		return
	}
	conn.Close()
}
