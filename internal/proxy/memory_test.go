package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	"lmwarden/internal/routing"
)

// Buffers, goroutines and connections of the gateway for one open stream. The
// request was 30 kB and must not count.
func TestAnOpenStreamTakesAtMost64KB(t *testing.T) {
	const limit = 64 << 10
	direct := openStreams(t, func(engine dialer) dialer { return engine })
	through := openStreams(t, func(engine dialer) dialer {
		m := &fakeModel{name: "m", served: "m", reason: routing.Placed, bases: []*url.URL{{Scheme: "http", Host: "engine"}}}
		g := build(t, Limits{}, func(context.Context, string, string) (net.Conn, error) { return engine(), nil }, m)
		outcomes := make(records, 2000)
		g.Handler.recorder, g.logger = outcomes, slog.New(slog.DiscardHandler)
		front, server := newPipes(), g.Server()
		var serving sync.WaitGroup
		serving.Go(func() { server.Serve(front) })
		t.Cleanup(func() {
			server.Close()
			g.Close()
			serving.Wait()
			for close(outcomes); len(outcomes) > 0; {
				if r := <-outcomes; r.Outcome != OK {
					t.Errorf("a stream ended as %q: %s", r.Outcome, r.Error)
				}
			}
		})
		return func() net.Conn {
			c, _ := front.dial(context.Background(), "", "") // fails only with its context
			return c
		}
	})
	each := through - direct
	t.Logf("an open stream takes %d kB", each>>10)
	if each > limit {
		t.Errorf("an open stream takes %d bytes, at most %d are allowed", each, limit)
	}
}

type dialer func() net.Conn

// openStreams opens streams at once, of which the first event has come, and
// returns the memory that each takes. Then all are read to their end.
func openStreams(t *testing.T, connect func(engine dialer) dialer) int {
	const streams = 1000
	script := scripts["/v1/chat/completions"]
	body := strings.Replace(script.body, "hello", strings.Repeat("hello ", 5000), 1)
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	chunk := func(events ...string) string {
		text := strings.Join(events, "")
		return fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
	}
	var engines sync.WaitGroup
	next := make(chan bool)
	dial := connect(func() net.Conn {
		near, far := net.Pipe()
		engines.Go(func() {
			defer far.Close()
			take(bufio.NewReader(far))
			io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk(script.events[0]))
			<-next
			io.WriteString(far, chunk(script.events[1:]...)+"0\r\n\r\n")
		})
		return near
	})

	before := inUse()
	clients := make([]net.Conn, streams)
	for i := range clients {
		clients[i] = dial()
		io.WriteString(clients[i], request)
		if n, _ := clients[i].Read(make([]byte, 4<<10)); n == 0 {
			t.Fatalf("stream %d did not begin", i)
		}
	}
	after := inUse()
	close(next)
	for _, c := range clients {
		if rest, _ := io.ReadAll(c); !strings.HasSuffix(string(rest), "\r\n0\r\n\r\n") {
			t.Errorf("a stream ended with %q", rest)
		}
		c.Close()
	}
	engines.Wait()
	return (after - before) / streams
}

// inUse is the memory of all that lives.
func inUse() int {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int(s.HeapInuse + s.StackInuse)
}
