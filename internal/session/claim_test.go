package session

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"lmwarden/internal/llmapi"
)

// head makes headers from pairs of name and value.
func head(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// chat makes the facts of a chat with tools. Each message is a role's letter (u,
// a, s), a colon and its text.
func chat(messages ...string) *llmapi.Facts {
	f := &llmapi.Facts{Route: llmapi.RouteChat, Tools: 1, SystemHash: 7, SystemHead: 7, TextBytes: 9000}
	answered := false
	for _, text := range messages {
		m := llmapi.Message{Hash: xxhash.Sum64String(text)}
		switch text[0] {
		case 'u':
			m.Role = llmapi.RoleUser
			if !answered {
				f.OpenerHash = mix(f.OpenerHash, m.Hash)
			}
		case 'a':
			m.Role, answered = llmapi.RoleAssistant, true
		case 's':
			m.Role = llmapi.RoleSystem
		}
		f.Messages = append(f.Messages, m)
	}
	return f
}

// with sets the ids of a body.
func with(f *llmapi.Facts, ids llmapi.BodyIDs) *llmapi.Facts {
	f.IDs = ids
	return f
}

const (
	uuid1 = "64fcdd42-3750-4d5a-9f3c-e6d332fe468f"
	uuid2 = "13cfab6d-05a1-4c2b-8a1d-4c9d1a1081b3"
	ses1  = "ses_dd823b4e1ffeVQycOY"
)

// every way of giving an id, in the order in which they count.
func sources() []struct {
	source string
	set    func(h http.Header, ids *llmapi.BodyIDs, value string)
} {
	type set = func(http.Header, *llmapi.BodyIDs, string)
	header := func(name string) set {
		return func(h http.Header, _ *llmapi.BodyIDs, v string) { h.Set(name, v) }
	}
	all := []struct {
		source string
		set    set
	}{{"x-warden-session", header("X-Warden-Session")}, {"x-mine", header("X-Mine")}}
	add := func(source string, s set) {
		all = append(all, struct {
			source string
			set    set
		}{source, s})
	}
	for _, name := range []string{
		"x-claude-code-session-id", "thread-id", "session-id", "x-session-id", "x-session-affinity", "session_id",
		"x-opencode-session", "agent-session-id", "x-litellm-session-id", "x-dynamo-session-id", "x-amp-thread-id",
		"x-affinity", "x-grok-conv-id", "x-smg-routing-key", "x-aibrix-session-key", "x-conversation-id",
		"x-openwebui-chat-id", "x-acme-session-id",
	} {
		add(name, header(name))
	}
	add("metadata.user_id", func(_ http.Header, b *llmapi.BodyIDs, v string) {
		b.MetadataUserID = fmt.Sprintf(`{"device_id":"0","session_id":%q}`, v)
	})
	add("client_metadata.thread_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.ClientThreadID = v })
	add("prompt_cache_key", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.PromptCacheKey = v })
	add("session_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.SessionID = v })
	add("litellm_session_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.LiteLLMSessionID = v })
	add("metadata.session_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.MetadataSessionID = v })
	add("client_metadata.session_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.ClientSessionID = v })
	add("conversation", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.Conversation = v })
	add("conversation_id", func(_ http.Header, b *llmapi.BodyIDs, v string) { b.ConversationID = v })
	add("x-correlation-id", header("x-correlation-id"))
	return all
}

func TestEverySourceCountsInItsOrder(t *testing.T) {
	all := sources()
	for i, s := range all {
		tab := table(t, Options{Headers: []string{"X-Mine"}})
		identify := func(value string, later bool) Identity {
			h, ids := http.Header{}, llmapi.BodyIDs{}
			if later {
				for j := len(all) - 1; j > i; j-- {
					all[j].set(h, &ids, fmt.Sprintf("other-value-%d", j))
				}
			}
			s.set(h, &ids, value)
			return tab.Identify(start, Request{Model: "m", Header: h, Facts: with(chat("u:hello"), ids)})
		}
		one := identify("conversation-1", false)
		if one.Source != s.source || one.Key == (Key{}) || !one.New {
			t.Errorf("%s: identified as %+v", s.source, one)
		}
		if again := identify("conversation-1", true); again.Key != one.Key || again.New {
			t.Errorf("%s: lower sources changed the conversation: %+v, want %+v", s.source, again, one)
		}
		if other := identify("conversation-12", false); other.Key == one.Key || !other.New {
			t.Errorf("%s: conversation-12 is taken for conversation-1", s.source)
		}
	}
}

func TestNotAnID(t *testing.T) {
	fallback := "fingerprint"
	for _, tt := range []struct {
		name string
		h    http.Header
		ids  llmapi.BodyIDs
	}{
		{"empty", head("X-Session-Id", ""), llmapi.BodyIDs{}},
		{"spaces", head("X-Session-Id", "  \t "), llmapi.BodyIDs{SessionID: "   "}},
		{"placeholders", head("X-Session-Id", "default", "X-Session-Affinity", " NULL ", "Session-Id", "undefined"), llmapi.BodyIDs{PromptCacheKey: "None"}},
		{"control characters", http.Header{"X-Session-Id": {"a\x00b"}}, llmapi.BodyIDs{Conversation: "line\nbreak", SessionID: "\x7f"}},
		{"only the prefix of a title", head("X-Session-Id", "title-"), llmapi.BodyIDs{}},
		{"a parent", head("X-Parent-Session-Id", uuid1, "X-Acme-Parent-Session-Id", uuid1), llmapi.BodyIDs{}},
		{"a vendor's short value", head("X-Acme-Session-Id", "1234567"), llmapi.BodyIDs{}},
		{"a vendor's strange value", head("X-Acme-Session-Id", "1234 5678"), llmapi.BodyIDs{}},
		{"users and single requests", head("X-User-Id", uuid1, "X-OpenWebUI-User-Id", uuid1, "X-Client-Request-Id", uuid1,
			"X-Request-Id", uuid1, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), llmapi.BodyIDs{}},
		{"an agent without a session", head("X-Claude-Code-Agent-Id", "a074d4885b6754746"), llmapi.BodyIDs{}},
		{"a user in metadata.user_id", nil, llmapi.BodyIDs{MetadataUserID: "u-1"}},
		{"a device in metadata.user_id", nil, llmapi.BodyIDs{MetadataUserID: `{"device_id":"` + strings.Repeat("0", 64) + `"}`}},
		{"broken metadata.user_id", nil, llmapi.BodyIDs{MetadataUserID: `{"session_id":`}},
		{"an account in metadata.user_id", nil, llmapi.BodyIDs{MetadataUserID: "user_0_account_" + uuid1}},
	} {
		id := table(t, Options{}).Identify(start, Request{Model: "m", Header: tt.h, Facts: with(chat("u:hello"), tt.ids)})
		if id.Source != fallback || id.Parent != (Key{}) {
			t.Errorf("%s: source %q, parent %v, want %q and none", tt.name, id.Source, id.Parent, fallback)
		}
	}
}

func TestSameConversation(t *testing.T) {
	old := "user_" + strings.Repeat("0", 64) + "_account__session_" + uuid1
	long := strings.Repeat("x", 8000)
	type request struct {
		h   http.Header
		ids llmapi.BodyIDs
	}
	for _, tt := range []struct {
		name string
		a, b request
		same bool
	}{
		{"header and body of Claude Code", request{h: head("X-Claude-Code-Session-Id", uuid1)}, request{ids: llmapi.BodyIDs{MetadataUserID: `{"session_id":"` + uuid1 + `"}`}}, true},
		{"both forms of metadata.user_id", request{ids: llmapi.BodyIDs{MetadataUserID: old}}, request{ids: llmapi.BodyIDs{MetadataUserID: `{"session_id":"` + uuid1 + `"}`}}, true},
		{"header and body of Codex", request{h: head("Thread-Id", uuid1, "Session-Id", uuid1)}, request{ids: llmapi.BodyIDs{ClientThreadID: uuid1, PromptCacheKey: uuid2}}, true},
		{"space around", request{h: http.Header{"X-Session-Id": {" " + ses1 + "\t"}}}, request{h: head("X-Session-Id", ses1)}, true},
		{"a title's prefix", request{h: head("X-Session-Id", "title-"+ses1)}, request{h: head("X-Session-Id", ses1)}, true},
		{"case", request{h: head("X-Session-Id", "ABC")}, request{h: head("X-Session-Id", "abc")}, false},
		{"one byte", request{h: head("X-Session-Id", "1")}, request{h: head("X-Session-Id", "2")}, false},
		{"8 kB that differ at the end", request{h: head("X-Session-Id", long+"1")}, request{h: head("X-Session-Id", long+"2")}, false},
		{"unicode", request{h: head("X-Session-Id", "größe")}, request{h: head("X-Session-Id", "grösse")}, false},
		{"commas", request{h: head("X-Session-Id", "a,b")}, request{h: head("X-Session-Id", "a")}, false},
		{"one value twice", request{h: head("X-Session-Id", "a", "X-Session-Id", "a")}, request{h: head("X-Session-Id", "a")}, true},
		{"two values", request{h: head("X-Session-Id", "a", "X-Session-Id", "b")}, request{h: head("X-Session-Id", "a")}, false},
		{"two values, joined by a proxy", request{h: head("X-Session-Id", "a", "X-Session-Id", "b")}, request{h: head("X-Session-Id", "a, b")}, true},
		{"one value from two sources", request{h: head("X-Session-Id", uuid1)}, request{h: head("X-Affinity", uuid1)}, false},
		{"an agent and its session", request{h: head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1")}, request{h: head("X-Claude-Code-Session-Id", uuid1)}, false},
		{"two agents", request{h: head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1")}, request{h: head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a2")}, false},
		{"our header before an agent", request{h: head("X-Warden-Session", "s", "X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1")}, request{h: head("X-Warden-Session", "s")}, true},
	} {
		tab := table(t, Options{})
		a := tab.Identify(start, Request{Model: "m", Header: tt.a.h, Facts: with(chat("u:one"), tt.a.ids)})
		b := tab.Identify(start, Request{Model: "m", Header: tt.b.h, Facts: with(chat("u:two"), tt.b.ids)})
		if (a.Key == b.Key) != tt.same || a.Key == (Key{}) || b.Key == (Key{}) {
			t.Errorf("%s: %s and %s, want the same: %v", tt.name, a.Name, b.Name, tt.same)
		}
	}
}

func TestTenantsAndModelsApart(t *testing.T) {
	for _, h := range []http.Header{head("X-Session-Id", ses1), head("X-Warden-Session", "mine"), {}} {
		tab := table(t, Options{})
		seen := map[Key]string{}
		for _, tenant := range []string{"", "a", "b"} {
			for _, model := range []string{"m", "am", "b"} {
				id := tab.Identify(start, Request{Tenant: tenant, Model: model, Header: h, Facts: chat("u:hello")})
				if who := seen[id.Key]; who != "" || !id.New {
					t.Errorf("tenant %q, model %q shares a conversation with %s", tenant, model, who)
				}
				seen[id.Key] = fmt.Sprintf("tenant %q, model %q", tenant, model)
				// Neither does the history lead to another's conversation.
				next := tab.Identify(start, Request{Tenant: tenant, Model: model, Header: h, Facts: chat("u:hello", "a:hi", "u:more")})
				if next.Key != id.Key {
					t.Errorf("tenant %q, model %q: the next turn is %s, want %s", tenant, model, next.Name, id.Name)
				}
				if len(h) > 0 {
					fork := tab.Identify(start, Request{Tenant: tenant + "x", Model: model, Header: head("X-Session-Id", uuid2+model), Facts: chat("u:hello", "a:hi", "u:more")})
					if fork.Extends != (Key{}) {
						t.Errorf("tenant %q extends a conversation of tenant %q", tenant+"x", tenant)
					}
				}
			}
		}
	}
}

func TestParents(t *testing.T) {
	session := func(h http.Header, ids llmapi.BodyIDs) Identity {
		return table(t, Options{}).Identify(start, Request{Model: "m", Header: h, Facts: with(chat("u:hello"), ids)})
	}
	claude := session(head("X-Claude-Code-Session-Id", uuid1), llmapi.BodyIDs{})
	agent := session(head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1"), llmapi.BodyIDs{})
	codex := session(head("Thread-Id", uuid1, "Session-Id", uuid1), llmapi.BodyIDs{})
	open := session(head("X-Session-Id", ses1), llmapi.BodyIDs{})
	dynamo := session(head("X-Dynamo-Session-Id", uuid1), llmapi.BodyIDs{})
	for _, tt := range []struct {
		name string
		h    http.Header
		ids  llmapi.BodyIDs
		want Key
	}{
		{"main", head("X-Claude-Code-Session-Id", uuid1), llmapi.BodyIDs{}, Key{}},
		{"agent", head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1"), llmapi.BodyIDs{}, claude.Key},
		{"nested agent", head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a2", "X-Claude-Code-Parent-Agent-Id", "a1"), llmapi.BodyIDs{}, agent.Key},
		{"Codex root", head("Thread-Id", uuid1, "Session-Id", uuid1), llmapi.BodyIDs{}, Key{}},
		{"Codex child by session", head("Thread-Id", uuid2, "Session-Id", uuid1), llmapi.BodyIDs{}, codex.Key},
		{"Codex child by parent thread", head("Thread-Id", uuid2, "Session-Id", "root", "X-Codex-Parent-Thread-Id", uuid1), llmapi.BodyIDs{}, codex.Key},
		{"Codex child in the body", nil, llmapi.BodyIDs{ClientThreadID: uuid2, ClientSessionID: uuid1, PromptCacheKey: uuid1}, codex.Key},
		{"opencode child", head("X-Session-Id", "ses_child", "X-Parent-Session-Id", ses1), llmapi.BodyIDs{}, open.Key},
		{"its own parent", head("X-Session-Id", ses1, "X-Parent-Session-Id", ses1), llmapi.BodyIDs{}, Key{}},
		{"no parent's value", head("X-Session-Id", ses1, "X-Parent-Session-Id", "null"), llmapi.BodyIDs{}, Key{}},
		{"an agent that is its own parent", head("X-Claude-Code-Session-Id", uuid1, "X-Claude-Code-Agent-Id", "a1", "X-Claude-Code-Parent-Agent-Id", "a1"), llmapi.BodyIDs{}, Key{}},
		{"another client's session in the body", head("X-Session-Id", ses1), llmapi.BodyIDs{ClientSessionID: uuid1}, Key{}},
		{"Dynamo child", head("X-Dynamo-Session-Id", uuid2, "X-Dynamo-Parent-Session-Id", uuid1), llmapi.BodyIDs{}, dynamo.Key},
		{"our header", head("X-Warden-Session", "s", "X-Parent-Session-Id", ses1), llmapi.BodyIDs{}, Key{}},
	} {
		if got := session(tt.h, tt.ids); got.Parent != tt.want {
			t.Errorf("%s: parent %q, want %q", tt.name, got.Parent.Name(), tt.want.Name())
		}
	}
}

func TestOperatorHeaders(t *testing.T) {
	tab := table(t, Options{Headers: []string{"x-team-chat", "X-Claude-Code-Session-Id"}})
	team := tab.Identify(start, Request{Model: "m", Header: head("X-Team-Chat", "7", "X-Claude-Code-Session-Id", uuid1), Facts: chat("u:hello")})
	if team.Source != "x-team-chat" {
		t.Errorf("source %q, want the operator's first header", team.Source)
	}
	// A known header keeps what it means.
	a := tab.Identify(start, Request{Model: "m", Header: head("X-Claude-Code-Session-Id", uuid1), Facts: chat("u:hello")})
	b := tab.Identify(start, Request{Model: "m", Facts: with(chat("u:hello"), llmapi.BodyIDs{MetadataUserID: `{"session_id":"` + uuid1 + `"}`})})
	if a.Key != b.Key {
		t.Error("listing Claude Code's header as the operator's parts it from its body field")
	}
	for _, name := range []string{"", "two words", "colon:"} {
		if _, err := New(Options{Headers: []string{name}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("header %q: error %v, want one that names it", name, err)
		}
	}
}

func TestVendorHeadersAreOneChoice(t *testing.T) {
	h := head("X-Zeta-Session-Id", "zeta-conversation", "X-Acme-Session-Id", "acme-conversation")
	for range 50 { // the order of a map's keys changes
		if id := table(t, Options{}).Identify(start, Request{Model: "m", Header: h, Facts: chat("u:hello")}); id.Source != "x-acme-session-id" {
			t.Fatalf("source %q, want the first by name", id.Source)
		}
	}
}

func TestClient(t *testing.T) {
	for agent, want := range map[string]string{
		"claude-cli/2.1.332 (external, cli)":                                     "claude-cli",
		"codex_exec/0.171.0 (Linux 0.0.0; x86_64) unknown (codex_exec; 0.171.0)": "codex_exec",
		"opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14":       "opencode",
		"OpenAI/JS 7.59.0":                "openai-js",
		"OpenAI/Python 1.99.0":            "openai-python",
		"Agents/JavaScript 0.20.0":        "agents-javascript",
		"QwenCode/0.24.4 (linux; x64)":    "qwencode",
		"node-fetch":                      "node-fetch",
		"":                                "",
		"<script>/1":                      "",
		strings.Repeat("long", 20) + "/1": "",
	} {
		if got := client(head("User-Agent", agent)); got != want {
			t.Errorf("%q: client %q, want %q", agent, got, want)
		}
	}
}

// FuzzClaims looks for ids that break the extractors or that merge: whatever a
// client sends, it is one conversation as often as it comes, and two values of
// one header are two conversations unless they say the same.
func FuzzClaims(f *testing.F) {
	f.Add("X-Session-Id", ses1, ses1+"2", "")
	f.Add("X-Claude-Code-Session-Id", uuid1, uuid2, `{"session_id":"x"}`)
	f.Add("X-Acme-Session-Id", "12345678", "title-12345678", "user_0_account__session_"+uuid1)
	f.Add("Thread-Id", "\xff\xfe", "null", "{")
	f.Add("X-Warden-Session", "a", " a", "_session_")
	f.Fuzz(func(t *testing.T, name, a, b, userID string) {
		tab := table(t, Options{Headers: []string{"X-Mine"}})
		identify := func(value string) Identity {
			return tab.Identify(start, Request{Model: "m", Header: head(name, value), Facts: with(chat("u:"+value), llmapi.BodyIDs{MetadataUserID: userID})})
		}
		one, two := identify(a), identify(b)
		if again := identify(a); again.Key != one.Key {
			t.Errorf("%q: %q is %s, then %s", name, a, one.Name, again.Name)
		}
		if one.Source != two.Source || one.Source != strings.ToLower(name) {
			return
		}
		said := func(v string) string {
			v = strings.TrimSpace(v)
			if one.Source == "x-session-id" || one.Source == "x-session-affinity" {
				v = strings.TrimSpace(strings.TrimPrefix(v, "title-"))
			}
			return v
		}
		if same := said(a) == said(b); same != (one.Key == two.Key) {
			t.Errorf("%q: %q and %q are one conversation: %v", name, a, b, !same)
		}
	})
}
