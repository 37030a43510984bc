package faults

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/config"
)

// unfinished asserts that a stream which broke behind these events says so: an
// error event of its dialect, no mark of a regular end, a connection that is cut.
func unfinished(t *testing.T, d dialect, a answer, begin string) {
	t.Helper()
	rest, found := strings.CutPrefix(a.body, begin)
	if a.status != 200 || !found {
		t.Errorf("got %d %q, want what the engine sent first: %q", a.status, a.body, begin)
		return
	}
	at := strings.Index(rest, d.errs)
	if at < 0 || strings.Count(rest[at:], "\n\n") != 1 {
		t.Errorf("after the engine's events: %q, want one error event at the end", rest)
	}
	for _, end := range d.ends {
		if strings.Contains(rest, end) {
			t.Errorf("the stream looks finished: %q has %q", rest, end)
		}
	}
	if a.err == nil {
		t.Error("the connection ended cleanly")
	}
}

// A data-parallel server of which one engine dies ends what runs on its other
// ranks at once, with bytes that look like the regular end of an answer.
func TestAnswersThatADyingEngineAbortsAreNotPassedOffAsFinished(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect{chat, completions, messages} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", d.name, stream), func(t *testing.T) {
				t.Parallel()
				const running = 4 // on two ranks
				var begin string
				if stream {
					begin = strings.Join(d.events("one ", "two ")[:3], "")
				}
				arrived, die := make(chan bool, running), make(chan struct{})
				dying := newEngine(t, 2, func(c *call) {
					if stream {
						c.begin()
						c.chunk(begin)
					}
					arrived <- true
					if !c.wait(die) {
						return
					}
					if stream {
						c.chunk(strings.Join(d.aborted, ""))
						c.end()
					} else {
						c.answer(200, d.abortedWhole)
					}
				})
				g := start(t, nil, dying, newEngine(t, 1, reply))
				g.admin("POST", "/api/models/tiny/replicas/2/drain", "", nil) // all go to the server that dies
				began, answers := make(chan bool, running), make(chan answer, running)
				for i := range running {
					go func() {
						answers <- g.watch(d.path, d.request(fmt.Sprint("turn ", i), stream, ""), len(begin), began, "X-Warden-Session", fmt.Sprint(i))
					}()
				}
				for range running {
					receive(t, "the requests to arrive", arrived)
					if stream {
						receive(t, "the streams to begin", began)
					}
				}
				g.admin("POST", "/api/models/tiny/replicas/2/resume", "", nil)
				close(die)
				for range running {
					a := receive(t, "an answer", answers)
					if stream {
						unfinished(t, d, a, begin)
					} else if a.status != 200 || a.body != d.whole("one two three") || a.replica() != "2" {
						t.Errorf("got %d from replica %s: %s", a.status, a.replica(), a.body)
					}
				}
				want := map[string]int{"engine_error": running}
				if !stream {
					want = map[string]int{"ok": running}
				}
				g.settled(want)
			})
		}
	}
}

