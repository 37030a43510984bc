package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"lmwarden/internal/access"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/upstream"
)

// furtherTries is in how many other failure domains a request is tried after an
// attempt that failed before the client saw a byte.
const furtherTries = 2

// bytesPerToken estimates a prompt's length until the engine tells it.
const bytesPerToken = 4

var (
	errGone   = errors.New("the client left")
	errSilent = errors.New("the engine sent no byte in time")
)

// exchange is one request on an engine's route, and its answer.
type exchange struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	route   route
	rec     Record
	trace   Trace

	key   string        // the API key that the client shows
	grant access.Grant  // of one request to that key
	facts *llmapi.Facts // nil on routes whose bodies are not read
	body  []byte        // as the client sent it; from h.bodies
	turn  *session.Turn
	lease lease
	// others are further models that may have the stored response asked for.
	others []backend

	begun bool // the answer of the attempt in force began, and not just its announcement
	// Limits on silence: of the client within its body, of the engine within its
	// answer, of the client that takes no more of it.
	sending, hearing, taking renewed

	length    int64 // of the answer's body, or -1 when not known beforehand
	kept      bool  // the client has a head and keep-alives, of no engine yet
	started   bool  // an answer is on its way to the client
	streaming bool  // it consists of events of a dialect
	inside    bool  // what was sent ends within an event
	settled   bool
	cut       bool // the connection must not look cleanly ended
}

// ServeHTTP implements http.Handler for the client listener.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID(r)
	w.Header()[headerRequestID] = []string{id}
	rt, allow := find(r)
	if rt.kind != kindForward {
		h.serveLocal(w, r, rt, allow)
		return
	}
	x := &exchange{
		h: h, w: w, r: r,
		control: http.NewResponseController(w),
		route:   rt,
		key:     presentedKey(r.Header),
		rec:     Record{Time: time.Now(), RequestID: id, Path: rt.path},
	}
	if x.trace = h.tracer.Begin(x.rec.Time, r); x.trace == nil {
		x.trace = untraced{}
	}
	x.rec.Trace = x.trace.ID()
	entered := h.open.enter()
	if entered {
		defer h.open.leave()
	}
	defer x.finish()
	if !entered {
		x.fail(stopping())
		return
	}
	if !h.access.Known(x.key) {
		x.fail(unauthorized())
		return
	}
	if f := x.prepare(); f != nil {
		x.fail(f)
		return
	}
	x.run()
}

// prepare reads the request, finds its model and its conversation, and takes a
// lease for it.
func (x *exchange) prepare() *failure {
	h := x.h
	f := x.readBody()
	x.rec.BytesIn = int64(len(x.body))
	if f == nil {
		f = x.parse()
	}
	if f != nil {
		return f
	}
	asked := x.asked()
	model, ok := h.models.lookup(asked)
	if !ok && x.route.stored {
		return x.search()
	}
	if !ok {
		return unknownModel(asked, h.names(x.key))
	}
	name := model.Name()
	x.rec.Model = name
	if f := x.admit(name); f != nil {
		return f
	}
	rank, err := pin(x.r.Header)
	if err != nil {
		return badPin(err, len(model.View().Replicas))
	}

	id := h.sessions.Identify(x.rec.Time, session.Request{Tenant: x.grant.Tenant, Model: name, Header: x.r.Header, Facts: x.facts})
	x.rec.Identity, x.rec.Client = id, id.Client
	x.enlist(id.Key)
	req := pool.Request{
		ID:           x.rec.RequestID,
		Conversation: id.Name,
		Key:          routing.Key(id.Key),
		Parent:       routing.Key(id.Parent),
		Extends:      routing.Key(id.Extends),
		Pin:          rank,
		Path:         x.route.path,
		Light:        x.route.api == llmapi.RouteCountTokens || x.route.api == llmapi.RouteTokenize,
		Tenant:       x.grant.Tenant,
		Batch:        x.grant.Batch,
	}
	if x.facts != nil {
		req.Tokens, req.MaxOutput = int64(x.facts.TextBytes/bytesPerToken), x.facts.MaxTokens
		req.Whole = !x.facts.Stream
		x.keepAlive(&req)
	}
	began := time.Now()
	x.lease, err = model.acquire(x.r.Context(), req)
	x.held(began, err)
	if err != nil {
		h.sessions.Withdraw(id)
		if x.r.Context().Err() != nil || errors.Is(err, errGone) {
			return clientGone(err)
		}
		return refused(err, rank, model)
	}
	x.turn = h.sessions.Begin(x.rec.Time, id, name)
	x.rec.Decision = x.lease.Decision()
	return nil
}

