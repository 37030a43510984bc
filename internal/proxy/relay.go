package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/upstream"
)

// streamBuffer is the size of a stream's read buffer. An event that is larger
// passes in parts.
const streamBuffer = 8 << 10

// announcementLimit bounds what is held back of a stream before its answer begins.
// The announcement of a response repeats its instructions and tools.
const announcementLimit = 256 << 10

// wholeLimit bounds an answer that is read to its end before it is forwarded; a
// longer one is forwarded as it comes.
const wholeLimit = 32 << 20

var (
	errAborted   = pool.ErrAborted
	errTruncated = errors.New("the engine's answer ended early")
	errBusy      = pool.ErrBusy
	errNotEvents = errors.New("the engine's answer is no stream")
	errNotJSON   = errors.New("the engine's answer is not JSON")
	errRedirect  = errors.New("the engine redirects")
	errReported  = errors.New("the engine reported an error in its answer")
)

// unsent is a failure of an attempt of which the client has seen nothing.
type unsent struct{ cause error }

func (e *unsent) Error() string { return e.cause.Error() }
func (e *unsent) Unwrap() error { return e.cause }

// relay forwards an engine's answer. An *unsent error leaves the request open:
// another attempt may be made. Every other ending is settled here.
func (x *exchange) relay(a *upstream.Answer) error {
	defer a.Close()
	x.streaming, x.length = false, -1
	if a.Status >= 500 && a.Status != http.StatusServiceUnavailable {
		_, fault := outcomeOf(a.Status)
		x.lease.Failed(fault)
	}
	generated := x.route.api.Generates() && a.Status/100 == 2
	switch {
	case a.Status/100 == 3:
		// Where to is no business of the client, which may not even get there.
		return &unsent{fmt.Errorf("%w (%d) to %q: correct its URL", errRedirect, a.Status, clip(a.Get("Location")))}
	case x.kept && !(generated && isEvents(a) && a.Get("Content-Encoding") == ""):
		return x.relayLate(a)
	case x.route.api == llmapi.RouteOther, a.Get("Content-Encoding") != "":
		return x.relayRaw(a, nil)
	case generated && isEvents(a):
		return x.relayStream(a)
	case generated && mediaType(a.Get("Content-Type")) != "application/json":
		return &unsent{fmt.Errorf("%w, but %q", errNotJSON, clip(a.Get("Content-Type")))}
	}
	return x.relayWhole(a)
}

func isEvents(a *upstream.Answer) bool {
	return mediaType(a.Get("Content-Type")) == "text/event-stream"
}

// mediaType is the kind in a Content-Type.
func mediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// relayStream forwards events as they come. Only complete events pass, and each
// is looked at before it does: an engine that dies ends its other streams with
// events that look like a regular end, and those must not reach the client. An
// announcement waits for what it announces: an engine sends it before it reads the
// prompt, and until the client has it, another replica can still answer.
func (x *exchange) relayStream(a *upstream.Answer) error {
	x.streaming = true
	observer := llmapi.NewObserver(x.route.api)
	stored := x.stored()
	defer func() { x.rec.Usage = observer.Usage() }()
	var filter *llmapi.UsageFilter
	if x.facts.UsageMissing() {
		filter = llmapi.NewUsageFilter()
	}
	buf := x.h.buffers.Get().(*[streamBuffer]byte)
	defer x.h.buffers.Put(buf)

	var announcement, filtered []byte
	held := 0 // bytes of an incomplete event at the front of buf
	for {
		n, err := x.read(a, buf[held:])
		read := buf[:held+n]
		end := completeEvents(read)
		inside := end == 0 && len(read) == streamBuffer
		if inside {
			end = len(read)
		}
		if events := read[:end]; end > 0 {
			good := observer.Observe(events)
			if observer.Began() || observer.Ending() == llmapi.EndComplete { // it may be empty
				x.begin()
			}
			aborted := observer.Ending() == llmapi.EndAborted
			if aborted {
				if !x.started {
					return x.broken(errAborted)
				}
				events = events[:good]
			}
			if filter != nil {
				filtered = filter.Filter(filtered[:0], events)
				events = filtered
			}
			if stored && observer.Ending() == llmapi.EndComplete {
				x.turn.Responded(observer.ID())
			}
			if !x.started && observer.Announced() && len(announcement)+len(events) <= announcementLimit {
				announcement = append(announcement, events...)
			} else if !x.send(a, announcement) || !x.send(a, events) {
				return nil
			} else {
				announcement = nil
			}
			if aborted {
				return x.broken(errAborted)
			}
			x.inside = inside
			held = copy(buf[:], read[end:])
		} else {
			held = len(read)
		}
		if err == nil {
			continue
		}
		switch observer.Ending() {
		case llmapi.EndComplete:
			if x.route.api == llmapi.RouteResponses {
				x.lease.Unmarked()
			}
			x.settle(OK, nil)
			return nil
		case llmapi.EndError:
			x.lease.Failed(errReported)
			x.settle(EngineError, errReported)
			return nil
		}
		if err == io.EOF {
			err = errTruncated
		}
		return x.broken(err)
	}
}

