package faults

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"lmwarden/internal/config"
)

// Engines close idle connections, vLLM after 5 s, while agents think for about
// as long. No turn may meet a connection that is being closed.
func TestNoTurnIsLostToAnIdleConnectionThatTheEngineCloses(t *testing.T) {
	t.Parallel()
	filling := 200 << 10
	if raced {
		filling = 20 << 10 // the detector makes reading JSON some twenty times slower
	}
	for _, tt := range []struct {
		idle          time.Duration
		conversations int
		gaps          []time.Duration
	}{
		{5 * time.Second, 125, []time.Duration{4900 * time.Millisecond, 5 * time.Second, 5100 * time.Millisecond}},
		// Some other server with a limit below any that we would keep.
		{300 * time.Millisecond, 25, []time.Duration{
			299 * time.Millisecond, 300 * time.Millisecond, 301 * time.Millisecond, 300 * time.Millisecond, 299 * time.Millisecond,
			300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond,
		}},
	} {
		t.Run(tt.idle.String(), func(t *testing.T) {
			t.Parallel()
			list := engines(t, 2, reply)
			for _, e := range list {
				e.idleFor(tt.idle)
			}
			g := start(t, nil, list...)
			long := strings.Repeat("x", filling)
			var all sync.WaitGroup
			for i := range tt.conversations {
				all.Go(func() {
					d := dialects[i%len(dialects)]
					for turn := 0; ; turn++ {
						a, err := g.ask(t.Context(), d.path, d.request(long, i%2 == 0, ""), "X-Warden-Session", fmt.Sprint(i))
						if err != nil || a.status != 200 || a.err != nil {
							t.Errorf("conversation %d, turn %d: %d %v %v %.200s", i, turn, a.status, err, a.err, a.body)
						}
						if turn == len(tt.gaps) {
							return
						}
						<-time.After(tt.gaps[turn]) // the gap is what is tested
					}
				})
			}
			all.Wait()
			g.settled(map[string]int{"ok": tt.conversations * (1 + len(tt.gaps))})
		})
	}
}