// admit counts the request to its key and its model, which is empty where the
// request does not tell. It counts from now on, not from when the client began to
// send it.
func (x *exchange) admit(model string) *failure {
	grant, err := x.h.access.Admit(time.Now(), x.key, model)
	if err != nil {
		return notAdmitted(err, x.h.names(x.key))
	}
	x.grant, x.rec.Key = grant, grant.Tenant
	return nil
}

// parse reads the body's facts where it is JSON.
func (x *exchange) parse() *failure {
	if x.r.Method != http.MethodPost || x.route.api == llmapi.RouteOther && mediaType(x.r.Header.Get("Content-Type")) != "application/json" {
		return nil
	}
	facts, err := llmapi.Parse(x.route.api, x.body)
	if err != nil {
		return badRequest("%v", err)
	}
	x.facts, x.rec.Facts, x.rec.Stream = facts, facts, facts.Stream
	return nil
}

// asked is the model that the client named, empty for none.
func (x *exchange) asked() string {
	if x.facts == nil {
		return ""
	}
	return x.facts.Model
}

// run makes attempts until one is answered or none is left.
func (x *exchange) run() {
	busy := false
	for {
		x.rec.Attempts++
		a, err := x.attempt()
		if err == nil {
			if a.Status == http.StatusServiceUnavailable && !busy && x.rec.Attempts <= furtherTries {
				// Overload of one server, so one other may try; a retry of everything
				// would multiply the overload.
				busy = true
				if x.retry(errBusy) == nil {
					a.Close()
					continue
				}
			}
			if a.Status == http.StatusNotFound && x.nextModel() {
				a.Close()
				continue
			}
			err = x.relay(a)
		}
		if err == nil {
			return
		}
		if err = x.why(err); errors.Is(err, errGone) {
			x.settle(Cancelled, err)
			return
		}
		if errors.Is(err, upstream.ErrLocal) {
			x.fail(exhausted(err)) // no replica's fault, and no other would be reached
			return
		}
		failed := replicaName(x.rec.Decision)
		if errors.Is(err, errSilent) || x.rec.Attempts > furtherTries {
			x.lease.Failed(err)
		} else {
			over := x.retry(err)
			if over == nil {
				continue
			}
			if x.r.Context().Err() != nil || errors.Is(over, errGone) { // while it was held for another replica
				x.fail(clientGone(over))
				return
			}
		}
		x.fail(unanswered(err, failed, x.rec.Attempts))
		return
	}
}

// search begins to look for a stored response, at the first model that is up.
func (x *exchange) search() *failure {
	x.others = slices.DeleteFunc(x.h.models.all(), func(b backend) bool { return !x.h.access.May(x.key, b.Name()) })
	if len(x.others) == 0 {
		return unknownModel("", nil)
	}
	if f := x.admit(""); f != nil {
		return f
	}
	if !x.nextModel() {
		return refused(&pool.Refused{Why: routing.NoReplica}, routing.None, nil)
	}
	return nil
}

// nextModel takes a lease on another model that may have a stored response, in
// place of one that has not.
func (x *exchange) nextModel() bool {
	for len(x.others) > 0 {
		model := x.others[0]
		x.others = x.others[1:]
		next, err := model.acquire(x.r.Context(), pool.Request{ID: x.rec.RequestID, Pin: routing.None, Path: x.route.path, Light: true})
		if err != nil {
			continue
		}
		if x.lease != nil {
			x.lease.End(routing.Outcome{})
		}
		x.lease = next
		x.rec.Model, x.rec.Decision = model.Name(), next.Decision()
		return true
	}
	return false
}

// retry moves the lease to another failure domain.
func (x *exchange) retry(cause error) error {
	x.h.logger.Debug("attempt failed",
		slog.String(keyRequestID, x.rec.RequestID),
		slog.Int(keyAttempt, x.rec.Attempts),
		slog.String(keyReplica, replicaName(x.rec.Decision)),
		slog.String(keyError, cause.Error()))
	x.trace.Failed(cause)
	began := time.Now()
	err := x.lease.Retry(cause)
	x.held(began, err)
	if err != nil {
		return err
	}
	x.rec.Decision = x.lease.Decision()
	return nil
}

// attempt sends the request to the lease's target and returns when the answer's
// head is in.
func (x *exchange) attempt() (*upstream.Answer, error) {
	x.begun, x.hearing = false, renewed{}
	x.trace.Attempt(x.rec.Decision)
	target, model := x.lease.target(x.asked())
	body := x.body
	if x.facts != nil {
		body = x.facts.Splice(body, model, true)
	}
	var until time.Time
	if d := x.h.limits.FirstByte; d > 0 {
		until = time.Now().Add(d)
	}
	buf := x.h.buffers.Get().(*[streamBuffer]byte)
	defer x.h.buffers.Put(buf)
	return x.h.engines.Send(x.lease.Context(), upstream.Request{
		To: target.Base, Method: x.r.Method,
		Head:  x.appendHead(buf[:0], target, len(body)),
		Body:  body,
		Until: until,
	})
}

