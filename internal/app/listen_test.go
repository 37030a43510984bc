package app

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
)

const hello = `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`

func TestTheFirstRequestWaitsForTheEngines(t *testing.T) {
	e := newEngine(t, 2, nil)
	for range 5 {
		g := startGateway(t, []string{e.url()}, nil)
		if r := g.send(http.MethodPost, g.URL()+"/v1/messages", []byte(hello)); r.status != 200 {
			t.Errorf("right after the start: %d %s", r.status, r.body)
		}
		g.close()
	}
}

func TestAnEngineThatSaysNothingIsNotWaitedForLong(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and is silent
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g := startGateway(t, []string{"http://" + l.Addr().String()}, nil)
	began := time.Now()
	r := g.send(http.MethodPost, g.URL()+"/v1/messages", []byte(hello))
	if took := time.Since(began); r.status != 503 || r.header.Get("X-Warden-Error") != "no-replica" || took > 2*firstReports {
		t.Errorf("%d %s after %v", r.status, r.body, took)
	}
}

func TestWhileItStopsAGatewayTellsNewClientsToComeBack(t *testing.T) {
	e := newEngine(t, 1, func(o *server.Options) { o.Speed = 1 })
	g := startGateway(t, []string{e.url()}, nil).awaitReady()
	open, err := g.client.Post(g.URL()+"/v1/messages", "application/json",
		strings.NewReader(`{"model":"tiny","max_tokens":4000,"stream":true,"messages":[{"role":"user","content":"hello [[tokens 4000]]"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); g.Stop() }()
	await(t, "the gateway to stop", func() error {
		if err := g.ready(); err == nil {
			return io.ErrNoProgress
		}
		return nil
	})
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{"/v1/messages": `{"type":"error"`, "/v1/chat/completions": `{"error":`} {
		res, err := fresh.Post(g.URL()+path, "application/json", strings.NewReader(hello))
		if err != nil {
			t.Fatalf("a new connection: %v", err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 503 || res.Header.Get("X-Warden-Error") != "stopping" || res.Header.Get("Retry-After") != "1" || !strings.HasPrefix(string(body), want) {
			t.Errorf("%s: %v: %d %v %s", path, err, res.StatusCode, res.Header, body)
		}
	}
	open.Body.Close()
	<-stopped
	if _, err := fresh.Get(g.URL() + "/health"); err == nil {
		t.Error("it listens after its end")
	}
}

// The giver of a listener keeps it: what connects between two lives is served by
// the second one.
func TestAListenerThatWasHandedOverOutlivesTheGateway(t *testing.T) {
	e := newEngine(t, 1, nil)
	kept, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	life := func() *Gateway {
		file, err := kept.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		l, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := configure(Listeners{Clients: l}.over(ServeOptions{Engine: []string{e.url()}, AdminListen: "127.0.0.1:0", Data: config.MemoryOnly}))
		if err != nil {
			t.Fatal(err)
		}
		g, err := NewGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.StartOn(Listeners{Clients: l}); err != nil {
			t.Fatal(err)
		}
		return g
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() int {
		res, err := client.Post("http://"+kept.Addr().String()+"/v1/messages", "application/json", strings.NewReader(hello))
		if err != nil {
			t.Error(err)
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	first := life()
	if got := ask(); got != 200 {
		t.Errorf("the first life: %d", got)
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	between := make(chan int)
	go func() { between <- ask() }()
	second := life()
	if got := <-between; got != 200 {
		t.Errorf("what connected between the lives: %d", got)
	}
	if err := second.Stop(); err != nil {
		t.Error(err)
	}
}

func TestAnInheritedAdminSocketIsCheckedLikeAnAddress(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = configure(Listeners{Admin: l}.over(ServeOptions{Engine: []string{"http://127.0.0.1:1"}}))
	if err == nil || !strings.Contains(err.Error(), "admin.open") {
		t.Errorf("an admin socket that is open to the network: %v", err)
	}
}
