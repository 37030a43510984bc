package app

import (
	"fmt"
	"net"
	"net/http"
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
