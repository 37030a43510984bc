package web

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// Event is something that happened to the gateway, in a sentence.
type Event struct {
	Time  time.Time
	Model string // empty when it concerns all of them
	Text  string
	Level string // "bad", "warn" or "info"
}

// EventLog keeps the latest events: what it sees happen to the pools while Watch
// runs, and what it is told. It is for people who look at a page; the process log
// has the same with all detail. Safe for concurrent use.
type EventLog struct {
	pools func() []Pool
	now   func() time.Time

	mu   sync.Mutex
	kept []Event // guarded by mu; oldest first, at most maxEvents
}

const maxEvents = 200

// NewEventLog returns a log that watches pools.
func NewEventLog(pools func() []Pool) *EventLog {
	return &EventLog{pools: pools, now: time.Now}
}

// Add notes an event that happens now.
func (l *EventLog) Add(level, model, text string) {
	l.add(Event{l.now(), model, text, level})
}

func (l *EventLog) add(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, events...)
	if over := len(l.kept) - maxEvents; over > 0 {
		l.kept = slices.Delete(l.kept, 0, over)
	}
}

// Newest returns at most n events, newest first.
func (l *EventLog) Newest(n int) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := slices.Clone(l.kept[max(len(l.kept)-n, 0):])
	slices.Reverse(newest)
	return newest
}

// Watch compares the pools each second with what they were, until ctx ends.
func (l *EventLog) Watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	was := map[string]watched{}
	for {
		for _, p := range l.pools() {
			v := p.View()
			before, known := was[v.Name]
			after, events := before.next(v, known, p.Receipts)
			was[v.Name] = after
			for i := range events {
				events[i].Time, events[i].Model = l.now(), v.Name
			}
			l.add(events...)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// watched is what a pool was at the last look.
type watched struct {
	replicas []watchedReplica
	policy   string
	requests int64     // counted so far
	latest   time.Time // of its receipts
}

type watchedReplica struct {
	url   string
	rank  int
	state routing.State
	epoch int
	live  int
}

// next is the pool as it is, and what happened since the look before.
func (w watched) next(v pool.View, known bool, receipts func(int) []pool.Receipt) (watched, []Event) {
	is := watched{policy: v.Routing.Policy, requests: v.Routing.EngineChosen, latest: w.latest}
	var events []Event
	say := func(level, format string, args ...any) {
		events = append(events, Event{Level: level, Text: fmt.Sprintf(format, args...)})
	}
	if known && is.policy != w.policy {
		say("info", "The policy is %s now, it was %s.", is.policy, w.policy)
	}
	if known && len(w.replicas) == 0 && len(v.Replicas) > 0 {
		say("info", "%s found.", plural(len(v.Replicas), "1 replica", "%d replicas"))
	}
	for i, r := range v.Replicas {
		now := watchedReplica{r.URL, r.Rank, r.State, r.Load.Epoch, r.LiveConversations}
		is.replicas = append(is.replicas, now)
		is.requests += r.Placed + r.Sticky + r.SpilledIn + r.MovedIn + r.ClientPinned + r.Unbound
		before := slices.IndexFunc(w.replicas, func(b watchedReplica) bool { return b.url == now.url && b.rank == now.rank })
		if before < 0 {
			if known && len(w.replicas) > 0 {
				say("info", "Replica %d is new: %s.", i, r.URL)
			}
			continue
		}
		b := w.replicas[before]
		if now.epoch > b.epoch && b.epoch > 0 {
			say("warn", "Replica %d restarted: its cache is cold (epoch %d).", i, now.epoch)
		}
		if now.state != b.state {
			events = append(events, stateEvent(i, b.state, now.state, b.live, trouble(v, r.URL)))
		}
	}
	if n := is.requests - w.requests; known && n != 0 {
		// Retries have receipts of their own, hence some more.
		const retries = 16
		var left []Event
		left, is.latest = leftHome(receipts(int(min(max(n, 0), 1000))+retries), w.latest)
		events = append(events, left...)
	}
	if is.latest.IsZero() {
		if r := receipts(1); len(r) > 0 {
			is.latest = r[0].Time
		}
	}
	return is, events
}

func trouble(v pool.View, url string) string {
	for _, s := range v.Servers {
		if s.URL == url && s.Error != "" {
			return ": " + s.Error
		}
	}
	return ""
}

func stateEvent(replica int, from, to routing.State, live int, why string) Event {
	move := ""
	if live > 0 {
		move = plural(live, " 1 conversation moves at its next turn.", " %d conversations move at their next turn.")
	}
	switch to {
	case routing.Ready:
		return Event{Level: "info", Text: fmt.Sprintf("Replica %d is ready, it was %s.", replica, from)}
	case routing.Draining:
		return Event{Level: "info", Text: fmt.Sprintf("Replica %d drains.%s", replica, move)}
	case routing.Stuck:
		return Event{Level: "bad", Text: fmt.Sprintf("Replica %d is stuck: it answers and makes no progress.", replica)}
	case routing.Unknown:
		return Event{Level: "warn", Text: fmt.Sprintf("Replica %d is not heard from%s.", replica, why)}
	}
	return Event{Level: "bad", Text: fmt.Sprintf("Replica %d is down%s.%s", replica, why, move)}
}

// leftHome puts the moves and spills of receipts after a time into sentences, one
// for each way and cause. Receipts come newest first.
func leftHome(receipts []pool.Receipt, after time.Time) ([]Event, time.Time) {
	type way struct {
		from, to int
		reason   routing.Reason
		why      routing.Why
	}
	seen := map[way]int{}
	var order []way
	last := map[way]pool.Receipt{}
	latest := after
	for _, r := range receipts {
		if !r.Time.After(after) {
			break
		}
		if r.Time.After(latest) {
			latest = r.Time
		}
		d := r.Decision
		if d.Why == routing.ByPolicy || d.Reason != routing.Moved && d.Reason != routing.Spilled {
			continue
		}
		w := way{d.From, d.Replica, d.Reason, d.Why}
		if seen[w] == 0 {
			order, last[w] = append(order, w), r
		}
		seen[w]++
	}
	slices.Reverse(order)
	var events []Event
	for _, w := range order {
		who := "Conversation " + last[w].Conversation
		if n := seen[w]; n > 1 {
			who = fmt.Sprintf("%d conversations", n)
		}
		events = append(events, Event{Level: "info",
			Text: fmt.Sprintf("%s %s from replica %s to %s: %s.", who, w.reason, replicaLabel(w.from), replicaLabel(w.to), w.why)})
	}
	return events, latest
}
