package pool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// found is what Lookup finds for a name: the pool's name, "-" for a pool that
// only stands in for engines that were not heard, "" for none.
func found(s *Set, name string) string {
	p, ok := s.Lookup(name)
	if !ok {
		return ""
	}
	for _, known := range s.Pools() {
		if p == known {
			return p.Name()
		}
	}
	return "-"
}

func TestLookup(t *testing.T) {
	s, err := NewSet(SetOptions{Models: []Options{
		{Name: "big", ServedName: "org/big", Aliases: []string{"large", "claude-opus*", "x-*-y-*-z"}, Servers: []Server{{URL: "a", Ranks: 1}}},
		{Name: "small", ServedName: "large", Aliases: []string{"org/big", "claude-*", "big"}, Servers: []Server{{URL: "b", Ranks: 1}}},
	}, Watch: newFakeSources().watch})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"big":             "big", // a name comes before an alias
		"small":           "small",
		"large":           "big",   // an alias before a served name
		"org/big":         "small", // likewise
		"claude-opus-5":   "big",   // globs in the order of the configuration
		"claude-sonnet-5": "small",
		"x--y--z":         "big",
		"x-1-y-2/3-z":     "big",
		"x-y-z":           "",
		"Claude-opus":     "",
		"nothing":         "",
		"":                "", // two models: it must be said which
	} {
		if got := found(s, name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true}, {"*", "any/thing", true}, {"a*", "a", true}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"a**c", "ac", true},
		{"a*bc*c", "abc", false},
	} {
		if got := matches(strings.Split(test.pattern, "*"), test.name); got != test.want {
			t.Errorf("%q on %q: %v", test.pattern, test.name, got)
		}
	}
}

func TestTheOnlyModelHasClaudeAliases(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Servers: []Server{{URL: "a"}}}}})
	f.tell(s, "a", good(info(2, "tiny", "tiny-too")))
	for name, want := range map[string]string{"": "tiny", "tiny": "tiny", "tiny-too": "tiny", "claude-x": "tiny", "gpt": ""} {
		if got := found(s, name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if diff := cmp.Diff([]string{"tiny-too", "claude-*"}, s.Pools()[0].View().Aliases); diff != "" {
		t.Error(diff)
	}
}

func TestNewSetRefusesWhatCannotWork(t *testing.T) {
	one := []Server{{URL: "a"}}
	for want, models := range map[string][]Options{
		"no model and no engine":      nil,
		`"m" is configured twice`:     {{Name: "m", Servers: one}, {Name: "m", Servers: one}},
		"two different API keys":      {{Name: "m", Servers: one}, {Name: "n", Servers: []Server{{URL: "a", Key: "k"}}}},
		"has no engine":               {{}},
		"listed twice":                {{Servers: []Server{{URL: "a"}, {URL: "a/v1"}}}},
		`unknown policy "best"`:       {{Servers: one, Policy: "best"}},
		"not http":                    {{Servers: []Server{{URL: "ftp://a"}}}},
		`model "m": unknown policy "`: {{Name: "m", Servers: one, Policy: "best"}},
	} {
		if _, err := NewSet(SetOptions{Models: models}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ...%s...", err, want)
		}
	}
}

func TestAGatewayStartsBeforeItsEngine(t *testing.T) {
	down := bad(engine.Info{}, engine.Down)
	for _, name := range []string{"", "m"} {
		var added []string
		s, f := startSet(t, SetOptions{
			Models: []Options{{Name: name, Servers: []Server{{URL: "a"}}}},
			Added: func(p *Pool) {
				added = append(added, p.Name())
				p.Restore([]SavedHome{{At: Place{"http://a", 2}, Home: routing.Home{Key: key(1), Turns: 3, LastSeen: time.Now()}}})
			},
		})
		f.tell(s, "a", down)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "scrape failed") {
			t.Errorf("ready without an engine: %v", err)
		}
		for _, asked := range []string{"tiny", "claude-x", ""} {
			p, ok := s.Lookup(asked)
			if !ok {
				t.Errorf("%q is unknown, although nobody knows what the engine serves", asked)
				continue
			}
			_, err := p.Acquire(t.Context(), turn(1))
			wantRefused(t, err, routing.NoReplica)
			p.View()
			if err := p.SetPolicy("off"); err != nil {
				t.Error(err)
			}
		}
		if n := len(s.Unassigned()); (n == 1) != (name == "") {
			t.Errorf("%d servers without a pool", n)
		}

		f.tell(s, "a", good(info(4, "tiny")))
		if err := s.Ready(); err != nil {
			t.Error(err)
		}
		p, ok := s.Lookup("tiny")
		if !ok {
			t.Fatal("not found")
		}
		wantStates(t, p, "ready ready ready ready")
		if got := found(s, "other"); got != "" {
			t.Errorf("an unknown name finds %q", got)
		}
		l := acquire(t, p, turn(1))
		if d := l.Decision(); name == "" && (d.Replica != 2 || d.Reason != routing.Stayed) {
			t.Errorf("a saved home is not kept: %+v", d)
		}
		l.End(routing.Outcome{})
		if len(added) != 1 {
			t.Errorf("added %q", added)
		}
		if s.Unassigned() != nil {
			t.Errorf("still without a pool: %v", s.Unassigned())
		}
	}
}

