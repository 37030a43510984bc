package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/session"
	"lmwarden/internal/upstream"
)

// KeepAlive is what streams get while their requests are held. Answers that do
// not stream get nothing.
type KeepAlive string

const (
	KeepAliveAuto    KeepAlive = "auto"    // a ping event on Anthropic streams, a comment line on the others; also ""
	KeepAlivePing    KeepAlive = "ping"    // a ping event on Anthropic streams only
	KeepAliveComment KeepAlive = "comment" // a comment line on all
	KeepAliveNone    KeepAlive = "none"
)

// on is what a stream of a route gets; empty for nothing. The ping is byte for
// byte the one of Anthropic's API.
func (k KeepAlive) on(api llmapi.Route) string {
	const ping, comment = "event: ping\ndata: {\"type\": \"ping\"}\n\n", ": waiting\n\n"
	anthropic := api == llmapi.RouteMessages
	switch k {
	case KeepAliveComment:
		return comment
	case KeepAliveNone:
	case KeepAlivePing:
		if anthropic {
			return ping
		}
	default:
		if anthropic {
			return ping
		}
		return comment
	}
	return ""
}

// keepAlive lets the request's stream have keep-alives while it is held.
func (x *exchange) keepAlive(r *pool.Request) {
	text := x.h.limits.KeepAlive.on(x.route.api)
	if text == "" || !x.facts.Stream || !x.route.api.Generates() {
		return
	}
	r.BeatEvery = x.h.limits.KeepAliveAfter
	r.Beat = func() error {
		x.keep()
		n, err := x.write([]byte(text))
		x.rec.BytesOut += int64(n)
		if err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
		return nil
	}
}

// keep commits a stream's head before there is an answer. Which replica will
// serve it, and why, follows in the trailer.
func (x *exchange) keep() {
	if x.kept {
		return
	}
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	h["Trailer"] = []string{headerReplica, headerDecision}
	if id := x.rec.Identity; id.Key != (session.Key{}) && id.Name != "" {
		h[headerConversation] = []string{id.Name}
	}
	x.w.WriteHeader(http.StatusOK)
	x.kept, x.rec.Status = true, http.StatusOK
}

// held takes note of how long Acquire or Retry took, which is how long the
// request was held if it was.
func (x *exchange) held(began time.Time, err error) {
	if err == nil && x.lease.Decision().Held == "" {
		return
	}
	if d := time.Since(began); d >= time.Millisecond {
		x.rec.Waited += d
	}
}

// lateLimit bounds how much of an error is read for its message.
const lateLimit = 64 << 10

// relayLate tells a client that has keep-alives of an answer that is no stream,
// as an engine's errors are: what they say goes into the error event of the
// dialect.
func (x *exchange) relayLate(a *upstream.Answer) error {
	b, err := io.ReadAll(io.LimitReader(answerReader{x, a}, lateLimit))
	if err != nil {
		return x.broken(err)
	}
	if a.Status/100 == 2 {
		return &unsent{fmt.Errorf("%w, but %q", errNotEvents, clip(a.Get("Content-Type")))}
	}
	outcome, cause := outcomeOf(a.Status)
	var kind llmapi.ErrorKind // none of ours
	switch {
	case a.Status == http.StatusServiceUnavailable, a.Status == http.StatusTooManyRequests:
		kind = llmapi.KindOverloaded
	case outcome == ClientError:
		kind = llmapi.KindBadRequest
	}
	f := fail(kind, outcome, "%s", errorMessage(a.Status, b))
	f.cause = cause
	x.fail(f)
	return nil
}

// errorMessage is what an engine's error says to people.
func errorMessage(status int, body []byte) string {
	var e struct {
		Error   struct{ Message string }
		Message string // vLLM up to 0.9
	}
	_ = json.Unmarshal(body, &e) // what is not so has no message
	return cmp.Or(e.Error.Message, e.Message, clip(strings.TrimSpace(string(body))), http.StatusText(status))
}
