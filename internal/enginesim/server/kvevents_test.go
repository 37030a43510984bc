package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/kvevents"
)

// ports are listeners in memory by their address.
type ports struct {
	mu sync.Mutex
	at map[string]*named // guarded by mu
}

type named struct {
	listener
	name string
}

func (l *named) Addr() net.Addr { return &net.UnixAddr{Name: l.name, Net: "memory"} }

func (p *ports) listen(_, address string) (net.Listener, error) {
	l := &named{listener{accepted: make(chan net.Conn), closed: make(chan struct{})}, address}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[address] = l
	return l, nil
}

func (p *ports) dial(ctx context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.at[address]
	p.mu.Unlock()
	client, server := net.Pipe()
	select {
	case l.accepted <- server:
		return client, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// kvWorld is a server whose ranks publish, and somebody who listens to them.
type kvWorld struct {
	t      *testing.T
	server *Server
	ports  *ports
	heard  *kvevents.Listeners
	asked  int // prompts, each another one
}

func source(rank int) kvevents.Source {
	return kvevents.Source{Events: fmt.Sprint("events", rank), Replay: fmt.Sprint("replay", rank)}
}

func newKVWorld(t *testing.T, o Options) *kvWorld {
	p := &ports{at: map[string]*named{}}
	listener := must[net.Listener](t)
	for rank := range o.Replicas {
		o.KVEvents = append(o.KVEvents, KVPort{listener(p.listen("", source(rank).Events)), listener(p.listen("", source(rank).Replay))})
	}
	s := must[*Server](t)(New(o))
	s.listen = p.listen
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	l := listener(p.listen("", "http"))
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	heard := must[*kvevents.Listeners](t)(kvevents.New(kvevents.Options{Log: slog.New(slog.DiscardHandler), Dial: p.dial}))
	t.Cleanup(heard.Stop)
	return &kvWorld{t: t, server: s, ports: p, heard: heard}
}

func (w *kvWorld) listen(ranks int) {
	var all []kvevents.Source
	for rank := range ranks {
		all = append(all, source(rank))
	}
	w.heard.Listen(all)
}

func (w *kvWorld) view(rank int) kvevents.View {
	synctest.Wait()
	v, _ := w.heard.View(source(rank))
	return v
}

// ask has a rank answer, and returns when the answer has ended.
func (w *kvWorld) ask(rank, promptBytes, answer int) {
	w.t.Helper()
	w.asked++
	body := fmt.Sprintf(`{"prompt":"%d%s","max_tokens":%d}`, w.asked, strings.Repeat("x", promptBytes), answer)
	c := must[net.Conn](w.t)(w.ports.dial(w.t.Context(), "", "http"))
	defer c.Close()
	go fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Data-Parallel-Rank: %d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", rank, len(body), body)
	reply := make([]byte, 12)
	if _, err := c.Read(reply); err != nil || string(reply) != "HTTP/1.1 200" {
		w.t.Fatalf("%q, %v", reply, err)
	}
}

// What is heard is what each rank has, whatever the encoding and whenever one began to
// listen: through evictions, a reset and a restart.
func TestPublishedKVEventsAreWhatIsCached(t *testing.T) {
	for _, version := range []string{"0.23.0", "0.32.0"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := recorded(t)
				o.Version = version
				w := newKVWorld(t, o)
				check := func(what string) {
					t.Helper()
					for rank := range o.Replicas {
						v := w.view(rank)
						cached := int64(w.server.State().CachedTokens[rank])
						if got := max(v.CachedTokens, 0); got != cached || v.CachedTokens >= 0 && !v.Complete || !v.Connected || v.Problem != "" {
							t.Errorf("%s: rank %d has %d tokens cached, heard was %+v", what, rank, cached, v)
						}
					}
				}
				w.ask(0, 1000, 40) // before anybody listens
				w.listen(o.Replicas)
				check("a late listener")
				for range 5 {
					w.ask(0, 5000, 5)
				}
				w.ask(1, 300, 50)
				check("after evictions")
				if v := w.view(0); v.Blocks < 300 || v.Blocks > 399 {
					t.Errorf("25,000 tokens in a cache of 12,768: %+v", v)
				}
				if !w.server.process().engine.resetCache() {
					t.Fatal("not reset")
				}
				w.ask(0, 300, 5) // a reset is told with the next step
				w.ask(1, 300, 5)
				check("after a reset")

				if err := w.server.Fail("restart,down=5s"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if v := w.view(0); v.Connected || v.CachedTokens != -1 {
					t.Errorf("an engine that is gone: %+v", v)
				}
				time.Sleep(time.Minute)
				w.ask(1, 100, 5)
				check("after a restart")
			})
		})
	}
}