// An engine that closes its connections sooner than others do wants a limit below
// that.
func TestUnusedConnectionsToAnEngineAreClosedWhenConfigured(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	closed := make(chan time.Duration, 1)
	e := newEngine(t, 1, func(c *call) {
		reply(c)
		answered := time.Now()
		c.left()
		closed <- time.Since(answered)
	})
	g := start(t, func(c *config.Config) { c.Timeouts.EngineIdle = config.Duration(limit) }, e)
	if a := g.post(chat.path, chat.request("hello", false, "")); a.status != 200 {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	if after := receive(t, "the connection to be closed", closed); after < limit || after > 3*time.Second {
		t.Errorf("closed after %s, want %s", after, limit)
	}
}

// What an engine refuses is the client's matter: it neither takes the engine out
// nor costs the conversation its home.
func TestARefusalNeverMarksAnEngineDown(t *testing.T) {
	t.Parallel()
	e, other := newEngine(t, 1, reply), newEngine(t, 1, reply)
	g := start(t, nil, e, other)
	home := g.post(chat.path, chat.request("hello", false, ""), "X-Warden-Session", "one").replica()
	if home != "0" {
		e = other
	}
	const each = 5
	statuses := []int{400, 401, 404, 413, 422, 429}
	for _, status := range statuses {
		for range each {
			e.on(func(c *call) {
				c.answer(status, `{"error":{"message":"no"}}`, "Retry-After", "7", "x-should-retry", "false")
			})
			a := g.post(chat.path, chat.request("hello", true, ""), "X-Warden-Session", "one")
			if a.status != status || a.replica() != home || a.header.Get("Retry-After") != "7" || a.header.Get("X-Should-Retry") != "false" || a.fault() != "" {
				t.Errorf("got %d from replica %s: %v", a.status, a.replica(), a.header)
			}
		}
		for _, r := range g.model().Replicas {
			if r.State != "ready" {
				t.Errorf("after %d: replica %d is %s", status, r.Index, r.State)
			}
		}
		e.on(reply)
		if a := g.post(chat.path, chat.request("hello", false, ""), "X-Warden-Session", "one"); a.status != 200 || a.replica() != home || a.decision() != "stayed" {
			t.Errorf("after %d: %d, %s on replica %s", status, a.status, a.decision(), a.replica())
		}
	}
	g.settled(map[string]int{"ok": 1 + len(statuses), "client_error": each * len(statuses)})
}

// A queue limit is no fault: another replica is tried, once, and the
// conversation keeps its home.
func TestAnEngineThatIsBusyIsNotBlamed(t *testing.T) {
	t.Parallel()
	list := engines(t, 3, reply)
	g := start(t, nil, list...)
	turn := func() answer {
		return g.post(messages.path, messages.request("hello", true, ""), "X-Warden-Session", "one")
	}
	home := turn().replica()
	busy := func(c *call) {
		c.answer(503, `{"type":"error","error":{"type":"Service Unavailable","message":"The engine is currently busy"}}`)
	}
	at := int(home[0] - '0')
	list[at].on(busy)
	for range 20 {
		if a := turn(); a.status != 200 || a.replica() == home {
			t.Errorf("got %d from replica %s", a.status, a.replica())
		}
	}
	for _, e := range list {
		e.on(busy)
	}
	before := len(list[0].seen()) + len(list[1].seen()) + len(list[2].seen())
	a := turn()
	if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "currently busy") {
		t.Errorf("got %d %v %s", a.status, a.header, a.body)
	}
	if n := len(list[0].seen()) + len(list[1].seen()) + len(list[2].seen()) - before; n != 2 {
		t.Errorf("the request was sent %d times, want 2", n)
	}
	for _, r := range g.model().Replicas {
		if r.State != "ready" {
			t.Errorf("replica %d is %s", r.Index, r.State)
		}
	}
	for _, e := range list {
		e.on(reply)
	}
	if a := turn(); a.replica() != home || a.decision() != "stayed" {
		t.Errorf("%s on replica %s, want stayed on %s", a.decision(), a.replica(), home)
	}
	g.settled(map[string]int{"ok": 22, "engine_error": 1})
}

// One engine that accepts and never answers costs nobody else anything.
func TestAHungEngineStallsNobodyElse(t *testing.T) {
	t.Parallel()
	list := engines(t, 3, reply)
	g := start(t, func(c *config.Config) { c.Timeouts.FirstByte = config.Duration(3 * time.Second) }, list...)
	// Six conversations, two at home on each replica.
	at := map[int]string{}
	for i := range 6 {
		at[i] = g.post(chat.path, chat.request("hello", false, ""), "X-Warden-Session", fmt.Sprint(i)).replica()
	}
	list[0].on((*call).left)
	var all sync.WaitGroup
	var worst struct {
		sync.Mutex
		took time.Duration
	}
	for i := range 6 {
		all.Go(func() {
			for range 20 {
				began := time.Now()
				a, err := g.ask(t.Context(), chat.path, chat.request("hello", true, ""), "X-Warden-Session", fmt.Sprint(i))
				took := time.Since(began)
				switch {
				case err != nil:
					t.Error(err)
				case at[i] == "0":
					if a.status != http.StatusGatewayTimeout || a.fault() != "engine-timeout" || took < 3*time.Second {
						t.Errorf("at the hung engine: %d %s after %s", a.status, a.fault(), took)
					}
					return
				default:
					worst.Lock()
					worst.took = max(worst.took, took)
					worst.Unlock()
					if a.status != 200 || a.replica() != at[i] {
						t.Errorf("elsewhere: %d from replica %s", a.status, a.replica())
					}
				}
			}
		})
	}
	all.Wait()
	if worst.took > time.Second {
		t.Errorf("a turn elsewhere took %s", worst.took)
	}
	g.settled(map[string]int{"ok": 6 + 4*20, "engine_error": 2})
}

