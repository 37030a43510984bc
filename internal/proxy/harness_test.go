package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeModel stands for a pool whose replicas have a URL each. It places
// requests on the first replica and moves retries on to the next.
type fakeModel struct {
	name, served string
	aliases      []string
	bases        []*url.URL
	rankOf       func(replica int) int // nil for no ranks
	key          string
	reason       routing.Reason
	refuse       error
	panics       bool
	// hold is what a request goes through until it has a replica; nil for nothing.
	hold func(context.Context, pool.Request) error

	mu       sync.Mutex
	requests []pool.Request
	leases   []*fakeLease
	inFlight int
}

func (m *fakeModel) Name() string { return m.name }

func (m *fakeModel) View() pool.View {
	return pool.View{
		Name: m.name, ServedName: m.served, Aliases: m.aliases,
		Since:    time.Unix(1_790_000_000, 0),
		Replicas: make([]pool.ReplicaView, len(m.bases)),
	}
}

func (m *fakeModel) acquire(ctx context.Context, r pool.Request) (lease, error) {
	held, err := m.wait(ctx, r)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, r)
	if m.refuse != nil {
		return nil, m.refuse
	}
	d := routing.Decision{Reason: m.reason, Home: routing.None, From: routing.None, Held: held}
	if r.Pin != routing.None {
		if r.Pin >= len(m.bases) {
			return nil, &pool.Refused{Why: routing.NoSuchReplica}
		}
		d.Replica, d.Reason = r.Pin, routing.Pinned
	}
	l := &fakeLease{ctx: ctx, request: r, model: m, decision: d, tried: map[int]bool{d.Replica: true}}
	m.leases = append(m.leases, l)
	m.inFlight++
	return l, nil
}

// wait holds a request, and says why.
func (m *fakeModel) wait(ctx context.Context, r pool.Request) (routing.Why, error) {
	if m.hold == nil {
		return "", nil
	}
	return routing.NoRoom, m.hold(ctx, r)
}

type fakeLease struct {
	ctx      context.Context
	request  pool.Request
	model    *fakeModel
	decision routing.Decision
	tried    map[int]bool

	first    int
	progress int
	unmarked bool
	failures []error
	retries  []error
	ends     int
	outcome  routing.Outcome
}

func (l *fakeLease) Context() context.Context { return l.ctx }

func (l *fakeLease) Decision() routing.Decision { return l.decision }

func (l *fakeLease) target(string) (pool.Target, string) {
	t := pool.Target{Base: l.model.bases[l.decision.Replica], Rank: routing.None, Key: l.model.key}
	if l.model.rankOf != nil {
		t.Rank = l.model.rankOf(l.decision.Replica)
	}
	return t, l.model.served
}

func (l *fakeLease) FirstByte() {
	if l.model.panics {
		panic("on purpose")
	}
	l.first++
}

func (l *fakeLease) Progress() { l.progress++ }

func (l *fakeLease) Unmarked() { l.unmarked = true }

func (l *fakeLease) Failed(err error) { l.failures = append(l.failures, err) }

func (l *fakeLease) Retry(err error) error {
	l.retries = append(l.retries, err)
	for i := range l.model.bases {
		if !l.tried[i] {
			l.tried[i] = true
			held, err := l.model.wait(l.ctx, l.request)
			l.decision = routing.Decision{Replica: i, Reason: routing.Moved, Why: routing.Failed, Held: held}
			return err
		}
	}
	return &pool.Refused{Why: routing.NoReplica}
}

func (l *fakeLease) End(o routing.Outcome) {
	l.model.mu.Lock()
	defer l.model.mu.Unlock()
	l.ends++
	if l.ends == 1 {
		l.model.inFlight--
	}
	l.outcome = o
}

type fakeModels []*fakeModel

func (ms fakeModels) lookup(name string) (backend, bool) {
	if name == "" {
		if len(ms) == 1 {
			return ms[0], true
		}
		return nil, false
	}
	for _, m := range ms {
		for _, known := range append([]string{m.name, m.served}, m.aliases...) {
			prefix, glob := strings.CutSuffix(known, "*")
			if name == known || glob && strings.HasPrefix(name, prefix) {
				return m, true
			}
		}
	}
	return nil, false
}

func (ms fakeModels) all() []backend {
	var all []backend
	for _, m := range ms {
		all = append(all, m)
	}
	return all
}

// records keeps what the handler recorded.
type records chan Record

func (r records) Record(rec Record) { r <- rec }

// gateway is a handler in front of fake engines.
type gateway struct {
	*Handler
	models  fakeModels
	model   *fakeModel // the first
	url     string
	client  *http.Client
	records records
	lines   lines
	dials   int // to engines, of a gateway in a bubble
}

