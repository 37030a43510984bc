// Package web is the admin listener: the console's pages, the admin API in JSON
// and the probes. It shows what pools and the conversation table say and passes
// an operator's wishes on to them; it decides nothing, and keeps nothing but the
// latest events (EventLog), and pages for a moment.
//
// Where to look: pools.go and history.go are what it needs of the rest, guard.go
// and login.go are who may ask, refresh.go is what open consoles share, web.go has
// the table of routes, api.go and its neighbours are the API, page.go and its
// neighbours the pages, chart.go draws, say.go and notes.go find the words.
package web

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/kvevents"
	"lmwarden/internal/pool"
	"lmwarden/internal/session"
)

// Options are what New needs. Pools, Conversations, Metrics and Log are
// required.
type Options struct {
	// Pools lists the pools in the order of the configuration. It is called for
	// every request.
	Pools         func() []Pool
	Conversations Conversations
	Metrics       http.Handler
	Log           *slog.Logger
	// Version is shown on every page.
	Version string
	// Hosts are the names by which a browser on this machine may ask, besides
	// localhost and loopback addresses.
	Hosts []string
	// DefaultAlias is the alias that the only model has by default, as the page
	// says; empty when there is none.
	DefaultAlias string
	// Logins are the operators who are logged in. Nil means that nobody has to be.
	Logins Logins
	// Warnings stand on every page and behind what /readyz says. Nil means that
	// there are none.
	Warnings func() []string
	// Ready says why the gateway takes no requests, as when it stops. Nil means
	// that only the replicas matter.
	Ready func() error
	// Unassigned lists the engines that belong to no model, as when nobody could
	// ask them what they serve. Nil means that there are none.
	Unassigned func() []pool.ServerView
	// KVEvents tells what the KV events of a replica say, named as pool.ReplicaView
	// does; false when nobody listens to them. Nil means that nobody listens to any.
	KVEvents func(url string, rank int) (kvevents.View, bool)
	// Tokens tells what a model's engines counted. Nil means not known.
	Tokens func(model string) Tokens
	// History is what became of finished requests. Nil means that none is kept.
	History History
	// Events lists at most n events, the newest first. Nil means that none are
	// known.
	Events func(n int) []Event
	// Settings is what the gateway runs with. Nil means not known.
	Settings func() Settings
	// Reload reads the configuration's file again; its error says why the former
	// one stays in force. Nil means that there is no file.
	Reload func(context.Context) error
	// ClientURL is the address for clients. Nil means the default one.
	ClientURL func() string
	// Benchmarks is a folder of measurements; empty means that there is none.
	Benchmarks string
	// Cancel ends the open requests of a conversation and says how many there
	// were. Nil means that the gateway cannot.
	Cancel func(session.Key) int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Tokens are a model's tokens since the counters run.
type Tokens struct {
	// Cached and Computed are parts of the prompts whose cached part the engine
	// told; Unmeasured are prompts for which it did not.
	Cached, Computed, Unmeasured int64
}

// Handler serves the admin listener.
type Handler struct {
	o          Options
	pages      *template.Template
	started    time.Time
	history    *sharedHistory
	benchmarks benchmarks
	refreshes  refreshes
	serve      http.Handler
}

//go:embed templates static
var files embed.FS

// New returns a handler for the whole listener.
func New(o Options) (*Handler, error) {
	if o.Pools == nil || o.Conversations == nil || o.Metrics == nil || o.Log == nil {
		return nil, errors.New("web: Pools, Conversations, Metrics and Log are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logins == nil {
		o.Logins = noLogins{}
	}
	if o.Warnings == nil {
		o.Warnings = func() []string { return nil }
	}
	pages, err := parsePages()
	if err != nil {
		return nil, err
	}
	if o.History == nil {
		o.History = noHistory{}
	}
	h := &Handler{
		o: o, pages: pages, started: o.Now(),
		history: &sharedHistory{History: o.History}, benchmarks: benchmarks{folder: o.Benchmarks},
	}
	mux, err := h.routes()
	if err != nil {
		return nil, err
	}
	h.serve = guard(o.Hosts, h.withLogin(h.refreshes.of(mux)))
	return h, nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.serve.ServeHTTP(w, r) }

// route is one address of the listener. API routes have a path as the API's
// description writes it.
type route struct {
	path    string
	methods []string
	serve   http.HandlerFunc
}

// table lists all addresses. A name of a model may hold slashes, as those of
// Hugging Face do, so what is below a model is split by oneModel, which the mux
// sends the rest of the path.
func (h *Handler) table() []route {
	get, post := []string{"GET"}, []string{"POST"}
	return []route{
		{"/{$}", get, h.overviewPage},
		{"/models", get, h.modelsPage},
		{"/models/{name...}", get, h.modelPage},
		{"/conversations", get, h.conversationsPage},
		{"/conversations/{id}", get, h.conversationPage},
		{"/stats", get, h.statsPage},
		{"/benchmarks", get, h.benchmarksPage},
		{"/benchmarks/{run}", get, h.benchmarkPage},
		{"/benchmarks/{run}/{figure}", get, h.benchmarkFigure},
		{"/settings", get, h.settingsPage},
		{"/connect", get, h.connectPage},

		{loginPath, []string{"GET", "POST"}, h.loginPage},
		{logoutPath, post, h.logout},

		{"/healthz", get, h.healthz},
		{"/readyz", get, h.readyz},
		{"/metrics", get, h.o.Metrics.ServeHTTP},

		{"/api/overview", get, h.getOverview},
		{"/api/models", get, h.listModels},
		{"/api/models/{name}", []string{"GET", "PATCH"}, h.oneModel},
		{"/api/models/{name}/replicas/{index}/drain", post, h.oneModel},
		{"/api/models/{name}/replicas/{index}/resume", post, h.oneModel},
		{"/api/decisions", get, h.listDecisions},
		{"/api/conversations", get, h.listConversations},
		{"/api/conversations/{id}", get, h.getConversation},
		{"/api/conversations/{id}/release", post, h.releaseConversation},
		{"/api/conversations/{id}/move", post, h.moveConversation},
		{"/api/conversations/{id}/cancel", post, h.cancelConversation},
		{"/api/stats/tokens", get, h.getTokens},
		{"/api/stats/requests", get, h.getRequests},
		{"/api/stats/moves", get, h.getMoves},
		{"/api/stats/causes", get, h.getCauses},
		{"/api/stats/replicas", get, h.getReplicaHistory},
		{"/api/benchmarks", get, h.listBenchmarks},
		{"/api/benchmarks/{run}", get, h.getBenchmark},
		{"/api/settings", get, h.getSettings},
		{"/api/settings/reload", post, h.reloadSettings},
		{"/api/openapi.json", get, h.getDescription},
	}
}

// routes puts every route into a mux.
func (h *Handler) routes() (*http.ServeMux, error) {
	static, err := newAssets(files, "static")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", only(http.HandlerFunc(h.pageNotFound), "GET"))
	mux.Handle("/static/", only(static, "GET"))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "no such route: %s", r.URL.Path)
	})
	mux.HandleFunc(belowModels, h.oneModel)
	for _, r := range h.table() {
		if !strings.HasPrefix(r.path, "/api/models/") {
			mux.Handle(r.path, only(r.serve, r.methods...))
		}
	}
	return mux, nil
}

