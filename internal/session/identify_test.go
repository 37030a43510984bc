package session

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
)

// caller is a client's side of a table: it sends histories and compares keys.
type caller struct {
	t   *testing.T
	tab *Table
	now time.Time
}

func newCaller(t *testing.T) *caller {
	return &caller{t: t, tab: table(t, Options{}), now: start}
}

func (c *caller) send(h http.Header, f *llmapi.Facts) Identity {
	c.now = c.now.Add(time.Second)
	return c.tab.Identify(c.now, Request{Model: "m", Header: h, Facts: f})
}

// same fails unless the identity is of the conversation and not new.
func (c *caller) same(what string, got, want Identity) {
	c.t.Helper()
	if got.Key != want.Key || got.New || got.Extends != (Key{}) {
		c.t.Errorf("%s: %s (new %v, extends %v), want %s again", what, got.Name, got.New, got.Extends.Name(), want.Name)
	}
}

// new fails unless the identity is a new conversation that extends another, or
// none.
func (c *caller) new(what string, got Identity, extends Key) {
	c.t.Helper()
	if got.Key == (Key{}) || !got.New || got.Extends != extends {
		c.t.Errorf("%s: %q (new %v, extends %q), want a new one that extends %q", what, got.Name, got.New, got.Extends.Name(), extends.Name())
	}
}

// none fails unless the identity is no conversation and left no trace.
func (c *caller) none(what string, known int, got Identity) {
	c.t.Helper()
	if got.Key != (Key{}) || got.New || got.Name != "" || got.Source != "" || c.tab.Len() != known {
		c.t.Errorf("%s: %+v and %d conversations, want none and %d", what, got, c.tab.Len(), known)
	}
}

// toolless takes the tools away and sets the size of the prompt.
func toolless(f *llmapi.Facts, textBytes int) *llmapi.Facts {
	f.Tools, f.TextBytes = 0, textBytes
	return f
}

func formatted(f *llmapi.Facts) *llmapi.Facts {
	f.FormatAsked = true
	return f
}

func routed(r llmapi.Route, f *llmapi.Facts) *llmapi.Facts {
	f.Route = r
	return f
}

func TestCallsThatMakeNoConversation(t *testing.T) {
	id := func(more ...string) http.Header { return head(append([]string{"X-Session-Id", ses1}, more...)...) }
	claude := func(class string) http.Header {
		return head("X-Claude-Code-Session-Id", uuid1, "User-Agent", "claude-cli/2.1.332 (external, cli)", "X-Claude-Code-Request-Class", class)
	}
	for _, tt := range []struct {
		name string
		h    http.Header
		f    *llmapi.Facts
	}{
		{"nothing read", id(), nil},
		{"another route", id(), routed(llmapi.RouteOther, chat("u:hello"))},
		{"count_tokens", id(), routed(llmapi.RouteCountTokens, chat("u:hello"))},
		{"embeddings", id(), routed(llmapi.RouteEmbeddings, chat("u:hello"))},
		{"tokenize", id(), routed(llmapi.RouteTokenize, chat("u:hello"))},
		{"title by its format", id(), formatted(toolless(chat("u:title?"), 4000))},
		{"title by its id", head("X-Session-Id", "title-"+ses1), toolless(chat("u:title?"), 9000)},
		{"title by its program", id("User-Agent", "opencode/1.18.33"), toolless(chat("u:title?", "u:hello"), 2400)},
		{"title by its class", claude("auxiliary"), toolless(chat("u:title?"), 9000)},
		{"no words of a user", nil, chat("s:be good")},
		{"no messages", nil, chat()},
	} {
		c := newCaller(t)
		c.none(tt.name+", before there is a conversation", 0, c.send(tt.h, tt.f))
		main := c.send(id(), chat("u:hello"))
		c.none(tt.name, 1, c.send(tt.h, tt.f))
		c.same(tt.name+": the turn after it", c.send(id(), chat("u:hello", "a:hi", "u:more")), main)
	}
}