// lines keeps what the handler logged, a line each.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// newGateway serves one model, "m" ("org/Served" at the engines, alias
// "claude-*"), from the engines in order.
func newGateway(t testing.TB, limits Limits, engines ...string) *gateway {
	t.Helper()
	m := &fakeModel{name: "m", served: "org/Served", aliases: []string{"claude-*", "mini"}, reason: routing.Placed}
	for _, e := range engines {
		u, err := url.Parse(e)
		if err != nil {
			t.Fatal(err)
		}
		m.bases = append(m.bases, u)
	}
	return serve(t, limits, m)
}

func serve(t testing.TB, limits Limits, models ...*fakeModel) *gateway {
	t.Helper()
	g := build(t, limits, nil, models...)
	server := httptest.NewUnstartedServer(g.Handler)
	server.Config = g.Server()
	server.Start()
	g.url = server.URL
	transport := &http.Transport{DisableCompression: true}
	g.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		g.Close()
	})
	return g
}

func build(t testing.TB, limits Limits, dial upstream.DialFunc, models ...*fakeModel) *gateway {
	t.Helper()
	sessions, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{models: models, model: models[0], records: make(records, 1000), lines: make(lines, 1000)}
	g.Handler = newHandler(Options{
		Sessions: sessions,
		Recorder: g.records,
		Logger:   slog.New(slog.NewTextHandler(g.lines, nil)),
		Limits:   limits,
	}, g.models, dial)
	return g
}

// record is the next finished request.
func (g *gateway) record(t testing.TB) Record {
	t.Helper()
	select {
	case r := <-g.records:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("no request was recorded within 10 s")
	}
	panic("unreachable")
}

// settled checks that every lease was ended exactly once.
func (g *gateway) settled(t testing.TB) {
	t.Helper()
	for _, m := range g.models {
		m.mu.Lock()
		if m.inFlight != 0 {
			t.Errorf("%d requests in flight after the end", m.inFlight)
		}
		for i, l := range m.leases {
			if l.ends != 1 {
				t.Errorf("lease %d was ended %d times", i, l.ends)
			}
		}
		m.mu.Unlock()
	}
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (g *gateway) post(t testing.TB, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest("POST", g.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return g.do(t, req, header...)
}

func (g *gateway) do(t testing.TB, req *http.Request, header ...string) answer {
	t.Helper()
	for i := 0; i < len(header); i += 2 {
		req.Header[http.CanonicalHeaderKey(header[i])] = append(req.Header[http.CanonicalHeaderKey(header[i])], header[i+1])
	}
	res, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b), err}
}

// fakeEngine starts an engine that answers with h.
func fakeEngine(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// rawEngine starts an engine that has the connections to itself: serve is called
// for each with the number of connections before it. The connection is reset
// when serve returns.
func rawEngine(t testing.TB, serve func(n int, c net.Conn, requests *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				serve(n, c, bufio.NewReader(c))
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// take reads one request with its body.
func take(r *bufio.Reader) (*http.Request, string, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(req.Body)
	return req, string(b), err
}

// refusing is an address where nothing listens.
func refusing(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// Bodies and answers in each dialect. The answers are as vLLM sends them, cut
// down.
const (
	chatBody      = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	chatStream    = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`
	messagesBody  = `{"model":"claude-x","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
	responsesBody = `{"model":"m","stream":true,"input":"hello"}`

	chatAnswer     = `{"id":"chatcmpl-1","object":"chat.completion","model":"org/Served","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"total_tokens":24,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}}`
	messagesAnswer = `{"id":"x","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":4,"cache_read_input_tokens":16,"output_tokens":4}}`
	chatAborted    = `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"h"},"finish_reason":"abort"}],"usage":{"prompt_tokens":20,"total_tokens":21,"completion_tokens":1}}`
)

func data(s ...string) []string {
	var events []string
	for _, e := range s {
		events = append(events, "data: "+e+"\n\n")
	}
	return events
}

func event(name, data string) string { return fmt.Sprintf("event: %s\ndata: %s\n\n", name, data) }

// scripts are complete streams by route, one event each entry.
var scripts = map[string]struct {
	body   string
	events []string
}{
	"/v1/chat/completions": {chatStream, data(
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}`,
		`{"id":"1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":20,"total_tokens":24,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`,
		`[DONE]`)},
	"/v1/messages": {messagesBody, []string{
		event("message_start", `{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":{"input_tokens":20,"output_tokens":0}}}`),
		event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
		event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}`),
		event("content_block_stop", `{"type":"content_block_stop","index":0}`),
		event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":4,"cache_read_input_tokens":16,"cache_creation_input_tokens":0,"output_tokens":4}}`),
		event("message_stop", `{"type":"message_stop"}`),
	}},
	"/v1/responses": {responsesBody, []string{
		event("response.created", `{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}`),
		event("response.output_text.delta", `{"type":"response.output_text.delta","delta":"hi"}`),
		event("response.completed", `{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":16},"output_tokens":4,"total_tokens":24}}}`),
	}},
}

// streamed answers with these events, all at once.
func streamed(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, e := range events {
			io.WriteString(w, e)
			w.(http.Flusher).Flush()
		}
	}
}

// answered answers with a JSON body.
func answered(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func isCut(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) || isReset(err) }