// stored reports whether the engine keeps the answer, so that the client may go on
// by its id alone: the conversation has to know that before the client does.
func (x *exchange) stored() bool {
	return x.route.api == llmapi.RouteResponses && !x.facts.Unstored
}

// completeEvents returns the length of the complete events at the front of b.
func completeEvents(b []byte) int {
	end := 0
	if i := bytes.LastIndex(b, []byte("\n\n")); i >= 0 {
		end = i + 2
	}
	if i := bytes.LastIndex(b[end:], []byte("\n\r\n")); i >= 0 {
		end += i + 3
	}
	return end
}

// relayWhole reads an answer to its end before the client sees its first byte,
// so that a reset in the middle, or an answer that the engine cut short, can
// still be made again elsewhere.
func (x *exchange) relayWhole(a *upstream.Answer) error {
	buf := x.h.buffers.Get().(*[streamBuffer]byte)
	defer x.h.buffers.Put(buf)
	b := bytes.NewBuffer(buf[:0]) // most answers have room there
	if n := a.Length; n > 0 && n <= promised {
		b.Grow(int(n) + bytes.MinRead)
	}
	limited := io.LimitedReader{R: answerReader{x, a}, N: wholeLimit}
	if _, err := b.ReadFrom(&limited); err != nil {
		return x.broken(err)
	}
	if limited.N == 0 {
		return x.relayRaw(a, b.Bytes())
	}
	outcome, cause := outcomeOf(a.Status)
	if outcome == OK {
		answer := llmapi.ReadAnswer(x.route.api, b.Bytes())
		x.rec.Usage = answer.Usage
		if answer.Unmarked {
			x.lease.Unmarked()
		}
		switch {
		case !x.route.api.Generates():
		case answer.Ending == llmapi.EndNone:
			return x.broken(errTruncated)
		case answer.Ending == llmapi.EndAborted:
			return x.broken(errAborted)
		case answer.Ending == llmapi.EndError:
			outcome, cause = EngineError, errReported
		case x.stored():
			x.turn.Responded(answer.ID)
		}
	}
	x.length = int64(b.Len())
	if x.send(a, b.Bytes()) {
		x.settle(outcome, cause)
	}
	return nil
}

// relayRaw forwards an answer that is not read, behind the bytes of it that were
// read already.
func (x *exchange) relayRaw(a *upstream.Answer, head []byte) error {
	buf := x.h.buffers.Get().(*[streamBuffer]byte)
	defer x.h.buffers.Put(buf)
	n, err := x.read(a, buf[:])
	if n > 0 {
		x.begin()
	}
	if head == nil && n == 0 && err != nil && err != io.EOF {
		return x.broken(err)
	}
	x.length = a.Length
	if !x.send(a, head) {
		return nil
	}
	for ; ; n, err = x.read(a, buf[:]) {
		if !x.send(a, buf[:n]) {
			return nil
		}
		switch err {
		case nil:
		case io.EOF:
			x.settle(outcomeOf(a.Status))
			return nil
		default:
			return x.broken(err)
		}
	}
}