// renewal is how often a limit on silence is set anew while bytes flow: setting
// it for each event would cost as much as passing the event on. The limit is that
// much longer.
const renewal = time.Second

// renewed is when a limit on silence was last set.
type renewed struct{ at time.Time }

// due reports whether to set it again, and until when; zero for no limit.
func (r *renewed) due(limit time.Duration) (until time.Time, due bool) {
	now := time.Now()
	if now.Sub(r.at) < renewal {
		return time.Time{}, false
	}
	r.at = now
	if limit > 0 {
		until = now.Add(limit + renewal)
	}
	return until, true
}

// read reads an answer's body.
func (x *exchange) read(a *upstream.Answer, p []byte) (int, error) {
	if x.begun {
		if until, due := x.hearing.due(x.h.limits.Idle); due {
			a.SetReadDeadline(until)
		}
	}
	n, err := a.Read(p)
	if n > 0 {
		x.lease.Progress()
	}
	return n, err
}

// begin tells that the answer itself has begun: its prompt has been read.
func (x *exchange) begin() {
	if !x.begun {
		x.begun = true
		x.lease.FirstByte()
	}
}

// why tells the reason behind an attempt's error: when the client leaves or the
// pool gives the attempt up, the connection to the engine is closed.
func (x *exchange) why(err error) error {
	switch {
	case errors.Is(err, errGone):
		return err
	case x.r.Context().Err() != nil:
		return fmt.Errorf("%w: %w", errGone, context.Cause(x.r.Context()))
	case x.lease.Context().Err() != nil:
		return context.Cause(x.lease.Context())
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSilent
	}
	return err
}

// sign says on an answer who served it, and why there.
func (x *exchange) sign(h http.Header) {
	d := x.rec.Decision
	if d.Reason == "" {
		return
	}
	h[headerReplica] = []string{replicaName(d)}
	h[headerDecision] = []string{string(d.Reason)}
	if name := x.rec.Identity.Name; name != "" && d.Reason != routing.Unbound && d.Reason != routing.Off {
		h[headerConversation] = []string{name}
	}
}

// replicaName is how headers and logs name where a request went.
func replicaName(d routing.Decision) string {
	if d.Replica == routing.None {
		return "engine"
	}
	return strconv.Itoa(d.Replica)
}

// fail answers with an error of our own. Nothing may have been sent before.
func (x *exchange) fail(f *failure) {
	x.settle(f.outcome, errors.New(f.reason()))
	if f.outcome == Cancelled {
		x.cut = true
		return
	}
	if x.kept {
		x.started, x.cut = true, true
		n, _ := x.write(f.Event(x.route.api))
		x.rec.BytesOut += int64(n)
		return
	}
	x.sign(x.w.Header())
	x.started, x.rec.Status = true, f.Status()
	// An error here is the client's end; there is nothing left to tell it.
	_ = f.write(x.w, dialectOf(x.r, x.route))
	if f.unread && x.r.ContentLength != 0 {
		x.h.drain(x.control, x.r.Body)
	}
}

// settle fixes the outcome. Only the first call counts.
func (x *exchange) settle(o Outcome, cause error) {
	if x.settled {
		return
	}
	x.settled, x.rec.Outcome = true, o
	if cause != nil {
		x.rec.Error = cause.Error()
	}
	if o == Cancelled && !x.started && !x.kept {
		x.rec.Status = statusCancelled
	}
}

// finish runs on every path: it ends the lease and the turn once, and records
// the request.
func (x *exchange) finish() {
	p := recover()
	if p != nil {
		x.settle(GatewayError, fmt.Errorf("panic: %v", p))
		x.cut = true
		if p != http.ErrAbortHandler {
			x.h.logger.Error("panic in a request",
				slog.String(keyRequestID, x.rec.RequestID),
				slog.String(keyError, fmt.Sprint(p)),
				slog.String(keyStack, string(debug.Stack())))
		}
	}
	x.delist()
	x.letGo()
	rec, now := &x.rec, time.Now()
	rec.Duration = now.Sub(rec.Time)
	u := rec.Usage
	if x.lease != nil {
		x.lease.End(routing.Outcome{
			OK:     rec.Outcome == OK,
			Prompt: u.Prompt, Cached: u.Cached, Completion: u.Completion,
			Known: u.Known, CachedKnown: u.CacheState == llmapi.CacheReported,
		})
	}
	x.turn.End(now, u)
	x.grant.Release()
	if x.h.recorder != nil {
		x.h.recorder.Record(*rec)
	}
	x.trace.End(rec)
	rec.log(x.h.logger)
	if x.cut {
		// The server then closes the connection without the mark of a complete body.
		panic(http.ErrAbortHandler)
	}
}
