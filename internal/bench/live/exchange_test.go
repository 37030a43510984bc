package live

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/bench"
)

// A turn is sent as Claude Code would, and its answer stands in the next one.
func TestTurnsOfASession(t *testing.T) {
	for _, d := range Dialects() {
		t.Run(string(d), func(t *testing.T) {
			e := newEndpoint(t, func(w *stream, r *http.Request) { w.answer(" line\none \"two\" ") })
			s := newSystem(t, e.url, func(o *Options) { o.Dialect, o.Key = d, "secret" })
			turn := question(10)
			got := send(t, s, bench.Request{Session: 7, Turn: turn})[0]
			if got.End != bench.Finished || got.Prompt != 100 || got.Cached != 40 || got.Output != 7 || got.Replica != -1 || got.Reason != "" {
				t.Errorf("result %+v", got)
			}
			if !(got.Sent <= got.First && got.First <= got.Token && got.Token <= got.Last) {
				t.Errorf("sent at %v, first event at %v, first token at %v, last at %v", got.Sent, got.First, got.Token, got.Last)
			}
			turn.Messages = append(turn.Messages,
				bench.Message{Role: bench.Assistant, Spans: []bench.Span{turn.Answer}, AnswerOf: 1},
				bench.Message{Role: bench.User, Spans: []bench.Span{{ID: 4 << 40, Tokens: 3}}})
			send(t, s, bench.Request{Session: 7, Turn: turn})

			requests := e.requests()
			first, second := requests[0], requests[1]
			wantPath := map[Dialect]string{Anthropic: "/v1/messages", OpenAI: "/v1/chat/completions"}[d]
			if first.path != wantPath || !first.body.Stream || first.body.MaxTokens != 64 || first.body.Model != "m" {
				t.Errorf("POST %s %+v", first.path, first.body)
			}
			id := first.header.Get("X-Claude-Code-Session-Id")
			if len(id) != 36 || id != second.header.Get("X-Claude-Code-Session-Id") || first.header.Get("Authorization") != "Bearer secret" {
				t.Errorf("headers %v, then %v", first.header, second.header)
			}
			messages := second.body.Messages
			if d == Anthropic {
				if !strings.Contains(first.body.Metadata.UserID, `"session_id":"`+id+`"`) || len(first.body.System) != 1 || len(first.body.System[0].Text) != 20 {
					t.Errorf("metadata %q, system %v", first.body.Metadata.UserID, first.body.System)
				}
			} else {
				if !first.body.Options.Usage || messages[0].Role != "system" {
					t.Errorf("usage asked: %v, messages %v", first.body.Options.Usage, messages)
				}
				messages = messages[1:]
			}
			if len(messages) != 3 || messages[1].Role != "assistant" || messages[1].Content != "line\none \"two\"" || len(messages[0].Content) != 40 {
				t.Errorf("the second turn has %q", messages)
			}
		})
	}
}

