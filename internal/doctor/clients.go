package doctor

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/session"
)

// maxRequest bounds a body that is looked at, as the gateway's own default does.
const maxRequest = 64 << 20

// Clients passes requests on to an engine and says of each what it tells a
// gateway: the session id and its place, and whether the turn continues the
// prompt of the one before.
type Clients struct {
	forward  *httputil.ReverseProxy
	sessions *session.Table
	model    string // what the engine serves, in place of a name that it does not know
	serves   func(string) bool
	say      func(request string, findings []Finding)

	mu    sync.Mutex
	turns map[session.Key]*llmapi.Facts // guarded by mu: the last turn of each conversation
}

// NewClients forwards to an engine that serves a model; say is called once per
// request, from any goroutine.
func NewClients(base *url.URL, key, model string, serves func(string) bool, say func(request string, findings []Finding)) (*Clients, error) {
	sessions, err := session.New(session.Options{MaxConversations: 10_000})
	if err != nil {
		return nil, err
	}
	c := &Clients{sessions: sessions, model: model, serves: serves, say: say, turns: map[session.Key]*llmapi.Facts{}}
	c.forward = &httputil.ReverseProxy{
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = base.Host
			r.Out.Header.Del("X-Api-Key")
			r.Out.Header.Del("Authorization")
			if key != "" {
				r.Out.Header.Set("Authorization", "Bearer "+key)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			http.Error(w, "the engine cannot be reached: "+err.Error(), http.StatusBadGateway)
		},
	}
	return c, nil
}

// ServeHTTP implements http.Handler.
func (c *Clients) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	route := llmapi.RouteOf(r.Method, r.URL.Path)
	if route.Generates() {
		body = c.listen(r, route, body)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	c.forward.ServeHTTP(w, r)
}

// listen looks at one turn and returns the body as the engine takes it.
func (c *Clients) listen(r *http.Request, route llmapi.Route, body []byte) []byte {
	what := fmt.Sprintf("%s %s, %d kB", r.Method, r.URL.Path, (len(body)+512)/1024)
	facts, err := llmapi.Parse(route, body)
	if err != nil {
		c.say(what, []Finding{{Level: Missing, Says: "the body cannot be read: " + err.Error()}})
		return body
	}
	id := c.sessions.Identify(time.Now(), session.Request{Model: c.model, Header: r.Header, Facts: facts})
	if id.Client != "" {
		what += ", " + id.Client
	}
	var before *llmapi.Facts
	if id.Key != (session.Key{}) {
		c.mu.Lock()
		before = c.turns[id.Key]
		if len(c.turns) < 10_000 || before != nil {
			c.turns[id.Key] = facts
		}
		c.mu.Unlock()
	}
	c.say(what, hear(id, facts, before, body))
	if !c.serves(facts.Model) {
		return facts.Splice(body, c.model, false)
	}
	return body
}

// hear judges one turn beside the one before it of the same conversation.
func hear(id session.Identity, facts, before *llmapi.Facts, body []byte) []Finding {
	var j judgements
	switch {
	case id.Key == (session.Key{}):
		j.good("beside the conversation (a title, a count): it makes no conversation and goes where there is room")
	case id.Source == "fingerprint":
		j.advise("set the header "+session.OwnHeader+" or any that docs/clients.md lists, if the client can", "no session id: the conversation %s is known by its history", id.Name)
	default:
		j.good("session id in %s: conversation %s", id.Source, id.Name)
	}
	if !facts.Stream {
		j.advise("", "the answer is not streamed: its first byte comes when it is complete")
	}
	if bytes.Contains(body, []byte("x-anthropic-billing-header")) {
		j.advise("set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for engines that do not strip it (vLLM before 0.18)", "an attribution line in the system prompt; the gateway does not count it as part of the conversation")
	}
	if before == nil || id.Key == (session.Key{}) {
		return j
	}
	switch n := sharedMessages(before, facts); {
	case facts.SystemHash != before.SystemHash:
		j.missing("find what the client writes into its system prompt that changes: a date, a counter, a budget", "the system prompt changed since the turn before: the engine's cache is of no use from there on")
	case n < len(before.Messages):
		j.advise("", "message %d of %d differs from the turn before: what follows it is read again (a compaction or an edit does so once; each turn is a fault of the client)", n+1, len(before.Messages))
	default:
		j.good("continues the prompt of the turn before, %d messages", n)
	}
	return j
}

// sharedMessages is how many messages two prompts have in common from the start.
func sharedMessages(a, b *llmapi.Facts) int {
	n := min(len(a.Messages), len(b.Messages))
	for i := range n {
		if a.Messages[i].Hash != b.Messages[i].Hash {
			return i
		}
	}
	return n
}