func TestOwnHeaderMakesAnyCallATurn(t *testing.T) {
	for name, f := range map[string]*llmapi.Facts{
		"nothing read": nil,
		"count_tokens": routed(llmapi.RouteCountTokens, chat("u:hello")),
		"embeddings":   routed(llmapi.RouteEmbeddings, &llmapi.Facts{}),
		"title":        formatted(toolless(chat("u:title?"), 1000)),
		"classifier":   toolless(chat("u:safe?"), 140_000),
	} {
		c := newCaller(t)
		h := head("X-Warden-Session", "mine", "User-Agent", "claude-cli/2.1.332", "X-Claude-Code-Request-Class", "auxiliary")
		main := c.send(h, chat("u:hello"))
		got := c.send(h, f)
		c.same(name, got, main)
		if generates := f != nil && f.Route.Generates(); got.Turn != generates {
			t.Errorf("%s: Turn is %v, want %v", name, got.Turn, generates)
		}
	}
}

func TestCallWithoutToolsJoinsOnlyWhatItContinues(t *testing.T) {
	for _, h := range []http.Header{head("X-Session-Id", ses1), nil} {
		// A plain chat never offers tools; it is a conversation all the same.
		c := newCaller(t)
		plain := c.send(h, toolless(chat("u:hello"), 20))
		c.new("plain chat", plain, Key{})
		c.same("its next turn", c.send(h, toolless(chat("u:hello", "a:hi", "u:more"), 40)), plain)
		c.same("its first turn with tools", c.send(h, chat("u:hello", "a:hi", "u:more", "a:well", "u:look")), plain)
		c.same("a turn without tools again", c.send(h, toolless(chat("u:hello", "a:hi", "u:more", "a:well", "u:look", "a:seen", "u:sum up"), 90)), plain)
		if h != nil {
			c.none("a summary with another history", 1, c.send(h, toolless(chat("u:sum this up: hello, hi"), 6000)))
		}
	}
}

func TestHistoryWithAnAnswerIsNoTitle(t *testing.T) {
	c := newCaller(t)
	h := head("X-Session-Id", ses1, "User-Agent", "opencode/1.18.33")
	c.new("a short chat that began elsewhere", c.send(h, toolless(chat("u:hello", "a:hi", "u:more"), 100)), Key{})
}

func TestFirstCallWithToolsTakesAWeakBindingOver(t *testing.T) {
	c := newCaller(t)
	h := head("X-Session-Id", ses1, "User-Agent", "some-agent/1.0")
	title := c.send(h, toolless(chat("u:title?"), 2000)) // nothing tells that it is one
	c.same("the main call", c.send(h, chat("u:hello")), title)
	c.none("the next title", 1, c.send(h, toolless(chat("u:title of more?"), 2000)))
}

func TestClassifierIsItsOwnConversation(t *testing.T) {
	c := newCaller(t)
	session := func(id, class string) http.Header {
		return head("X-Claude-Code-Session-Id", id, "User-Agent", "claude-cli/2.1.332 (external, cli)", "X-Claude-Code-Request-Class", class)
	}
	classify := func(system uint64, question string) *llmapi.Facts {
		f := toolless(chat(question), 140_000)
		f.SystemHash = system
		return f
	}
	main := c.send(session(uuid1, "main"), chat("u:hello"))
	one := c.send(session(uuid1, "auxiliary"), classify(1, "u:may I?"))
	c.new("classifier", one, Key{})
	if one.Source != "classifier" || one.Key == main.Key || one.Parent != (Key{}) {
		t.Errorf("classifier: %+v", one)
	}
	c.same("its next call", c.send(session(uuid1, "auxiliary"), classify(1, "u:and this?")), one)
	c.same("without hint headers", c.send(session(uuid1, ""), classify(1, "u:and that?")), one)
	c.same("another session's, with the same rules", c.send(session(uuid2, "auxiliary"), classify(1, "u:may I?")), one)
	c.new("with other rules", c.send(session(uuid1, "auxiliary"), classify(2, "u:may I?")), Key{})
	c.same("the session's next turn", c.send(session(uuid1, "main"), chat("u:hello", "a:hi", "u:more")), main)
}

