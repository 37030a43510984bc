package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

func TestReplicasAreNumberedByServerThenRank(t *testing.T) {
	p := newPool(t, Server{URL: "http://a/v1", Key: "ka", Ranks: 2}, Server{URL: "http://b", Ranks: 1})
	want := []struct {
		base string
		rank int
		key  string
	}{{"http://a", 0, "ka"}, {"http://a", 1, "ka"}, {"http://b", routing.None, ""}}
	for i, w := range want {
		l := acquire(t, p, pinned(i, i))
		target := l.Target()
		if target.Base.String() != w.base || target.Rank != w.rank || target.Key != w.key {
			t.Errorf("replica %d: %s rank %d key %q, want %+v", i, target.Base, target.Rank, target.Key, w)
		}
		if v := p.View().Replicas[i]; v.URL != w.base || v.Rank != w.rank || v.InFlight != 1 {
			t.Errorf("replica %d in the view: %s rank %d, in flight %d", i, v.URL, v.Rank, v.InFlight)
		}
		l.End(routing.Outcome{})
	}
	wantInFlight(t, p, 0)
	_, err := p.Acquire(t.Context(), pinned(9, 3))
	wantRefused(t, err, routing.NoSuchReplica)
}

func TestATurnReturnsHome(t *testing.T) {
	p := twoByTwo(t)
	home := -1
	for i := range 5 {
		l := acquire(t, p, turn(7))
		d := l.Decision()
		if home < 0 {
			home = d.Replica
		}
		if d.Replica != home || i > 0 && d.Reason != routing.Stayed {
			t.Errorf("turn %d: %+v", i, d)
		}
		l.FirstByte()
		l.End(routing.Outcome{OK: true, Prompt: 10, Known: true})
	}
	if h, ok := p.Home(key(7)); !ok || h.Replica != home || h.Turns != 5 {
		t.Errorf("home %+v %v", h, ok)
	}
}

func TestOnlyTheFirstEndCounts(t *testing.T) {
	p := twoByTwo(t)
	first, second := acquire(t, p, turn(1)), acquire(t, p, turn(2))
	for range 3 {
		first.End(routing.Outcome{OK: true})
	}
	wantInFlight(t, p, 1)
	if err := first.Retry(errRefused); err == nil {
		t.Error("an ended lease was retried")
	}
	wantStates(t, p, "ready ready ready ready")
	second.End(routing.Outcome{})
	wantInFlight(t, p, 0)
}

func TestRetryGoesToAnotherFailureDomain(t *testing.T) {
	p := twoByTwo(t)
	l := acquire(t, p, turn(3))
	before := l.Target()
	if err := l.Retry(errors.New("503 from the engine")); err != nil {
		t.Fatal(err)
	}
	if after := l.Target(); after.Base == before.Base {
		t.Errorf("retried on %s again", after.Base)
	}
	wantStates(t, p, "ready ready ready ready") // an answer is no sign of death
	wantInFlight(t, p, 1)
	wantRefused(t, l.Retry(errors.New("503")), routing.NoReplica)
	wantInFlight(t, p, 0)
	l.End(routing.Outcome{})
	wantInFlight(t, p, 0)
}

func TestARefusedConnectionTakesAllRanksOut(t *testing.T) {
	p := twoByTwo(t)
	var nudged []int
	for i, s := range p.servers {
		s.look = func() { nudged = append(nudged, i) }
	}
	l := acquire(t, p, turn(1)) // replica 0
	if err := l.Retry(errRefused); err != nil {
		t.Fatal(err)
	}
	wantStates(t, p, "down down ready ready")
	if len(nudged) != 1 || nudged[0] != 0 {
		t.Errorf("nudged %v", nudged)
	}
	for n := range 8 {
		other := acquire(t, p, turn(10+n))
		if s := other.Decision().Server; s != 1 {
			t.Errorf("request %d went to server %d", n, s)
		}
		other.End(routing.Outcome{})
	}
	_, err := p.Acquire(t.Context(), pinned(2, 1))
	wantRefused(t, err, routing.PinDown)
	wantRefused(t, l.Retry(errRefused), routing.NoReplica)
	wantStates(t, p, "down down down down")
	l.End(routing.Outcome{})
	_, err = p.Acquire(t.Context(), turn(1))
	wantRefused(t, err, routing.NoReplica)
	wantInFlight(t, p, 0)
}

