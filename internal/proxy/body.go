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

// drainFor bounds how long the rest of a refused body is read and thrown away.
// A client that is still sending when we close sees a reset instead of our answer.
const drainFor = 10 * time.Second

// readBody reads the whole body. It must reach the end: only then does the
// server watch the connection and cancel the request's context when the client
// leaves.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *failure) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		f := badRequest("the body is compressed (Content-Encoding: %s); send it uncompressed", clip(e))
		f.close, f.unread = true, true
		return nil, f
	}
	limit := h.limits.MaxBody
	if r.ContentLength > limit {
		return nil, tooLarge(limit) // before a client that waits for "100 Continue" sends it
	}
	rc := http.NewResponseController(w)
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
				return nil, tooLarge(limit)
			}
			buf = grow(buf, r.ContentLength, limit)
		}
		if d := h.limits.BodyStall; d > 0 {
			_ = rc.SetReadDeadline(time.Now().Add(d)) // the server takes it away at the body's end
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, h.bodyFailure(r, err)
		}
	}
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

// drain reads what a client goes on sending after it was refused.
func (h *Handler) drain(rc *http.ResponseController, body io.Reader) {
	if rc.Flush() == nil && rc.SetReadDeadline(time.Now().Add(drainFor)) == nil {
		_, _ = io.CopyN(io.Discard, body, h.limits.MaxBody)
	}
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
