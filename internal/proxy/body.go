package proxy

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
func (x *exchange) readBody() *failure {
	r, limits := x.r, &x.h.limits
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		f := badRequest("the body is compressed (Content-Encoding: %s); send it uncompressed", clip(e))
		f.close, f.unread = true, true
		return f
	}
	if r.ContentLength > limits.MaxBody {
		return tooLarge(limits.MaxBody) // before a client that waits for "100 Continue" sends it
	}
	size := int64(8 << 10)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength, promised)
	}
	for {
		var err error
		if x.body, err = x.h.bodies.lend(x.body, size); err != nil {
			return full(err)
		}
		err = x.fillBody()
		switch {
		case int64(len(x.body)) > limits.MaxBody:
			return tooLarge(limits.MaxBody)
		case err == io.EOF:
			return nil
		case err != nil:
			return x.bodyFailure(err)
		}
		size = min(2*int64(cap(x.body)), limits.MaxBody+1)
		if r.ContentLength >= 0 {
			size = min(size, r.ContentLength)
		}
	}
}

// fillBody reads until the body's end or the buffer's.
func (x *exchange) fillBody() error {
	for len(x.body) < cap(x.body) {
		if until, due := x.sending.due(x.h.limits.BodyStall); due {
			_ = x.control.SetReadDeadline(until) // the server takes it away at the body's end
		}
		n, err := x.r.Body.Read(x.body[len(x.body):cap(x.body)])
		x.body = x.body[:len(x.body)+n]
		if err != nil {
			return err
		}
	}
	return nil
}

// drain reads what a client goes on sending after it was refused.
func (h *Handler) drain(rc *http.ResponseController, body io.Reader) {
	if rc.Flush() == nil && rc.SetReadDeadline(time.Now().Add(drainFor)) == nil {
		_, _ = io.CopyN(io.Discard, body, h.limits.MaxBody)
	}
}

func (x *exchange) bodyFailure(err error) *failure {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		f := badRequest("no byte of the request body came for %s", x.h.limits.BodyStall)
		f.Code, f.cause = http.StatusRequestTimeout, err
		return f
	case errors.Is(err, io.ErrUnexpectedEOF), x.r.Context().Err() != nil, isReset(err):
		return clientGone(err)
	}
	f := badRequest("the request body is not readable")
	f.cause = err
	return f
}

// Bodies of common sizes are lent in four sizes to a doubling, so that their memory
// serves one request after the other; larger ones get what they need.
const (
	leastLent = 12 // 4 KiB
	mostLent  = 20 // 1 MiB
	lentSizes = 4*(mostLent-leastLent) + 1
)

// bodies lends memory for request bodies, up to a total. Safe for concurrent use.
type bodies struct {
	limit int64
	lent  atomic.Int64
	free  [lentSizes]sync.Pool // of *[]byte, by size
}

var errFull = errors.New("the memory for request bodies is used up")

// lend returns a buffer with the bytes of old, which it takes back, and room for
// size bytes in all. On an error it returns old.
func (b *bodies) lend(old []byte, size int64) ([]byte, error) {
	size, free := b.sized(size)
	if b.lent.Add(size) > b.limit {
		b.lent.Add(-size)
		return old, errFull
	}
	var buf []byte
	if free != nil {
		if p, ok := free.Get().(*[]byte); ok {
			buf = *p
		}
	}
	if buf == nil {
		buf = make([]byte, 0, size)
	}
	buf = append(buf, old...)
	b.giveBack(old)
	return buf, nil
}

// giveBack takes a buffer back, nil included; nobody may hold on to its bytes.
func (b *bodies) giveBack(buf []byte) {
	n := int64(cap(buf))
	if n == 0 {
		return
	}
	b.lent.Add(-n)
	if size, free := b.sized(n); free != nil && size == n {
		empty := buf[:0] // buf itself would be allocated on every call
		free.Put(&empty)
	}
}

// sized returns the size of a buffer for n bytes, and where those of that size are
// kept, nil for nowhere.
func (b *bodies) sized(n int64) (size int64, free *sync.Pool) {
	n = max(n, 1<<leastLent)
	if n > 1<<mostLent {
		return n, nil
	}
	quarter := bits.Len64(uint64(n-1)) - 3 // of the power of two below n, as a power of two
	quarters := (n-1)>>quarter + 1         // 5 to 8
	return quarters << quarter, &b.free[4*(quarter-(leastLent-3))+int(quarters)-8]
}
