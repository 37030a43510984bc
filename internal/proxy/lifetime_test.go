package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/routing"
)

// A client that leaves takes its request at the engine with it, at once.
func TestClientLeaves(t *testing.T) {
	chat := scripts["/v1/chat/completions"]
	tests := []struct {
		name, body string
		begin      string // what the engine sends before the client leaves
	}{
		{"stream, before headers", chat.body, ""},
		{"no stream, before headers", chatBody, ""},
		{"in the middle of a stream", chat.body, chat.events[0]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			arrived, gone := make(chan bool), make(chan bool)
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if tt.begin != "" {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, tt.begin)
					w.(http.Flusher).Flush()
				}
				close(arrived)
				<-r.Context().Done()
				close(gone)
			}))
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/chat/completions", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() {
				res, err := g.client.Do(req)
				if err == nil {
					first := make([]byte, len(tt.begin))
					_, err = io.ReadFull(res.Body, first)
					leave()
					res.Body.Close()
				}
				done <- err
			}()
			<-arrived
			if tt.begin == "" {
				leave()
			}
			<-done
			select {
			case <-gone:
			case <-time.After(5 * time.Second):
				t.Fatal("the engine still works after 5 s")
			}
			rec := g.record(t)
			status := statusCancelled
			if tt.begin != "" {
				status = 200
			}
			if rec.Outcome != Cancelled || rec.Status != status || rec.Attempts != 1 {
				t.Errorf("record: %+v", rec)
			}
			if l := g.model.leases[0]; l.outcome.OK || len(l.retries) > 0 {
				t.Errorf("lease: %+v", l)
			}
			g.settled(t)
		})
	}
}

func TestClientLeavesWithinItsBody(t *testing.T) {
	g := newGateway(t, Limits{}, refusing(t))
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n{")
	c.Close()
	if rec := g.record(t); rec.Outcome != Cancelled || rec.Status != statusCancelled || rec.Attempts != 0 {
		t.Errorf("record: %+v", rec)
	}
}

func TestStoppingRefusesNewRequestsAndFinishesOpenOnes(t *testing.T) {
	script := scripts["/v1/messages"]
	next := make(chan bool)
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		streamed(script.events[:2]...)(w, r)
		<-next
		io.WriteString(w, strings.Join(script.events[2:], ""))
	}))
	res, err := g.client.Post(g.url+"/v1/messages", "application/json", strings.NewReader(script.body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	drained := g.Stopping()
	got := g.post(t, "/v1/messages", script.body)
	if got.status != 503 || got.header.Get(headerError) != "stopping" || got.header.Get("Retry-After") != "1" || !strings.HasPrefix(got.body, `{"type":"error"`) {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	select {
	case <-drained:
		t.Error("drained while a stream is open")
	default:
	}
	close(next)
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != strings.Join(script.events, "") {
		t.Errorf("the open stream: %v %q", err, b)
	}
	<-drained
	if got := g.post(t, "/v1/messages", script.body); got.status != 503 {
		t.Errorf("after the last open answer: %d", got.status)
	}
	<-g.Stopping() // at once: a refused request opens nothing
}

// 300 requests at once, of all kinds, over engines that fail in all ways: each
// has one record and one end of its lease.
func TestNothingLeaksUnderLoad(t *testing.T) {
	chat, messages := scripts["/v1/chat/completions"], scripts["/v1/messages"]
	good := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/messages":
			streamed(messages.events...)(w, r)
		case r.Header.Get("X-Stream") != "":
			streamed(chat.events...)(w, r)
		default:
			answered(200, chatAnswer)(w, r)
		}
	})
	reset := rawEngine(t, func(n int, c net.Conn, r *bufio.Reader) {
		take(r)
		if n%2 == 0 {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+chat.events[0])
		}
	})
	g := newGateway(t, Limits{}, reset, good, refusing(t))
	g.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 50
	const requests = 300
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			path, body := "/v1/chat/completions", chatBody
			header := http.Header{headerRank: {fmt.Sprint(i % 3)}}
			switch i % 4 {
			case 0:
				path, body = "/v1/messages", messages.body
			case 1:
				body = chat.body
				header.Set("X-Stream", "1")
			case 2:
				header.Set(headerRank, "x")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", g.url+path, strings.NewReader(body))
			req.Header = header
			res, err := g.client.Do(req)
			if err != nil {
				return
			}
			if i%7 == 0 {
				cancel()
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		})
	}
	wg.Wait()
	for range requests {
		g.record(t)
	}
	g.settled(t)
}