func TestSubAgentsAndRequestsWithoutASession(t *testing.T) {
	e := newEndpoint(t, func(w *stream, r *http.Request) { w.answer("yes") })
	s := newSystem(t, e.url, nil)
	for _, r := range []bench.Request{
		{Session: 7}, {Session: 8, Parent: 7}, {Session: 9, Parent: 8}, {},
	} {
		r.Turn = question(4)
		send(t, s, r)
	}
	type names struct{ session, agent, parent, class string }
	var got []names
	for _, r := range e.requests() {
		got = append(got, names{
			r.header.Get("X-Claude-Code-Session-Id"), r.header.Get("X-Claude-Code-Agent-Id"),
			r.header.Get("X-Claude-Code-Parent-Agent-Id"), r.header.Get("X-Claude-Code-Request-Class"),
		})
	}
	session, agent := got[0].session, got[1].agent
	want := []names{{session, "", "", ""}, {session, agent, "", ""}, {session, got[2].agent, agent, ""}, {"", "", "", "auxiliary"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(names{})); diff != "" || session == "" || agent == "" || got[2].agent == agent {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// Another salt is other texts and other sessions, so that a run finds nothing
// that an earlier one left.
func TestSalt(t *testing.T) {
	e := newEndpoint(t, func(w *stream, r *http.Request) { w.answer("yes") })
	for _, salt := range []uint64{1, 1, 2} {
		s := newSystem(t, e.url, func(o *Options) { o.Salt = salt })
		send(t, s, bench.Request{Session: 7, Turn: question(50)})
	}
	text := func(i int) string { return e.requests()[i].body.Messages[0].Content }
	id := func(i int) string { return e.requests()[i].header.Get("X-Claude-Code-Session-Id") }
	if text(0) != text(1) || id(0) != id(1) {
		t.Error("equal salts gave other texts or sessions")
	}
	if text(0) == text(2) || id(0) == id(2) {
		t.Error("two salts gave one text or session")
	}
}

// A gateway that had to begin a stream before it had a replica says in the
// trailer which one it was. What it sent meanwhile is no part of the answer.
func TestADecisionInTheTrailer(t *testing.T) {
	const late = 20 * time.Millisecond
	for d, meanwhile := range map[Dialect]string{Anthropic: "event: ping\ndata: {\"type\": \"ping\"}\n\n", OpenAI: ": waiting\n\n"} {
		e := newEndpoint(t, func(w *stream, r *http.Request) {
			h := w.w.Header()
			h.Set("Content-Type", "text/event-stream")
			h.Set("Trailer", "X-Warden-Replica, X-Warden-Decision")
			_, _ = w.w.Write([]byte(meanwhile))
			w.w.(http.Flusher).Flush()
			select {
			case <-time.After(late):
			case <-r.Context().Done():
			}
			w.answer("yes")
			h.Set("X-Warden-Replica", "3")
			h.Set("X-Warden-Decision", "stayed")
		})
		s := newSystem(t, e.url, func(o *Options) { o.Dialect = d })
		s.ours = true
		if r := send(t, s, bench.Request{Session: 7, Turn: question(4)})[0]; r.End != bench.Finished || r.Replica != 3 || r.Reason != "stayed" || r.First-r.Sent < late {
			t.Errorf("%s: %+v", d, r)
		}
	}
}

// What goes wrong is told by its class; nothing of it counts as an answer.
func TestFailures(t *testing.T) {
	hang := func(r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		script func(w *stream, r *http.Request)
		want   string // the beginning of the error
	}{
		"refused": {func(w *stream, r *http.Request) {
			w.w.Header().Set("X-Warden-Error", "no-replica")
			w.w.WriteHeader(503)
			_, _ = w.w.Write([]byte(`{"type":"error","error":{"type":"x","message":"nobody home"}}`))
		}, "status 503 no-replica: nobody home"},
		"refused in the old form": {func(w *stream, r *http.Request) { http.Error(w.w, "out of order", 500) }, "status 500: out of order"},
		"no answer":               {func(w *stream, r *http.Request) { hang(r) }, "timeout: no end of the answer within 300ms"},
		"no end": {func(w *stream, r *http.Request) {
			w.begin()
			w.say("one")
			hang(r)
		}, "timeout: "},
		"a page": {func(w *stream, r *http.Request) {
			w.w.Header().Set("Content-Type", "text/html")
			_, _ = w.w.Write([]byte("<html>"))
		}, `no stream: the answer's type is "text/html"`},
		"an early end": {func(w *stream, r *http.Request) { w.begin(); w.say("one") }, "cut short: "},
		"a reset": {func(w *stream, r *http.Request) {
			w.begin()
			panic(http.ErrAbortHandler)
		}, "cut short: "},
		"an error in the stream": {func(w *stream, r *http.Request) {
			w.begin()
			if w.openAI {
				w.event(`{"error":{"message":"engine died","code":500}}`)
				w.event(`[DONE]`)
				return
			}
			w.event(`{"type":"error","error":{"type":"internal_error","message":"engine died"}}`)
		}, "error event: "},
		"an answer that only looks complete": {func(w *stream, r *http.Request) {
			w.begin()
			w.say("one")
			if w.openAI {
				w.event(`{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`)
				w.event(`[DONE]`)
				return
			}
			w.event(`{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":1}}`)
			w.event(`{"type":"message_stop"}`)
		}, "aborted: "},
	} {
		for _, d := range Dialects() {
			t.Run(name+" "+string(d), func(t *testing.T) {
				e := newEndpoint(t, tc.script)
				s := newSystem(t, e.url, func(o *Options) {
					o.Dialect, o.Timeout = d, time.Minute
					if strings.HasPrefix(tc.want, "timeout") {
						o.Timeout = 300 * time.Millisecond
					}
				})
				got := send(t, s, bench.Request{Session: 7, Turn: question(4)})[0]
				if got.End != bench.Failed || !strings.HasPrefix(got.Error, tc.want) {
					t.Errorf("%s, %q, want failed, %q", got.End, got.Error, tc.want)
				}
			})
		}
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := mustURL(t, "http://"+l.Addr().String())
	l.Close()
	s := newSystem(t, target, nil)
	if got := send(t, s, bench.Request{Turn: question(4)})[0]; got.End != bench.Failed || !strings.HasPrefix(got.Error, "unreachable: ") {
		t.Errorf("%s, %q", got.End, got.Error)
	}
}

// What an engine does not tell is not known; zero is a count.
func TestUsageThatIsMissing(t *testing.T) {
	type counts struct{ prompt, cached, output int }
	for name, tc := range map[string]struct {
		dialect Dialect
		end     func(w *stream)
		want    counts
	}{
		"no usage": {OpenAI, func(w *stream) { w.event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`) }, counts{-1, -1, -1}},
		"no cached tokens": {OpenAI, func(w *stream) {
			w.event(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}`)
		}, counts{9, -1, 3}},
		"null": {OpenAI, func(w *stream) {
			w.event(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":null}}`)
		}, counts{9, -1, 3}},
		"zero": {OpenAI, func(w *stream) {
			w.event(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}`)
		}, counts{9, 0, 3}},
		"no cached tokens from messages": {Anthropic, func(w *stream) {
			w.event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":9,"output_tokens":3}}`)
		}, counts{9, -1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, func(w *stream, r *http.Request) {
				w.begin()
				w.say("one")
				tc.end(w)
				if w.openAI {
					w.event(`[DONE]`)
				} else {
					w.event(`{"type":"message_stop"}`)
				}
			})
			s := newSystem(t, e.url, func(o *Options) { o.Dialect = tc.dialect })
			got := send(t, s, bench.Request{Session: 7, Turn: question(4)})[0]
			if c := (counts{got.Prompt, got.Cached, got.Output}); got.End != bench.Finished || c != tc.want {
				t.Errorf("%s %q with %+v, want %+v", got.End, got.Error, c, tc.want)
			}
		})
	}
}

// An answer begins with its first event, whatever is in it, and its first token
// is the first thing that was generated: neither is what only keeps the connection
// alive.
func TestFirstEventAndFirstToken(t *testing.T) {
	anthropic := func(block, delta string) []string {
		return []string{
			`{"type":"message_start","message":{"usage":{"input_tokens":99,"output_tokens":0}}}`,
			`{"type":"content_block_start","index":0,"content_block":` + block + `}`,
			`{"type":"content_block_delta","index":0,"delta":` + delta + `}`,
		}
	}
	openAI := func(delta string) []string {
		return []string{
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`,
		}
	}
	for name, tc := range map[string]struct {
		dialect Dialect
		events  []string
		token   int // which of them is the first token
	}{
		"text":                          {Anthropic, anthropic(`{"type":"text","text":""}`, `{"type":"text_delta","text":"yes"}`), 2},
		"thinking":                      {Anthropic, anthropic(`{"type":"thinking","thinking":""}`, `{"type":"thinking_delta","thinking":"so"}`), 2},
		"a tool call":                   {Anthropic, anthropic(`{"type":"tool_use","id":"t1","name":"read","input":{}}`, `{"type":"input_json_delta","partial_json":"{}"}`), 1},
		"a block that begins with text": {Anthropic, anthropic(`{"type":"text","text":"y"}`, `{"type":"text_delta","text":"es"}`), 1},
		"a signature alone":             {Anthropic, anthropic(`{"type":"thinking","thinking":""}`, `{"type":"signature_delta","signature":"x"}`), -1},
		"text from chat":                {OpenAI, openAI(`{"content":"yes"}`), 1},
		"thinking from chat":            {OpenAI, openAI(`{"reasoning_content":"so"}`), 1},
		"thinking in its new name":      {OpenAI, openAI(`{"reasoning":"so"}`), 1},
		"a tool call from chat":         {OpenAI, openAI(`{"tool_calls":[{"index":0,"id":"t1","function":{"name":"read"}}]}`), 1},
		"nothing at all, from chat":     {OpenAI, openAI(`{"content":""}`), -1},
		"a word in the role's chunk":    {OpenAI, []string{`{"choices":[{"index":0,"delta":{"role":"assistant","content":"yes"}}]}`}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// Keep-alives come after one second, an event each second after it.
				network := make(pipes)
				e := newEndpointOn(t, network, func(w *stream, r *http.Request) {
					time.Sleep(time.Second)
					w.w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprint(w.w, ": waiting\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n")
					w.w.(http.Flusher).Flush()
					for _, event := range tc.events {
						time.Sleep(time.Second)
						w.event("%s", event)
					}
					w.end(100, 40, 7)
				})
				s := newSystem(t, e.url, func(o *Options) { o.Dialect, o.Dial = tc.dialect, network.dial })
				got := send(t, s, bench.Request{Session: 7, Turn: question(4)})[0]
				want := bench.Result{Sent: got.Sent, First: got.Sent + 2*time.Second, Token: -1}
				if tc.token >= 0 {
					want.Token = want.First + time.Duration(tc.token)*time.Second
				}
				if got.End != bench.Finished || got.First != want.First || got.Token != want.Token {
					t.Errorf("%s %s, first event at %v, first token at %v; want %v and %v", got.End, got.Error, got.First, got.Token, want.First, want.Token)
				}
			})
		})
	}
}

// Cut ends what is open as cut, with its first token if that had come.
func TestCut(t *testing.T) {
	said := make(chan struct{}, 2)
	e := newEndpoint(t, func(w *stream, r *http.Request) {
		w.begin()
		w.say("one")
		said <- struct{}{}
		<-r.Context().Done()
	})
	s := newSystem(t, e.url, nil)
	var got []bench.Result
	for range 2 {
		s.Send(bench.Request{Turn: question(4)}, func(r bench.Result) { got = append(got, r) })
		<-said
	}
	for s.Status().Open != 2 {
		t.Fatal("two turns are open")
	}
	s.Cut()
	if len(got) != 2 || got[0].End != bench.Cut || got[0].Error != "" || got[0].Last >= 0 {
		t.Errorf("results %+v", got)
	}
}

// Run keeps the time, and ends with the context.
func TestRun(t *testing.T) {
	e := newEndpoint(t, func(w *stream, r *http.Request) {})
	s := newSystem(t, e.url, func(o *Options) { o.Speed = 1000 })
	var order []int
	s.After(20*time.Second, func() { order = append(order, 2) })
	s.After(10*time.Second, func() { order = append(order, 1) })
	s.After(time.Hour, func() { t.Error("an hour has not passed") })
	if err := s.Run(context.Background(), 60*time.Second, func() bool { return false }); err != nil {
		t.Error(err)
	}
	if now := s.Now(); now < 60*time.Second || !cmp.Equal(order, []int{1, 2}) {
		t.Errorf("at %v: %v", now, order)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx, maxWait, func() bool { return false }); err == nil {
		t.Error("the context ended, Run did not say so")
	}
}
