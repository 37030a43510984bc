package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/pool"
)

// These tests overload whole gateways, in memory and in a time of their own: with
// the policy patience a rank of the box takes three of the requests below, and
// the others wait.

// crowd are requests of conversations of their own, sent one after the other.
type crowd struct {
	g       *testGateway
	replies []reply
	sent    sync.WaitGroup
}

// request is one that fills a third of a rank.
func request(n int, stream bool) []byte {
	text := strings.Repeat(fmt.Sprintf("%03d ", n), 2700) // of 4 bytes a token
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":64,"stream":%t,"messages":[{"role":"user","content":%q}]}`, testModel, stream, text)
}

// patientBox is a gateway with the policy patience in front of a simulated box,
// all in memory. Nothing is held before an engine tells how much it holds, so that
// is awaited.
func patientBox(t *testing.T, m *memory, ranks int, change func(*config.Config)) *testGateway {
	t.Helper()
	engine := m.engine(t, "127.0.0.1:8000", server.Options{Params: quarter(t), Replicas: ranks, Seed: 2})
	g := m.gateway(t, engine, func(c *config.Config) {
		c.Models[0].Policy = "patience"
		if change != nil {
			change(c)
		}
	})
	await(t, "the size of each rank", func() error {
		for i, r := range g.pool().View().Replicas {
			if r.Load.Capacity == 0 {
				return fmt.Errorf("replica %d has not told its size", i)
			}
		}
		return nil
	})
	return g
}

// crowd sends n requests and returns when they are in flight, held or refused.
func (g *testGateway) crowd(ctx context.Context, n int, path string, stream bool) *crowd {
	c := &crowd{g: g, replies: make([]reply, n)}
	for i := range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL()+path, bytes.NewReader(request(i, stream)))
		if err != nil {
			g.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Session-Id", fmt.Sprint(path, " ", i))
		c.sent.Go(func() {
			res, err := g.client.Do(req)
			if err != nil {
				c.replies[i].err = err
				return
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			for name, v := range res.Trailer {
				res.Header[name] = v
			}
			c.replies[i] = reply{res.StatusCode, res.Header, text, err}
		})
		synctest.Wait()
	}
	return c
}

func (g *testGateway) pool() *pool.Pool { return g.models.Pools()[0] }

// whole says whether a streamed answer of /v1/messages is.
func (r reply) whole() error {
	if r.status != http.StatusOK || r.err != nil || !bytes.Contains(r.body, []byte("event: message_stop\n")) {
		return fmt.Errorf("status %d, %v: %.300s", r.status, r.err, r.body)
	}
	return nil
}

func TestWhatDoesNotFitIsHeldAndAnswered(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		g := patientBox(t, m, 2, nil)
		c := g.crowd(t.Context(), 30, "/v1/messages", true)
		v := g.pool().View()
		if v.Waiting < 15 || v.Waiting != v.Routing.Queue.Waiting || v.Routing.InFlight+v.Waiting != 30 {
			t.Fatalf("%d wait, %d in flight", v.Waiting, v.Routing.InFlight)
		}
		page := string(g.send(http.MethodGet, g.AdminURL()+"/metrics", nil).body)
		if want := fmt.Sprintf("warden_waiting{model=%q} %d\n", testModel, v.Waiting); !strings.Contains(page, want) {
			t.Errorf("no %q on the metrics page", want)
		}
		if page := string(g.send(http.MethodGet, g.AdminURL()+"/models/"+testModel, nil).body); !strings.Contains(page, "requests wait at the gateway") {
			t.Error("the page does not say that requests wait")
		}
		c.sent.Wait()
		for i, r := range c.replies {
			if err := r.whole(); err != nil || r.replica() == "" {
				t.Errorf("request %d: %v, %v", i, err, r.header)
			}
		}
		g.checkNothingInFlight()
		v = g.pool().View()
		if v.Waiting != 0 || v.Routing.InFlight != 0 {
			t.Errorf("at the end %d wait, %d are in flight", v.Waiting, v.Routing.InFlight)
		}
		page = string(g.send(http.MethodGet, g.AdminURL()+"/metrics", nil).body)
		if held := regexp.MustCompile(`warden_wait_seconds_count\{model="tiny"\} (\d+)`).FindStringSubmatch(page); held == nil || held[1] == "0" {
			t.Errorf("waits are not counted: %q", held)
		}
		if !strings.Contains(g.log.String(), `"waited_ms":`) {
			t.Error("the log does not say how long requests waited")
		}
		var list struct {
			Decisions []struct {
				Waited int64 `json:"waited_ms"`
			}
		}
		longest := int64(0)
		g.admin(http.MethodGet, "/api/decisions?limit=30", "", &list)
		for _, d := range list.Decisions {
			longest = max(longest, d.Waited)
		}
		if longest < 1000 {
			t.Errorf("the longest wait of a receipt is %d ms", longest)
		}
	})
}