func TestAPanicIsRecordedAndReleasesTheLease(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, chatAnswer)))
	g.model.panics = true
	res, err := g.client.Post(g.url+"/v1/chat/completions", "application/json", strings.NewReader(chatBody))
	if err == nil {
		res.Body.Close()
		t.Errorf("got %d", res.StatusCode)
	}
	if rec := g.record(t); rec.Outcome != GatewayError || !strings.Contains(rec.Error, "on purpose") {
		t.Errorf("record: %+v", rec)
	}
	g.settled(t)
}

// pipes is a network within a synctest bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble runs a gateway in front of one engine without real time or sockets.
func inBubble(t *testing.T, limits Limits, h http.HandlerFunc, f func(t *testing.T, g *gateway)) {
	synctest.Test(t, func(t *testing.T) {
		front, back := newPipes(), newPipes()
		m := &fakeModel{name: "m", served: "m", reason: routing.Placed, bases: []*url.URL{{Scheme: "http", Host: "engine"}}}
		var g *gateway
		g = build(t, limits, func(ctx context.Context, network, addr string) (net.Conn, error) {
			g.dials++
			return back.dial(ctx, network, addr)
		}, m)
		g.url = "http://gateway"
		transport := &http.Transport{DialContext: front.dial}
		g.client = &http.Client{Transport: transport}
		// uvicorn closes idle connections after 5 s.
		engine, server := &http.Server{Handler: h, IdleTimeout: 5 * time.Second}, g.Server()
		var wg sync.WaitGroup
		wg.Go(func() { engine.Serve(back) })
		wg.Go(func() { server.Serve(front) })
		f(t, g)
		transport.CloseIdleConnections()
		server.Close()
		g.Close()
		engine.Close()
		wg.Wait()
		g.settled(t)
	})
}

func silent(begin string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if begin != "" {
			streamed(begin)(w, r)
		}
		<-r.Context().Done()
	}
}

func TestAnEngineThatNeverAnswersTimesOut(t *testing.T) {
	ways := map[string]http.HandlerFunc{
		"no headers": silent(""),
		"headers only": func(w http.ResponseWriter, r *http.Request) {
			streamed()(w, r)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	}
	for name, h := range ways {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Limits{FirstByte: time.Minute}, h, func(t *testing.T, g *gateway) {
				start := time.Now()
				got := g.post(t, "/v1/chat/completions", chatStream)
				if got.status != 504 || got.header.Get(headerError) != "engine-timeout" {
					t.Errorf("got %d %v %s", got.status, got.header, got.body)
				}
				if d := time.Since(start); d != time.Minute {
					t.Errorf("after %v", d)
				}
				if rec := g.record(t); rec.Outcome != EngineError || rec.Attempts != 1 || len(g.model.leases[0].retries) > 0 {
					t.Errorf("record: %+v", rec)
				}
			})
		})
	}
}

func TestAStreamThatFallsSilentIsFailed(t *testing.T) {
	begin := strings.Join(scripts["/v1/messages"].events[:2], "")
	inBubble(t, Limits{Idle: 20 * time.Second}, silent(begin), func(t *testing.T, g *gateway) {
		start := time.Now()
		failed(t, "/v1/messages", g.post(t, "/v1/messages", strings.ReplaceAll(messagesBody, "claude-x", "m")), begin)
		if d := time.Since(start); d < 20*time.Second || d > 20*time.Second+renewal {
			t.Errorf("after %v", d)
		}
		if rec := g.record(t); rec.Outcome != EngineError || rec.Error != errSilent.Error() {
			t.Errorf("record: %+v", rec)
		}
	})
}

