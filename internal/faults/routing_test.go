package faults

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
)

// together sends requests at once and returns the answers in their order. It is
// for engines that answer only when all have arrived.
func (g *gateway) together(n int, request func(i int) (path, body string, headers []string)) []answer {
	g.t.Helper()
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			path, body, headers := request(i)
			var err error
			if answers[i], err = g.ask(g.t.Context(), path, body, headers...); err != nil {
				g.t.Errorf("request %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return answers
}

// spread counts answers by replica.
func spread(answers []answer) map[string]int {
	counts := map[string]int{}
	for _, a := range answers {
		counts[a.replica()]++
	}
	return counts
}

// meeting answers once this many requests have arrived at all engines that share
// it, so that they are all in flight at one moment.
func meeting(n int) script {
	var mu sync.Mutex
	arrived, all := 0, make(chan struct{})
	return func(c *call) {
		mu.Lock()
		if arrived++; arrived == n {
			close(all)
		}
		mu.Unlock()
		if c.wait(all) {
			reply(c)
		}
	}
}

// Agents of one kind share kilobytes of system prompt. It must not draw them all
// to one replica, whether or not they send ids.
func TestConversationsThatShareASystemPromptSpreadEvenly(t *testing.T) {
	t.Parallel()
	system := strings.Repeat("You are an agent that works in a repository. ", 140) // 6 kB
	for _, ids := range []bool{true, false} {
		for _, d := range []dialect{chat, messages, responses} {
			t.Run(fmt.Sprintf("%s/ids=%v", d.name, ids), func(t *testing.T) {
				t.Parallel()
				const sessions = 40
				list := engines(t, 4, meeting(sessions))
				g := start(t, nil, list...)
				answers := g.together(sessions, func(i int) (string, string, []string) {
					body := strings.Replace(d.request(fmt.Sprintf("Task %d: look at it.", i), true, ""), `"You are terse."`, quoted(system), 1)
					if ids {
						return d.path, body, []string{"X-Session-Id", fmt.Sprintf("session-%d", i)}
					}
					return d.path, body, nil
				})
				if got, want := spread(answers), map[string]int{"0": 10, "1": 10, "2": 10, "3": 10}; !maps.Equal(got, want) {
					t.Errorf("placed %v", got)
				}
				// And each comes back to its own.
				for _, e := range list {
					e.on(reply)
				}
				if !ids {
					return // their next turns have a history, which the recordings in session show
				}
				for i, a := range answers {
					again := g.post(d.path, d.request("go on", true, ""), "X-Session-Id", fmt.Sprintf("session-%d", i))
					if again.replica() != a.replica() || again.decision() != "stayed" {
						t.Errorf("session %d: %s on %s, home is %s", i, again.decision(), again.replica(), a.replica())
					}
				}
			})
		}
	}
}

// Sessions that come one after another, with nothing in flight, are spread by
// what lives where, and then stay.
func TestIdleSessionsSpreadAndStay(t *testing.T) {
	t.Parallel()
	g := start(t, nil, engines(t, 4, reply)...)
	homes := make([]string, 40)
	for turn := range 6 {
		for i := range homes {
			a := g.post(messages.path, messages.request(fmt.Sprint("turn ", turn), true, ""), "X-Claude-Code-Session-Id", fmt.Sprint("session-", i))
			switch {
			case turn == 0:
				homes[i] = a.replica()
			case a.replica() != homes[i] || a.decision() != "stayed":
				t.Errorf("turn %d of session %d: %s on %s, home is %s", turn, i, a.decision(), a.replica(), homes[i])
			}
		}
	}
	for _, r := range g.model().Replicas {
		if r.LiveConversations != 10 || r.MovedIn != 0 || r.SpilledIn != 0 {
			t.Errorf("replica %d: %+v", r.Index, r)
		}
	}
}

// Of the conversations of a replica that died each survivor gets its part, and
// when it is back it fills first.
func TestTheConversationsOfADeadReplicaSpreadOverTheSurvivors(t *testing.T) {
	t.Parallel()
	list := engines(t, 4, reply)
	g := start(t, nil, list...)
	turn := func(i int) (string, string, []string) {
		return chat.path, chat.request("hello", true, ""), []string{"X-Session-Id", fmt.Sprint("session-", i)}
	}
	var displaced []int
	others := map[int]string{}
	for i := range 20 {
		path, body, headers := turn(i)
		a := g.post(path, body, headers...)
		if a.replica() == "3" {
			displaced = append(displaced, i)
		} else {
			others[i] = a.replica()
		}
	}
	if len(displaced) != 5 {
		t.Fatalf("%d of 20 live on replica 3", len(displaced))
	}

	list[3].die()
	g.awaitStates(func(r replicaRow) bool { return (r.State == "down") == (r.Index == 3) })
	together := meeting(5)
	for _, e := range list[:3] {
		e.on(together)
	}
	got := spread(g.together(5, func(i int) (string, string, []string) { return turn(displaced[i]) }))
	if parts := slices.Sorted(maps.Values(got)); !slices.Equal(parts, []int{1, 2, 2}) || got["3"] != 0 {
		t.Errorf("displaced to %v", got)
	}
	for _, e := range list[:3] {
		e.on(reply)
	}
	for i, home := range others {
		path, body, headers := turn(i)
		if a := g.post(path, body, headers...); a.replica() != home || a.decision() != "stayed" {
			t.Errorf("session %d, which had nothing to do with it: %s on %s, home is %s", i, a.decision(), a.replica(), home)
		}
	}

	list[3].listen()
	g.awaitStates(func(r replicaRow) bool { return r.State == "ready" })
	var first []answer
	for i := range 40 {
		path, body, headers := turn(100 + i)
		first = append(first, g.post(path, body, headers...))
	}
	counts := spread(first)
	for replica, n := range counts {
		if replica != "3" && n >= counts["3"] {
			t.Errorf("the replica that came back empty got %d of 40 first turns: %v", counts["3"], counts)
		}
	}
}

// A dead replica with nothing in flight is not the least loaded one, and the
// conversations of the others do not notice its death.
func TestADeadReplicaAttractsNobody(t *testing.T) {
	t.Parallel()
	hold := newGate()
	list := engines(t, 4, reply)
	g := start(t, nil, list...)
	turn := func(i int) answer {
		return g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", fmt.Sprint("session-", i))
	}
	homes := map[int]string{}
	for i := range 20 {
		homes[i] = turn(i).replica()
	}
	for _, e := range list[:3] {
		e.on(hold.hold)
	}
	var loads sync.WaitGroup
	for i := range 15 { // five on each that lives
		loads.Go(func() {
			g.ask(t.Context(), chat.path, chat.request("load", true, ""), "X-Session-Id", fmt.Sprint("load-", i), "X-Data-Parallel-Rank", fmt.Sprint(i%3))
		})
	}
	for range 15 {
		receive(t, "the load", hold.arrived)
	}
	list[3].die()
	g.awaitStates(func(r replicaRow) bool { return (r.State == "down") == (r.Index == 3) })
	for _, e := range list[:3] {
		e.on(reply)
	}
	for i, home := range homes {
		a := turn(i)
		switch {
		case home == "3":
			if a.replica() == "3" || a.decision() != "moved" {
				t.Errorf("session %d of the dead replica: %s on %s", i, a.decision(), a.replica())
			}
		case a.replica() != home || a.decision() != "stayed":
			t.Errorf("session %d: %s on %s, home is %s", i, a.decision(), a.replica(), home)
		}
	}
	close(hold.open)
	loads.Wait()
}

// A burst counts what was sent, not what some page will say later.
func TestTheCountIncludesWhatIsSentAndNotYetAnswered(t *testing.T) {
	t.Parallel()
	g := start(t, func(c *config.Config) { c.Models[0].Policy = "least-inflight" }, engines(t, 4, meeting(40))...)
	got := spread(g.together(40, func(i int) (string, string, []string) { return chat.path, chat.request(fmt.Sprint(i), true, ""), nil }))
	if want := map[string]int{"0": 10, "1": 10, "2": 10, "3": 10}; !maps.Equal(got, want) {
		t.Errorf("went to %v", got)
	}
}

// Probes look at an engine; they do not change what we know of our own requests.
func TestProbesDoNotTouchTheCounts(t *testing.T) {
	t.Parallel()
	hold := newGate()
	var mu sync.Mutex
	probes, enough := 0, make(chan struct{})
	list := engines(t, 3, hold.hold)
	list[0].probe("/metrics", func(c *call) {
		mu.Lock()
		if probes++; probes == 25 {
			close(enough)
		}
		mu.Unlock()
		c.answer(200, metricsPage(1), "Content-Type", "text/plain")
	})
	g := start(t, func(c *config.Config) { c.ScrapeInterval = config.Duration(100 * time.Millisecond) }, list...)
	// Eight turns of one conversation at its home, twelve of others elsewhere.
	var streams sync.WaitGroup
	send := func(session, pin string) {
		streams.Go(func() {
			headers := []string{"X-Session-Id", session}
			if pin != "" {
				headers = append(headers, "X-Data-Parallel-Rank", pin)
			}
			g.ask(t.Context(), chat.path, chat.request("long", true, ""), headers...)
		})
	}
	send("busy", "0")
	receive(t, "the first stream", hold.arrived)
	for range 7 {
		send("busy", "")
	}
	for i := range 12 {
		send(fmt.Sprint("other ", i), "1")
	}
	for range 19 {
		receive(t, "the streams", hold.arrived)
	}
	mu.Lock()
	probes = 0
	mu.Unlock()
	receive(t, "25 probes", enough)
	m := g.model()
	if n := []int{m.Replicas[0].InFlight, m.Replicas[1].InFlight, m.Replicas[2].InFlight}; !slices.Equal(n, []int{8, 12, 0}) || m.InFlight != 20 {
		t.Errorf("in flight %v, %d in all", n, m.InFlight)
	}
	list[2].on(reply)
	if a := g.post(chat.path, chat.request("one more", true, ""), "X-Session-Id", "busy"); a.decision() != "spilled" || a.replica() != "2" {
		t.Errorf("the ninth: %s on %s", a.decision(), a.replica())
	}
	close(hold.open)
	streams.Wait()
	g.settled(map[string]int{"ok": 21})
}

// The counts are true under every policy and on every route.
func TestCountsAreTrueUnderEveryPolicyOnEveryRoute(t *testing.T) {
	t.Parallel()
	routes := map[string]string{"/v1/embeddings": `{"model":"tiny","input":"x"}`, "/v1/rerank": `{"model":"tiny","query":"x","documents":["y"]}`}
	for _, d := range dialects {
		routes[d.path] = d.request("hello", false, "")
	}
	for _, policy := range app.Policies() {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			hold := newGate()
			list := engines(t, 3, hold.hold)
			g := start(t, func(c *config.Config) { c.Models[0].Policy = policy }, list...)
			var all sync.WaitGroup
			for path, body := range routes {
				for i := range 3 {
					all.Go(func() { g.ask(t.Context(), path, body, "X-Session-Id", fmt.Sprint("session-", i)) })
				}
			}
			for range 3 * len(routes) {
				receive(t, "the requests", hold.arrived)
			}
			m := g.model()
			for i, e := range list {
				if truth := len(e.seen()); m.Replicas[i].InFlight != truth {
					t.Errorf("replica %d shows %d in flight, %d are there", i, m.Replicas[i].InFlight, truth)
				}
			}
			if m.InFlight != 3*len(routes) {
				t.Errorf("%d in flight, want %d", m.InFlight, 3*len(routes))
			}
			close(hold.open)
			all.Wait()
			g.settled(map[string]int{"ok": 3 * len(routes)})
		})
	}
}