func TestClientsThatLeaveWhileTheyWait(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		g := patientBox(t, m, 1, nil)
		stay := g.crowd(t.Context(), 3, "/v1/messages", true)
		ctx, leave := context.WithCancel(t.Context())
		gone := g.crowd(ctx, 10, "/v1/messages", true)
		before := g.pool().View()
		if before.Waiting < 7 {
			t.Fatalf("%d wait: %+v; the first: %+v", before.Waiting, before.Routing, gone.replies[0])
		}
		var cancelled struct{ Cancelled int }
		g.admin(http.MethodPost, "/api/conversations/"+before.Held[0].Conversation+"/cancel", "", &cancelled)
		synctest.Wait()
		if v := g.pool().View(); cancelled.Cancelled != 1 || v.Waiting != before.Waiting-1 {
			t.Errorf("an operator cancelled %d, %d of %d wait", cancelled.Cancelled, v.Waiting, before.Waiting)
		}
		leave()
		gone.sent.Wait()
		synctest.Wait()
		if v := g.pool().View(); v.Waiting > 0 {
			t.Errorf("%d of those that left wait", v.Waiting)
		}
		stay.sent.Wait()
		for i, r := range stay.replies {
			if err := r.whole(); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		g.checkNothingInFlight()
	})
}

// A long wait costs no stream its client: what is in the answer before the
// engine's first event are pings.
func TestAStreamThatWaitsLongIsKeptAlive(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		g := patientBox(t, m, 1, func(c *config.Config) { c.Limits.KeepAliveAfter = config.Duration(time.Second) })
		c := g.crowd(t.Context(), 8, "/v1/messages", true)
		c.sent.Wait()
		kept := 0
		for i, r := range c.replies {
			const ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
			answer := r.body
			for bytes.HasPrefix(answer, []byte(ping)) {
				answer = answer[len(ping):]
			}
			if err := r.whole(); err != nil || !bytes.HasPrefix(answer, []byte("event: message_start\n")) || r.replica() != "0" {
				t.Errorf("request %d: %v; %.300s", i, err, r.body)
			}
			if len(answer) < len(r.body) {
				kept++
			}
		}
		if kept == 0 {
			t.Error("no stream got a ping")
		}
	})
}

func TestTheQueueIsFull(t *testing.T) {
	for path, kind := range map[string]string{"/v1/messages": "overloaded_error", "/v1/chat/completions": "server_error"} {
		inMemory(t, func(t *testing.T, m *memory) {
			g := patientBox(t, m, 1, func(c *config.Config) { c.Models[0].Waiting = 2 })
			c := g.crowd(t.Context(), 7, path, false)
			c.sent.Wait()
			answered := 0
			for i, r := range c.replies {
				var e struct {
					Error struct{ Type, Message string }
				}
				switch {
				case r.status == http.StatusOK:
					answered++
				case r.status != http.StatusServiceUnavailable, r.header.Get("X-Warden-Error") != "overloaded",
					!regexp.MustCompile(`^([1-9]|[12][0-9]|30)$`).MatchString(r.header.Get("Retry-After")),
					json.Unmarshal(r.body, &e) != nil, e.Error.Type != kind, !strings.Contains(e.Error.Message, "too many requests wait"):
					t.Errorf("request %d: %d %v %s", i, r.status, r.header, r.body)
				}
			}
			if answered != 5 { // three fit, two wait
				t.Errorf("%d answered, want 5", answered)
			}
			g.checkNothingInFlight()
		})
	}
}

// With enough time what waits is served to the end; with less the rest is told to
// come back, in an answer of its own or in the stream that it has already.
func TestAStopWhileRequestsWait(t *testing.T) {
	for _, tt := range []struct {
		name    string
		within  time.Duration
		refused bool
	}{{"enough time", 10 * time.Minute, false}, {"little time", 20 * time.Second, true}} {
		t.Run(tt.name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				g := patientBox(t, m, 1, func(c *config.Config) {
					c.StopTimeout, c.Limits.KeepAliveAfter = config.Duration(tt.within), config.Duration(5*time.Second)
				})
				whole := g.crowd(t.Context(), 6, "/v1/chat/completions", false)
				streams := g.crowd(t.Context(), 6, "/v1/messages", true)
				if v := g.pool().View(); v.Waiting < 8 {
					t.Fatalf("%d wait", v.Waiting)
				}
				if err := g.Stop(); err != nil {
					t.Fatal(err)
				}
				whole.sent.Wait()
				streams.sent.Wait()
				answered, refused := 0, 0
				for i, r := range whole.replies {
					switch {
					case r.err == nil && r.status == http.StatusOK:
						answered++
					case r.err == nil && r.status == http.StatusServiceUnavailable && r.header.Get("X-Warden-Error") == "stopping" && r.header.Get("Retry-After") == "1":
						refused++
					default:
						t.Errorf("request %d: %d %v %s", i, r.status, r.err, r.body)
					}
				}
				for i, r := range streams.replies {
					switch {
					case r.whole() == nil:
						answered++
					case r.status == http.StatusOK && bytes.HasSuffix(r.body, []byte(`"the gateway is stopping; try again in a moment"}}`+"\n\n")):
						refused++
					default:
						t.Errorf("stream %d: %d %v %s", i, r.status, r.err, r.body)
					}
				}
				if answered < 3 || tt.refused != (refused > 0) {
					t.Errorf("%d answered, %d refused", answered, refused)
				}
			})
		})
	}
}