func TestModelsAreFoundByAsking(t *testing.T) {
	down := bad(engine.Info{}, engine.Down)
	other := engine.Info{Ranks: 1, Models: []engine.Model{{ID: "other", Root: "/o"}}}
	type step struct {
		host   string
		report engine.Report
	}
	tests := []struct {
		name  string
		hosts []string
		steps []step
		want  string // the pools with the hosts and states of their replicas
	}{
		{"the same model on two servers", []string{"a", "b"},
			[]step{{"b", good(info(2, "m"))}, {"a", good(info(1, "m"))}}, "m: a ready, b ready, b ready"},
		{"the same name over other weights' paths", []string{"a", "b"},
			[]step{{"b", good(engine.Info{Ranks: 1, Models: []engine.Model{{ID: "m", Root: "/b"}}})}, {"a", good(info(1, "m"))}},
			"m: a ready, b ready"},
		{"two models", []string{"a", "b"},
			[]step{{"b", good(other)}, {"a", good(info(1, "m"))}}, "m: a ready; other: b ready"},
		{"two models on one server", []string{"a"},
			[]step{{"a", good(engine.Info{Ranks: 1, Models: []engine.Model{{ID: "m", Root: "/m"}, {ID: "o", Root: "/o"}, {ID: "lora", Root: "/l", Parent: "m"}}})}},
			"m: a ready; o: a ready"},
		{"one is late and is taken to be like the other", []string{"a", "b"},
			[]step{{"a", down}, {"b", good(info(2, "m"))}, {"a", good(info(2, "m"))}}, "m: a ready, a ready, b ready, b ready"},
		{"but it serves something else", []string{"a", "b"},
			[]step{{"a", down}, {"b", good(info(1, "m"))}, {"a", good(other)}}, "m: a down, b ready"},
		{"a late one founds another model", []string{"a", "b", "c"},
			[]step{{"a", down}, {"b", good(info(1, "m"))}, {"c", good(engine.Info{Ranks: 1, Models: []engine.Model{{ID: "n", Root: "/n"}}})},
				{"a", good(other)}}, "m: b ready; n: c ready; other: a ready"},
		{"a late one joins in its place", []string{"a", "b", "c"},
			[]step{{"a", down}, {"b", good(info(1, "m"))}, {"c", good(other)}, {"a", good(info(1, "m"))}},
			"m: a ready, b ready; other: c ready"},
		{"one returns with more ranks", []string{"a", "b"},
			[]step{{"a", good(info(1, "m"))}, {"b", good(info(1, "m"))}, {"a", good(info(3, "m"))}},
			"m: a ready, a ready, a ready, b ready"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := Options{Aliases: []string{"alias"}}
			for _, host := range test.hosts {
				o.Servers = append(o.Servers, Server{URL: host})
			}
			s, f := startSet(t, SetOptions{Models: []Options{o}})
			for _, step := range test.steps {
				step.report.Time = time.Now()
				f.tell(s, step.host, step.report)
			}
			var pools []string
			for i, p := range s.Pools() {
				v := p.View()
				var rows []string
				for _, r := range v.Replicas {
					rows = append(rows, strings.TrimPrefix(r.URL, "http://")+" "+r.State.String())
				}
				pools = append(pools, p.Name()+": "+strings.Join(rows, ", "))
				if (i == 0) != (found(s, "alias") == p.Name()) {
					t.Errorf("the alias is that of %q", found(s, "alias"))
				}
			}
			if got := strings.Join(pools, "; "); got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
			if strays := s.Unassigned(); strays != nil {
				t.Errorf("without a pool: %+v", strays)
			}
		})
	}
}

func TestTwoModelsShareAServer(t *testing.T) {
	both := engine.Info{Ranks: 1, Models: []engine.Model{{ID: "m", Root: "/m"}, {ID: "n", Root: "/n"}}}
	s, f := startSet(t, SetOptions{Models: []Options{
		{Name: "m", Servers: []Server{{URL: "a"}}}, {Name: "second", ServedName: "n", Servers: []Server{{URL: "a/v1"}}}}})
	f.tell(s, "a", good(both))
	if err := s.Ready(); err != nil {
		t.Error(err)
	}
	for asked, want := range map[string]string{"m": "m", "second": "n"} {
		p, _ := s.Lookup(asked)
		l := acquire(t, p, turn(1))
		if got := l.Target().Model(asked); got != want {
			t.Errorf("%s is asked for as %q", asked, got)
		}
		if l.Retry(errRefused) == nil {
			t.Error("retried on the only server")
		}
		l.End(routing.Outcome{})
	}
	if n := f.nudges("a"); n != 2 {
		t.Errorf("nudged %d times", n)
	}
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), `model "second" has no ready replica`) {
		t.Errorf("%v", err)
	}
}