func TestCompactionFollowsItsConversation(t *testing.T) {
	for _, tt := range []struct {
		name  string
		class http.Header
		call  *llmapi.Facts
	}{
		{"with the whole prefix", nil, chat("u:hello", "a:hi", "u:sum up")},
		{"without tools", nil, toolless(chat("u:hello", "a:hi", "u:sum up"), 60_000)},
		{"by Claude Code's class", head("X-Claude-Code-Request-Class", "compaction"), toolless(chat("u:what was said: ..."), 60_000)},
		{"by Codex's metadata", head("X-Codex-Turn-Metadata", `{"request_kind":"compaction"}`), toolless(chat("u:what was said: ..."), 60_000)},
	} {
		c := newCaller(t)
		h := head("Session-Id", uuid1)
		for k, v := range tt.class {
			h[k] = v
		}
		main := c.send(head("Session-Id", uuid1), chat("u:hello"))
		c.same(tt.name, c.send(h, tt.call), main)
		c.same(tt.name+": the turn after it", c.send(head("Session-Id", uuid1), chat("u:summary", "u:more")), main)
	}
}

func TestHistoryWithoutIDs(t *testing.T) {
	c := newCaller(t)
	a := c.send(nil, chat("u:hello"))
	c.new("first turn", a, Key{})
	if a.Source != "fingerprint" {
		t.Errorf("source %q", a.Source)
	}
	c.same("retry", c.send(nil, chat("u:hello")), a)
	c.same("second turn", c.send(nil, chat("u:hello", "a:hi", "u:more")), a)
	c.same("its retry", c.send(nil, chat("u:hello", "a:hi", "u:more")), a)
	c.same("third turn", c.send(nil, chat("u:hello", "a:hi", "u:more", "a:well", "u:third")), a)
	c.same("a turn rewound", c.send(nil, chat("u:hello", "a:hi", "u:something else")), a)
	c.new("another opening", c.send(nil, chat("u:good day")), Key{})
	other := chat("u:hello", "a:hi", "u:more")
	other.SystemHead = 8
	c.new("another system text", c.send(nil, other), Key{})
	tail := chat("u:hello", "a:hi", "u:more", "a:well", "u:third", "a:so", "u:fourth")
	tail.SystemHash = 9 // beyond its head
	c.same("a system text changed at its end", c.send(nil, tail), a)
}

// Two sessions that begin alike and send no ids are told apart by their first
// answers and do not pull each other about from then on.
func TestSameOpeningsPartAtTheirAnswers(t *testing.T) {
	c := newCaller(t)
	a := c.send(nil, chat("u:hello"))
	c.same("the other session's first turn", c.send(nil, chat("u:hello")), a)
	c.same("the first to come back", c.send(nil, chat("u:hello", "a:hi", "u:more")), a)
	b := c.send(nil, chat("u:hello", "a:what?", "u:more"))
	c.new("the second to come back", b, Key{})
	history := []string{"u:hello", "a:hi", "u:more"}
	branch := []string{"u:hello", "a:what?", "u:more"}
	for i := range 3 * maxLinks {
		history = append(history, fmt.Sprint("a:answer ", i), fmt.Sprint("u:question ", i))
		branch = append(branch, fmt.Sprint("a:reply ", i), fmt.Sprint("u:remark ", i))
		c.same("the first", c.send(nil, chat(history...)), a)
		c.same("the second", c.send(nil, chat(branch...)), b)
		c.same("the second's retry", c.send(nil, chat(branch...)), b)
	}
	c.same("the second, rewound to its beginning", c.send(nil, chat("u:hello", "a:what?", "u:start over")), b)
	if n := c.tab.Len(); n != 2 {
		t.Errorf("%d conversations, want 2", n)
	}
}

func TestBranchExtendsWhatItSharesAnswersWith(t *testing.T) {
	c := newCaller(t)
	a := c.send(nil, chat("u:hello"))
	c.send(nil, chat("u:hello", "a:hi", "u:more"))
	c.send(nil, chat("u:hello", "a:hi", "u:more", "a:well", "u:third"))
	fork := c.send(nil, chat("u:hello", "a:hi", "u:more", "a:instead", "u:other"))
	c.new("a fork in the middle", fork, a.Key)
	c.same("its next turn", c.send(nil, chat("u:hello", "a:hi", "u:more", "a:instead", "u:other", "a:ok", "u:go on")), fork)
	c.same("the trunk", c.send(nil, chat("u:hello", "a:hi", "u:more", "a:well", "u:third", "a:so", "u:fourth")), a)
}