// speak sends bytes to the gateway and reads its answers until it closes the
// connection or has answered n times.
func speak(t *testing.T, g *gateway, text string, n int) []*http.Response {
	t.Helper()
	c := g.dial()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	var all []*http.Response
	for in := bufio.NewReader(c); len(all) < n; {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			break
		}
		body, _ := io.ReadAll(res.Body)
		res.Body = io.NopCloser(strings.NewReader(string(body)))
		all = append(all, res)
	}
	return all
}

func statuses(all []*http.Response) []string {
	var list []string
	for _, res := range all {
		list = append(list, res.Status)
	}
	return list
}

// Two readings of where a request ends let one request hide in another.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	body := chat.request("hello", false, "")
	hidden := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: hidden\r\nContent-Length: 2\r\n\r\n{}"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	for name, tt := range map[string]struct {
		head, body string
		status     int
	}{
		"two lengths":                 {fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d", len(body), len(body)+len(hidden)), body + hidden, 400},
		"a list of lengths":           {fmt.Sprintf("Content-Length: %d, %d", len(body), len(body)+1), body, 400},
		"a negative length":           {"Content-Length: -1", body, 400},
		"a length with a sign":        {fmt.Sprintf("Content-Length: +%d", len(body)), body, 400},
		"two transfer encodings":      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", chunked, 501},
		"an unknown encoding":         {"Transfer-Encoding: gzip, chunked", chunked, 501},
		"a hidden encoding":           {"Transfer-Encoding: xchunked", chunked, 501},
		"a space before the colon":    {"Transfer-Encoding : chunked", chunked, 400},
		"a control character":         {"X-Odd: a\x00b\r\nContent-Length: " + fmt.Sprint(len(body)), body, 400},
		"a chunk size that overflows": {"Transfer-Encoding: chunked", "fffffffffffffffff\r\n" + body, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := speak(t, g, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+tt.head+"\r\n\r\n"+tt.body, 2)
			if len(all) != 1 || all[0].StatusCode != tt.status {
				t.Errorf("got %d answers: %v", len(all), statuses(all))
			}
		})
	}
	t.Run("same length twice", func(t *testing.T) {
		t.Parallel()
		all := speak(t, g, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: same\r\nContent-Length: %d\r\nContent-Length: %d\r\n\r\n%s", len(body), len(body), body), 1)
		if len(all) != 1 || all[0].StatusCode != 200 {
			t.Errorf("got %v", statuses(all))
		}
	})
	t.Cleanup(func() {
		for _, c := range e.seen() {
			if c.id() != "same" {
				t.Errorf("the engine was asked %q", c.head)
			}
		}
	})
}

// A length beside chunks is for the chunks to overrule; the engine sees a length
// of ours and no chunks.
func TestALengthBesideChunksIsNotPassedOn(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	body := chat.request("hello", false, "")
	all := speak(t, g, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body), 1)
	if len(all) != 1 || all[0].StatusCode != 200 {
		t.Fatalf("got %v", statuses(all))
	}
	c := e.seen()[0]
	if string(c.body) != body || c.header.Get("Transfer-Encoding") != "" || c.header.Get("Content-Length") != fmt.Sprint(len(body)) {
		t.Errorf("the engine was asked %q %q", c.head, c.body)
	}
}

