package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
)

// stream begins a long streamed answer on a replica and returns when its first
// bytes are there; wait reads it to its end.
func (g *testGateway) stream(replica int) (wait func() (string, error)) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	g.t.Cleanup(cancel)
	body := `{"model":"tiny","stream":true,"max_tokens":300,"messages":[{"role":"user","content":"go on [[tokens 300]]"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Data-Parallel-Rank", fmt.Sprint(replica))
	res, err := g.client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := res.Body.Read(first); err != nil {
		g.t.Fatal(err)
	}
	return func() (string, error) {
		defer res.Body.Close()
		rest, err := io.ReadAll(res.Body)
		return string(first) + string(rest), err
	}
}

// A rank hangs as a GPU does: its streams stand still, all probes succeed.
func TestARankThatHangsGetsNoNewConversations(t *testing.T) {
	e := newEngine(t, 2, func(o *server.Options) { o.Speed = 1 })
	g := startGateway(t, []string{e.url()}, func(c *config.Config) {
		c.Timeouts.Stuck = config.Duration(500 * time.Millisecond)
	}).awaitReady()
	wait := g.stream(1)
	if err := e.server.Fail("freeze,rank=1,for=3s"); err != nil {
		t.Fatal(err)
	}
	g.awaitStates("ready stuck")
	for i := range 4 {
		if r := g.conversation(fmt.Sprintf("opening %d", i)).turn(); r.replica() != "0" {
			t.Errorf("a new conversation was placed on replica %s", r.replica())
		}
	}
	if page := string(g.send(http.MethodGet, g.AdminURL()+"/models/"+testModel, nil).body); !strings.Contains(page, "stuck") {
		t.Error("the page does not say so")
	}
	g.awaitStates("ready ready")
	if text, err := wait(); err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("the stream that stood still: %v, …%q", err, text[max(0, len(text)-80):])
	}
	g.checkNothingInFlight()
}

// One rank is killed. The answers of the other ones are aborted at once, which
// gives the server away seconds before its probes do.
func TestAServerOfWhichARankDiedGetsNothing(t *testing.T) {
	slow := func(o *server.Options) { o.Speed = 1 }
	dying, other := newEngine(t, 2, slow), newEngine(t, 1, nil)
	g := startGateway(t, []string{dying.url(), other.url()}, nil).awaitReady()
	g.awaitStates("ready ready ready")
	var all []*conversation
	for i := range 6 {
		c := g.conversation(fmt.Sprintf("opening %d", i))
		c.turn()
		all = append(all, c)
	}
	aborted := g.stream(0)
	if err := dying.server.Fail("die,rank=1,answers=3s,down=1s"); err != nil {
		t.Fatal(err)
	}
	if text, err := aborted(); err == nil || !strings.Contains(text, `"error"`) || strings.Contains(text, "[DONE]") {
		t.Errorf("the aborted answer looks finished: %v, …%q", err, text[max(0, len(text)-80):])
	}
	g.awaitStates("down down ready")
	if r := g.send(http.MethodGet, dying.url()+"/health", nil); r.status != http.StatusOK {
		t.Fatalf("the probe fails already: %d", r.status)
	}
	for _, c := range all { // nobody waits for the hang to end
		if r := c.turn(); r.replica() != "2" {
			t.Errorf("a turn went to replica %s", r.replica())
		}
	}
	g.awaitStates("ready ready ready")
	g.checkNothingInFlight()
}