func TestAcquireWithoutReplicas(t *testing.T) {
	p := newPool(t, Server{URL: "http://a"})
	_, err := p.Acquire(t.Context(), turn(1))
	wantRefused(t, err, routing.NoReplica)

	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("client gone")
	cancel(gone)
	if _, err := twoByTwo(t).Acquire(ctx, turn(1)); err != gone {
		t.Errorf("got %v, want the cause", err)
	}
}

// holding is a core that holds every request, or the one that is retried, until
// the test says what becomes of it.
type holding struct {
	*routing.Core
	hold bool
	then []routing.Action // given out at the next tick
}

func (h *holding) Arrive(now time.Time, r routing.Request) []routing.Action {
	if h.hold {
		return []routing.Action{{Kind: routing.Hold, ID: r.ID, Position: 1}}
	}
	return h.Core.Arrive(now, r)
}

func (h *holding) Retry(now time.Time, id routing.RequestID) []routing.Action {
	return []routing.Action{{Kind: routing.Hold, ID: id, Position: 1}}
}

func (h *holding) Tick(time.Time) []routing.Action {
	then := h.then
	h.then = nil
	return then
}

func holdingPool(t *testing.T) (*Pool, *holding) {
	t.Helper()
	p := newPool(t, Server{URL: "http://a"})
	h := &holding{hold: true}
	p.newCore = func(o routing.Options) (core, error) {
		c, err := routing.New(o)
		h.Core = c
		return h, err
	}
	p.Observe(0, good(info(2, "m")))
	return p, h
}

// started calls f on another goroutine; wait gives what it returned.
func started(f func() error) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error { return <-done }
}

func TestAHeldRequestWaitsForItsTurn(t *testing.T) {
	dispatch := routing.Action{Kind: routing.Dispatch, ID: 1, Decision: routing.Decision{Replica: 1, Reason: routing.Placed}}
	refuse := routing.Action{Kind: routing.Refuse, ID: 1, Why: routing.HomeFull, RetryAfter: time.Second}
	for _, action := range []routing.Action{dispatch, refuse} {
		synctest.Test(t, func(t *testing.T) {
			p, h := holdingPool(t)
			var l *Lease
			wait := started(func() (err error) {
				l, err = p.Acquire(t.Context(), turn(1))
				return err
			})
			synctest.Wait()
			if n := p.View().Waiting; n != 1 {
				t.Errorf("%d waiting", n)
			}
			h.then = []routing.Action{{Kind: routing.Hold, ID: 1, Position: 1}}
			p.tick()
			synctest.Wait()
			if n := p.View().Waiting; n != 1 {
				t.Errorf("%d waiting after a new position", n)
			}
			h.then = []routing.Action{action}
			p.tick()
			err := wait()
			if action.Kind == routing.Dispatch {
				if err != nil || l.Decision().Replica != 1 || l.Target().Rank != 1 {
					t.Errorf("dispatched: %v", err)
				}
			} else {
				wantRefused(t, err, routing.HomeFull)
				if err.(*Refused).RetryAfter != time.Second {
					t.Errorf("%+v", err)
				}
			}
			if n := p.View().Waiting; n != 0 {
				t.Errorf("%d waiting at the end", n)
			}
		})
	}
}

func TestAHeldRequestIsRefusedWhenItsModelGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := holdingPool(t)
		wait := started(func() error {
			_, err := p.Acquire(t.Context(), turn(1))
			return err
		})
		synctest.Wait()
		p.close(routing.NoReplica)
		wantRefused(t, wait(), routing.NoReplica)
		wantInFlight(t, p, 0)
	})
}

func TestAHeldRequestLeavesWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := holdingPool(t)
		gone := errors.New("client gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		wait := started(func() error { _, err := p.Acquire(ctx, turn(1)); return err })
		synctest.Wait()
		cancel(gone)
		if err := wait(); err != gone {
			t.Errorf("got %v, want the cause", err)
		}
		// An order for a request that left changes nothing.
		h.then = []routing.Action{{Kind: routing.Dispatch, ID: 1}}
		p.tick()
		if v := p.View(); v.Waiting != 0 || len(p.Receipts(10)) != 0 {
			t.Errorf("%d waiting, receipts %v", v.Waiting, p.Receipts(10))
		}

		h.hold = false
		ctx, cancel = context.WithCancelCause(t.Context())
		l, err := p.Acquire(ctx, turn(2))
		if err != nil {
			t.Fatal(err)
		}
		wait = started(func() error { return l.Retry(errors.New("503")) })
		synctest.Wait()
		if n := p.View().Waiting; n != 1 {
			t.Errorf("%d waiting in a retry", n)
		}
		cancel(gone)
		if err := wait(); err != gone {
			t.Errorf("got %v, want the cause", err)
		}
		l.End(routing.Outcome{})
		if n := p.View().Waiting; n != 0 {
			t.Errorf("%d waiting at the end", n)
		}
		wantInFlight(t, p, 0)
	})
}