// While one rank of a server hangs in its death, its probes succeed. The first
// connection that breaks takes all ranks out, and every request that hung is
// answered by the other server.
func TestNoRequestIsSentTwiceIntoADyingServer(t *testing.T) {
	t.Parallel()
	arrived := make(chan *call, 100)
	dying := newEngine(t, 2, reply)
	other := newEngine(t, 1, reply)
	g := start(t, nil, dying, other)
	turn := func(i int) answer {
		return g.post(chat.path, chat.request("opening", false, ""), "X-Warden-Session", fmt.Sprint("conversation ", i))
	}
	homes := map[string][]int{}
	for i := range 9 {
		r := turn(i).replica()
		homes[r] = append(homes[r], i)
	}
	if len(homes["0"]) != 3 || len(homes["1"]) != 3 || len(homes["2"]) != 3 {
		t.Fatalf("homes %v", homes)
	}
	dying.on(func(c *call) {
		arrived <- c
		c.left()
	})
	displaced := slices.Concat(homes["0"], homes["1"])
	answers := make(chan answer, len(displaced))
	for _, i := range displaced {
		go func() {
			a, err := g.ask(t.Context(), chat.path, chat.request("hangs", false, ""), "X-Warden-Session", fmt.Sprint("conversation ", i))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range displaced {
		receive(t, "the requests to hang", arrived)
	}
	dying.die()
	for range displaced {
		if a := receive(t, "an answer", answers); a.status != 200 || a.replica() != "2" {
			t.Errorf("got %d, %s on replica %s: %s", a.status, a.decision(), a.replica(), a.body)
		}
	}
	g.awaitStates(func(r replicaRow) bool { return r.State == map[bool]string{true: "ready", false: "down"}[r.Index == 2] })
	for i := range 9 {
		if a := turn(i); a.status != 200 || a.replica() != "2" {
			t.Errorf("conversation %d: %d, %s on replica %s", i, a.status, a.decision(), a.replica())
		}
	}
	times := map[string]int{}
	for _, c := range dying.seen() {
		if times[c.id()]++; times[c.id()] > 1 {
			t.Errorf("request %s was sent %d times to the dying server", c.id(), times[c.id()])
		}
	}

	dying.on(reply)
	dying.listen()
	g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
	if a := turn(100); a.replica() == "2" {
		t.Error("the server that came back gets no new conversation")
	}
	g.settled(map[string]int{"ok": 9 + 6 + 9 + 1})
}

// A connection to a server that was down may break long after the server is
// back, as when its machine was started anew. That is no news of the server.
func TestWhatBreaksLateDoesNotTakeARecoveredServerOut(t *testing.T) {
	t.Parallel()
	arrived, breaks := make(chan bool, 1), make(chan struct{})
	back, other := newEngine(t, 1, reply), newEngine(t, 1, reply)
	g := start(t, func(c *config.Config) { c.ScrapeInterval = config.Duration(time.Second) }, back, other)
	turn := func(text, session string) answer {
		return g.post(chat.path, chat.request(text, false, ""), "X-Session-Id", session)
	}
	sessions := map[string]string{}
	for _, s := range []string{"a", "b", "c", "d"} {
		sessions[turn("hello", s).replica()] = s
	}
	back.on(func(c *call) {
		if !strings.Contains(string(c.body), "hangs") {
			reply(c)
			return
		}
		arrived <- true
		if c.wait(breaks) {
			c.reset()
		}
	})
	answers := make(chan answer, 1)
	go func() {
		a, err := g.ask(t.Context(), chat.path, chat.request("hangs", false, ""), "X-Session-Id", "hangs", "X-Data-Parallel-Rank", "0")
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}()
	receive(t, "the request to arrive", arrived)
	is := func(state string) {
		await(t, "replica 0 to be "+state, func() error {
			if s := g.model().Replicas[0].State; s != state {
				return fmt.Errorf("it is %s", s)
			}
			return nil
		})
	}
	back.probe("/health", func(c *call) { c.answer(503, "") })
	is("down")
	back.probe("/health", func(c *call) { c.answer(200, "") })
	is("ready")
	close(breaks)
	receive(t, "the answer of the request that hung", answers)
	if a := turn("hello again", sessions["0"]); a.replica() != "0" || a.decision() != "stayed" {
		t.Errorf("%s on replica %s", a.decision(), a.replica())
	}
}

// An engine that hangs sends heads and answers probes. It gets no new
// conversation while it does, and recovers by itself.
func TestAReplicaThatMakesNoProgressGetsNoNewConversation(t *testing.T) {
	t.Parallel()
	arrived, again := make(chan bool, 10), make(chan struct{})
	hung, other := newEngine(t, 1, reply), newEngine(t, 1, reply)
	g := start(t, func(c *config.Config) { c.Timeouts.Stuck = config.Duration(300 * time.Millisecond) }, hung, other)
	turn := func(session string) answer {
		return g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", session)
	}
	for turn("mine").replica() != "0" {
		t.Fatal("the first conversation is not on replica 0")
	}
	hung.on(func(c *call) {
		c.begin() // the head comes, as vLLM sends it before it queues
		arrived <- true
		if c.wait(again) {
			for _, ev := range chat.events("at ", "last") {
				c.chunk(ev)
			}
			c.end()
		}
	})
	answers := make(chan answer, 1)
	go func() { answers <- g.watch(chat.path, chat.request("hangs", true, ""), 0, nil, "X-Session-Id", "mine") }()
	receive(t, "the request to arrive", arrived)
	state := func(i int) string { return g.model().Replicas[i].State }
	await(t, "the replica to be stuck", func() error {
		if s := state(0); s != "stuck" {
			return fmt.Errorf("it is %s", s)
		}
		return nil
	})
	for i := range 6 {
		if a := turn(fmt.Sprint("new ", i)); a.replica() != "1" || a.decision() != "placed" {
			t.Errorf("a new conversation: %s on replica %s", a.decision(), a.replica())
		}
	}
	if s := state(1); s != "ready" {
		t.Errorf("the other replica is %s", s)
	}
	close(again)
	if a := receive(t, "the answer", answers); a.status != 200 || a.err != nil || a.body != strings.Join(chat.events("at ", "last"), "") {
		t.Errorf("the answer that hung: %d %v %q", a.status, a.err, a.body)
	}
	g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
	if a := turn("mine"); a.replica() != "0" || a.decision() != "stayed" {
		t.Errorf("afterwards: %s on replica %s", a.decision(), a.replica())
	}
	g.settled(map[string]int{"ok": 9})
}

// What stops for ever without an end, as the streams of a vLLM that is asked to
// stop within --shutdown-timeout, ends for the client.
func TestAStreamThatFallsSilentEndsWithAnError(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			begin := strings.Join(d.events("one ", "two ")[:2], "")
			left := make(chan bool, 1)
			e := newEngine(t, 1, func(c *call) {
				c.begin()
				c.chunk(begin)
				c.left()
				left <- true
			})
			g := start(t, func(c *config.Config) { c.Timeouts.StreamIdle = config.Duration(300 * time.Millisecond) }, e)
			unfinished(t, d, g.watch(d.path, d.request("hello", true, ""), len(begin), make(chan bool, 1)), begin)
			receive(t, "the engine to be left", left)
			g.settled(map[string]int{"engine_error": 1})
		})
	}
}

