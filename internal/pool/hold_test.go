package pool

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/routing"
)

// crowded is a set with one model on two ranks, each of which holds one of the
// requests that large makes beside nothing else.
func crowded(t *testing.T, limits routing.Limits) *Pool {
	t.Helper()
	s, f := startSet(t, SetOptions{Models: []Options{{
		Name: "m", Servers: []Server{{URL: "http://a"}}, Policy: "patience", Limits: limits,
	}}})
	f.tell(s, "a", good(info(2, "m")))
	return s.Pools()[0]
}

func large(n int) Request {
	r := turn(n)
	r.Tokens = 900 // of the 1000 that a rank holds
	return r
}

// acquired asks for leases, one after the other, without waiting for them.
func acquired(ctx context.Context, p *Pool, requests ...Request) (leases []func() (*Lease, error)) {
	for _, r := range requests {
		var l *Lease
		wait := started(func() (err error) {
			l, err = p.Acquire(ctx, r)
			return err
		})
		synctest.Wait()
		leases = append(leases, func() (*Lease, error) { err := wait(); return l, err })
	}
	return leases
}

var done = routing.Outcome{OK: true, Known: true, Prompt: 900, Completion: 10}

func TestWhatDoesNotFitWaitsUntilSomethingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{})
		all := acquired(t.Context(), p, large(1), large(2), large(3), large(4))
		if v := p.View(); v.Waiting != 2 || v.Routing.Queue.Waiting != 2 {
			t.Fatalf("%d and %d wait, want 2", v.Waiting, v.Routing.Queue.Waiting)
		}
		time.Sleep(3 * time.Second)
		first, err := all[0]()
		if err != nil {
			t.Fatal(err)
		}
		first.FirstByte()
		first.End(done)
		third, err := all[2]()
		if err != nil {
			t.Fatal(err)
		}
		d := third.Decision()
		if d.Waited != 3*time.Second || d.Held != routing.NoRoom || d.Replica != first.Decision().Replica {
			t.Errorf("%+v", d)
		}
		if r := p.Receipts(1)[0]; r.Position != 1 || r.Decision.Waited != d.Waited {
			t.Errorf("receipt %+v", r)
		}
		third.End(done)
		for _, i := range []int{1, 3} {
			l, err := all[i]()
			if err != nil {
				t.Fatal(err)
			}
			l.End(done)
		}
		wantInFlight(t, p, 0)
	})
}

// Nothing ends here: it is time that lets go.
func TestTimePassesWhileSomethingIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{})
		all := acquired(t.Context(), p, large(1), large(2), large(3))
		if err := p.SetPolicy("affinity"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, wait := range all {
			l, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			defer l.End(done)
		}
		if d := time.Since(began); d > heldInterval {
			t.Errorf("a policy that holds nothing let it go after %v", d)
		}
	})
}

func TestHeldRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{Waiting: 1})
		ctx, leave := context.WithCancel(t.Context())
		all := acquired(ctx, p, large(1), large(2), large(3), large(4))
		_, err := all[3]()
		wantRefused(t, err, routing.QueueFull)
		if after := err.(*Refused).RetryAfter; after < time.Second || after > 30*time.Second {
			t.Errorf("to come back after %v", after)
		}
		changes, err := p.configure(Options{Name: "m", Servers: []Server{{URL: "http://a"}}, Policy: "patience", Limits: routing.Limits{Waiting: 2}})
		if err != nil || len(changes) != 1 {
			t.Errorf("%q, %v", changes, err)
		}
		all = append(all, acquired(ctx, p, large(5))...)
		if v := p.View(); v.Waiting != 2 {
			t.Errorf("%d wait after the limit was raised", v.Waiting)
		}
		leave()
		for _, i := range []int{2, 4} {
			if _, err := all[i](); err != context.Canceled {
				t.Errorf("got %v", err)
			}
		}
		for _, wait := range all[:2] {
			l, _ := wait()
			l.End(done)
		}
		wantInFlight(t, p, 0)
	})
}

// Whatever an engine does with what it has, nobody waits for ever.
func TestNobodyIsHeldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{Wait: time.Minute})
		began := time.Now()
		all := acquired(t.Context(), p, large(1), large(2), large(3))
		_, err := all[2]()
		wantRefused(t, err, WaitedLong)
		if d := time.Since(began); d < 2*time.Minute || d > 2*time.Minute+2*tickInterval {
			t.Errorf("after %v", d)
		}
		for _, wait := range all[:2] {
			l, _ := wait()
			l.End(done)
		}
		wantInFlight(t, p, 0)
	})
}

func TestAHeldRequestBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{})
		began, gone := time.Now(), errors.New("no longer there")
		var beats []time.Duration
		r := large(3)
		r.BeatEvery = 15 * time.Second
		r.Beat = func() error {
			if beats = append(beats, time.Since(began)); len(beats) == 2 {
				return gone
			}
			return nil
		}
		all := acquired(t.Context(), p, large(1), large(2), r)
		if _, err := all[2](); err != gone {
			t.Errorf("got %v", err)
		}
		if len(beats) != 2 || beats[0] != 15*time.Second || beats[1] != 30*time.Second {
			t.Errorf("beats after %v", beats)
		}
		for _, wait := range all[:2] {
			l, _ := wait()
			l.End(done)
		}
		wantInFlight(t, p, 0)
	})
}

func TestAGatewayThatStopsRefusesWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: []Server{{URL: "http://a"}}, Policy: "patience"}}})
		f.tell(s, "a", good(info(2, "m")))
		p := s.Pools()[0]
		all := acquired(t.Context(), p, large(1), large(2), large(3))
		s.RefuseHeld()
		_, err := all[2]()
		wantRefused(t, err, Stopping)
		_, err = p.Acquire(t.Context(), large(4))
		wantRefused(t, err, Stopping)
		for _, wait := range all[:2] {
			l, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			l.End(done)
		}
		wantInFlight(t, p, 0)
	})
}

// asked records what the core is asked.
type asked struct {
	*routing.Core
	requests []routing.Request
}

func (a *asked) Arrive(now time.Time, r routing.Request) []routing.Action {
	a.requests = append(a.requests, r)
	return a.Core.Arrive(now, r)
}

func TestTheCoreIsToldWhoAsksForHowMuch(t *testing.T) {
	p := newPool(t, Server{URL: "http://a"})
	a := &asked{}
	p.newCore = func(o routing.Options) (core, error) {
		c, err := routing.New(o)
		a.Core = c
		return a, err
	}
	p.Observe(0, good(info(2, "m")))
	for n, r := range []Request{{}, {Tenant: "ci", Batch: true, MaxOutput: 77}, {Tenant: "anna"}} {
		r.Key, r.Pin, r.Path = key(n), routing.None, "/v1/messages"
		acquire(t, p, r).End(routing.Outcome{})
	}
	nobody, ci, anna := a.requests[0], a.requests[1], a.requests[2]
	if nobody.Tenant != (routing.Key{}) || nobody.Class != routing.Interactive {
		t.Errorf("nobody in particular: %+v", nobody)
	}
	if ci.Tenant == anna.Tenant || ci.Tenant == nobody.Tenant || ci.Class != routing.Batch || ci.MaxOutput != 77 {
		t.Errorf("ci: %+v, anna: %+v", ci, anna)
	}
}

func TestWhatWasLearnedReachesTheCore(t *testing.T) {
	l := routing.Learned{Place: routing.Measured{Value: 7, Samples: 3}}
	before, after := newPool(t, Server{URL: "http://a"}), newPool(t, Server{URL: "http://a"})
	before.RestoreLearned(l)
	before.Observe(0, good(info(2, "m")))
	after.Observe(0, good(info(2, "m")))
	after.RestoreLearned(l)
	for _, p := range []*Pool{before, after} {
		if got := p.View().Routing.Learned.Place; got != l.Place {
			t.Errorf("got %+v", got)
		}
	}
}

// What the core and the lease take, beside the body. The goroutine is there with
// every open request.
func TestAHeldRequestTakesAtMost2KB(t *testing.T) {
	const n, most = 900, 2 << 10
	synctest.Test(t, func(t *testing.T) {
		p := crowded(t, routing.Limits{})
		heap := func() uint64 {
			runtime.GC()
			var s runtime.MemStats
			runtime.ReadMemStats(&s)
			return s.HeapAlloc
		}
		hold := func(do func(i int)) (let func()) {
			done := make(chan bool, n)
			for i := range n {
				go func() { do(i); done <- true }()
			}
			synctest.Wait()
			return func() {
				for range n {
					<-done
				}
			}
		}
		goroutines := make(chan bool)
		let := hold(func(int) { <-goroutines }) // the runtime keeps their descriptors
		close(goroutines)
		let()

		ctx, leave := context.WithCancel(t.Context())
		before := heap()
		let = hold(func(i int) {
			if l, err := p.Acquire(ctx, large(i)); err == nil {
				<-ctx.Done()
				l.End(routing.Outcome{})
			}
		})
		if v := p.View(); v.Waiting != n-2 {
			t.Fatalf("%d wait", v.Waiting)
		}
		each := (heap() - before) / n
		t.Logf("a held request takes %d bytes", each)
		if each > most {
			t.Errorf("a held request takes %d bytes, at most %d are allowed", each, most)
		}
		leave()
		let()
		wantInFlight(t, p, 0)
	})
}
