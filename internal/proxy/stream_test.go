package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/llmapi"
)

// The engine writes an event only after the client has the one before. Only an
// announcement comes with what it announces.
func TestEventsArriveOneByOne(t *testing.T) {
	for path, announced := range map[string]int{"/v1/chat/completions": 0, "/v1/messages": 1, "/v1/responses": 1} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			script := scripts[path]
			parts := append([]string{strings.Join(script.events[:announced+1], "")}, script.events[announced+1:]...)
			next := make(chan bool)
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for _, e := range parts {
					io.WriteString(w, e)
					w.(http.Flusher).Flush()
					<-next
				}
			}))
			res, err := g.client.Post(g.url+path, "application/json", strings.NewReader(script.body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			for _, want := range parts {
				got := make([]byte, len(want))
				if _, err := io.ReadFull(res.Body, got); err != nil {
					t.Fatal(err)
				}
				if string(got) != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				next <- true
			}
			if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
				t.Errorf("after the last event: %q, %v", rest, err)
			}
			for name, want := range map[string]string{
				"X-Accel-Buffering": "no", headerReplica: "0", headerDecision: "placed", "Content-Type": "text/event-stream",
			} {
				if got := res.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			rec := g.record(t)
			if rec.Outcome != OK || rec.TTFB <= 0 || rec.TTFB > rec.Duration || !rec.Usage.Known || rec.Usage.Prompt != 20 || rec.Usage.Completion != 4 {
				t.Errorf("record: %+v", rec)
			}
			l := g.model.leases[0]
			if !l.outcome.OK || !l.outcome.Known || !l.outcome.CachedKnown || l.first != 1 {
				t.Errorf("lease: first byte %d times, outcome %+v", l.first, l.outcome)
			}
			g.settled(t)
		})
	}
}

func TestStreamIsTheSameHoweverItIsSplit(t *testing.T) {
	script := scripts["/v1/chat/completions"]
	whole := ": keep-alive\n\n" + strings.Join(script.events[:3], "") +
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + strings.Repeat("x", 3*streamBuffer) + "\"},\"finish_reason\":null}]}\r\n\r\n" +
		"id: 7\nretry: 10\n\n" + strings.Join(script.events[3:], "")
	for _, size := range []int{1, 7, 1000, streamBuffer - 1, streamBuffer, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			step := size
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for rest := whole; rest != ""; {
					n := min(step, len(rest))
					io.WriteString(w, rest[:n])
					w.(http.Flusher).Flush()
					if rest = rest[n:]; step == 1 && len(rest) > 600 && len(rest) < len(whole)-600 {
						io.WriteString(w, rest[:len(rest)-600]) // the long middle at once
						rest = rest[len(rest)-600:]
					}
				}
			}))
			got := g.post(t, "/v1/chat/completions", script.body)
			if got.err != nil || got.body != whole {
				t.Errorf("%v; %s", got.err, cmp.Diff(whole, got.body))
			}
			if rec := g.record(t); rec.Outcome != OK || !rec.Usage.Known {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}

func TestUsageIsAskedForAndTakenOutAgain(t *testing.T) {
	script := scripts["/v1/chat/completions"]
	tests := []struct {
		name, body, atEngine string
		events               []string
	}{
		{"not asked", `{"model": "m", "stream":true, "messages":[]}`,
			`{"stream_options":{"include_usage":true},"model": "org/Served", "stream":true, "messages":[]}`,
			append(script.events[:3:3], script.events[4])},
		{"asked", `{"model":"org/Served","stream":true,"stream_options":{"include_usage":true},"messages":[]}`,
			`{"model":"org/Served","stream":true,"stream_options":{"include_usage":true},"messages":[]}`,
			script.events},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var atEngine string
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				atEngine = string(b)
				streamed(script.events...)(w, r)
			}))
			got := g.post(t, "/v1/chat/completions", tt.body)
			if want := strings.Join(tt.events, ""); got.body != want {
				t.Error(cmp.Diff(want, got.body))
			}
			if atEngine != tt.atEngine {
				t.Error(cmp.Diff(tt.atEngine, atEngine))
			}
			u := g.record(t).Usage
			if !u.Known || u.Prompt != 20 || u.CacheState != llmapi.CacheReported || u.Cached != 0 {
				t.Errorf("usage: %+v", u)
			}
		})
	}
}

