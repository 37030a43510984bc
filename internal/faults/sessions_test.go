package faults

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// One session is at home on one replica on whatever route and under whatever
// name it comes.
func TestASessionIsOneOnEveryRouteAndUnderEveryName(t *testing.T) {
	t.Parallel()
	g := start(t, nil, engines(t, 4, reply)...)
	for i := range 3 { // so that home is not where everything goes anyway
		g.post(chat.path, chat.request("other", false, ""), "X-Warden-Session", fmt.Sprint("other-", i))
	}
	bodies := map[string]string{"/v1/embeddings": `{"model":"tiny","input":"x"}`, "/v1/messages/count_tokens": `{"model":"tiny","messages":[]}`}
	for _, d := range dialects {
		bodies[d.path] = d.request("hello", false, "")
	}
	home := g.post(chat.path, chat.request("hello", false, ""), "X-Warden-Session", "mine")
	for path, body := range bodies {
		for _, name := range []string{"tiny", "claude-sonnet-4-5", "claude-opus"} {
			a := g.post(path, strings.Replace(body, `"tiny"`, quoted(name), 1), "X-Warden-Session", "mine")
			if a.status != 200 || a.replica() != home.replica() || a.decision() != "stayed" || a.header.Get("X-Warden-Conversation") != home.header.Get("X-Warden-Conversation") {
				t.Errorf("%s as %s: %d, %s on %s, home is %s", path, name, a.status, a.decision(), a.replica(), home.replica())
			}
		}
	}
}

// Ids are equal or they are not.
func TestIdsThatShareAPrefixAreDifferentSessions(t *testing.T) {
	t.Parallel()
	g := start(t, nil, engines(t, 2, reply)...)
	long := strings.Repeat("x", 8<<10)
	ids := []string{"session-1", "session-12", "session-123", "1", "2", "12", "a,b", "a", "a, b", "é", "e", "日本", "日", long, long[1:], long + "y", "S", "s"}
	seen := map[string]string{}
	for _, id := range ids {
		a := g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", id)
		name := a.header.Get("X-Warden-Conversation")
		if other, taken := seen[name]; taken || name == "" || a.decision() != "placed" {
			t.Errorf("%.20q is %q (%s), as %.20q", id, name, a.decision(), other)
		}
		seen[name] = id
		for _, same := range []string{id, id + "  ", "\t" + id} {
			if again := g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", same); again.header.Get("X-Warden-Conversation") != name || again.decision() != "stayed" {
				t.Errorf("%.20q is %q and then %q", same, name, again.header.Get("X-Warden-Conversation"))
			}
		}
	}
}

// Sub-agents start beside their parent while there is room; a fan-out spreads,
// and the parent's next turn finds its place.
func TestSubAgentsDoNotStarveTheirParent(t *testing.T) {
	t.Parallel()
	list := engines(t, 4, reply)
	g := start(t, nil, list...)
	const session = "11111111-2222-3333-4444-555555555555"
	ask := func(agent string) (string, string, []string) {
		headers := []string{"X-Claude-Code-Session-Id", session}
		if agent != "" {
			headers = append(headers, "X-Claude-Code-Agent-Id", agent)
		}
		return messages.path, messages.request("work "+agent, true, `,"tools":[{"name":"Bash","input_schema":{"type":"object"}}]`), headers
	}
	path, body, headers := ask("")
	home := g.post(path, body, headers...).replica()

	hold := newGate()
	for _, e := range list {
		e.on(hold.hold)
	}
	answers := make(chan answer, 12)
	for i := range 12 {
		go func() {
			path, body, headers := ask(fmt.Sprint("agent-", i))
			a, err := g.ask(t.Context(), path, body, headers...)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range 12 {
		receive(t, "the agents", hold.arrived)
	}
	for _, e := range list {
		e.on(reply)
	}
	path, body, headers = ask("")
	if a := g.post(path, body, headers...); a.replica() != home || a.decision() != "stayed" {
		t.Errorf("the parent's turn: %s on %s, home is %s", a.decision(), a.replica(), home)
	}
	close(hold.open)
	at, conversations := map[string]int{}, map[string]bool{}
	for range 12 {
		a := receive(t, "an agent's answer", answers)
		at[a.replica()]++
		conversations[a.header.Get("X-Warden-Conversation")] = true
	}
	for replica, n := range at {
		if n > 4 {
			t.Errorf("%d of 12 agents went to replica %s: %v", n, replica, at)
		}
	}
	if len(conversations) != 12 || at[home] == 0 {
		t.Errorf("%d conversations, at %v; home is %s", len(conversations), at, home)
	}
}

// A client's id is its own: it reaches the engine as it is, and nothing that the
// client sees tells where an engine is.
func TestIdsPassUnchangedAndNoAddressLeaks(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	const opaque = "v1:10.0.0.7:8000/opaque==; q=1"
	port := e.address[strings.LastIndexByte(e.address, ':')+1:]
	check := func(a answer) {
		t.Helper()
		if strings.Contains(a.body, port) {
			t.Errorf("the engine's port is in the body %q", a.body)
		}
		for name, values := range a.header {
			if strings.Contains(strings.Join(values, " "), port) {
				t.Errorf("the engine's port is in %s: %q", name, values)
			}
		}
	}
	a := g.post(chat.path, chat.request("hello", false, ""), "X-Session-Id", opaque)
	check(a)
	if got := e.seen()[0].header.Get("X-Session-Id"); got != opaque || a.decision() != "placed" {
		t.Errorf("the engine saw %q; %s", got, a.decision())
	}
	e.on((*call).reset)
	check(g.post(chat.path, chat.request("hello", false, ""), "X-Session-Id", opaque))
	e.on(func(c *call) { c.begin(); c.chunk(chat.events("one")[0]); c.reset() })
	g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
	check(g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", opaque))
	e.die()
	check(g.post(chat.path, chat.request("hello", false, ""), "X-Session-Id", opaque))
}

// Load clients ask for these and send an id of the conversation beside one of
// each request.
func TestLoadClientsRunUnmodified(t *testing.T) {
	t.Parallel()
	g := start(t, nil, engines(t, 3, reply)...)
	res, err := g.client.Get(g.URL() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("/health: %d", res.StatusCode)
	}
	homes := map[string]string{}
	for turn := range 4 {
		for i := range 6 {
			id := fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i)
			a := g.post(chat.path, chat.request("hello", true, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`),
				"X-Session-Affinity", id, "X-Correlation-Id", id, "X-Request-Id", fmt.Sprintf("bbbbbbbb-%d-%d", turn, i))
			if turn == 0 {
				homes[id] = a.replica()
			} else if a.replica() != homes[id] || a.decision() != "stayed" {
				t.Errorf("turn %d of %s: %s on %s, home is %s", turn, id, a.decision(), a.replica(), homes[id])
			}
		}
	}
	counts := map[string]int{}
	for _, home := range homes {
		counts[home]++
	}
	if want := map[string]int{"0": 2, "1": 2, "2": 2}; !maps.Equal(counts, want) {
		t.Errorf("placed %v", counts)
	}
}
