package kvevents

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// The wire is spoken as somebody else speaks it: another implementation publishes,
// and answers questions for a replay, over real connections.
func TestAnotherImplementationOfZeroMQ(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pub, router := zmq4.NewPub(ctx), zmq4.NewRouter(ctx)
	defer pub.Close()
	defer router.Close()
	for _, s := range []zmq4.Socket{pub, router} {
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	first := batch(t, storedEvent(1, 2))
	go func() {
		for {
			m, err := router.Recv()
			if err != nil {
				return
			}
			who := m.Frames[0]
			_ = router.SendMulti(zmq4.NewMsgFrom(who, nil, []byte("kv"), number(0), first))
			_ = router.SendMulti(zmq4.NewMsgFrom(who, nil, nil, number(endOfReplay), nil))
		}
	}()

	l, err := New(Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	from := Source{Events: pub.Addr().String(), Replay: router.Addr().String()}
	l.Listen([]Source{from})
	until := func(cached int64) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for limit := time.After(20 * time.Second); ; {
			v, _ := l.View(from)
			if v.CachedTokens == cached && v.Complete {
				return
			}
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("never %d cached tokens: %+v", cached, v)
			}
		}
	}
	until(32)
	if err := pub.SendMulti(zmq4.NewMsgFrom([]byte("kv"), number(1), batch(t, storedEvent(3)))); err != nil {
		t.Fatal(err)
	}
	until(48)
}
