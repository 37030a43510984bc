package web

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

var (
	since = time.Date(2026, 10, 4, 8, 0, 0, 0, time.UTC)
	now   = since.Add(3*time.Hour + 12*time.Minute)
)

// fakePool shows a view and writes down what it is asked to do.
type fakePool struct {
	view     pool.View
	receipts []pool.Receipt
	homes    map[session.Key]Home
	homed    map[int][]session.Key // the keys of homes, by replica; nil when they are few
	asked    []string
	refuse   error
}

func (p *fakePool) View() pool.View { return p.view }

func (p *fakePool) Receipts(n int) []pool.Receipt { return p.receipts[:min(n, len(p.receipts))] }

func (p *fakePool) ask(format string, args ...any) error {
	if p.refuse != nil {
		return p.refuse
	}
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
	return nil
}

func (p *fakePool) SetPolicy(name string) error {
	if name == "bogus" {
		return errors.New(`unknown policy "bogus"; known: off, affinity`)
	}
	p.view.Routing.Policy = name
	return p.ask("policy %s", name)
}
func (p *fakePool) SetAffinity(on bool) error       { return p.ask("affinity %v", on) }
func (p *fakePool) SetSpillThreshold(n int) error   { return p.ask("threshold %d", n) }
func (p *fakePool) Drain(i int) error               { return p.ask("drain %d", i) }
func (p *fakePool) Resume(i int) error              { return p.ask("resume %d", i) }
func (p *fakePool) Home(k session.Key) (Home, bool) { h, ok := p.homes[k]; return h, ok }
func (p *fakePool) HomedAt(i, n int) (keys []session.Key, all bool) {
	if keys = p.homed[i]; p.homed == nil {
		for k, home := range p.homes {
			if home.Replica == i {
				keys = append(keys, k)
			}
		}
	}
	if len(keys) > n {
		return nil, false
	}
	return keys, true
}
func (p *fakePool) Move(k session.Key, i int) error    { return p.ask("move %s to %d", k.Name(), i) }
func (p *fakePool) Release(k session.Key) (known bool) { return p.ask("release %s", k.Name()) == nil }

// fakeTable is a short conversation table.
type fakeTable []session.Conversation

func (t fakeTable) Conversations(q session.Query) ([]session.Conversation, string, error) {
	if q.Sort == "bogus" {
		return nil, "", errors.New(`sort "bogus": must be one of last_seen`)
	}
	var page []session.Conversation
	for _, c := range t {
		if (q.Model == "" || c.Model == q.Model) && (q.Keep == nil || q.Keep(c.Key)) && (q.Among == nil || slices.Contains(q.Among, c.Key)) {
			page = append(page, c)
		}
	}
	if len(page) > q.Limit {
		return page[:q.Limit], "next-page", nil
	}
	return page, "", nil
}

func (t fakeTable) Find(name string) (session.Conversation, bool) {
	for _, c := range t {
		if c.Name == name {
			return c, true
		}
	}
	return session.Conversation{}, false
}

// box is four busy replicas behind one server.
func box() *fakePool {
	p := &fakePool{homes: map[session.Key]Home{}}
	p.view = pool.View{
		Name: "qwen3-4b-dp4", ServedName: "Qwen/Qwen3-4B-Instruct-2507", Since: since,
		Routing: routing.View{
			Policy: "affinity", SpillThreshold: 8, SpillAuto: true, InFlight: 11, EngineChosen: 1, Live: 12, Known: 40,
			WorkingSet: routing.WorkingSet{Tokens: 118_000, Capacity: 160_000, Fits: 16, Shared: 3500},
		},
		Servers: []pool.ServerView{{URL: "http://127.0.0.1:8000", Info: engine.Info{
			Kind: "vllm", Version: "0.26.0", Ranks: 4, BlockSize: 16, CapacityTokens: 40_000, PrefixCaching: true, HasMetrics: true,
			Models: []engine.Model{{ID: "Qwen/Qwen3-4B-Instruct-2507", MaxModelLen: 32_768}},
		}}},
	}
	add := func(state routing.State, inFlight int, placed, sticky, spilled, moved, pinned int64, running, waiting, live int, tokens int64, kv, hit float64) {
		p.view.Replicas = append(p.view.Replicas, pool.ReplicaView{
			URL: "http://127.0.0.1:8000", Rank: len(p.view.Replicas), PrefixHitPercent: hit, ScrapeAge: 412 * time.Millisecond,
			ReplicaView: routing.ReplicaView{
				State: state, InFlight: inFlight, Placed: placed, Sticky: sticky, SpilledIn: spilled, MovedIn: moved, ClientPinned: pinned, Unbound: 3,
				LiveConversations: live, LiveTokens: tokens, Observed: now,
				Load: routing.Load{Running: running, Waiting: waiting, KVUsed: kv, Capacity: 40_000, Epoch: 1},
			},
		})
	}
	add(routing.Ready, 1, 3, 38, 1, 0, 0, 1, 0, 3, 34_000, 0.310, 82.2)
	add(routing.Ready, 1, 2, 21, 0, 0, 0, 1, 0, 2, 22_000, 0.287, 86.0)
	add(routing.Ready, 8, 4, 19, 0, 0, 0, 6, 2, 4, 56_500, 0.934, 69.0)
	add(routing.Ready, 0, 3, 29, 0, 0, 1, 0, 0, 3, 25_000, 0, 80.0)
	return p
}

