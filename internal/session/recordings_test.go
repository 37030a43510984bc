package session

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/llmapi"
)

// recorded is one request of a recording.
type recorded struct {
	Step    string
	Method  string
	Path    string
	Headers map[string]string
	Body    json.RawMessage
}

func recording(t *testing.T, name string) []recorded {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "captures", name+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		// The filler's trap: it wrote xx for a line end after a reminder.
		all[i].Body = bytes.ReplaceAll(all[i].Body, []byte("</system-reminder>xx"), []byte(`</system-reminder>\n`))
	}
	return all
}

// request turns a recorded request into what the gateway asks the table.
func (r recorded) request(t *testing.T, model string) Request {
	t.Helper()
	path, _, _ := strings.Cut(r.Path, "?")
	h := http.Header{}
	for name, value := range r.Headers {
		h.Add(name, value)
	}
	q := Request{Model: model, Header: h}
	if route := llmapi.RouteOf(r.Method, path); route != llmapi.RouteOther {
		f, err := llmapi.Parse(route, r.Body)
		if err != nil {
			t.Fatalf("%s: %v", r.Path, err)
		}
		q.Facts = f
	}
	return q
}

// TestRecordings replays what the real clients sent, in order, and tells which
// requests form which conversation. One word a request:
//
//	A    of conversation A
//	B<A  the first of B, whose history extends A
//	C^A  the first of C, a sub-agent of A
//	-    no conversation
//
// Steps that several clients share: A1 a prompt with a tool call, A2 and A3 its
// resumption, A4 a fork of it, B1 another session with the same prompt, B2 one
// with another prompt, C three prompts in one process, D a sub-agent, E a
// compaction, G an injected failure with the client's own retries.
func TestRecordings(t *testing.T) {
	tests := []struct{ name, want string }{
		{"claude-code-1.0.60-headless",
			// Every resumption has a new session id; a sub-agent has its parent's.
			"A A B<A C<B D D E F F F F G G G G H H I<A J J K"},
		{"claude-code-1.0.128-headless",
			// Summaries on the small model, some under an id of their own.
			"A A - A - A - B<A C C D E - E E E E F F F F - - A - - A G - - G H"},
		{"claude-code-2.0.76-headless",
			// Two warm-up calls at every start.
			"A - - A - - A - - A - - B<A C - - C D - - E - - E E F - - F F F - - A - - A G - - G H - -"},
		{"claude-code-2.1.42-headless",
			"A A A A B<A C C D E E E F F F F A A G G H"},
		{"claude-code-2.1.120-headless",
			// HEAD / at every start.
			"- A A - A - A - B<A - C C - D - E E E E E - F F F F - A - A - G G - H"},
		{"claude-code-2.1.197-headless",
			// From here on sub-agents have an id.
			"- A A - A - A - B<A - C C - D - E E E E E - F G^F G F - A - A - H H - I"},
		{"claude-code-2.1.332-headless",
			"A A A A B<A C C D E E E E E F F G^F G F A A A H H I"},
		{"claude-code-2.1.332-options",
			"A - B B C C D^C D C C C C E F G H H I J"},
		{"claude-code-2.1.332-tui-clear-subagent",
			"A A A B^A B A C"},
		{"claude-code-2.1.332-tui-hints",
			// HEAD; titles; eight count_tokens; three calls of the classifier, B.
			"- - A A - A - - - - - - - - - A B B B A - A A A - A"},
		{"claude-code-2.1.332-failures",
			"A A A A B B B C C C D D D E E E F F F G H H I I I J J K K L L L M M"},
		{"claude-code-2.1.332-failures-2",
			"A A B B C C D D D D D D D E E E E E E E F F F G G G H H H I J J J K K L"},
		{"codex-0.171.0-exec",
			"A A A A B<A C C D E E F F F G G G H H H I I I J J K K"},
		{"opencode-1.18.33",
			// A title call before every first prompt.
			"- A A A A B<A - C C - D - E F^E F E - G G - H H - I - - I - J - J - K K"},

		// No ids from here on. A second session whose prompt and answers are the same
		// is the same conversation.
		{"cline-cli-3.0.65",
			"A A A A B C C B D D D E E E F F"},
		{"continue-cli-1.5.47",
			"A A A A A B B C C C D D D E E"},
		{"copilot-cli-1.0.102",
			// B1 differs by the session folder in its system text. The last two have a
			// prompt_cache_key.
			"A A A B B C C D D E E"},
		{"copilot-cli-1.0.102-responses-failures",
			"A A A B C C C C D D D E E E F F"},
		{"qwen-code-0.24.4",
			// The memory extraction after a turn has its own system text (B, D, H, ...).
			// The second shape of compression has one too, but the filler made it equal
			// to B's, whose history it does not continue.
			"A A A B A B A B A A C D E E F F E A - G G G H I I I J K L L M N N O O"},
		{"sdks-anthropic-openai-ai-agents",
			// Most of it is one hello over and over: a single conversation as long as
			// nothing tells more.
			"A A - A A A A A A A A A A A A A A A A A A A A A A B C - A A A A A A A A D D E F D G E D H I E E E E E E E E J J J K K"},
		{"gemini-cli-0.61.0", // a dialect that is not served
			"- - - - - - - - - - - - -"},
	}
	files, err := filepath.Glob(filepath.Join("testdata", "captures", "*"))
	if err != nil || len(files) != len(tests) {
		t.Fatalf("%d recordings for %d tests (%v)", len(files), len(tests), err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := replay(t, recording(t, tt.name), func(tab *Table, _ time.Time) *Table { return tab })
			if diff := cmp.Diff(strings.Fields(tt.want), got); diff != "" {
				t.Errorf("conversations (-want +got):\n%s", diff)
			}
			// A gateway that is stopped after each request and started anew must not
			// see other conversations.
			got = replay(t, recording(t, tt.name), restart(t))
			if diff := cmp.Diff(strings.Fields(tt.want), got); diff != "" {
				t.Errorf("with restarts (-want +got):\n%s", diff)
			}
		})
	}
}