// Headers of one connection end at it, in both directions, and nothing that a
// client wishes for CORS is thrown back at it.
func TestHeadersOfOneConnectionEndThere(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, func(c *call) {
		c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n" +
			"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\nX-Kept: yes\r\n\r\n")
		c.chunk(chat.whole("hello"))
		c.write("0\r\nX-Late: 1\r\n\r\n")
	})
	g := start(t, nil, e)
	body := chat.request("hello", false, "")
	all := speak(t, g, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 1\r\nTe: trailers\r\nUpgrade: h2c\r\nHttp2-Settings: AAMAAABk\r\n"+
		"Proxy-Connection: keep-alive\r\nX-Kept: yes\r\nContent-Length: %d\r\n\r\n%s", len(body), body), 1)
	if len(all) != 1 || all[0].StatusCode != 200 {
		t.Fatalf("got %v", statuses(all))
	}
	for name := range all[0].Header {
		switch name {
		case "Content-Type", "X-Kept", "Date", "Content-Length", "X-Request-Id", "X-Warden-Replica", "X-Warden-Decision", "X-Warden-Conversation":
		default:
			t.Errorf("%s reached the client: %q", name, all[0].Header[name])
		}
	}
	if len(all[0].Trailer) > 0 {
		t.Errorf("trailers %v", all[0].Trailer)
	}
	c := e.seen()[0]
	for _, name := range []string{"Connection", "X-Mine", "Keep-Alive", "Te", "Upgrade", "Http2-Settings", "Proxy-Connection"} {
		if v, there := c.header[name]; there {
			t.Errorf("%s reached the engine: %q", name, v)
		}
	}
	if c.header.Get("X-Kept") != "yes" {
		t.Errorf("the engine saw %q", c.head)
	}

	for _, wish := range []string{"x-a", "x-a\tb", "x-a, Set-Cookie: a=b", strings.Repeat("x-long,", 1000)} {
		all := speak(t, g, "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "+wish+"\r\n\r\n", 1)
		if len(all) != 1 || all[0].StatusCode/100 != 4 {
			t.Fatalf("got %v", statuses(all))
		}
		for name, values := range all[0].Header {
			if strings.HasPrefix(name, "Access-Control-") || strings.Contains(strings.Join(values, ""), wish) {
				t.Errorf("%s: %.100q", name, values)
			}
		}
	}
}

// What an engine must not be able to do with its heads.
func TestOddHeadsOfAnEngineAreAnswersOrErrors(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	good := chat.whole("hello")
	for name, tt := range map[string]struct {
		engine script
		status int
	}{
		"a redirect": {func(c *call) { c.answer(307, "", "Location", "http://elsewhere.example/") }, 502},
		"a long header": {func(c *call) {
			c.answer(200, good, "X-Long", strings.Repeat("v", 100<<10))
		}, 200},
		"endless headers": {func(c *call) {
			c.write("HTTP/1.1 200 OK\r\n")
			for range 3 << 10 {
				c.write("X-More: " + strings.Repeat("v", 1<<10) + "\r\n")
			}
			c.close()
		}, 502},
		"a charset": {func(c *call) { c.answer(200, good, "Content-Type", "application/json;charset=UTF-8") }, 200},
		"no type":   {func(c *call) { c.answer(200, good, "Content-Type", "") }, 502},
		"HTML":      {func(c *call) { c.answer(200, "<html>", "Content-Type", "text/html") }, 502},
		"two lengths": {func(c *call) {
			c.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello")
			c.close()
		}, 502},
		"no HTTP":   {func(c *call) { c.write("SSH-2.0-OpenSSH_9.9\r\n"); c.close() }, 502},
		"status 99": {func(c *call) { c.write("HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n"); c.close() }, 502},
		"a 101": {func(c *call) {
			c.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			c.close()
		}, 502},
		"hints before": {func(c *call) { c.write("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"); c.answer(200, good) }, 200},
		"more than said": {func(c *call) {
			c.write(head(200, "Content-Length", fmt.Sprint(len(good))) + good + "HTTP/1.1 200 OK\r\n\r\nstray")
		}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			e.on(tt.engine)
			await(t, "the replica to be ready", func() error {
				if m := g.model(); m.Replicas[0].State != "ready" {
					return fmt.Errorf("it is %s", m.Replicas[0].State)
				}
				return nil
			})
			a := g.post(chat.path, chat.request("hello", false, ""))
			if a.status != tt.status || a.status == 200 && a.body != good {
				t.Errorf("got %d %q", a.status, a.body)
			}
			e.on(reply)
			await(t, "a good answer", func() error {
				if a := g.post(chat.path, chat.request("hello", false, "")); a.status != 200 {
					return fmt.Errorf("got %d %s", a.status, a.body)
				}
				return nil
			})
		})
	}
}
