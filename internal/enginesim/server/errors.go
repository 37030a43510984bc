package server

import (
	"fmt"
	"net/http"
)

// apiError is an answer that refuses a request.
type apiError struct {
	status  int
	kind    string // the engine's own name of the error, for example BadRequestError
	message string
	param   string // the offending field; empty prints null
	// schema marks what the engine's framework refuses before a handler runs: such an
	// error has OpenAI's shape on every route.
	schema bool
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{
		status: http.StatusBadRequest, kind: "BadRequestError",
		message: fmt.Sprintf(format, args...), param: param,
	}
}

// invalid is a violation of a route's schema. detail is the Python representation of
// the framework's error record, without braces.
func invalid(loc, detail string) *apiError {
	return &apiError{
		status: http.StatusBadRequest, kind: "Bad Request", schema: true, param: loc,
		message: "1 validation error:\n  {" + detail + "}",
	}
}

func unknownModel(name string, served string) *apiError {
	return &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model",
		message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", name, served),
	}
}

func busy() *apiError {
	return &apiError{
		status: http.StatusServiceUnavailable, kind: "Service Unavailable",
		message: "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
	}
}

// engineDead is what a request gets whose engine died, and every later one.
func engineDead(v version) *apiError {
	message := "EngineCore encountered an issue. See stack trace (above) for the root cause."
	if v.atLeast(0, 33) {
		message = "The server had an error while processing your request."
	}
	return &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: message}
}

// stopping is what new requests get while a server that was told to stop ends the old ones.
func stopping() *apiError {
	return &apiError{
		status: http.StatusInternalServerError, kind: "InternalServerError",
		message: "cannot schedule new futures after shutdown",
	}
}

func (e *apiError) openAI() object {
	var param any
	if e.param != "" {
		param = e.param
	}
	return object{{"error", object{
		{"message", e.message}, {"type", e.kind}, {"param", param}, {"code", e.status},
	}}}
}

// anthropic is the error in the shape of /v1/messages. From 0.33 on its types have
// Anthropic's names.
func (e *apiError) anthropic(v version) object {
	kind := e.kind
	if v.atLeast(0, 33) {
		switch {
		case e.status == http.StatusNotFound:
			kind = "not_found_error"
		case e.status == http.StatusServiceUnavailable:
			kind = "overloaded_error"
		case e.status >= http.StatusInternalServerError:
			kind = "api_error"
		default:
			kind = "invalid_request_error"
		}
	}
	return object{{"type", "error"}, {"error", object{{"type", kind}, {"message", e.message}}}}
}

// kindDetail marks an error that the web framework words itself, with its message alone.
const kindDetail = "detail"
