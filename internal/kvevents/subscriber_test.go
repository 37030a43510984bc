package kvevents

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The other implementation of ZeroMQ leaves this one behind when it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// listen follows a publisher within a bubble.
func listen(t *testing.T, p *publisher, from Source) func() View {
	t.Helper()
	l, err := New(Options{Log: slog.New(slog.DiscardHandler), Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	l.Listen([]Source{from})
	t.Cleanup(l.Stop)
	return func() View {
		t.Helper()
		synctest.Wait()
		v, ok := l.View(from)
		if !ok {
			t.Fatal("nobody listens")
		}
		return v
	}
}

var (
	live     = Source{Events: eventsAddress}
	replayed = Source{Events: eventsAddress, Replay: replayAddress}
)

// same compares views but for rates and age.
func same(t *testing.T, got, want View) {
	t.Helper()
	got.StoredPerSecond, got.RemovedPerSecond, got.Age = 0, 0, 0
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestTheCacheIsAsTheEventsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		view := listen(t, p, live)
		c := <-p.subscribers
		same(t, view(), View{Connected: true, CachedTokens: -1, Sequence: -1})

		p.send(c, 0, batch(t, storedEvent(1, 2, 3), storedEvent(4)))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 64, Blocks: 4})
		offloaded := storedEvent(50, 51)
		offloaded["medium"] = "CPU"
		p.send(c, 1, batch(t, removedEvent(2), removedEvent(99), offloaded))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 48, Blocks: 3, Sequence: 1})
		// A second copy of a block: the content is gone with the last one.
		p.send(c, 2, batch(t, storedEvent(1), removedEvent(1)))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 48, Blocks: 3, Sequence: 2})

		time.Sleep(2 * time.Second)
		if v := view(); v.StoredPerSecond != 6.4 || v.RemovedPerSecond != 1.6 || v.Age != 2*time.Second {
			t.Errorf("stored %g, removed %g a second, age %s", v.StoredPerSecond, v.RemovedPerSecond, v.Age)
		}
		time.Sleep(window * time.Second)
		if v := view(); v.StoredPerSecond != 0 || v.RemovedPerSecond != 0 || v.CachedTokens != 48 {
			t.Errorf("rates of what is long ago: %+v", v)
		}
		p.send(c, 3, batch(t, named{"type": "AllBlocksCleared"}, storedEvent(7)))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 16, Blocks: 1, Sequence: 3})
	})
}

func TestAGapIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		view := listen(t, p, replayed)
		c := <-p.subscribers
		view()
		p.fill(6)
		p.send(c, 0, p.buffer[0])
		p.send(c, 4, p.buffer[4]) // 1 to 3 were dropped; the replay has 5, too
		p.send(c, 5, p.buffer[5])
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 96, Blocks: 6, Sequence: 5, Gaps: 1})
		if d := cmp.Diff([]uint64{0, 1}, p.asked); d != "" {
			t.Error(d)
		}
	})
}

func TestWhatNoReplayBringsIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		from   Source
		spoil  func(*publisher)
		lost   int64
		blocks int
	}{
		"no replay":               {live, func(*publisher) {}, 3, 2},
		"out of the buffer":       {replayed, func(p *publisher) { p.buffer[1], p.buffer[2] = nil, nil }, 2, 3},
		"no answer":               {replayed, func(p *publisher) { p.mute = true }, 3, 2},
		"a batch that is no more": {replayed, func(p *publisher) { p.buffer[2] = []byte("\xc1") }, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPublisher(t)
				view := listen(t, p, c.from)
				conn := <-p.subscribers
				view()
				p.fill(5)
				p.send(conn, 0, p.buffer[0])
				view()
				p.set(func() { c.spoil(p) })
				p.send(conn, 4, batch(t, storedEvent(4)))
				time.Sleep(replayTimeout + time.Second)
				v := view()
				if v.Lost != c.lost || v.Gaps != 1 || v.Complete || v.Blocks != c.blocks || !v.Connected {
					t.Errorf("%+v", v)
				}
				// All is known again once all is gone.
				p.send(conn, 5, batch(t, named{"type": "AllBlocksCleared"}))
				if v := view(); !v.Complete || v.CachedTokens != 0 {
					t.Errorf("after a reset: %+v", v)
				}
			})
		})
	}
}