// belowModels is where the mux finds every route below a model.
const belowModels = "/api/models/{rest...}"

// only refuses other methods. GET includes HEAD.
func only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		if slices.Contains(methods, method) {
			next.ServeHTTP(w, r)
			return
		}
		allow := strings.Join(methods, ", ")
		if slices.Contains(methods, http.MethodGet) {
			allow = strings.Replace(allow, "GET", "GET, HEAD", 1)
		}
		w.Header().Set("Allow", allow)
		writeError(w, http.StatusMethodNotAllowed, "%s is not a method of %s; allowed: %s", r.Method, r.URL.Path, allow)
	})
}

// find is the pool of a name, with the names that there are.
func (h *Handler) find(name string) (p Pool, known []string) {
	for _, candidate := range h.o.Pools() {
		n := candidate.View().Name
		if n == name && p == nil {
			p = candidate
		}
		known = append(known, n)
	}
	return p, known
}

func (h *Handler) healthz(w http.ResponseWriter, r *http.Request) {
	writeText(w, http.StatusOK, "ok\n")
}

// readyz is 200 when at least one replica of each model is ready.
func (h *Handler) readyz(w http.ResponseWriter, r *http.Request) {
	status, text := h.readiness()
	writeText(w, status, strings.Join(append([]string{text}, h.o.Warnings()...), "\n")+"\n")
}

func (h *Handler) readiness() (status int, text string) {
	if h.o.Ready != nil {
		if err := h.o.Ready(); err != nil {
			return http.StatusServiceUnavailable, err.Error()
		}
	}
	pools := h.o.Pools()
	if len(pools) == 0 {
		return http.StatusServiceUnavailable, "no model is known yet"
	}
	var missing []string
	for _, p := range pools {
		if v := p.View(); countStates(v)[ready] == 0 {
			missing = append(missing, v.Name)
		}
	}
	if len(missing) > 0 {
		return http.StatusServiceUnavailable, "no replica is ready: " + strings.Join(missing, ", ")
	}
	return http.StatusOK, "ready"
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// version is never empty, so that a page does not end in a dot and nothing.
func (h *Handler) version() string { return cmp.Or(h.o.Version, "unknown") }