// A vLLM that is asked to stop takes no connection any more and leaves what it has
// not finished without an error and without an end. Nobody waits for it for as
// long as a silent engine may take.
func TestWhatAStoppedEngineLeavesHangingEnds(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			begin := strings.Join(d.events("one ", "two ")[:2], "")
			arrived, left := make(chan bool, 3), make(chan bool, 3)
			stopping := newEngine(t, 1, func(c *call) {
				if isStream(c.body) {
					c.begin()
				}
				if strings.Contains(string(c.body), "begins") {
					c.chunk(begin)
				}
				arrived <- true
				c.left()
				left <- true
			})
			other := newEngine(t, 1, reply)
			g := start(t, func(c *config.Config) { c.Timeouts.Stuck = config.Duration(500 * time.Millisecond) }, stopping, other)
			g.admin("POST", "/api/models/tiny/replicas/1/drain", "", nil) // all go to the server that stops
			begun, unbegun := make(chan answer, 1), make(chan answer, 2)
			began := make(chan bool, 1)
			go func() {
				begun <- g.watch(d.path, d.request("begins", true, ""), len(begin), began, "X-Session-Id", "a")
			}()
			for _, stream := range []bool{true, false} {
				go func() {
					unbegun <- g.watch(d.path, d.request("does not", stream, ""), 0, nil, "X-Session-Id", fmt.Sprint(stream))
				}()
			}
			receive(t, "the stream to begin", began)
			for range 3 {
				receive(t, "the requests to arrive", arrived)
			}
			g.admin("POST", "/api/models/tiny/replicas/1/resume", "", nil)
			stopping.stop()
			unfinished(t, d, receive(t, "the end of the stream that began", begun), begin)
			for range 2 {
				a := receive(t, "an answer", unbegun)
				if whole := strings.Join(d.events("one ", "two ", "three"), ""); a.status != 200 || a.replica() != "1" || a.err != nil || a.body != whole && a.body != d.whole("one two three") {
					t.Errorf("got %d from replica %s, %v: %s", a.status, a.replica(), a.err, a.body)
				}
			}
			for range 3 {
				receive(t, "the stopped engine to be left", left)
			}
			g.settled(map[string]int{"engine_error": 1, "ok": 2})
		})
	}
}