// talk gives a box conversations and decisions.
func talk(p *fakePool) fakeTable {
	key := func(b byte) session.Key { return session.Key{b, 0xf2, 0xa0, 0x9c} }
	child := key(0x08)
	p.homes[key(0x71)] = Home{Replica: 2, Spills: 1}
	p.receipts = []pool.Receipt{
		{Time: now.Add(-time.Second), RequestID: "r5", Conversation: child.Name(), Decision: routing.Decision{Replica: 3, Reason: routing.Placed, Home: 3, From: -1,
			Candidates: []routing.Candidate{{Replica: 0, InFlight: 2, KVUsed: 0.5, LiveConversations: 3}, {Replica: 3, InFlight: 0, KVUsed: float32(math.NaN())}}}},
		{Time: now.Add(-2 * time.Second), RequestID: "r4", Conversation: key(0x71).Name(), Decision: routing.Decision{Replica: 0, Reason: routing.Spilled, Why: routing.HomeFull, Home: 2, From: 2,
			Candidates: []routing.Candidate{{Replica: 0, InFlight: 1}, {Replica: 1, InFlight: 3}}}},
		{Time: now.Add(-3 * time.Second), RequestID: "r3", Conversation: key(0x71).Name(), Decision: routing.Decision{Replica: 2, Reason: routing.Moved, Why: routing.HomeDown, Home: 2, From: 3}},
		{Time: now.Add(-4 * time.Second), RequestID: "r2", Decision: routing.Decision{Replica: routing.None, Reason: routing.Engine, Home: -1, From: -1}},
		{Time: now.Add(-5 * time.Second), RequestID: "r1", Conversation: key(0x71).Name(), Decision: routing.Decision{Replica: 3, Reason: routing.Stayed, Home: 3, From: 3}},
	}
	return fakeTable{
		{Key: key(0x71), Name: key(0x71).Name(), Model: "qwen3-4b-dp4", Source: "x-claude-code-session-id", Client: "claude-cli", Tenant: "alice",
			FirstSeen: since, LastSeen: now, Turns: 3, PromptTokens: 9000, CachedTokens: 8000, CompletionTokens: 100, Open: 1},
		{Key: child, Name: child.Name(), Model: "gone", Source: "fingerprint", Parent: key(0x71),
			FirstSeen: since, LastSeen: now, Turns: 1, PromptTokens: session.Unmeasured, CachedTokens: session.Unmeasured},
	}
}

// newHandler serves pools; options change what it is made from.
func newHandler(t testing.TB, table fakeTable, pools []Pool, options ...func(*Options)) *Handler {
	t.Helper()
	o := Options{
		Pools:         func() []Pool { return pools },
		Conversations: table,
		Metrics:       http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "warden_build_info 1\n") }),
		Log:           slog.New(slog.DiscardHandler),
		Version:       "0.1.0",
		Now:           func() time.Time { return now },
	}
	for _, change := range options {
		change(&o)
	}
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// call asks a handler as curl on the same machine would.
func call(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:8101"
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
