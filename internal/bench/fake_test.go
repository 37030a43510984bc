package bench

import (
	"context"
	"testing"
	"time"

	"lmwarden/internal/enginesim"
)

// fake is a System that answers every turn after a fixed time, as many at once
// as come.
type fake struct {
	events  events
	now     time.Duration
	takes   time.Duration
	fails   func(Request) bool // nil: none
	open    map[int]func(Result)
	sent    int
	arms    []string
	colds   []bool
	starts  []Request
	sentAt  []time.Duration
	counter Counters
}

func newFake(takes time.Duration) *fake {
	return &fake{takes: takes, open: map[int]func(Result){}}
}

func (f *fake) Switch(arm string, cold bool) error {
	f.arms, f.colds = append(f.arms, arm), append(f.colds, cold)
	return nil
}
func (f *fake) Replicas() int                    { return 0 }
func (f *fake) BlockTokens() int                 { return 16 }
func (f *fake) Now() time.Duration               { return f.now }
func (f *fake) After(d time.Duration, do func()) { f.events.add(f.now+d, do) }
func (f *fake) Counters() Counters               { return f.counter }
func (f *fake) Begin(Step)                       {}
func (f *fake) Settle(ctx context.Context, d time.Duration) error {
	return f.Run(ctx, f.now+d, func() bool { return false })
}
func (f *fake) result(sent time.Duration, e End) Result {
	return Result{End: e, Sent: sent, First: sent + f.takes/2, Token: sent + f.takes/2, Last: f.now, Output: 1, Prompt: -1, Cached: -1, Replica: -1}
}

func (f *fake) Send(r Request, done func(Result)) {
	f.starts, f.sentAt = append(f.starts, r), append(f.sentAt, f.now)
	id, sent := f.sent, f.now
	f.sent++
	f.open[id] = func(res Result) {
		delete(f.open, id)
		res.Sent = sent
		done(res)
	}
	f.After(f.takes, func() {
		if done := f.open[id]; done != nil {
			end := Finished
			if f.fails != nil && f.fails(r) {
				end = Failed
			}
			done(f.result(sent, end))
		}
	})
}

func (f *fake) Cut() {
	for id := range f.sent {
		if done := f.open[id]; done != nil {
			done(f.result(0, Cut))
		}
	}
}

func (f *fake) Run(ctx context.Context, until time.Duration, idle func() bool) error {
	for !idle() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(f.events.heap) == 0 || f.events.first() > until {
			f.now = until
			return nil
		}
		e := f.events.take()
		f.now = e.at
		e.do()
	}
	return nil
}

// script is a workload of given sessions, one after the other.
type script []Session

func (s script) Endless() bool { return false }
func (s script) Settings() any { return struct{}{} }
func (s script) Session(p Place) (Session, bool) {
	if p.Order >= len(s) {
		return Session{}, false
	}
	return s[p.Order], true
}

// plain is a session of turns without content.
func plain(key uint64, turns ...Turn) Session {
	return newSession(key, turns)
}

func mustPreset(t testing.TB, name string) enginesim.Params {
	t.Helper()
	p, err := enginesim.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