// send passes bytes on at once, the status and headers before the first ones. It
// reports false when the client is gone.
func (x *exchange) send(a *upstream.Answer, b []byte) bool {
	x.start(a)
	if len(b) == 0 {
		return true
	}
	if x.begun && x.rec.TTFB == 0 {
		x.rec.TTFB = time.Since(x.rec.Time)
	}
	n, err := x.write(b)
	x.rec.BytesOut += int64(n)
	if err != nil {
		x.cut = true
		x.settle(Cancelled, fmt.Errorf("%w: %w", errGone, err))
		return false
	}
	return true
}

// start commits the answer's status and headers. From here on nothing can be
// retried, so the request's body is let go.
func (x *exchange) start(a *upstream.Answer) {
	if x.started {
		return
	}
	x.started, x.rec.Status = true, a.Status
	x.letGo()
	h := x.w.Header()
	if x.kept {
		x.sign(h) // in the trailer
		return
	}
	copyAnswer(h, a.Header)
	if x.length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(x.length, 10)}
	}
	if isEvents(a) {
		h["X-Accel-Buffering"] = []string{"no"} // nginx would hold the events back
	}
	if a.Status == http.StatusServiceUnavailable && h["Retry-After"] == nil {
		h["Retry-After"] = []string{strconv.Itoa(int(retrySoon / time.Second))} // vLLM's own has none
	}
	x.sign(h)
	x.w.WriteHeader(a.Status)
}

// letGo gives back the request's body and what was read of it. That of a turn that
// is being answered goes through the hands of the reader.
func (x *exchange) letGo() {
	if x.h.reader != nil && x.facts != nil && x.rec.Identity.Turn && x.rec.Status/100 == 2 {
		x.rec.Read = x.h.reader.Read(x.rec.Identity.Key, x.facts, x.body, x.h.bodies.giveBack)
	} else {
		x.h.bodies.giveBack(x.body)
	}
	x.body, x.facts = nil, nil
}

// write sends bytes to the client now, or fails when it takes none for too long.
func (x *exchange) write(b []byte) (int, error) {
	if until, due := x.taking.due(x.h.limits.ClientStall); due {
		_ = x.control.SetWriteDeadline(until)
	}
	n, err := x.w.Write(b)
	if err == nil {
		err = x.control.Flush()
	}
	return n, err
}

// broken ends an attempt that failed while its answer was being read. What the
// client has not seen may be tried again; else it gets an error event on a
// stream, and a cut connection, so that nothing looks finished.
func (x *exchange) broken(err error) error {
	if !x.started {
		return &unsent{err}
	}
	x.cut = true
	if err = x.why(err); errors.Is(err, errGone) {
		x.settle(Cancelled, err)
		return nil
	}
	x.lease.Failed(err)
	if x.streaming {
		event := llmapi.ErrorEvent(x.route.api, "replica "+replicaName(x.rec.Decision)+" "+describe(err))
		if x.inside {
			event = append([]byte("\n\n"), event...)
		}
		n, _ := x.write(event)
		x.rec.BytesOut += int64(n)
	}
	x.settle(EngineError, err)
	return nil
}

// answerReader is an answer's body, read by its exchange.
type answerReader struct {
	x *exchange
	a *upstream.Answer
}

func (r answerReader) Read(b []byte) (int, error) {
	n, err := r.x.read(r.a, b)
	if n > 0 {
		r.x.begin()
	}
	return n, err
}

func outcomeOf(status int) (Outcome, error) {
	switch {
	case status < 400:
		return OK, nil
	case status < 500:
		return ClientError, fmt.Errorf("the engine answered %d", status)
	}
	return EngineError, fmt.Errorf("the engine answered %d", status)
}
