package faults

import (
	"net/http"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

// Clocks are set, by hand or by the network. What is known of conversations must
// not suffer: one set back forgets nobody, and one set forward past the time that
// an idle one is kept costs no conversation that names itself its home.
func TestAClockThatJumpsScattersNobody(t *testing.T) {
	t.Parallel()
	table, err := session.New(session.Options{IdleFor: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	core, err := routing.New(routing.Options{Replicas: []routing.Replica{{Server: 0}, {Server: 1}}, Policy: "affinity", IdleFor: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	facts, err := llmapi.Parse(llmapi.RouteChat, []byte(chat.request("hello", false, "")))
	if err != nil {
		t.Fatal(err)
	}
	identify := func(now time.Time) session.Identity {
		id := table.Identify(now, session.Request{Model: modelName, Header: http.Header{"X-Session-Id": {"one"}}, Facts: facts})
		table.Begin(now, id, modelName).End(now, llmapi.Usage{})
		return id
	}
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for i := range 2 {
		core.SetState(now, i, routing.Ready)
	}
	turn := func(n int, now time.Time, id session.Identity) routing.Decision {
		actions := core.Arrive(now, routing.Request{ID: routing.RequestID(n), Key: routing.Key(id.Key), Pin: routing.None})
		core.Finish(now, routing.RequestID(n), routing.Outcome{OK: true})
		return actions[0].Decision
	}
	first := identify(now)
	home := turn(1, now, first).Replica

	back := now.Add(-6 * time.Hour)
	table.Expire(back)
	core.Tick(back)
	if id := identify(back); id.New || id.Key != first.Key {
		t.Errorf("after a jump back: new %v, %s, was %s", id.New, id.Name, first.Name)
	}
	if d := turn(2, back, first); d.Reason != routing.Stayed || d.Replica != home {
		t.Errorf("after a jump back: %s on %d", d.Reason, d.Replica)
	}

	// The table goes by the wall clock, since it is saved; the core goes by the time
	// that has passed, which a jump does not change.
	ahead := now.Add(48 * time.Hour)
	if n := table.Expire(ahead); n != 1 {
		t.Errorf("%d conversations expired after two days", n)
	}
	if id := identify(ahead); id.Key != first.Key {
		t.Errorf("after a jump ahead the same session is %s, was %s", id.Name, first.Name)
	}
	if d := turn(3, now.Add(time.Second), first); d.Reason != routing.Stayed || d.Replica != home {
		t.Errorf("after a jump ahead: %s on %d", d.Reason, d.Replica)
	}
}
