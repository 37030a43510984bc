//go:build unix

package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lmwarden/internal/bench"
)

// engineEnv makes this binary an engine at that address.
const engineEnv = "LMWARDEN_LIVE_CHILD_ENGINE"

func childEngine(address string) int {
	fmt.Println("engine of process", os.Getpid())
	err := http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/metrics":
			fmt.Fprint(w, page(10, 5))
		case "/v1/messages":
			_, _ = io.Copy(io.Discard, r.Body)
			(&stream{w: w}).answer("yes")
		default:
			http.NotFound(w, r) // it cannot empty its cache
		}
	}))
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// child is an engine to be started, with a helper process beside it.
func child(t *testing.T) (start Start, remains *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	remains, held := witness(t)
	command := fmt.Sprintf("exec 3> %s; sleep 600 & %s=%s %s", held, engineEnv, address, os.Args[0])
	return Start{mustURL(t, "http://"+address), command}, remains
}

// witness is a pipe by name. It can be read to its end when nobody who opened the
// name is left.
func witness(t *testing.T) (read *os.File, name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return read, name
}

// someRemain tells whether somebody still has the other end of a witness open.
func someRemain(t *testing.T, read *os.File) bool {
	t.Helper()
	if err := read.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	switch _, err := read.Read(make([]byte, 1)); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return true
	case errors.Is(err, io.EOF):
		return false
	default:
		t.Fatalf("witness: %v", err)
		return false
	}
}

// starting are the options of a System that starts engines and measures the first.
func starting(t *testing.T, starts ...Start) Options {
	return Options{
		Routers: map[string]*url.URL{"direct": starts[0].URL}, Model: "m", Dialect: Anthropic, BytesPerToken: 4, Speed: 1,
		Timeout: 20 * time.Second, UserAgent: "test", Start: starts, Logs: filepath.Join(t.TempDir(), "logs"), StartWithin: 30 * time.Second,
	}
}

// warnings collects what a System warns of.
type warnings struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.all, "\n")
}

