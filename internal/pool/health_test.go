package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

var (
	errReset = fmt.Errorf("send: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET})
	errPage  = errors.New("the engine's answer is not JSON")
)

// pair is a pool of two servers of one rank each, ready.
func pair(t testing.TB) *Pool {
	t.Helper()
	p := newPool(t, Server{URL: "http://a"}, Server{URL: "http://b"})
	probe(p)
	wantStates(t, p, "ready ready")
	return p
}

// probe reports that all servers are well, by a scrape that begins now.
func probe(p *Pool) {
	for i := range p.servers {
		p.Observe(i, good(info(1, "m")))
	}
}

// attempt is a request at a replica, whatever its state, that ends with an error
// or, when that is nil, with an answer.
func attempt(t testing.TB, p *Pool, replica int, err error) {
	t.Helper()
	l := acquire(t, p, pinned(1000, replica))
	if err != nil {
		l.Failed(err)
	} else {
		l.FirstByte()
	}
	l.End(routing.Outcome{OK: err == nil})
}

func TestAServerThatKeepsFailingIsEjected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		attempt(t, p, 0, errPage)
		attempt(t, p, 0, errPage)
		wantStates(t, p, "ready ready")
		attempt(t, p, 0, errPage)
		wantStates(t, p, "down ready")
		for n := range 4 {
			if l := acquire(t, p, turn(n)); l.Decision().Replica != 1 {
				t.Errorf("a request went to the ejected server")
			}
		}
		_, err := p.Acquire(t.Context(), pinned(1, 0))
		wantRefused(t, err, routing.PinDown)

		// Each failed trial doubles the rest, up to half a minute.
		for _, rest := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			time.Sleep(rest*time.Second - time.Millisecond)
			probe(p)
			wantStates(t, p, "down ready")
			time.Sleep(time.Millisecond)
			probe(p)
			wantStates(t, p, "ready ready")
			attempt(t, p, 0, errPage)
			wantStates(t, p, "down ready")
		}

		time.Sleep(30 * time.Second)
		probe(p)
		attempt(t, p, 0, nil)
		wantStates(t, p, "ready ready")
		attempt(t, p, 0, errPage)
		attempt(t, p, 0, errPage)
		wantStates(t, p, "ready ready") // all is forgiven
	})
}

func TestOneRequestIsLetThroughAfterAnEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		for range 3 {
			attempt(t, p, 0, errPage)
		}
		time.Sleep(time.Second)
		probe(p)
		trial := acquire(t, p, pinned(1, 0))
		for n := range 4 {
			if l := acquire(t, p, turn(10+n)); l.Decision().Replica != 1 {
				t.Error("another request was sent after the trial")
			}
		}
		wantStates(t, p, "down ready")
		trial.End(routing.Outcome{}) // its client left
		wantStates(t, p, "ready ready")
		second := acquire(t, p, pinned(2, 0))
		wantStates(t, p, "down ready")
		second.FirstByte()
		wantStates(t, p, "ready ready")
		second.End(routing.Outcome{OK: true})
	})
}

// An answer that does not stream, or a long prompt, is no failure.
func TestALongTrialSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		for range 3 {
			attempt(t, p, 0, errPage)
		}
		time.Sleep(time.Second)
		probe(p)
		trial := acquire(t, p, pinned(1, 0))
		time.Sleep(trialFor - time.Millisecond)
		p.tick()
		wantStates(t, p, "down ready")
		time.Sleep(time.Millisecond)
		p.tick()
		wantStates(t, p, "ready ready")
		trial.End(routing.Outcome{OK: true})
	})
}

func TestFailuresOfOneMomentEjectOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		var open []*Lease
		for n := range 20 {
			open = append(open, acquire(t, p, pinned(n, 0)))
		}
		for _, l := range open {
			l.Failed(errPage)
			l.Failed(errPage)
			l.End(routing.Outcome{})
		}
		wantStates(t, p, "down ready")
		time.Sleep(time.Second)
		probe(p)
		wantStates(t, p, "ready ready")
	})
}

func TestWhatIsNoFaultOfTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		for range 10 {
			attempt(t, p, 0, ErrBusy)
		}
		wantStates(t, p, "ready ready")
		for range 5 { // never three in a row
			attempt(t, p, 0, errPage)
			attempt(t, p, 0, errPage)
			attempt(t, p, 0, nil)
		}
		wantStates(t, p, "ready ready")
		l := acquire(t, p, pinned(1, 0))
		l.End(routing.Outcome{})
		l.Failed(errReset) // too late to say anything
		wantStates(t, p, "ready ready")
	})
}

func TestAnAttemptFailsOnce(t *testing.T) {
	p := pair(t)
	l := acquire(t, p, pinned(1, 0))
	for range ejectAfter {
		l.Failed(errPage)
	}
	l.End(routing.Outcome{})
	wantStates(t, p, "ready ready")
}

