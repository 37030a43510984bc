package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// route is what the server does at one path.
type route struct {
	methods   []string // in the order of the allow header
	serve     http.HandlerFunc
	generates bool
}

func (s *Server) makeRoutes() map[string]route {
	get := func(serve http.HandlerFunc) route {
		return route{methods: []string{http.MethodGet}, serve: serve}
	}
	post := func(serve http.HandlerFunc) route {
		return route{methods: []string{http.MethodPost}, serve: serve}
	}
	generate := func(serve http.HandlerFunc) route {
		return route{methods: []string{http.MethodPost}, serve: serve, generates: true}
	}
	return map[string]route{
		"/v1/models":                  get(s.listModels),
		"/v1/chat/completions":        generate(s.chat),
		"/v1/completions":             generate(s.completions),
		"/v1/responses":               generate(s.responses),
		"/v1/messages":                generate(s.messages),
		"/v1/messages/count_tokens":   post(s.countTokens),
		"/invocations":                generate(s.chat),
		"/v1/chat/completions/render": post(s.scaleOut),
		"/v1/completions/render":      post(s.scaleOut),
		"/tokenize":                   post(s.tokenize),
		"/detokenize":                 post(s.detokenize),
		"/health":                     get(s.health),
		"/ping":                       {methods: []string{http.MethodGet, http.MethodPost}, serve: s.health},
		"/version":                    get(s.constant(object{{"version", s.version.text}})),
		"/load":                       get(s.constant(object{{"server_load", 0}})), // as without --enable-server-load-tracking
		"/metrics":                    get(s.metrics),
		"/reset_prefix_cache":         post(s.resetPrefixCache),
		"/is_sleeping":                get(s.constant(object{{"is_sleeping", false}})),
		"/is_paused":                  get(s.constant(object{{"is_paused", false}})),
		"/get_world_size":             get(s.worldSize),
	}
}

const responsesPrefix = "/v1/responses/"

// lookup finds the route of a path; ok is false when there is none.
func (s *Server) lookup(path string) (route, bool) {
	if r, ok := s.routes[path]; ok {
		return r, true
	}
	if id, ok := strings.CutPrefix(path, responsesPrefix); ok {
		method := http.MethodGet
		if base, cancel := strings.CutSuffix(id, "/cancel"); cancel {
			id, method = base, http.MethodPost
		}
		if id != "" && !strings.Contains(id, "/") {
			serve := func(w http.ResponseWriter, _ *http.Request) { s.refuse(w, unknownResponse(id)) }
			return route{methods: []string{method}, serve: serve}, true
		}
	}
	return route{}, false
}

// handle does what uvicorn, its middlewares and its router do before a handler runs.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if c := connectionOf(r); c != nil {
		c.requests++
	}
	if strings.HasPrefix(r.URL.Path, simulationPrefix) {
		s.simulation(w, r)
		return
	}
	header := w.Header()
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		header.Set("Connection", "close")
		header.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		return
	}
	header.Set("Server", "uvicorn")
	if !s.authorized(r) {
		writeJSON(w, http.StatusUnauthorized, object{{"error", "Unauthorized"}})
		return
	}
	header.Set("Vary", "Origin")
	if r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" {
		refusePreflight(w, r)
		return
	}
	at, ok := s.lookup(r.URL.Path)
	switch {
	case !ok && s.redirects(r.URL.Path):
		header["Content-Type"] = nil // a redirect has no type
		header.Set("Location", "http://"+r.Host+strings.TrimRight(r.URL.EscapedPath(), "/")+query(r))
		header.Set("Content-Length", "0")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case !ok:
		writeDetail(w, http.StatusNotFound, "Not Found")
	case !slices.Contains(at.methods, r.Method):
		header.Set("Allow", strings.Join(at.methods, ", "))
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	default:
		serve := s.ambushed(r, at)
		if at.generates {
			serve = s.tallied(serve)
		}
		serve(w, r)
	}
}

// redirects reports whether the path would be known without the slash at its end.
func (s *Server) redirects(path string) bool {
	bare := strings.TrimRight(path, "/")
	_, ok := s.lookup(bare)
	return ok && bare != path
}

func query(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return "?" + r.URL.RawQuery
}

// authorized checks the API key the way the engine does: as a Bearer token only, and on
// no other paths than these.
func (s *Server) authorized(r *http.Request) bool {
	guarded := slices.ContainsFunc([]string{"/v1", "/v2", "/inference"}, func(prefix string) bool {
		return strings.HasPrefix(r.URL.Path, prefix)
	})
	if s.apiKey == "" || !guarded || r.Method == http.MethodOptions {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer") && key == s.apiKey
}

func refusePreflight(w http.ResponseWriter, r *http.Request) {
	const text = "Disallowed CORS origin"
	header := w.Header()
	header.Set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network")
	header.Set("Access-Control-Allow-Methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY")
	header.Set("Access-Control-Max-Age", "600")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		header.Set("Access-Control-Allow-Headers", asked)
	}
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(http.StatusBadRequest)
	write(w, []byte(text))
}
