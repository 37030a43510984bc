package upstream

import (
	"bytes"
	"io"
	"net/http/httputil"
	"time"
)

// Answer is an engine's answer whose head is in. It is for one goroutine.
type Answer struct {
	Status int
	Header []Field
	Length int64 // of the body in bytes, -1 when it is not told
	// Trailer is what followed a body, once that was read to its end. One that is
	// malformed is left out.
	Trailer []Field

	client   *Client
	conn     *conn // nil when it was given back
	uncancel func() bool
	last     bool // the connection ends with this answer

	framing framing
	left    int64     // of a body by length
	chunks  io.Reader // of a chunked body
	err     error     // of an earlier Read
}

// Get is the value of the first header line with this name, in canonical form,
// or empty.
func (a *Answer) Get(name string) string {
	for _, f := range a.Header {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// begin makes the body readable.
func (a *Answer) begin(h head) {
	a.Status, a.Header, a.Length = h.status, h.fields, h.length
	a.last, a.framing, a.left = h.last, h.framing, h.length
	if h.framing == chunked {
		a.chunks = httputil.NewChunkedReader(a.conn.r)
	}
}

// Read reads the body. It returns io.EOF only at the end of a body that is
// complete, as far as its framing tells, and with its last bytes if it can.
func (a *Answer) Read(p []byte) (int, error) {
	if a.err != nil || len(p) == 0 {
		return 0, a.err
	}
	var n int
	switch a.framing {
	case byLength:
		n, a.err = a.conn.r.Read(p[:min(int64(len(p)), a.left)])
		a.left -= int64(n)
		switch {
		case a.left == 0:
			a.err = io.EOF
		case a.err == io.EOF:
			a.err = io.ErrUnexpectedEOF
		}
	case chunked:
		n, a.err = a.chunks.Read(p)
		if a.err == io.EOF {
			if err := a.conn.readLines(); err != nil {
				a.err = err
			} else if text := a.conn.head; len(text) > len("\r\n") {
				a.Trailer, _ = parseFields(string(text), bytes.Count(text, []byte("\n")))
			}
		}
	case untilClose:
		n, a.err = a.conn.r.Read(p)
	case bodyless:
		a.err = io.EOF
	}
	if a.err != nil {
		a.release(a.err == io.EOF && !a.last)
	}
	return n, a.err
}

// SetReadDeadline bounds the reads from now on; zero for no limit.
func (a *Answer) SetReadDeadline(t time.Time) {
	if a.conn != nil {
		_ = a.conn.SetReadDeadline(t) // fails on a closed connection, as the next read will
	}
}

// Close ends the answer. A connection whose answer was not read to its end is
// closed with it, so that the engine stops.
func (a *Answer) Close() {
	if a.err == nil {
		a.err = io.ErrClosedPipe
	}
	a.release(false)
}

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
