package llmapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// ErrorKind is why the gateway itself refused or lost a request. Its text is the
// value of the header X-Warden-Error.
type ErrorKind string

const (
	KindBadRequest        ErrorKind = "bad-request"
	KindUnknownModel      ErrorKind = "unknown-model"
	KindTooLarge          ErrorKind = "too-large"
	KindUnauthorized      ErrorKind = "unauthorized"
	KindNoReplica         ErrorKind = "no-replica"
	KindEngineUnreachable ErrorKind = "engine-unreachable"
	KindEngineTimeout     ErrorKind = "engine-timeout"
	KindOverloaded        ErrorKind = "overloaded"
	KindStopping          ErrorKind = "stopping"
)

// errorShape is what a kind of error looks like on the wire.
type errorShape struct {
	status    int
	openAI    string // error.type
	code      string // error.code, OpenAI only
	anthropic string // error.type
}

func (k ErrorKind) shape() errorShape {
	switch k {
	case KindBadRequest:
		return errorShape{http.StatusBadRequest, "invalid_request_error", "bad_request", "invalid_request_error"}
	case KindUnknownModel:
		return errorShape{http.StatusNotFound, "invalid_request_error", "model_not_found", "not_found_error"}
	case KindTooLarge:
		return errorShape{http.StatusRequestEntityTooLarge, "invalid_request_error", "request_too_large", "request_too_large"}
	case KindUnauthorized:
		return errorShape{http.StatusUnauthorized, "authentication_error", "invalid_api_key", "authentication_error"}
	case KindNoReplica:
		return errorShape{http.StatusServiceUnavailable, "server_error", "no_replica", "overloaded_error"}
	case KindEngineUnreachable:
		return errorShape{http.StatusBadGateway, "server_error", "engine_unreachable", "api_error"}
	case KindEngineTimeout:
		return errorShape{http.StatusGatewayTimeout, "server_error", "engine_timeout", "timeout_error"}
	case KindOverloaded:
		return errorShape{http.StatusServiceUnavailable, "server_error", "overloaded", "overloaded_error"}
	case KindStopping:
		return errorShape{http.StatusServiceUnavailable, "server_error", "stopping", "overloaded_error"}
	}
	return errorShape{http.StatusInternalServerError, "server_error", "internal_error", "api_error"}
}

// Error is an answer that the gateway makes itself.
type Error struct {
	Kind    ErrorKind
	Message string // for the client: names the thing, the value, the remedy
	// RetryAfter is told to the client in whole seconds, rounded up; 0 is not
	// told. Beyond 45 s Claude Code gives up instead of waiting.
	RetryAfter time.Duration
	// Code is an HTTP status in place of the kind's own; 0 for that.
	Code int
}

func (e *Error) Error() string { return string(e.Kind) + ": " + e.Message }

// Status is the HTTP status of the answer.
func (e *Error) Status() int { return cmp.Or(e.Code, e.Kind.shape().status) }

// shape is the kind's own, but for a client that asks too much: the clients of
// either API know that by a word of its own.
func (e *Error) shape() errorShape {
	if e.Code == http.StatusTooManyRequests {
		return errorShape{e.Code, "requests", "rate_limit_exceeded", "rate_limit_error"}
	}
	return e.Kind.shape()
}

// Body is the answer's JSON in the given dialect.
func (e *Error) Body(d Dialect) []byte {
	s := e.shape()
	if d == Anthropic {
		return anthropicError(s.anthropic, e.Message)
	}
	return marshal(openAIBody{openAIError{e.Message, s.openAI, nil, s.code}})
}

// Write answers with the error. Nothing may have been written to w before.
func (e *Error) Write(w http.ResponseWriter, d Dialect) error {
	body := e.Body(d)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Warden-Error", string(e.Kind))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(e.Status())
	_, err := w.Write(body)
	return err
}

// ErrorEvent is the event that fails a stream which has begun, through its
// engine: after it the stream is cut, without the dialect's regular end. It must
// follow a complete event.
func ErrorEvent(route Route, message string) []byte {
	return errorEvent(route, errorShape{openAI: "server_error", code: "engine_error", anthropic: "api_error"}, message)
}

// Event is the error in place of an answer on a stream that has begun with
// keep-alives. The stream is cut after it, as after ErrorEvent.
func (e *Error) Event(route Route) []byte { return errorEvent(route, e.shape(), e.Message) }

func errorEvent(route Route, s errorShape, message string) []byte {
	var name string
	var data []byte
	fault := openAIError{message, s.openAI, nil, s.code}
	switch route {
	case RouteMessages:
		name, data = "error", anthropicError(s.anthropic, message)
	case RouteResponses:
		// The documented error event has its fields at the top. The OpenAI SDKs
		// raise an exception only for a member "error", so it has both.
		name, data = "error", marshal(struct {
			Type string `json:"type"`
			openAIFields
			Error openAIError `json:"error"`
		}{"error", openAIFields{message, nil, s.code}, fault})
	default:
		data = marshal(openAIBody{fault})
	}
	var event []byte
	if name != "" {
		event = append(append(append(event, "event: "...), name...), '\n')
	}
	event = append(append(event, "data: "...), data...)
	return append(event, "\n\n"...)
}

type openAIBody struct {
	Error openAIError `json:"error"`
}

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type openAIFields struct {
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func anthropicError(kind, message string) []byte {
	type fault struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return marshal(struct {
		Type  string `json:"type"`
		Error fault  `json:"error"`
	}{"error", fault{kind, message}})
}

// marshal encodes values of this file's types, which always encode.
func marshal(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}