// box is a network of fake engines for the real watcher: by host a page, or
// nothing, in which case connections are refused.
type box struct {
	pages map[string]*atomic.Pointer[string]
}

func (b box) RoundTrip(r *http.Request) (*http.Response, error) {
	page := b.pages[r.URL.Host].Load()
	if page == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	body, status := "", http.StatusOK
	switch r.URL.Path {
	case "/v1/models":
		body = `{"data":[{"id":"tiny","root":"/model","max_model_len":8192}]}`
	case "/version":
		body = `{"version":"0.32.0"}`
	case "/metrics":
		body = *page
	case "/health":
	default:
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func TestEnginesDieAndReturn(t *testing.T) {
	recorded, err := os.ReadFile("testdata/metrics.prom")
	if err != nil {
		t.Fatal(err)
	}
	page := string(recorded)
	restarted := strings.ReplaceAll(page, "process_start_time_seconds 1.79597308591e+09", "process_start_time_seconds 1.795974e+09")
	if restarted == page {
		t.Fatal("the recorded page has another start time")
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := box{pages: map[string]*atomic.Pointer[string]{"a": {}, "b": {}}}
		b.pages["a"].Store(&page)
		b.pages["b"].Store(&page)
		s, _ := startSet(t, SetOptions{
			Models: []Options{{Servers: []Server{{URL: "a"}, {URL: "b"}}, Logger: slog.New(slog.NewTextHandler(&log, nil))}},
			Client: &http.Client{Transport: b},
			Watch: func(base *url.URL, key string, report func(engine.Report)) (Source, error) {
				return engine.NewWatcher(engine.WatcherOptions{Base: base, Client: &http.Client{Transport: b}, Report: report})
			},
		})
		synctest.Wait()
		p, ok := s.Lookup("tiny")
		if !ok || s.Ready() != nil {
			t.Fatal("not served at once")
		}
		wantStates(t, p, "ready ready ready ready")
		if load := p.View().Replicas[0].Load; load.Running != 35 || load.Waiting != 109 || load.Capacity != 1048576 {
			t.Errorf("load %+v", load)
		}

		// Served there, the conversation's cache is there too, until a dies.
		served := routing.Outcome{OK: true, Known: true, Prompt: 10}
		l := acquire(t, p, pinned(1, 0))
		l.End(served)
		acquire(t, p, pinned(9, 1)).End(served)
		l = acquire(t, p, turn(1))
		if d := l.Decision(); d.Reason != routing.Stayed || d.Replica != 0 {
			t.Fatalf("%+v", d)
		}
		b.pages["a"].Store(nil)
		if err := l.Retry(errRefused); err != nil || l.Decision().Server != 1 {
			t.Errorf("%v, %+v", err, l.Decision())
		}
		l.End(routing.Outcome{})
		wantStates(t, p, "down down ready ready")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		wantStates(t, p, "down down ready ready")
		if got := p.View().Servers[0].Error; !strings.Contains(got, "connection refused") {
			t.Errorf("trouble %q", got)
		}

		b.pages["a"].Store(&restarted)
		time.Sleep(time.Second)
		synctest.Wait()
		wantStates(t, p, "ready ready ready ready")
		l = acquire(t, p, turn(9))
		if d := l.Decision(); d.Reason != routing.Stayed || d.Replica != 1 || !d.Cold {
			t.Errorf("after the restart: %+v", d)
		}
		l.End(served)

		// A failure that was none: the nudged probe puts it right before the tick.
		time.Sleep(500 * time.Millisecond)
		l = acquire(t, p, pinned(2, 3))
		log.Reset()
		_ = l.Retry(errRefused)
		l.End(routing.Outcome{})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		wantStates(t, p, "ready ready ready ready")
		for _, want := range []string{"from=ready to=down", "from=down to=ready"} {
			if n := strings.Count(log.String(), want); n != 2 {
				t.Errorf("%q is in the log %d times, want one for each rank:\n%s", want, n, log.String())
			}
		}
		wantInFlight(t, p, 0)
	})
}

func TestRunEndsWhenAWatcherFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s, err := NewSet(SetOptions{
			Models: []Options{{Name: "m", Servers: []Server{{URL: "a", Ranks: 1}}}},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Watch:  func(*url.URL, string, func(engine.Report)) (Source, error) { return failing{}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait := started(func() error { return s.Run(ctx) })
		time.Sleep(10 * time.Second)
		acquire(t, s.Pools()[0], turn(1)).End(routing.Outcome{})
		cancel()
		if err := wait(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "engine no longer watched") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}

type failing struct{}

func (failing) Run(context.Context) error { return errors.New("broken") }
func (failing) Nudge()                    {}
func (failing) SetKey(string)             {}
