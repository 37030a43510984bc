package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// promised is how much of a body is allocated on the client's word alone; what
// goes beyond it is allocated as it arrives.
const promised = 1 << 20

// drainFor bounds how long the rest of a body that is too large is read and
// thrown away. A client that is still sending when we close sees a reset instead
// of the 413.
const drainFor = 10 * time.Second

// readBody reads the whole body. It must reach the end: only then does the
// server watch the connection and cancel the request's context when the client
// leaves.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *failure) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, badRequest("the body is compressed (Content-Encoding: %s); send it uncompressed", clip(e))
	}
	limit := h.limits.MaxBody
	rc := http.NewResponseController(w)
	if r.ContentLength > limit {
		// A client that waits for "100 Continue" has sent nothing; one that does not
		// is in the middle of sending.
		if r.Header.Get("Expect") == "" && r.ContentLength <= 2*limit {
			drain(rc, r.Body, r.ContentLength)
		}
		return nil, tooLarge(limit)
	}

	size := min(8<<10, limit+1)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength, promised)
	}
	buf := make([]byte, 0, size)
	for {
		if len(buf) == cap(buf) {
			if r.ContentLength >= 0 && int64(len(buf)) == r.ContentLength {
				break
			}
			if int64(len(buf)) > limit {
				drain(rc, r.Body, limit)
				return nil, tooLarge(limit)
			}
			buf = grow(buf, r.ContentLength, limit)
		}
		setReadDeadline(rc, h.limits.BodyStall)
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, h.bodyFailure(r, err)
		}
	}
	// The server's own watch on the connection runs under the same deadline.
	setReadDeadline(rc, 0)
	if int64(len(buf)) > limit {
		return nil, tooLarge(limit)
	}
	return buf, nil
}

// grow doubles the buffer, up to what is declared or to one byte over the limit.
func grow(buf []byte, declared, limit int64) []byte {
	size := min(2*int64(cap(buf)), limit+1)
	if declared >= 0 {
		size = min(size, declared)
	}
	next := make([]byte, len(buf), size)
	copy(next, buf)
	return next
}

func drain(rc *http.ResponseController, body io.Reader, n int64) {
	if rc.SetReadDeadline(time.Now().Add(drainFor)) == nil {
		io.CopyN(io.Discard, body, n)
	}
}

// setReadDeadline gives the client's next bytes a time limit; zero takes it
// away. Writers without deadlines are those of tests.
func setReadDeadline(rc *http.ResponseController, d time.Duration) {
	var t time.Time
	if d > 0 {
		t = time.Now().Add(d)
	}
	_ = rc.SetReadDeadline(t)
}

func (h *Handler) bodyFailure(r *http.Request, err error) *failure {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		f := badRequest("no byte of the request body came for %s", h.limits.BodyStall)
		f.status, f.cause = http.StatusRequestTimeout, err
		return f
	case errors.Is(err, io.ErrUnexpectedEOF), r.Context().Err() != nil, isReset(err):
		return clientGone(err)
	}
	f := badRequest("the request body is not readable")
	f.cause = err
	return f
}