// failed checks that a stream ended with the dialect's error event, never with
// its regular end, and was cut.
func failed(t *testing.T, path string, got answer, begin string) {
	t.Helper()
	if !isCut(got.err) {
		t.Errorf("the body ended with %v, want a cut", got.err)
	}
	rest, ok := strings.CutPrefix(got.body, begin)
	if !ok {
		t.Fatalf("the body does not begin with what the engine sent:\n%s", cmp.Diff(begin, got.body))
	}
	lead := "event: error\ndata: {"
	if path == "/v1/chat/completions" {
		lead = `data: {"error":{`
	}
	if !strings.HasPrefix(rest, lead) || !strings.HasSuffix(rest, "}\n\n") || strings.Count(rest, "\n\n") != 1 {
		t.Errorf("after the engine's events: %q, want one error event", rest)
	}
	if strings.Contains(got.body, "127.0.0.1") {
		t.Errorf("the engine's address is in the answer: %q", got.body)
	}
}

func TestEngineDiesInTheMiddleOfAStream(t *testing.T) {
	framings := map[string]func(events string) string{
		"chunked": func(events string) string {
			return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(events), events)
		},
		"content-length": func(events string) string {
			return fmt.Sprintf("Content-Length: 100000\r\n\r\n%s", events)
		},
		"until close": func(events string) string { return "Connection: close\r\n\r\n" + events },
		"within an event": func(events string) string {
			events += "data: {\"choi"
			return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(events), events)
		},
	}
	for path, script := range scripts {
		for name, frame := range framings {
			t.Run(strings.TrimPrefix(path, "/v1/")+"/"+name, func(t *testing.T) {
				begin := strings.Join(script.events[:2], "")
				got2 := make(chan bool)
				g := newGateway(t, Limits{}, rawEngine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					take(r)
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"+frame(begin))
					<-got2
				}))
				res, err := g.client.Post(g.url+path, "application/json", strings.NewReader(script.body))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				first := make([]byte, len(begin))
				if _, err := io.ReadFull(res.Body, first); err != nil {
					t.Fatal(err)
				}
				close(got2)
				rest, err := io.ReadAll(res.Body)
				failed(t, path, answer{body: string(first) + string(rest), err: err}, begin)
				rec := g.record(t)
				if rec.Outcome != EngineError || rec.Status != 200 || rec.Attempts != 1 || rec.Error == "" {
					t.Errorf("record: %+v", rec)
				}
				if g.model.leases[0].outcome.OK {
					t.Error("the lease ended as if the answer were complete")
				}
				g.settled(t)
			})
		}
	}
}