func TestALateListenerKnowsWhatTheBufferHas(t *testing.T) {
	for name, c := range map[string]struct {
		from     Source
		complete bool
		blocks   int
	}{
		"without a replay": {live, false, 1},
		"with one":         {replayed, true, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPublisher(t)
				p.fill(3)
				view := listen(t, p, c.from)
				conn := <-p.subscribers
				p.send(conn, 2, p.buffer[2]) // the subscription was there before the replay
				p.send(conn, 3, batch(t, storedEvent(3)))
				v := view()
				if !c.complete {
					c.blocks = 2
				}
				if v.Complete != c.complete || v.Blocks != c.blocks || v.Lost != 0 || v.Gaps != 0 {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// A batch may be too early for the subscription and too late for the replay.
func TestWhatCameBetweenReplayAndSubscriptionIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		view := listen(t, p, replayed)
		c := <-p.subscribers
		view()
		p.fill(2)
		p.send(c, 1, batch(t, storedEvent(1)))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 32, Blocks: 2, Sequence: 1})
	})
}

func TestAnEngineThatEndsIsFollowedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		view := listen(t, p, live)
		c := <-p.subscribers
		p.send(c, 0, batch(t, storedEvent(1, 2)))
		view()
		p.set(func() { p.refuse = true })
		p.cut()
		if v := view(); v.Connected || v.CachedTokens != -1 || !strings.Contains(v.Problem, eventsAddress) {
			t.Errorf("after the end: %+v", v)
		}
		time.Sleep(10 * time.Second)
		if v := view(); v.Connected || !strings.Contains(v.Problem, "refused") {
			t.Errorf("while it is away: %+v", v)
		}
		p.set(func() { p.refuse = false })
		c = <-p.subscribers // after a pause
		p.send(c, 0, batch(t, storedEvent(1)))
		same(t, view(), View{Connected: true, Complete: true, CachedTokens: 16, Blocks: 1})

		// A forwarder between keeps the connection while the engine is a new one.
		p.send(c, 1, batch(t, storedEvent(2)))
		p.send(c, 0, batch(t, storedEvent(3)))
		c = <-p.subscribers
		p.send(c, 1, batch(t, storedEvent(4)))
		same(t, view(), View{Connected: true, CachedTokens: 16, Blocks: 1, Sequence: 1})
	})
}

func TestWhatIsNoBatchEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		view := listen(t, p, live)
		c := <-p.subscribers
		if err := c.Send([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if v := view(); v.Connected || !strings.Contains(v.Problem, "no batch") {
			t.Errorf("%+v", v)
		}
		<-p.subscribers
	})
}

func TestSourcesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		l, err := New(Options{Log: slog.New(slog.DiscardHandler), Dial: p.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Stop()
		l.Listen([]Source{live, live})
		c := <-p.subscribers
		p.send(c, 0, batch(t, storedEvent(1)))
		synctest.Wait()
		l.Listen([]Source{live})
		if v, ok := l.View(live); !ok || v.CachedTokens != 16 {
			t.Errorf("what stays is heard anew: %v %+v", ok, v)
		}
		l.Listen(nil)
		if _, ok := l.View(live); ok {
			t.Error("what is gone is still heard")
		}
	})
	if _, err := New(Options{}); err == nil {
		t.Error("New takes options without a log")
	}
}

// The end of the listeners cuts a replay that hangs, too.
func TestStopDoesNotWaitForAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		p.mute = true
		l, err := New(Options{Log: slog.New(slog.DiscardHandler), Dial: p.dial})
		if err != nil {
			t.Fatal(err)
		}
		l.Listen([]Source{replayed})
		<-p.subscribers
		synctest.Wait()
		began := time.Now()
		l.Stop()
		if took := time.Since(began); took != 0 || !slices.Equal(p.asked, []uint64{0}) {
			t.Errorf("took %s, asked %v", took, p.asked)
		}
	})
}