// Requests come, are retried and end while servers die, return and drain; at the
// end nothing is in flight, and each request ended once.
func TestInFlightEndsAtZero(t *testing.T) {
	p := twoByTwo(t)
	stop := make(chan struct{})
	var flipping, serving sync.WaitGroup
	flipping.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			server := rng.IntN(2)
			switch rng.IntN(6) {
			case 0:
				p.Observe(server, bad(info(2, "m"), engine.Down))
			case 1:
				p.Observe(server, good(info(1, "m")))
			case 2:
				_ = p.Drain(rng.IntN(4))
			case 3:
				_ = p.Resume(rng.IntN(4))
			case 4:
				p.View()
				p.Receipts(5)
			default:
				p.Observe(server, good(info(2, "m")))
			}
			p.tick()
		}
	})
	var served, refused atomic.Int64
	for g := range 16 {
		serving.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			for n := range 400 {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(10) == 0 {
					cancel()
				}
				r := turn(rng.IntN(40))
				if rng.IntN(8) == 0 {
					r.Pin = rng.IntN(5)
				}
				if n%7 == 0 {
					r.Path = "/v1/responses"
				}
				l, err := p.Acquire(ctx, r)
				if err == nil {
					for rng.IntN(3) == 0 && err == nil {
						err = l.Retry([]error{errRefused, errors.New("503")}[rng.IntN(2)])
					}
					_, _ = l.Decision(), l.Target()
					l.FirstByte()
					var ends sync.WaitGroup
					for range 2 {
						ends.Go(func() { l.End(routing.Outcome{OK: true}) })
					}
					ends.Wait()
					served.Add(1)
				} else {
					refused.Add(1)
				}
				cancel()
			}
		})
	}
	serving.Wait()
	close(stop)
	flipping.Wait()
	wantInFlight(t, p, 0)
	if served.Load() == 0 || refused.Load() == 0 || served.Load()+refused.Load() != 16*400 {
		t.Errorf("served %d, refused %d: the test did not exercise both", served.Load(), refused.Load())
	}
}

func TestReceipts(t *testing.T) {
	p := twoByTwo(t)
	if got := p.Receipts(5); len(got) != 0 {
		t.Errorf("receipts before the first request: %v", got)
	}
	total := maxReceipts + 7
	for n := range total {
		r := turn(n)
		r.Conversation = fmt.Sprint("c", n)
		acquire(t, p, r).End(routing.Outcome{})
	}
	for _, ask := range []int{-1, 0, 3, maxReceipts, maxReceipts + 5} {
		got := p.Receipts(ask)
		if want := max(min(ask, maxReceipts), 0); len(got) != want {
			t.Errorf("asked %d, got %d", ask, len(got))
		}
		for i, r := range got {
			if want := fmt.Sprint("c", total-1-i); r.Conversation != want || r.RequestID != fmt.Sprint("r", total-1-i) {
				t.Fatalf("receipt %d is of %s, want %s", i, r.Conversation, want)
			}
		}
	}
	got := p.Receipts(1)[0]
	if len(got.Decision.Candidates) != 4 || got.Decision.Reason != routing.Placed || got.Time.IsZero() {
		t.Errorf("receipt %+v", got)
	}
	got.Decision.Candidates[0].InFlight = 99
	if p.Receipts(1)[0].Decision.Candidates[0].InFlight == 99 {
		t.Error("receipts are not copies")
	}
}

func BenchmarkAcquireEnd(b *testing.B) {
	p := twoByTwo(b)
	r := turn(1)
	b.ReportAllocs()
	for b.Loop() {
		l, err := p.Acquire(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		l.Target()
		l.End(routing.Outcome{OK: true})
	}
}