func TestAReloadWhileRequestsWait(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		g := patientBox(t, m, 1, nil)
		other := m.engine(t, "127.0.0.1:8001", server.Options{Params: quarter(t), Replicas: 1, Seed: 3})
		c := g.crowd(t.Context(), 12, "/v1/messages", true)
		before := g.pool().View().Waiting
		// An engine more, first in the list, so that all replicas have other numbers.
		if err := g.Reload(t.Context(), func() (*config.Config, error) {
			cfg := *g.cfg
			second := config.Engine{}
			if err := second.URL.UnmarshalText([]byte(other)); err != nil {
				return nil, err
			}
			cfg.Models = slices.Clone(cfg.Models)
			cfg.Models[0].Engines = append([]config.Engine{second}, cfg.Models[0].Engines...)
			cfg.Models[0].Waiting = 20
			return &cfg, nil
		}); err != nil {
			t.Fatal(err)
		}
		c.sent.Wait()
		for i, r := range c.replies {
			if err := r.whole(); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		v := g.pool().View()
		if before == 0 || len(v.Replicas) != 2 || v.Waiting != 0 || v.Replicas[0].Placed+v.Replicas[0].MovedIn+v.Replicas[0].SpilledIn == 0 {
			t.Errorf("%d waited; then %+v", before, v.Replicas)
		}
		g.checkNothingInFlight()
	})
}

// The answers that the dead replica owed are made again by the other, after those
// that waited there or before.
func TestAReplicaDiesWhileRequestsWait(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		second := config.Engine{}
		if err := second.URL.UnmarshalText([]byte(m.engine(t, "127.0.0.1:8001", server.Options{Params: quarter(t), Replicas: 1, Seed: 3}))); err != nil {
			t.Fatal(err)
		}
		g := patientBox(t, m, 1, func(c *config.Config) { c.Models[0].Engines = append(c.Models[0].Engines, second) })
		c := g.crowd(t.Context(), 16, "/v1/messages", false)
		if v := g.pool().View(); v.Waiting < 8 {
			t.Fatalf("%d wait", v.Waiting)
		}
		if r := g.send(http.MethodPost, "http://127.0.0.1:8001/sim/fail", []byte(`{"kind":"restart","at":"1s","down":"5m"}`)); r.status/100 != 2 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		c.sent.Wait()
		for i, r := range c.replies {
			if r.status != http.StatusOK || r.err != nil {
				t.Errorf("request %d: %d %v %s", i, r.status, r.err, r.body)
			}
		}
		g.checkNothingInFlight()
		if v := g.pool().View(); v.Waiting != 0 {
			t.Errorf("%d wait at the end", v.Waiting)
		}
	})
}

func TestWhatWasLearnedSurvivesARestart(t *testing.T) {
	e := newEngine(t, 1, nil)
	data := t.TempDir()
	keep := func(c *config.Config) { c.Data = data }
	first := startGateway(t, []string{e.url()}, keep).awaitReady()
	first.conversation("opening").turn()
	first.checkNothingInFlight()
	want := first.pool().View().Routing.Learned
	first.close()

	second := startGateway(t, []string{e.url()}, keep).awaitReady()
	got := second.pool().View().Routing.Learned
	if want.Place.Samples == 0 || got.Place != want.Place || got.Output != want.Output || got.Need != want.Need {
		t.Errorf("before %+v\nafter  %+v", want, got)
	}
}

func TestAFileOfWhatWasLearnedThatCannotBeRead(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "another version": `{"version": 99}`} {
		dir, log := t.TempDir(), &testLog{}
		if err := os.WriteFile(filepath.Join(dir, learnedFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		v := openLearned(dir, slog.New(slog.NewTextHandler(log, nil)))
		if !strings.Contains(log.String(), "learned anew") {
			t.Errorf("%s: the log has %q", name, log)
		}
		p, err := pool.New(pool.Options{Name: "m", Servers: []pool.Server{{URL: "http://a", Ranks: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		v.restore(p)
		v.save([]*pool.Pool{p}) // it has learned nothing, so the file stays
		if now, err := os.ReadFile(v.path); err != nil || string(now) != text {
			t.Errorf("%s: %v, the file has %q", name, err, now)
		}
	}
}