// An engine that takes a request and hangs up is an error with words, in the
// client's dialect; never an empty answer.
func TestAFailureBeforeTheFirstByteIsNoEmptyAnswer(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	n := 0
	for _, broken := range []script{
		(*call).reset,
		(*call).close,
		func(c *call) { c.begin(); c.reset() },
		func(c *call) { c.begin(); c.end() },
		func(c *call) { c.answer(200, "") },
		func(c *call) { c.write(head(200, "Content-Length", "1000")); c.close() },
	} {
		for _, d := range dialects {
			for _, stream := range []bool{true, false} {
				e.on(broken)
				a := g.post(d.path, d.request("hello", stream, ""))
				if a.status != http.StatusBadGateway || a.fault() != "engine-unreachable" || strings.HasPrefix(a.body, `{"type":"error"`) != d.anthropic || !strings.Contains(a.body, "replica 0") {
					t.Errorf("%s, stream %v: got %d %s %q", d.name, stream, a.status, a.fault(), a.body)
				}
				n++
				// A good answer between them, else the engine is left alone for longer each time.
				e.on(reply)
				g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
				if a := g.post(d.path, d.request("hello", stream, "")); a.status != 200 {
					t.Errorf("%s, stream %v, right after: %d %q", d.name, stream, a.status, a.body)
				}
			}
		}
	}
	g.settled(map[string]int{"engine_error": n, "ok": n})
}

// Where there is no better server, one that keeps failing is asked nevertheless:
// nobody is refused for what happened to others, and the first good answer comes
// as soon as there is one.
func TestTheOnlyServerIsAskedHoweverOftenItFails(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]script{
		"reset":           (*call).reset,
		"reset in a body": func(c *call) { c.begin(); c.reset() },
		"a web page":      func(c *call) { c.answer(200, "<html>", "Content-Type", "text/html") },
		"dead engine":     func(c *call) { c.answer(500, `{"error":{"message":"dead","type":"InternalServerError","code":500}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, 1, broken)
			g := start(t, nil, e)
			const failures = 12
			for i := range failures {
				a := g.post(chat.path, chat.request("hello", i%2 == 0, ""), "X-Session-Id", "mine")
				if a.status != http.StatusBadGateway && a.status != http.StatusInternalServerError || len(e.seen()) != i+1 {
					t.Errorf("request %d: %d %s, %d have reached the engine", i, a.status, a.body, len(e.seen()))
				}
			}
			e.on(reply)
			if a := g.post(chat.path, chat.request("hello", false, ""), "X-Session-Id", "mine"); a.status != 200 {
				t.Errorf("when it works again: %d %s", a.status, a.body)
			}
			g.settled(map[string]int{"engine_error": failures, "ok": 1})
		})
	}
}

// A client that leaves takes its request at the engine with it, at once, however
// far the answer is.
func TestACancelReachesTheEngineWithinASecond(t *testing.T) {
	t.Parallel()
	reasoning := chatChunk(`{"role":"assistant","content":""}`, "null") + chatChunk(`{"reasoning":"hm"}`, "null")
	thinking := named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`)
	begins := map[string]script{
		"before the head":   func(*call) {},
		"before the body":   func(c *call) { c.begin() },
		"while it reasons":  func(c *call) { c.begin(); c.chunk(reasoning); c.chunk(thinking) },
		"within a text":     func(c *call) { c.begin(); c.chunk(chat.events("one")[1]) },
		"within an event":   func(c *call) { c.begin(); c.chunk("data: {") },
		"in a whole answer": func(c *call) { c.write(head(200, "Content-Length", "100") + `{"id":`) },
	}
	for name, begin := range begins {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, left := make(chan bool), make(chan bool, 1)
			e := newEngine(t, 1, func(c *call) {
				begin(c)
				arrived <- true
				c.left()
				left <- true
			})
			g := start(t, nil, e)
			n := 0
			for _, d := range dialects {
				for _, stream := range []bool{true, false} {
					ctx, leave := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() {
						res, err := g.send(ctx, d.path, d.request("hello", stream, ""))
						if err == nil {
							_, err = io.Copy(io.Discard, res.Body)
							res.Body.Close()
						}
						done <- err
					}()
					receive(t, "the request to arrive", arrived)
					gone := time.Now()
					leave()
					receive(t, "the engine to be left", left)
					if took := time.Since(gone); took > time.Second {
						t.Errorf("%s, stream %v: the engine worked on for %s", d.name, stream, took)
					}
					if err := receive(t, "the client to leave", done); err == nil {
						t.Errorf("%s, stream %v: a whole answer", d.name, stream)
					}
					n++
				}
			}
			g.settled(map[string]int{"cancelled": n})
		})
	}
}
