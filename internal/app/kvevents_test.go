package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/kvevents"
	"lmwarden/internal/routing"
)

func socketOf(t *testing.T, l net.Listener) (e config.Endpoint) {
	t.Helper()
	if err := e.UnmarshalText([]byte("tcp://" + l.Addr().String())); err != nil {
		t.Fatal(err)
	}
	return e
}

// publishing is an engine of one rank that publishes, and its configuration.
func publishing(t *testing.T) (*simEngine, config.Engine) {
	t.Helper()
	var port server.KVPort
	for _, l := range []*net.Listener{&port.Events, &port.Replay} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	e := newEngine(t, 1, func(o *server.Options) { o.KVEvents = []server.KVPort{port} })
	return e, config.Engine{KVEvents: socketOf(t, port.Events), KVEventsReplay: socketOf(t, port.Replay)}
}

// What metrics say is cached is what the engines have; a replica without KV events
// has none.
func TestKVEventsAreShown(t *testing.T) {
	first, of0 := publishing(t)
	second, of1 := publishing(t)
	silent := newEngine(t, 1, nil)
	g := startGateway(t, []string{first.url(), second.url(), silent.url()}, func(c *config.Config) {
		c.Models[0].Engines[0].KVEvents, c.Models[0].Engines[0].KVEventsReplay = of0.KVEvents, of0.KVEventsReplay
		c.Models[0].Engines[1].KVEvents, c.Models[0].Engines[1].KVEventsReplay = of1.KVEvents, of1.KVEventsReplay
	}).awaitReady()
	for _, e := range []*simEngine{first, second} {
		await(t, "a connection", func() error {
			if v, ok := g.kvView(e.url(), routing.None); !ok || !v.Connected {
				return fmt.Errorf("%+v", v)
			}
			return nil
		})
	}
	for i := range 6 {
		c := g.conversation(fmt.Sprintf("opening %d of some length, so that it fills a block or two", i))
		c.turn()
		c.turn()
	}
	for i, e := range []*simEngine{first, second} {
		await(t, "the cached tokens of an engine", func() error {
			cached := e.server.State().CachedTokens[0]
			want := fmt.Sprintf("warden_kv_cached_tokens{model=%q,replica=\"%d\"} %d\n", testModel, i, cached)
			page := string(g.send(http.MethodGet, g.AdminURL()+"/metrics", nil).body)
			if cached == 0 || !strings.Contains(page, want) || strings.Count(page, "\nwarden_kv_cached_tokens") != 2 {
				return fmt.Errorf("no line %s", want)
			}
			return nil
		})
	}
}

func TestAReloadListensToKVEvents(t *testing.T) {
	e, of := publishing(t)
	g, file := startFromFile(t, e)
	text, err := os.ReadFile(file.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := g.kvView(e.url(), routing.None); ok {
		t.Error("somebody listens already")
	}
	file.text(fmt.Sprintf("%s    kv_events: %s\n    kv_events_replay: %s\n", text, of.KVEvents, of.KVEventsReplay))
	g.reload(file)
	g.conversation("an opening that fills a block of the cache at least").turn()
	await(t, "KV events", func() error {
		var m struct {
			Replicas []struct {
				KVEvents *struct {
					CachedTokens *int `json:"cached_tokens"`
				} `json:"kv_events"`
			}
		}
		g.admin(http.MethodGet, "/api/models/"+testModel, "", &m)
		cached := e.server.State().CachedTokens[0]
		if kv := m.Replicas[0].KVEvents; cached == 0 || kv == nil || kv.CachedTokens == nil || *kv.CachedTokens != cached {
			return fmt.Errorf("%d tokens are cached, and the API says %+v", cached, kv)
		}
		return nil
	})
	if log := g.log.String(); !strings.Contains(log, `"changes":"KV events"`) {
		t.Errorf("the log does not tell of the change: %s", log)
	}
}

func TestPortsOfTheSimulatedKVEvents(t *testing.T) {
	for _, c := range []struct{ port, replicas int }{{-1, 1}, {65_434, 3}, {5557, 101}} {
		err := Sim(t.Context(), IO{Out: io.Discard, Err: io.Discard}, SimOptions{
			Listen: "127.0.0.1:0", Replicas: c.replicas, Preset: "tiny-fast", Speed: 1, KVEvents: c.port, LogFormat: "text",
		})
		if usage := (UsageError{}); !errors.As(err, &usage) || !strings.Contains(err.Error(), "--kv-events") {
			t.Errorf("port %d, %d replicas: %v", c.port, c.replicas, err)
		}
	}
}

func TestRanksPublishOnPortsThatCountUp(t *testing.T) {
	var u config.URL
	var events, replay config.Endpoint
	for into, text := range map[interface{ UnmarshalText([]byte) error }]string{
		&u: "http://gpu:8000", &events: "tcp://gpu:5557", &replay: "tcp://gpu:5657",
	} {
		if err := into.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	s := kvSources{u.String(): {URL: u, KVEvents: events, KVEventsReplay: replay}}
	for rank, want := range map[int]kvevents.Source{
		routing.None: {Events: "gpu:5557", Replay: "gpu:5657"},
		0:            {Events: "gpu:5557", Replay: "gpu:5657"},
		3:            {Events: "gpu:5560", Replay: "gpu:5660"},
	} {
		if got, ok := s.of("http://gpu:8000", rank); !ok || got != want {
			t.Errorf("rank %d: %+v, %v", rank, got, ok)
		}
	}
	if _, ok := s.of("http://other:8000", 0); ok {
		t.Error("another engine publishes, too")
	}
}
