package vllm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// impatient runs a gateway with short limits on an engine's silence, since a
// stopping vLLM may leave answers hanging.
func impatient(t *testing.T, e *engine) *wardentest.Gateway {
	t.Helper()
	config := filepath.Join(t.TempDir(), "warden.yaml")
	text := fmt.Sprintf("models:\n  - engines:\n      - url: %s\ntimeouts:\n  first_byte: 40s\n  stream_idle: 20s\n", e.url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return warden.Gateway(t, nil, "--config", config)
}

// long is more tokens than an answer has time for in these tests.
const long = 2500

// A rank that hangs answers nothing and is in nobody's way: new conversations go
// elsewhere, and its own answers go on when it does.
func TestFrozenRank(t *testing.T) {
	e := running(t)
	g := warden.Gateway(t, []string{e.url})
	r := route{chatPath, true}
	frozen := send(t, g.URL, r, r.body(talk("an answer that will be interrupted"), 1000), pin(1))
	<-frozen.began

	p := e.rankProcess(t, 1)
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceFunc(func() { p.Signal(syscall.SIGCONT) })
	t.Cleanup(resume)
	stopped := time.Now()
	wardentest.WaitFor(t, time.Minute, "rank 1 to be stuck", func() error {
		if s := states(t, g); !slices.Equal(s, []string{"ready", "stuck"}) {
			return fmt.Errorf("states are %v", s)
		}
		return nil
	})
	t.Logf("rank 1 was marked stuck after %.1f s", time.Since(stopped).Seconds())

	// Rank 0 is the busier one, and yet the choice.
	var busy []*call
	for range 2 {
		c := send(t, g.URL, r, r.body(talk("a long answer"), long), pin(0))
		<-c.began
		busy = append(busy, c)
	}
	for c := range 4 {
		r := route{path: chatPath}
		a := ask(t, g.URL, r, r.body(talk(fmt.Sprint("conversation ", c)), 4), session(fmt.Sprint(c)))
		if a.replica() != "0" || a.reason() != "placed" {
			t.Errorf("a new conversation was %s on replica %s, want placed on 0", a.reason(), a.replica())
		}
	}
	if s := states(t, g); !slices.Equal(s, []string{"ready", "stuck"}) {
		t.Errorf("states are %v after new conversations, want rank 1 alone to be stuck", s)
	}

	t.Logf("rank 1 goes on after %.1f s", time.Since(stopped).Seconds())
	resume()
	if a := frozen.wait(); !a.finished() || !a.done {
		t.Errorf("the interrupted answer: %s", a)
	}
	wardentest.WaitFor(t, 20*time.Second, "rank 1 to be ready again", func() error {
		if s := states(t, g); !slices.Equal(s, []string{"ready", "ready"}) {
			return fmt.Errorf("states are %v", s)
		}
		return nil
	})
	for _, c := range busy {
		if a := c.wait(); !a.finished() {
			t.Errorf("an answer of the rank that worked: %s", a)
		}
	}
	expectIdle(t, g)
}

// The engine ends the other ranks' answers as if they were whole. Nothing of the
// kind may reach a client. Later it comes back, and the gateway by itself.
func TestKilledRank(t *testing.T) {
	e := running(t)
	g := impatient(t, e)
	chat := route{path: chatPath}
	texts := talk(text("A conversation that outlives the engine. ", 500))
	for range 2 { // the second time from the cache
		ask(t, g.URL, chat, chat.body(texts, 4), session("survivor"))
	}

	died := cutShort(t, e, g, func() error { return e.rankProcess(t, 1).Kill() })

	e.start(t)
	wardentest.WaitFor(t, 30*time.Second, "the gateway to use the restarted engine", g.Ready)
	t.Logf("the gateway was ready again %.0f s after the kill", time.Since(died).Seconds())
	a := ask(t, g.URL, chat, chat.body(texts, 4), session("survivor"))
	if tokens, got := a.prompt(); got != 0 {
		t.Errorf("%d of %d tokens came from the cache of a new engine", got, tokens)
	}
	t.Logf("the conversation's next turn: %s on replica %s", a.reason(), a.replica())
	if a := ask(t, g.URL, chat, chat.body(texts, 4), session("survivor")); a.reason() != "stayed" {
		t.Errorf("the turn after it: %s on replica %s, want stayed", a.reason(), a.replica())
	}
	for _, r := range g.Model(t, modelName).Replicas {
		if r.State != "ready" || r.Epoch == nil || *r.Epoch != 2 {
			t.Errorf("replica %d: %+v, want ready in epoch 2", r.Index, r)
		}
	}
	expectIdle(t, g)
}

func TestStoppedEngine(t *testing.T) {
	e := running(t)
	g := impatient(t, e)
	cutShort(t, e, g, func() error { return e.cmd.Process.Signal(syscall.SIGTERM) })
}

// cutShort ends the engine while it answers on all routes and ranks. No answer may
// look whole to its client. It returns when the engine was ended.
func cutShort(t *testing.T, e *engine, g *wardentest.Gateway, end func() error) time.Time {
	t.Helper()
	var calls []*call
	for rank := range ranks {
		for _, r := range []route{{chatPath, false}, {chatPath, true}, {completionsPath, true}, {messagesPath, false}, {messagesPath, true}} {
			calls = append(calls, send(t, g.URL, r, r.body(talk(fmt.Sprintf("%s on rank %d", r, rank)), long), pin(rank)))
		}
	}
	r := route{responsesPath, true}
	for range ranks { // the engine gives one to each
		calls = append(calls, send(t, g.URL, r, r.body(talk("on either rank"), long), nil))
	}
	for _, c := range calls {
		if c.route.stream {
			<-c.began
		}
	}
	wardentest.WaitFor(t, 20*time.Second, "all requests to run", func() error {
		got := e.metric(t, "vllm:num_requests_running")
		if sum := got[0] + got[1]; sum != float64(len(calls)) {
			return fmt.Errorf("running by rank are %v, want %d in all", got, len(calls))
		}
		return nil
	})

	if err := end(); err != nil {
		t.Fatal(err)
	}
	ended := time.Now()
	wardentest.WaitFor(t, 30*time.Second, "both ranks to be down", func() error {
		if s := states(t, g); !slices.Equal(s, []string{"down", "down"}) {
			return fmt.Errorf("states are %v", s)
		}
		return nil
	})
	t.Logf("both ranks were down after %.1f s", time.Since(ended).Seconds())
	r = route{path: chatPath}
	during := send(t, g.URL, r, r.body(talk("a request to an engine that is ending"), 4), nil).wait()
	t.Logf("a new request at that time: %s", during)
	for _, c := range calls {
		a := c.wait()
		t.Logf("%s, replica %s, ended after %.1f s: %s", a.route, a.replica(), a.end.Sub(ended).Seconds(), a)
		switch {
		case errors.Is(a.err, context.DeadlineExceeded):
			t.Errorf("%s for replica %s hung until its client gave up", a.route, a.replica())
		case a.failed():
		case a.route.path == responsesPath:
			// Nothing in it differs from a whole answer, so it is put in doubt.
			expectDoubt(t, g, a)
		default:
			t.Errorf("%s for replica %s was cut short and does not say so: %s", a.route, a.replica(), a)
		}
	}
	select {
	case <-e.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the engine is still there after 30 s")
	}

	a := send(t, g.URL, r, r.body(talk("is anybody there?"), 4), nil).wait()
	if took := a.end.Sub(a.sent); a.header.Get("X-Warden-Error") == "" || took > 5*time.Second {
		t.Errorf("a request without an engine: %s, want an error of the gateway at once", a)
	}
	expectIdle(t, g)
	return ended
}

// expectDoubt asserts that log and page say of an answer that it may be cut short.
func expectDoubt(t *testing.T, g *wardentest.Gateway, a *answer) {
	t.Helper()
	id := a.header.Get("X-Request-Id")
	wardentest.WaitFor(t, 20*time.Second, "a doubt about an answer that looks whole", func() error {
		for line := range strings.Lines(g.Log()) {
			if strings.Contains(line, "may be cut short") && strings.Contains(line, id) {
				return nil
			}
		}
		return fmt.Errorf("the log has none of %s", id)
	})
	if m := g.Model(t, modelName); !strings.Contains(m.Servers[0].Error, "perhaps cut short") {
		t.Errorf("the server's page says %q, want a doubt about answers", m.Servers[0].Error)
	}
}

func states(t *testing.T, g *wardentest.Gateway) []string {
	t.Helper()
	var all []string
	for _, r := range g.Model(t, modelName).Replicas {
		all = append(all, r.State)
	}
	return all
}

// expectIdle asserts that nothing is in flight.
func expectIdle(t *testing.T, g *wardentest.Gateway) {
	t.Helper()
	wardentest.WaitFor(t, 5*time.Second, "nothing to be in flight", func() error {
		m := g.Model(t, modelName)
		if m.InFlight != 0 || slices.ContainsFunc(m.Replicas, func(r wardentest.Replica) bool { return r.InFlight != 0 }) {
			return fmt.Errorf("in flight: %d, replicas %+v", m.InFlight, m.Replicas)
		}
		return nil
	})
}