func TestNewIDExtends(t *testing.T) {
	ids := func(id string) http.Header { return head("Session-Id", id) }
	c := newCaller(t)
	a := c.send(ids("a"), chat("u:hello"))
	c.send(ids("a"), chat("u:hello", "a:hi", "u:more"))
	c.new("the same opening under another id", c.send(ids("b"), chat("u:hello")), Key{})
	c.new("a fork", c.send(ids("c"), chat("u:hello", "a:hi", "u:more", "a:well", "u:fork")), a.Key)
	c.new("the same history under another id", c.send(ids("d"), chat("u:hello", "a:hi", "u:more")), a.Key)
	c.new("another answer to the same opening", c.send(ids("e"), chat("u:hello", "a:not ours", "u:more")), Key{})
	c.new("another program with the same words", c.send(ids("f"), func() *llmapi.Facts {
		f := chat("u:hello", "a:hi", "u:more", "a:well", "u:fork")
		f.SystemHead = 8
		return f
	}()), Key{})
	c.new("system text and an answer alone", c.send(ids("g"), chat("s:rules", "a:hi", "u:more")), Key{})
	c.same("the trunk", c.send(ids("a"), chat("u:hello", "a:hi", "u:more", "a:well", "u:third")), a)
	b := c.send(ids("b"), chat("u:hello", "a:hey", "u:more"))
	c.new("a fork of the second", c.send(ids("h"), chat("u:hello", "a:hey", "u:more", "a:so", "u:fork")), b.Key)

	// However far the trunk went on, a fork from its beginning is known.
	long := []string{"u:long", "a:yes", "u:0"}
	trunk := c.send(ids("long"), chat("u:long"))
	for i := range 3 * maxMarks {
		long = append(long, fmt.Sprint("a:", i), fmt.Sprint("u:", i+1))
		c.send(ids("long"), chat(long...))
	}
	c.new("a fork from the beginning", c.send(ids("early"), chat("u:long", "a:yes", "u:other")), trunk.Key)
	c.new("a fork from the end", c.send(ids("late"), chat(append(long, "a:end", "u:other")...)), trunk.Key)
	c.new("a long history with a known beginning", c.send(ids("both"), chat(append([]string{"u:long", "a:yes", "u:other"}, long[3:]...)...)), trunk.Key)
}

func TestSubAgentsOfOneSession(t *testing.T) {
	c := newCaller(t)
	h := func(agent string) http.Header {
		return head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", agent)
	}
	main := c.send(head("X-Claude-Code-Session-Id", uuid1), chat("u:delegate"))
	for i := range 12 {
		agent := fmt.Sprint("agent-", i)
		got := c.send(h(agent), chat("u:one task for all"))
		c.new(agent, got, Key{})
		if got.Parent != main.Key {
			t.Errorf("%s: parent %q, want %q", agent, got.Parent.Name(), main.Name)
		}
		c.same(agent, c.send(h(agent), chat("u:one task for all", "a:ok", "u:result")), got)
	}
	c.same("the parent", c.send(head("X-Claude-Code-Session-Id", uuid1), chat("u:delegate", "a:agents", "u:results")), main)
}

func TestOneSystemTextIsNotOneConversation(t *testing.T) {
	c := newCaller(t)
	keys := map[Key]bool{}
	for i := range 40 {
		question := fmt.Sprint("u:question ", i)
		keys[c.send(nil, chat(question)).Key] = true
		keys[c.send(head("X-Session-Id", fmt.Sprint(i)), chat("u:one question for all")).Key] = true
	}
	if len(keys) != 80 {
		t.Errorf("%d conversations, want 80", len(keys))
	}
}

func TestPreviousResponse(t *testing.T) {
	c := newCaller(t)
	after := func(response, text string) *llmapi.Facts {
		return with(routed(llmapi.RouteResponses, chat(text)), llmapi.BodyIDs{PreviousResponseID: response})
	}
	first := c.send(nil, after("", "u:hello"))
	turn := c.tab.Begin(c.now, first, "m")
	turn.Responded("resp_1")
	turn.End(c.now, llmapi.Usage{})
	second := c.send(nil, after("resp_1", "u:more"))
	c.same("what follows the response", second, first)
	turn = c.tab.Begin(c.now, second, "m")
	turn.Responded("resp_2")
	turn.End(c.now, llmapi.Usage{})
	c.same("what follows the next", c.send(nil, after("resp_2", "u:third")), first)
	c.new("a response that is not ours", c.send(nil, after("resp_3", "u:else")), Key{})
	c.new("another tenant", c.tab.Identify(c.now, Request{Tenant: "x", Model: "m", Facts: after("resp_1", "u:more")}), Key{})
}
