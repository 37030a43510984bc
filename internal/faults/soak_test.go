package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lmwarden/internal/config"
)

// The environment of the long forms, as make soak sets it.
const (
	soakRequests = "LMWARDEN_SOAK_REQUESTS"
	soakStreams  = "LMWARDEN_SOAK_STREAMS"
)

// sized is a number from the environment, for those who want a long form.
func sized(t *testing.T, name string, short int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// What 40 agents ask in a day is some 200,000 requests. Engines that answer at
// once take them in minutes, and what the gateway holds at the end is what it held
// after two fifths of them.
func TestADayOfTrafficLeavesNothingBehind(t *testing.T) {
	// Not parallel: it measures the process.
	short := 4000
	if raced {
		short = 600
	}
	requests := sized(t, soakRequests, short)
	const conversations = 50 // so that the tables are full soon
	data := t.TempDir()
	g := start(t, func(c *config.Config) {
		c.Data = data
		c.Session.MaxConversations = conversations
		c.Timeouts.EngineIdle = config.Duration(300 * time.Millisecond)
	}, newEngine(t, 2, reply).forget(), newEngine(t, 1, reply).forget(), newEngine(t, 1, reply).forget())
	g.log.most = 16 << 10

	hold := func() holding {
		h := holding{conversations: g.known()}
		if info, err := os.Stat(filepath.Join(data, "conversations")); err == nil {
			h.saved = info.Size()
		}
		g.client.CloseIdleConnections()
		h.heap, h.goroutines, h.files = heap(), runtime.NumGoroutine(), countFiles(t)
		return h
	}
	day := &soak{g: g}
	idle := hold()
	// The saved table is made when there is something to save, and probes come and
	// go. What a request left behind would be there thousands of times.
	const few = 10
	// settled is what is held when all connections of the requests are closed.
	settled := func() (h holding) {
		await(t, "goroutines and files to be given back", func() error {
			if h = hold(); h.goroutines > idle.goroutines+few || h.files > idle.files+few {
				return fmt.Errorf("%v, idle %v", h, idle)
			}
			return nil
		})
		return h
	}
	day.run(requests * 2 / 5)
	held := settled()
	day.run(requests)
	end := settled()
	t.Logf("%d requests, %d of whose clients left\nidle: %v\nafter two fifths: %v\nat the end: %v", requests, day.left.Load(), idle, held, end)

	if n := day.failed.Load(); n > 0 {
		t.Errorf("%d requests were not answered as they should, the first %v", n, day.first.Load())
	}
	if end.heap > held.heap+held.heap/10+4<<20 { // 30 bytes for each request of a whole day
		t.Error("the heap grew")
	}
	if held.conversations != conversations || end.conversations != conversations {
		t.Errorf("the table holds more or less than %d conversations", conversations)
	}
	if end.saved > 2<<20 { // it is written anew long before
		t.Error("the saved table grew")
	}
}

// holding is what a gateway holds when it is idle.
type holding struct {
	goroutines, files int
	heap, saved       int64 // bytes
	conversations     int
}

func (h holding) String() string {
	return fmt.Sprintf("%d goroutines, %d files, heap %d kB, saved %d kB, %d conversations", h.goroutines, h.files, h.heap>>10, h.saved>>10, h.conversations)
}

// known counts the conversations in the table.
func (g *gateway) known() (n int) {
	for cursor := ""; ; {
		var page struct {
			Conversations []struct{}
			Next          *string
		}
		g.admin(http.MethodGet, "/api/conversations?limit=1000&cursor="+url.QueryEscape(cursor), "", &page)
		n += len(page.Conversations)
		if page.Next == nil || *page.Next == "" {
			return n
		}
		cursor = *page.Next
	}
}

// soak is clients of all kinds in closed loop that do not think.
type soak struct {
	g            *gateway
	asked        atomic.Int64
	left, failed atomic.Int64
	first        atomic.Value // of the failures, a string
}

// run lets them ask until so many requests were made.
func (s *soak) run(requests int) {
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), uint64(requests)))
			for talk := 0; s.asked.Load() < int64(requests); talk++ {
				s.conversation(r, fmt.Sprintf("%d-%d-%d", requests, n, talk))
			}
		})
	}
	all.Wait()
}

// conversation is some turns in one dialect, and what agents ask beside them.
func (s *soak) conversation(r *rand.Rand, name string) {
	d := dialects[r.IntN(len(dialects))]
	var headers []string
	if r.IntN(2) == 0 {
		headers = []string{"X-Session-Id", name}
	}
	var questions []string
	for range 1 + r.IntN(6) {
		questions = append(questions, name+" asks")
		s.ask(200, d.path, d.talk(questions, r.IntN(2) == 0, ""), headers...)
		switch r.IntN(20) {
		case 0:
			s.ask(200, "/v1/messages/count_tokens", messages.request(name, false, ""), headers...)
		case 1:
			s.ask(404, d.path, `{"model":"`+name+`"}`, headers...)
		case 2:
			s.ask(400, d.path, `{"model":`, headers...)
		case 3:
			s.leave(d, questions, headers)
		}
	}
}

func (s *soak) ask(want int, path, body string, headers ...string) {
	s.asked.Add(1)
	a, err := s.g.ask(context.Background(), path, body, headers...)
	if err != nil || a.err != nil || a.status != want {
		s.failed.Add(1)
		s.first.CompareAndSwap(nil, fmt.Sprintf("%s: %d %v %v %.200s", path, a.status, err, a.err, a.body))
	}
}

// leave asks and does not wait.
func (s *soak) leave(d dialect, questions, headers []string) {
	s.asked.Add(1)
	s.left.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	s.g.ask(ctx, d.path, d.talk(questions, true, ""), headers...)
}

// Streams that are open at once are all served, event by event.
func TestThousandsOfStreamsAreOpenAtOnce(t *testing.T) {
	// Not parallel: it measures the process and needs the files that others use.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// All four ends are ours.
	n := min(sized(t, soakStreams, 200), (int(limit.Cur)-500)/4)
	if n < 100 {
		t.Skipf("only %d file descriptors are allowed", limit.Cur)
	}
	events := chat.events("one ", "two ", "three")
	begun, goOn := make(chan bool, n), make(chan struct{})
	e := newEngine(t, 1, func(c *call) {
		c.begin()
		c.chunk(events[0])
		if !c.wait(goOn) {
			return
		}
		for _, ev := range events[1:] {
			c.chunk(ev)
		}
		c.end()
	}).forget()
	g := start(t, nil, e)
	before, began := heap(), time.Now()
	answers := make(chan answer, n)
	for i := range n {
		go func() {
			answers <- g.watch(chat.path, chat.request("hello", true, ""), len(events[0]), begun, "X-Session-Id", fmt.Sprint(i))
		}()
	}
	for range n {
		receive(t, "a stream to begin", begun)
	}
	if m := g.model(); m.InFlight != n {
		t.Errorf("%d in flight, want %d", m.InFlight, n)
	}
	t.Logf("%d streams are open after %s; client, gateway and engine hold %d kB of heap for each", n, time.Since(began).Round(time.Millisecond), (heap()-before)>>10/int64(n))
	close(goOn)
	for range n {
		want := ""
		for _, ev := range events {
			want += ev
		}
		if a := receive(t, "an answer", answers); a.status != 200 || a.err != nil || a.body != want {
			t.Fatalf("got %d %v %q", a.status, a.err, a.body)
		}
	}
	g.settled(map[string]int{"ok": n})
}