func TestAStreamWithoutItsEndIsAFailure(t *testing.T) {
	for path, script := range scripts {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			begin := script.events[:len(script.events)-1]
			g := newGateway(t, Limits{}, fakeEngine(t, streamed(begin...)))
			failed(t, path, g.post(t, path, script.body), strings.Join(begin, ""))
			if rec := g.record(t); rec.Outcome != EngineError {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}

// What a dying vLLM does to the streams of its other ranks.
func TestAnAbortedStreamDoesNotLookFinished(t *testing.T) {
	chat, messages := scripts["/v1/chat/completions"], scripts["/v1/messages"]
	tests := []struct {
		name, path, body string
		events           []string
		sent             int // events that reach the client
	}{
		{"chat", "/v1/chat/completions", chat.body, append(chat.events[:2:2], data(
			`{"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"abort","stop_reason":null}]}`,
			`{"id":"1","choices":[],"usage":{"prompt_tokens":20,"total_tokens":21,"completion_tokens":1}}`,
			`[DONE]`)...), 2},
		{"messages", "/v1/messages", messages.body, append(messages.events[:4:4],
			event("message_delta", `{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":1}}`),
			event("message_stop", `{"type":"message_stop"}`)), 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			begin, seen := strings.Join(tt.events[:tt.sent], ""), make(chan bool)
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				streamed(begin)(w, r)
				<-seen
				io.WriteString(w, strings.Join(tt.events[tt.sent:], ""))
			}))
			res, err := g.client.Post(g.url+tt.path, "application/json", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			first := make([]byte, len(begin))
			if _, err := io.ReadFull(res.Body, first); err != nil {
				t.Fatal(err)
			}
			close(seen)
			rest, err := io.ReadAll(res.Body)
			failed(t, tt.path, answer{body: string(first) + string(rest), err: err}, begin)
			if rec := g.record(t); rec.Outcome != EngineError || rec.Error != errAborted.Error() {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}

func TestTheEnginesOwnErrorEventPasses(t *testing.T) {
	script := scripts["/v1/chat/completions"]
	events := append(script.events[:2:2], data(`{"error":{"message":"boom","type":"InternalServerError","code":500}}`, `[DONE]`)...)
	g := newGateway(t, Limits{}, fakeEngine(t, streamed(events...)))
	got := g.post(t, "/v1/chat/completions", script.body)
	if want := strings.Join(events, ""); got.body != want || got.err != nil {
		t.Errorf("%v; %s", got.err, cmp.Diff(want, got.body))
	}
	if rec := g.record(t); rec.Outcome != EngineError {
		t.Errorf("record: %+v", rec)
	}
}

// Bytes of routes that are not read pass as they come, sound for instance.
func TestUnreadAnswersStream(t *testing.T) {
	next := make(chan bool)
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			io.WriteString(w, "sound")
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	res, err := g.client.Post(g.url+"/v1/audio/speech", "application/json", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for range 3 {
		if _, err := io.ReadFull(res.Body, make([]byte, len("sound"))); err != nil {
			t.Fatal(err)
		}
		next <- true
	}
}

// An event that is larger than the buffer passes in parts; an error event that
// follows a part must still stand on its own.
func TestEngineDiesWithinALargeEvent(t *testing.T) {
	events := scripts["/v1/responses"].events
	begin := strings.Join(events[:2], "") + "event: response.output_text.delta\ndata: {\"delta\":\"" + strings.Repeat("x", 2*streamBuffer)
	seen := make(chan bool)
	g := newGateway(t, Limits{}, rawEngine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		take(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+begin)
		<-seen
	}))
	res, err := g.client.Post(g.url+"/v1/responses", "application/json", strings.NewReader(responsesBody))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, strings.LastIndex(begin, "event: ")+streamBuffer)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	close(seen)
	rest, err := io.ReadAll(res.Body)
	if !isCut(err) || !strings.Contains(string(rest), "x\n\nevent: error\ndata: {") {
		t.Errorf("%v, ending %q", err, rest[max(0, len(rest)-300):])
	}
}

func TestACompressedAnswerPasses(t *testing.T) {
	const body = "\x1f\x8b compressed"
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, body, "Content-Encoding", "gzip")))
	got := g.post(t, "/v1/chat/completions", chatBody)
	if got.status != 200 || got.body != body || got.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("got %d %v %q", got.status, got.header, got.body)
	}
	if rec := g.record(t); rec.Outcome != OK || rec.Usage.Known {
		t.Errorf("record: %+v", rec)
	}
}

func TestInterimAnswersAreLeftOut(t *testing.T) {
	g := newGateway(t, Limits{}, rawEngine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		take(r)
		fmt.Fprintf(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(chatAnswer), chatAnswer)
		r.Peek(1)
	}))
	got := g.post(t, "/v1/chat/completions", chatBody)
	if got.status != 200 || got.body != chatAnswer || got.header.Get("Link") != "" {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	if rec := g.record(t); rec.Status != 200 || rec.Outcome != OK {
		t.Errorf("record: %+v", rec)
	}
}

// TestAnswersWhoseEndTellsNothingAreMarkedSo to the pool, which knows when their
// engine dies.
func TestAnswersWhoseEndTellsNothingAreMarkedSo(t *testing.T) {
	whole := func(answer string) http.HandlerFunc { return answered(200, answer) }
	for _, tt := range []struct {
		name, path, body string
		engine           http.HandlerFunc
		want             bool
	}{
		{"a stream of responses", "/v1/responses", scripts["/v1/responses"].body, streamed(strings.Join(scripts["/v1/responses"].events, "")), true},
		{"a stream of chat", "/v1/chat/completions", chatStream, streamed(strings.Join(scripts["/v1/chat/completions"].events, "")), false},
		{"chat", "/v1/chat/completions", chatBody, whole(chatAnswer), false},
		{"a tool call", "/v1/chat/completions", chatBody, whole(`{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":null},"finish_reason":"tool_calls"}]}`), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, Limits{}, fakeEngine(t, tt.engine))
			if res := g.post(t, tt.path, tt.body); res.status != http.StatusOK || res.err != nil {
				t.Fatalf("%d, %v: %s", res.status, res.err, res.body)
			}
			g.record(t)
			if got := g.model.leases[0].unmarked; got != tt.want {
				t.Errorf("unmarked is %v, want %v", got, tt.want)
			}
			g.settled(t)
		})
	}
}