// Another process has done nothing wrong yet.
func TestARestartedServerIsNotSuspect(t *testing.T) {
	p := pair(t)
	attempt(t, p, 0, ErrAborted)
	wantStates(t, p, "down ready")
	p.Observe(0, with(good(info(1, "m")), func(r *engine.Report) { r.Epoch = 2 }))
	wantStates(t, p, "ready ready")
}

func TestAnErrorAnswerIsNoSuccess(t *testing.T) {
	p := pair(t)
	for range 3 {
		l := acquire(t, p, pinned(1, 0))
		l.Failed(errPage)
		l.FirstByte() // of the error
		l.End(routing.Outcome{})
	}
	wantStates(t, p, "down ready")
}

func TestTheLeastBadIsTriedWhenAllAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		home := acquire(t, p, turn(1))
		home.End(routing.Outcome{OK: true})
		for replica := range 2 {
			for range 3 {
				l := acquire(t, p, turn(100+replica))
				l.Failed(errPage)
				l.End(routing.Outcome{})
			}
		}
		for i := 0; states(p) != "down down"; i++ {
			l := acquire(t, p, turn(200+i))
			l.Failed(errPage)
			l.End(routing.Outcome{})
		}
		l := acquire(t, p, turn(1))
		if d := l.Decision(); d.Reason != routing.Stayed {
			t.Errorf("%+v, want the turn at its home", d)
		}
		wantStates(t, p, "down down")
		l.FirstByte() // it does answer
		l.End(routing.Outcome{OK: true})
		time.Sleep(30 * time.Second)
		probe(p)
		wantStates(t, p, "ready ready")

		// What cannot be reached is not tried.
		for replica := range 2 {
			l := acquire(t, p, pinned(1, replica))
			wantRefused(t, l.Retry(errRefused), routing.PinDown)
			l.End(routing.Outcome{})
		}
		_, err := p.Acquire(t.Context(), turn(1))
		wantRefused(t, err, routing.NoReplica)
		wantInFlight(t, p, 0)
	})
}

// The state of a replica in the core: what is kept out is told from what is gone.
func coreStates(p *Pool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s string
	for _, r := range p.replicas {
		s += map[routing.State]string{routing.Ready: "+", routing.Ejected: "o", routing.Down: "-", routing.Stuck: "s"}[r.state]
	}
	return s
}

func wantCore(t testing.TB, p *Pool, want string) {
	t.Helper()
	if got := coreStates(p); got != want {
		t.Errorf("states %q, want %q", got, want)
	}
}

func TestAResetTakesTheServerOutUntilItsProbe(t *testing.T) {
	for name, err := range map[string]error{"reset": errReset, "closed": io.EOF, "cut": io.ErrUnexpectedEOF} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := twoByTwo(t)
				acquire(t, p, turn(1)).End(routing.Outcome{OK: true}) // at home on replica 0
				before := good(info(2, "m"))
				time.Sleep(time.Millisecond)
				l := acquire(t, p, turn(1))
				if err := l.Retry(err); err != nil {
					t.Fatal(err)
				}
				wantCore(t, p, "oo++")
				// The conversation keeps its home: the server is likely to live.
				if d := l.Decision(); d.Reason != routing.Spilled || d.Server != 1 {
					t.Errorf("retried %v on server %d", d.Reason, d.Server)
				}
				l.End(routing.Outcome{OK: true})
				p.Observe(0, before)
				wantCore(t, p, "oo++")
				p.Observe(0, good(info(2, "m")))
				wantCore(t, p, "++++")
				if d := acquire(t, p, turn(1)).Decision(); d.Reason != routing.Stayed {
					t.Errorf("back home: %v", d.Reason)
				}
			})
		})
	}
}

// One rank of a vLLM dies: the others abort their answers at once, while the
// probe succeeds for another six seconds and new requests are answered or hang.
func TestAServerThatAbortsItsAnswersIsSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := twoByTwo(t)
		dead, other := acquire(t, p, pinned(1, 1)), acquire(t, p, pinned(2, 0))
		dead.FirstByte()
		other.FirstByte()
		other.Failed(ErrAborted)
		other.End(routing.Outcome{})
		wantCore(t, p, "oo++")
		for range 9 {
			time.Sleep(time.Second)
			p.Observe(0, good(info(2, "m")))
			l := acquire(t, p, turn(1))
			if l.Decision().Server == 0 {
				t.Error("a turn was sent into the hang")
			}
			l.End(routing.Outcome{OK: true})
		}
		wantCore(t, p, "oo++")
		// It proves to be alive.
		time.Sleep(time.Second)
		p.Observe(0, good(info(2, "m")))
		wantCore(t, p, "++++")

		// The next time it does die, and another process takes its place.
		dead.Failed(ErrAborted)
		dead.End(routing.Outcome{})
		wantCore(t, p, "oo++")
		p.Observe(0, bad(info(2, "m"), engine.Down))
		wantCore(t, p, "--++")
		p.Observe(0, with(good(info(2, "m")), func(r *engine.Report) { r.Epoch = 2 }))
		wantCore(t, p, "++++")
		wantInFlight(t, p, 0)
	})
}