func TestStartedEngine(t *testing.T) {
	start, remains := child(t)
	var warned warnings
	o := starting(t, start)
	o.Warn, o.Incidents = warned.add, []bench.Incident{{Kind: bench.Kill, Replica: 0}}
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	answered := func(when string, want bench.End) {
		t.Helper()
		if r := send(t, s, bench.Request{Session: 7, Turn: question(4)})[0]; r.End != want {
			t.Errorf("%s: %s %s, want %s", when, r.End, r.Error, want)
		}
	}
	step := func() {
		t.Helper()
		if err := s.Settle(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		s.Begin(bench.Step{Length: time.Hour})
	}
	if err := s.Switch("direct", true); err != nil || s.caches != "cold" {
		t.Errorf("a new engine: %v, caches %s", err, s.caches)
	}
	if err := s.Settle(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	answered("when it is ready", bench.Finished)
	if !someRemain(t, remains) {
		t.Fatal("nobody holds the witness: it would tell nothing")
	}

	step() // kills it at once
	if err := s.Run(context.Background(), s.Now()+time.Minute, func() bool { return s.started[0].killed }); err != nil {
		t.Fatal(err)
	}
	<-s.started[0].life.ended
	if someRemain(t, remains) {
		t.Error("processes of a killed engine remain")
	}
	answered("when it was killed", bench.Failed)
	s.Cut()
	if err := s.Settle(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	answered("in the next step", bench.Finished)

	s.started[0].loaded = true
	if err := s.Switch("direct", true); err != nil || s.caches != "cold: engines were started anew" {
		t.Errorf("an engine that cannot empty its cache: %v, caches %s", err, s.caches)
	}
	if err := s.Settle(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	answered("started anew", bench.Finished)
	if err := s.Switch("direct", true); err != nil || s.caches != "cold" {
		t.Errorf("an engine that had no load since: %v, caches %s", err, s.caches)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if someRemain(t, remains) {
		t.Error("processes of the engine remain")
	}
	output, err := os.ReadFile(s.started[0].log)
	if n := bytes.Count(output, []byte("\nengine of process ")); err != nil || n != 3 {
		t.Errorf("its output tells of %d lives, want 3: %v\n%s", n, err, output)
	}
	if warned.String() != "" {
		t.Errorf("warned: %s", &warned)
	}
}

// A gateway finds an engine that is ready by looking, now and then.
func TestAGatewayFindsAStartedEngine(t *testing.T) {
	start, _ := child(t)
	var looks atomic.Int64
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		state := "down"
		if looks.Add(1) > 2 {
			state = "ready"
		}
		fmt.Fprintf(w, `{"name": "m", "policy": "affinity", "replicas": [{"url": %q, "rank": null, "state": %q}]}`, start.URL, state)
	}))
	defer admin.Close()
	o := starting(t, start)
	o.Admin, o.Target = mustURL(t, admin.URL), start.URL
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := looks.Load(); n < 3 || len(s.places) != 1 {
		t.Errorf("begun after %d looks, with places %v", n, s.places)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	elsewhere := modelView{Name: "m", Replicas: []replicaView{{URL: "http://127.0.0.1:1", State: "ready"}}}
	if err := s.notReady(elsewhere); err == nil || !strings.Contains(err.Error(), "the gateway has no replica there: those of model m are at http://127.0.0.1:1") {
		t.Errorf("error %v", err)
	}
}

// An engine that ends by itself ends the measurement, with what it said last.
func TestAStartedEngineThatDies(t *testing.T) {
	start, remains := child(t)
	die := filepath.Join(t.TempDir(), "die")
	if err := syscall.Mkfifo(die, 0o600); err != nil {
		t.Fatal(err)
	}
	start.Command = "exec 4<> " + die + "; (" + start.Command + ") & read line <&4; echo no card; exit 3"
	var warned warnings
	o := starting(t, start)
	o.Warn = warned.add
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(die, []byte("now\n"), 0); err != nil {
		t.Fatal(err)
	}
	<-s.started[0].life.ended
	if err := s.Settle(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "has ended: its output is in ") {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(warned.String(), "has ended (exit status 3)") || !strings.HasSuffix(warned.String(), ": no card") || someRemain(t, remains) {
		t.Errorf("warned: %s", &warned)
	}
}

func TestEnginesThatDoNotStart(t *testing.T) {
	taken := newEndpoint(t, func(*stream, *http.Request) {})
	free, _ := child(t)
	for name, tc := range map[string]struct {
		start  Start
		within time.Duration
		want   string
	}{
		"it ends":               {Start{free.URL, "echo no card; exit 3"}, time.Minute, "has ended: its output is in "},
		"it is never ready":     {Start{free.URL, "sleep 600 & sleep 601"}, 100 * time.Millisecond, "is not ready: it was given 100ms"},
		"its place is taken":    {Start{taken.url, "sleep 600"}, time.Minute, "something listens there already"},
		"no time is given":      {Start{free.URL, "sleep 600"}, 0, "start within 0s"},
		"no port is its own":    {Start{mustURL(t, "http://localhost"), "sleep 600"}, time.Minute, "give each a port of its own"},
		"no such shell command": {Start{free.URL, "nonsense-command"}, time.Minute, "has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			remains, held := witness(t)
			tc.start.Command = "exec 3> " + held + "; " + tc.start.Command
			o := starting(t, tc.start)
			o.StartWithin = tc.within
			s, err := New(context.Background(), o)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || someRemain(t, remains) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
	// An interrupt while it waits.
	ctx, interrupt := context.WithCancel(context.Background())
	remains, held := witness(t)
	time.AfterFunc(100*time.Millisecond, interrupt)
	if _, err := New(ctx, starting(t, Start{free.URL, "exec 3> " + held + "; sleep 600 & sleep 601"})); err == nil || someRemain(t, remains) {
		t.Errorf("interrupted: %v", err)
	}
}

// Processes that do not want to end are killed when their time is over, and so
// is what closed its output.
func TestStubbornCommand(t *testing.T) {
	remains, held := witness(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	said, say := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- runCommand(ctx, "exec 3> "+held+"; trap '' TERM; (sleep 600 > /dev/null 2>&1 &) ; echo ready; while :; do sleep 600; done", say, 50*time.Millisecond)
	}()
	if _, err := said.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	cancel(errStop)
	if err := <-ended; err != nil || someRemain(t, remains) {
		t.Errorf("ended with %v", err)
	}
}