// The rank header goes to ranks that exist: a plain server refuses it, and one
// that comes back with fewer ranks is noticed.
func TestNoRankIsNamedThatDoesNotExist(t *testing.T) {
	t.Parallel()
	strict := func(ranks int) script {
		return func(c *call) {
			v := c.header.Get("X-Data-Parallel-Rank")
			if n, err := strconv.Atoi(v); v != "" && (err != nil || n >= ranks) {
				c.answer(400, fmt.Sprintf(`{"error":{"message":"data_parallel_rank %s is out of range [0, %d)."}}`, v, ranks))
				return
			}
			reply(c)
		}
	}
	plain := newEngine(t, 1, strict(1))
	two := newEngine(t, 2, strict(2))
	g := start(t, nil, plain, two)
	turns := func() {
		t.Helper()
		for i := range 9 {
			if a := g.post(chat.path, chat.request("hello", false, ""), "X-Session-Id", fmt.Sprint("session-", i)); a.status != 200 {
				t.Errorf("session %d: %d %s", i, a.status, a.body)
			}
		}
	}
	turns()
	for _, c := range plain.seen() {
		if v, there := c.header["X-Data-Parallel-Rank"]; there {
			t.Errorf("a server of one rank was sent rank %s", v)
		}
	}
	ranks := map[string]bool{}
	for _, c := range two.seen() {
		ranks[c.header.Get("X-Data-Parallel-Rank")] = true
	}
	if !maps.Equal(ranks, map[string]bool{"0": true, "1": true}) {
		t.Errorf("a server of two ranks was sent %v", ranks)
	}

	two.die()
	g.awaitStates(func(r replicaRow) bool { return (r.State == "down") == (r.Index > 0) })
	two.on(strict(1))
	two.probe("/metrics", func(c *call) { c.answer(200, metricsPage(1), "Content-Type", "text/plain") })
	two.listen()
	g.awaitStates(func(r replicaRow) bool { return (r.State == "down") == (r.Index == 2) })
	turns()
	if e := g.model().Servers[1].Error; e == nil || !strings.Contains(*e, "1 rank") {
		t.Errorf("the page does not say that the server has fewer ranks: %v", e)
	}
}