// Engines announce an answer, and keep its stream alive, before they have read its
// prompt: how long that takes must not be learned from it.
func TestAnAnswerBeginsBehindItsAnnouncement(t *testing.T) {
	for path, announced := range map[string]int{"/v1/chat/completions": 0, "/v1/messages": 1, "/v1/responses": 1} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			script := scripts[path]
			var begun func() int
			var before, after int
			engine := func(w http.ResponseWriter, r *http.Request) {
				streamed(append([]string{": keep-alive\n\n"}, script.events[:announced]...)...)(w, r)
				before = begun()
				time.Sleep(time.Second) // the bubble's
				streamed(script.events[announced])(w, r)
				after = begun()
				streamed(script.events[announced+1:]...)(w, r)
			}
			inBubble(t, Limits{}, engine, func(t *testing.T, g *gateway) {
				begun = func() int {
					synctest.Wait()
					return g.model.leases[0].first
				}
				if got := g.post(t, path, strings.ReplaceAll(script.body, "claude-x", "m")); got.status != 200 || got.err != nil {
					t.Errorf("%d %v", got.status, got.err)
				}
				if rec := g.record(t); rec.Outcome != OK || before != 0 || after != 1 || rec.TTFB != time.Second {
					t.Errorf("begun %d times with its announcement and %d with its first part: %+v", before, after, rec)
				}
			})
		})
	}
}

// What an engine sends to show that it is alive reaches the client while the prompt
// is being read, and so does an announcement before it.
func TestSignsOfLifeAreNotHeldBack(t *testing.T) {
	const ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
	for _, sign := range []string{": keep-alive\n\n", ping} {
		script := scripts["/v1/messages"].events
		want := script[0] + sign
		seen := make(chan bool)
		g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			streamed(want)(w, r)
			<-seen
			streamed(script[1:]...)(w, r)
		}))
		res, err := g.client.Post(g.url+"/v1/messages", "application/json", strings.NewReader(strings.ReplaceAll(messagesBody, "claude-x", "m")))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
		close(seen)
		if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != strings.Join(script[1:], "") {
			t.Errorf("then %q, %v", rest, err)
		}
		res.Body.Close()
	}
}

func TestAnEmptyAnswerBeginsAtItsEnd(t *testing.T) {
	script := scripts["/v1/messages"].events
	g := newGateway(t, Limits{}, fakeEngine(t, streamed(script[0], script[len(script)-2], script[len(script)-1])))
	g.post(t, "/v1/messages", strings.ReplaceAll(messagesBody, "claude-x", "m"))
	if rec := g.record(t); rec.Outcome != OK || rec.TTFB == 0 || g.model.leases[0].first != 1 {
		t.Errorf("begun %d times: %+v", g.model.leases[0].first, rec)
	}
}

// The limit on the time to the answer holds until it begins.
func TestAnAnnouncedAnswerThatDoesNotComeTimesOut(t *testing.T) {
	script := scripts["/v1/responses"]
	inBubble(t, Limits{FirstByte: time.Minute, Idle: 20 * time.Second}, silent(script.events[0]), func(t *testing.T, g *gateway) {
		start := time.Now()
		if got := g.post(t, "/v1/responses", script.body); got.status != 504 || got.header.Get(headerError) != "engine-timeout" {
			t.Errorf("got %d %v %s", got.status, got.header, got.body)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("after %v", d)
		}
		if rec := g.record(t); rec.Outcome != EngineError || rec.Error != errSilent.Error() {
			t.Errorf("record: %+v", rec)
		}
	})
}

func TestSlowStreamsAreNotCut(t *testing.T) {
	script := scripts["/v1/chat/completions"]
	slow := func(w http.ResponseWriter, r *http.Request) {
		for _, e := range script.events {
			time.Sleep(19 * time.Second) // the bubble's time
			streamed(e)(w, r)
		}
	}
	inBubble(t, Limits{FirstByte: 20 * time.Second, Idle: 20 * time.Second}, slow, func(t *testing.T, g *gateway) {
		if got := g.post(t, "/v1/chat/completions", script.body); got.body != strings.Join(script.events, "") || got.err != nil {
			t.Errorf("%v %q", got.err, got.body)
		}
		if rec := g.record(t); rec.TTFB != 19*time.Second || rec.Duration != 95*time.Second {
			t.Errorf("record: %+v", rec)
		}
	})
}

