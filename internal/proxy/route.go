package proxy

import (
	"net/http"
	"strings"

	"lmwarden/internal/llmapi"
)

// route is what the gateway does with a path.
type route struct {
	kind kind
	api  llmapi.Route
	// path is the engine's path; the client's own spelling of it (a trailing
	// slash) is not passed on.
	path string
	// tail is what follows the prefix of a model's page.
	tail string
	// stored says that it is about a response which one of the engines keeps; the
	// request does not say which model made it.
	stored bool
}

type kind uint8

const (
	kindUnknown kind = iota
	kindForward      // goes to an engine
	kindModels       // the list of models
	kindModel        // one model of it
	kindAlive        // answered with an empty 200
	kindUpgrade      // a WebSocket handshake that we refuse
)

// find looks a request's path up. When the path exists but not with this
// method, allow names the methods that do.
func find(r *http.Request) (rt route, allow string) {
	path := r.URL.EscapedPath()
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	post := r.Method == http.MethodPost

	if api := llmapi.RouteOf(http.MethodPost, path); api != llmapi.RouteOther || audio(path) {
		switch {
		case post:
			return route{kind: kindForward, api: api, path: path}, ""
		case api == llmapi.RouteResponses && isUpgrade(r):
			return route{kind: kindUpgrade, path: path}, ""
		}
		return route{path: path}, http.MethodPost
	}
	switch path {
	case "/", "/api/hello", "/health":
		if r.Method == http.MethodHead || path == "/health" && get {
			return route{kind: kindAlive, path: path}, ""
		}
		if path == "/health" {
			return route{path: path}, "GET, HEAD"
		}
		return route{path: path}, ""
	case "/v1/models":
		if get {
			return route{kind: kindModels, path: path}, ""
		}
		return route{path: path}, "GET, HEAD"
	}
	if _, ok := strings.CutPrefix(path, "/v1/models/"); ok {
		if get {
			// The engine's own names hold slashes, which clients send raw or escaped.
			tail := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/models/"), "/")
			return route{kind: kindModel, path: path, tail: tail}, ""
		}
		return route{path: path}, "GET, HEAD"
	}
	if id, ok := strings.CutPrefix(path, "/v1/responses/"); ok {
		id, cancel := strings.CutSuffix(id, "/cancel")
		switch {
		case id == "" || strings.Contains(id, "/") || id == "." || id == "..":
		case cancel && post, !cancel && (r.Method == http.MethodGet || r.Method == http.MethodDelete):
			return route{kind: kindForward, api: llmapi.RouteOther, path: path, stored: true}, ""
		case cancel:
			return route{path: path}, http.MethodPost
		default:
			return route{path: path}, "GET, DELETE"
		}
	}
	return route{path: path}, ""
}

// audio names the routes of speech models, whose bodies are forms or whose
// answers are sound.
func audio(path string) bool {
	switch path {
	case "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech":
		return true
	}
	return false
}

// dialectOf chooses the shape of our own answers.
func dialectOf(r *http.Request, rt route) llmapi.Dialect {
	if r.Header.Get("Anthropic-Version") != "" || strings.HasPrefix(rt.path, "/v1/messages") {
		return llmapi.Anthropic
	}
	return rt.api.Dialect()
}

func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}
