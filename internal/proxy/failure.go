package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// A refused client is told to come back within these bounds. Claude Code gives
// up at once on more than 45 s.
const (
	retrySoon = 2 * time.Second
	retryLate = 30 * time.Second
)

// retryStopping is when a client of a gateway that stops is told to come back: the
// next process may serve at any moment.
const retryStopping = time.Second

// failure is an answer that the gateway makes itself.
type failure struct {
	llmapi.Error
	allow  string // methods, for a 405
	close  bool   // the connection ends with this answer
	unread bool   // the client may still be sending
	// cause is for operators; it may hold addresses. It defaults to the message.
	cause   error
	outcome Outcome
}

func fail(kind llmapi.ErrorKind, outcome Outcome, format string, args ...any) *failure {
	return &failure{Error: llmapi.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}, outcome: outcome}
}

func badRequest(format string, args ...any) *failure {
	return fail(llmapi.KindBadRequest, ClientError, format, args...)
}

// clientGone is a failure that nobody reads.
func clientGone(cause error) *failure {
	f := fail(llmapi.KindBadRequest, Cancelled, "the client left")
	f.cause = fmt.Errorf("%w: %w", errGone, cause)
	return f
}

func tooLarge(limit int64) *failure {
	f := fail(llmapi.KindTooLarge, ClientError, "the request body is larger than this gateway's limit of %d bytes", limit)
	f.close, f.unread = true, true
	return f
}

// full refuses a body for which there is no memory.
func full(cause error) *failure {
	f := fail(llmapi.KindOverloaded, GatewayError, "the gateway holds as many request bodies as it may; try again in a moment")
	f.RetryAfter, f.cause, f.close, f.unread = retrySoon, cause, true, true
	return f
}

// exhausted is the answer when no connection to an engine can be made for want of
// file descriptors or the like.
func exhausted(cause error) *failure {
	f := fail(llmapi.KindOverloaded, GatewayError, "the gateway has no connection left; try again in a moment")
	f.RetryAfter, f.cause = retrySoon, cause
	return f
}

func stopping() *failure {
	f := fail(llmapi.KindStopping, GatewayError, "the gateway is stopping; try again in a moment")
	f.RetryAfter, f.close, f.unread = retryStopping, true, true
	return f
}

// notHere answers a path or a method that the gateway does not serve.
func notHere(r *http.Request, allow string) *failure {
	if allow != "" {
		f := badRequest("%s does not take %s; use %s", clip(r.URL.Path), clip(r.Method), allow)
		f.Code, f.allow = http.StatusMethodNotAllowed, allow
		return f
	}
	f := badRequest("no such route: %s %s; this gateway serves the OpenAI and Anthropic APIs under /v1, such as /v1/chat/completions, /v1/responses and /v1/messages", clip(r.Method), clip(r.URL.Path))
	f.Code = http.StatusNotFound
	return f
}

func unknownModel(name string, known []string) *failure {
	switch {
	case len(known) == 0:
		f := fail(llmapi.KindNoReplica, GatewayError, "no engine has said yet which models it serves; try again in a moment")
		f.RetryAfter = retrySoon
		return f
	case name == "":
		return badRequest("the request names no model; this gateway serves %s", list(known))
	}
	return fail(llmapi.KindUnknownModel, ClientError, "the model %q does not exist; this gateway serves %s", clip(name), list(known))
}

func badPin(err error, replicas int) *failure {
	switch replicas {
	case 0: // not known yet
		return badRequest("%v; it takes the index of a replica, from 0", err)
	case 1:
		return badRequest("%v; the only replica is 0", err)
	}
	return badRequest("%v; allowed are 0 to %d", err, replicas-1)
}

// refused is the answer when a model has no replica for a request.
func refused(err error, pin int, model backend) *failure {
	var r *pool.Refused
	if !errors.As(err, &r) {
		f := fail(llmapi.KindNoReplica, GatewayError, "no replica could be chosen")
		f.RetryAfter, f.cause = retrySoon, err
		return f
	}
	var f *failure
	switch r.Why {
	case routing.NoSuchReplica:
		return badPin(fmt.Errorf("%s %d is not a replica", headerRank, pin), len(model.View().Replicas))
	case routing.PinDown:
		f = fail(llmapi.KindNoReplica, GatewayError, "replica %d, which %s asks for, is down; leave the header out to be served by another one", pin, headerRank)
	case routing.NoReplica:
		f = fail(llmapi.KindNoReplica, GatewayError, "no replica of this model is up")
	case routing.QueueFull:
		f = fail(llmapi.KindOverloaded, GatewayError, "too many requests wait for this model; try again in a moment")
	case pool.WaitedLong:
		f = fail(llmapi.KindOverloaded, GatewayError, "the request waited too long for a replica with room; try again in a moment")
	case pool.Stopping:
		f = stopping()
		f.unread = false
		return f
	default:
		f = fail(llmapi.KindOverloaded, GatewayError, "the model takes no further request now: %s", r.Why)
	}
	f.RetryAfter = retrySoon
	if r.RetryAfter > 0 {
		f.RetryAfter = min(r.RetryAfter, retryLate)
	}
	return f
}

// unanswered is the answer when every attempt failed before its first byte.
func unanswered(cause error, replica string, attempts int) *failure {
	kind := llmapi.KindEngineUnreachable
	if errors.Is(cause, errSilent) {
		kind = llmapi.KindEngineTimeout
	}
	f := fail(kind, EngineError, "replica %s %s", replica, describe(cause))
	if attempts > 1 {
		f.Message += fmt.Sprintf("; it was the last of %d attempts", attempts)
	}
	f.cause = cause
	return f
}

// write answers the client. The error is the client's end of the connection.
func (f *failure) write(w http.ResponseWriter, d llmapi.Dialect) error {
	h := w.Header()
	if f.close {
		h.Set("Connection", "close")
	}
	if f.allow != "" {
		h.Set("Allow", f.allow)
	}
	return f.Error.Write(w, d)
}

func (f *failure) reason() string {
	if f.cause != nil {
		return f.cause.Error()
	}
	return f.Message
}

// list names models for a person.
func list(names []string) string {
	const most = 20
	names = slices.Clone(names)
	for i := range names {
		names[i] = fmt.Sprintf("%q", names[i])
	}
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// isReset reports whether the other side ended the connection.
func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// describe says what a replica did wrong, without its address, which is not the
// client's to know.
func describe(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, pool.ErrLost):
		return "went down before its answer was complete"
	case errors.Is(err, errSilent):
		return "sent nothing for too long"
	case errors.Is(err, errAborted):
		return "cut its answer short"
	case errors.Is(err, errNotEvents):
		return "answered without a stream"
	case errors.Is(err, errNotJSON):
		return "answered in a format that is not JSON"
	case errors.Is(err, errRedirect):
		return "redirected the request, which this gateway does not follow; its URL needs to be corrected"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused the connection"
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return "accepted no connection in time"
	case errors.As(err, &op) && op.Op == "dial":
		return "could not be reached"
	case errors.Is(err, errTruncated), isReset(err):
		return "ended the connection before its answer was complete"
	}
	return "did not answer in HTTP"
}