// An agent thinks between its turns; its connection must still be good after.
func TestIdleClientConnectionsStayOpen(t *testing.T) {
	script := scripts["/v1/chat/completions"]
	inBubble(t, Limits{}, streamed(script.events...), func(t *testing.T, g *gateway) {
		dials := 0
		transport := g.client.Transport.(*http.Transport)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return dial(ctx, network, addr)
		}
		for _, idle := range []time.Duration{0, time.Minute, 10 * time.Minute} {
			time.Sleep(idle) // the bubble's time
			if got := g.post(t, "/v1/chat/completions", script.body); got.status != 200 || got.err != nil {
				t.Errorf("after %v: %d %v", idle, got.status, got.err)
			}
		}
		if dials != 1 {
			t.Errorf("%d connections were needed", dials)
		}
	})
}

func TestIdleEngineConnectionsAreGivenUpBeforeTheEngineClosesThem(t *testing.T) {
	inBubble(t, Limits{}, answered(200, chatAnswer), func(t *testing.T, g *gateway) {
		for _, idle := range []time.Duration{0, 3900, 4100, 4900, 5000, 5100, 3900} {
			time.Sleep(idle * time.Millisecond) // the bubble's time
			synctest.Wait()
			if got := g.post(t, "/v1/chat/completions", chatBody); got.status != 200 {
				t.Errorf("after %d ms: %d %s", idle, got.status, got.body)
			}
			g.record(t)
		}
		if g.dials != 5 { // all but those after 3.9 s
			t.Errorf("%d connections to the engine, want 5", g.dials)
		}
	})
}

func TestAClientThatNeverReadsIsDropped(t *testing.T) {
	flood := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			streamed(scripts["/v1/chat/completions"].events[1])(w, r)
		}
	}
	inBubble(t, Limits{ClientStall: time.Minute}, flood, func(t *testing.T, g *gateway) {
		res, err := g.client.Post(g.url+"/v1/chat/completions", "application/json", strings.NewReader(chatStream))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		start := time.Now()
		rec := <-g.records
		if d := time.Since(start); d < time.Minute || d > 2*time.Minute || rec.Outcome != Cancelled {
			t.Errorf("after %v: %+v", d, rec)
		}
	})
}

func TestABodyThatStallsIsRefused(t *testing.T) {
	inBubble(t, Limits{}, silent(""), func(t *testing.T, g *gateway) {
		body, w := io.Pipe()
		defer w.Close()
		go w.Write([]byte("{"))
		req, err := http.NewRequest("POST", g.url+"/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.do(t, req); got.status != 408 {
			t.Errorf("got %d %s", got.status, got.body)
		}
		if rec := g.record(t); rec.Outcome != ClientError || rec.Duration < 30*time.Second || rec.Duration > 30*time.Second+renewal {
			t.Errorf("record: %+v", rec)
		}
	})
}

func TestOneLogLineWithoutPromptOrCredentials(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, answered(200, chatAnswer)))
	g.model.key = "engine-secret"
	g.post(t, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"private words"}]}`,
		"Authorization", "Bearer client-secret", "X-Session-Id", "session-secret", "User-Agent", "somebody/1.2")
	line := <-g.lines
	if len(g.lines) > 0 {
		t.Errorf("another line: %s", <-g.lines)
	}
	for _, want := range []string{
		"msg=request", "request_id=req-", "path=/v1/chat/completions", "status=200", "outcome=ok", "model=m", "conversation=c-",
		"source=x-session-id", "client=somebody", "replica=0", "reason=placed", "attempts=1", "ttfb_ms=", "duration_ms=",
		"prompt_tokens=20", "cached_tokens=16", "completion_tokens=4", "bytes_in=", "bytes_out=",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
	for _, secret := range []string{"private", "secret"} {
		if strings.Contains(line, secret) {
			t.Errorf("%q is in the log: %s", secret, line)
		}
	}
}