// replay identifies the requests in order and writes them in the words of
// TestRecordings. between is called after each request.
func replay(t *testing.T, requests []recorded, between func(*Table, time.Time) *Table, edits ...func(*Request)) []string {
	t.Helper()
	tab := table(t, Options{})
	now := start
	names := map[Key]string{}
	name := func(k Key) string {
		if names[k] == "" {
			names[k] = string(rune('A' + len(names)))
		}
		return names[k]
	}
	var words []string
	for i, r := range requests {
		q := r.request(t, "pool")
		for _, edit := range edits {
			edit(&q)
		}
		now = now.Add(time.Second)
		id := tab.Identify(now, q)
		turn := tab.Begin(now, id, "pool")
		if (turn != nil) != (id.Key != Key{}) {
			t.Errorf("request %d: turn %v for key %v", i, turn, id.Key)
		}
		turn.End(now, llmapi.Usage{})
		if id.Key == (Key{}) {
			words = append(words, "-")
			continue
		}
		if _, seen := names[id.Key]; seen == id.New {
			t.Errorf("request %d (%s): New is %v, seen before: %v", i, r.Step, id.New, seen)
		}
		word := name(id.Key)
		if id.Extends != (Key{}) {
			word += "<" + name(id.Extends)
		}
		if id.New && id.Parent != (Key{}) {
			word += "^" + name(id.Parent)
		}
		words = append(words, word)
		tab = between(tab, now)
	}
	return words
}

// restart saves a table and loads it into a new one.
func restart(t *testing.T) func(*Table, time.Time) *Table {
	return func(tab *Table, now time.Time) *Table {
		var file bytes.Buffer
		if err := tab.Save(&file, nil); err != nil {
			t.Fatal(err)
		}
		fresh := table(t, Options{})
		if _, err := fresh.Load(now, &file, nil); err != nil {
			t.Fatal(err)
		}
		return fresh
	}
}

// TestRecordingsBehindProxy takes the client's own headers away, as some proxies
// do: the ids in the body must do as well.
func TestRecordingsBehindProxy(t *testing.T) {
	tests := []struct{ name, want string }{
		{"claude-code-2.1.332-headless", // sub-agents keep only their session's id
			"A A A A B<A C C D E E E E E F F F F F A A A G G H"},
		{"codex-0.171.0-exec",
			"A A A A B<A C C D E E F F F G G G H H H I I I J J K K"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := replay(t, recording(t, tt.name), func(tab *Table, _ time.Time) *Table { return tab },
				func(q *Request) { q.Header = http.Header{"User-Agent": q.Header["User-Agent"]} })
			if diff := cmp.Diff(strings.Fields(tt.want), got); diff != "" {
				t.Errorf("conversations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordingsByContent takes all ids away: the history alone must keep the
// turns of a conversation together, over resumptions and forks.
func TestRecordingsByContent(t *testing.T) {
	tests := []struct{ name, want string }{
		// The fork and the second session with the same prompt and answers join A; what
		// follows a compaction begins anew.
		{"claude-code-2.1.332-headless",
			"A A A A A A A B C C C C C D D E E D A A F A A G"},
		{"codex-0.171.0-exec",
			"A A A A A A A B C C D D E F F F G G G H H H I I J J"},
		{"opencode-1.18.33",
			"- A A A A A - A A - B - C D D C - E E - F F - G - - G - H - H - I I"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := replay(t, recording(t, tt.name), func(tab *Table, _ time.Time) *Table { return tab },
				func(q *Request) {
					q.Header = http.Header{"User-Agent": q.Header["User-Agent"]}
					if q.Facts != nil {
						q.Facts.IDs = llmapi.BodyIDs{}
					}
				})
			if diff := cmp.Diff(strings.Fields(tt.want), got); diff != "" {
				t.Errorf("conversations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSources covers which id the recordings' clients are known by.
func TestSources(t *testing.T) {
	tests := []struct{ recording, source, client string }{
		{"claude-code-2.1.332-headless", "x-claude-code-session-id", "claude-cli"},
		{"claude-code-1.0.60-headless", "metadata.user_id", "claude-cli"},
		{"codex-0.171.0-exec", "thread-id", "codex_exec"},
		{"cline-cli-3.0.65", "fingerprint", "ai-sdk"},
		{"copilot-cli-1.0.102-responses-failures", "prompt_cache_key", "openai-js"},
		{"qwen-code-0.24.4", "fingerprint", "qwencode"},
		{"sdks-anthropic-openai-ai-agents", "fingerprint", "anthropic-js"},
	}
	for _, tt := range tests {
		id := table(t, Options{}).Identify(start, recording(t, tt.recording)[0].request(t, "pool"))
		if id.Source != tt.source || id.Client != tt.client {
			t.Errorf("%s: source %q, client %q, want %q, %q", tt.recording, id.Source, id.Client, tt.source, tt.client)
		}
	}
}