func TestTheOnlyServerIsUsedThoughItIsSuspect(t *testing.T) {
	p := newPool(t, Server{URL: "http://a"})
	p.Observe(0, good(info(2, "m")))
	l := acquire(t, p, turn(1))
	l.FirstByte()
	l.Failed(ErrAborted)
	l.End(routing.Outcome{})
	wantStates(t, p, "down down")
	if d := acquire(t, p, turn(1)).Decision(); d.Reason != routing.Stayed {
		t.Errorf("the next turn: %+v", d)
	}
}

// What was open when a server went down may break long after it is back.
func TestLateFailuresAreNoNewsOfAServer(t *testing.T) {
	up := func(_ *testing.T, p *Pool) { probe(p) }
	returns := map[string]struct{ away, back func(*testing.T, *Pool) }{
		"a failed probe": {
			func(_ *testing.T, p *Pool) { p.Observe(0, bad(info(1, "m"), engine.Down)) }, up,
		},
		"a reset": {
			func(t *testing.T, p *Pool) { attempt(t, p, 0, errReset) }, up,
		},
		"another process": {
			func(_ *testing.T, p *Pool) { p.Observe(0, bad(info(1, "m"), engine.Down)) },
			func(_ *testing.T, p *Pool) {
				p.Observe(0, with(good(info(1, "m")), func(r *engine.Report) { r.Epoch = 2 }))
			},
		},
	}
	for name, tt := range returns {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := pair(t)
				var old []*Lease
				for n := range 2 * ejectAfter {
					old = append(old, acquire(t, p, pinned(n, 0)))
				}
				time.Sleep(time.Second)
				tt.away(t, p)
				wantStates(t, p, "down ready")
				time.Sleep(time.Second)
				tt.back(t, p)
				wantStates(t, p, "ready ready")
				time.Sleep(time.Second)
				later := acquire(t, p, pinned(100, 0))
				for i, l := range old {
					l.Failed([]error{errReset, errRefused}[i%2])
					l.End(routing.Outcome{})
					wantStates(t, p, "ready ready")
				}
				later.Failed(errReset)
				later.End(routing.Outcome{})
				wantStates(t, p, "down ready")
			})
		})
	}
}

func TestASilentAttemptIsGivenUpWhenItsServerIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pair(t)
		talks, elsewhere, silent := acquire(t, p, turn(1)), acquire(t, p, turn(2)), acquire(t, p, turn(3))
		if silent.Decision().Replica != 0 || talks.Decision().Replica != 0 {
			t.Fatal("the attempts are not on replica 0")
		}
		ctx := silent.Context()
		pass := func(seconds int) {
			for range seconds {
				time.Sleep(time.Second)
				talks.Progress()
				p.tick()
			}
		}
		want := func(silentErr error) {
			t.Helper()
			synctest.Wait()
			if got := context.Cause(ctx); got != silentErr {
				t.Errorf("the silent attempt's context ended with %v, want %v", got, silentErr)
			}
			for _, l := range []*Lease{talks, elsewhere} {
				if err := l.Context().Err(); err != nil {
					t.Errorf("a context ended: %v", err)
				}
			}
		}
		down := func(err error) {
			p.Observe(0, with(bad(info(1, "m"), engine.Down), func(r *engine.Report) { r.Err = err }))
		}
		pass(60) // it may be slow
		down(errors.New("/health: 503"))
		pass(60) // there is still somebody who says so
		want(nil)
		down(errRefused)
		pass(10)
		probe(p) // it is back
		pass(60)
		want(nil)
		down(errRefused)
		pass(10)
		down(errRefused)
		pass(4)
		want(nil)
		pass(1)
		want(ErrLost)

		if err := silent.Retry(context.Cause(ctx)); err != nil {
			t.Fatal(err)
		}
		if d := silent.Decision(); d.Replica != 1 || silent.Context().Err() != nil {
			t.Errorf("retried on replica %d, its context %v", d.Replica, silent.Context().Err())
		}
		pass(60)
		want(ErrLost)
		for _, l := range []*Lease{talks, silent, elsewhere} {
			l.End(routing.Outcome{})
			if l.Context().Err() == nil {
				t.Error("a context outlives its lease")
			}
		}
		for _, s := range p.servers {
			if len(s.open) > 0 {
				t.Errorf("%d attempts left behind", len(s.open))
			}
		}
	})
}
