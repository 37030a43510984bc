package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"lmwarden/internal/cause"
	"lmwarden/internal/config"
	"lmwarden/internal/kvevents"
	"lmwarden/internal/pool"
	"lmwarden/internal/proxy"
	"lmwarden/internal/rawtcp"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
	"lmwarden/internal/systemd"
	"lmwarden/internal/telemetry"
	"lmwarden/internal/tracing"
	"lmwarden/internal/web"
)

// Gateway is a whole gateway: data plane, pools, console, and what they save.
type Gateway struct {
	cfg     *config.Config
	log     *slog.Logger
	models  *pool.Set
	table   *session.Table
	store   *store // nil when nothing is kept
	history *stats.Store
	turns   *cause.Desk
	caches  caches
	kv      *kvevents.Listeners
	events  *web.EventLog
	proxy   *proxy.Handler
	guards  guards
	tracer  *tracing.Tracer // as configured at the start; nil for none
	traces  tracing.Switch
	clients *http.Server
	admin   *http.Server

	clientsAddr, adminAddr net.Addr
	connections            connections // of clients

	stopping   atomic.Bool
	handed     bool               // the clients' listener was, and its giver keeps it open
	refuse     func()             // closes the clients' listener, and waits until nothing more is accepted
	background context.CancelFunc // of what Start began
	running    sync.WaitGroup
	failed     chan error      // of the listeners
	rereads    chan chan error // asks run to read the configuration again

	mu      sync.Mutex
	reloads reloads // guarded by mu
}

// adminRead is how long a request to the admin listener may take to arrive: there are
// small ones only, and the login is for everybody.
const adminRead = 30 * time.Second

// NewGateway joins the parts of a gateway; nothing runs before Start. The
// configuration must be valid.
func NewGateway(cfg *config.Config, log *slog.Logger) (*Gateway, error) {
	return newGateway(cfg, log, nil)
}

// dialFunc opens a connection to an engine.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// newGateway is NewGateway with another way to the engines; nil is the network.
func newGateway(cfg *config.Config, log *slog.Logger, dial dialFunc) (*Gateway, error) {
	g := &Gateway{
		cfg: cfg, log: log, failed: make(chan error, 2), rereads: make(chan chan error),
		connections: connections{state: map[net.Conn]http.ConnState{}},
		reloads:     reloads{current: cfg, at: time.Now()},
	}
	var err error
	g.table, err = session.New(session.Options{
		MaxConversations: cfg.Session.MaxConversations,
		IdleFor:          cfg.Session.IdleFor.D(),
		Headers:          cfg.Session.Headers,
	})
	if err != nil {
		return nil, err
	}
	added := func(*pool.Pool) {}
	if cfg.Data != config.MemoryOnly {
		if g.store, err = openStore(cfg.Data, g.table, log); err != nil {
			return nil, err
		}
		added = g.store.restore
	}
	models, err := poolOptions(cfg, log)
	if err != nil {
		return nil, err
	}
	var scrapes *http.Client // the pool's own, unless it needs another way
	if dial != nil {
		scrapes = &http.Client{Transport: &http.Transport{DialContext: dial}}
	}
	g.models, err = pool.NewSet(pool.SetOptions{
		Models: models, Interval: cfg.ScrapeInterval.D(), Added: added, Client: scrapes, Logger: log,
	})
	if err != nil {
		return nil, err
	}

	g.turns = cause.NewDesk()
	if g.history, err = newHistory(cfg, log); err != nil {
		return nil, err
	}

	if g.kv, err = kvevents.New(kvevents.Options{Log: log, Dial: dial}); err != nil {
		return nil, err
	}

	registry := telemetry.NewRegistry()
	v, commit, goVersion := buildVersion()
	metrics, err := telemetry.NewMetrics(telemetry.Options{
		Registerer: registry,
		Build:      telemetry.Build{Version: v, Commit: commit, Go: goVersion},
		Pools:      func() []telemetry.Pool { return poolGauges(g.models, g.kvView) },

		HistoryDropped: g.history.Dropped,
	})
	if err != nil {
		return nil, err
	}
	if g.guards, err = newGuards(cfg); err != nil {
		return nil, err
	}
	if g.tracer, err = newTracer(cfg, log); err != nil {
		return nil, err
	}
	o := proxy.Options{
		Models: g.models, Sessions: g.table, Access: g.guards.gate, Recorder: recorder{metrics, g.history, g.turns, &g.caches}, Reader: reader{g.turns}, Tracer: &g.traces, Logger: log, Dial: dial,
		Limits: proxy.Limits{
			MaxBody:     int64(cfg.Limits.Body),
			MaxBuffered: int64(cfg.Limits.Buffered),
			BodyStall:   cfg.Limits.BodyStall.D(),
			ClientStall: cfg.Limits.ClientStall.D(),

			KeepAlive:      proxy.KeepAlive(cfg.Limits.KeepAlive),
			KeepAliveAfter: cfg.Limits.KeepAliveAfter.D(),

			Connect:    cfg.Timeouts.Connect.D(),
			FirstByte:  cfg.Timeouts.FirstByte.D(),
			Idle:       cfg.Timeouts.StreamIdle.D(),
			EngineIdle: cfg.Timeouts.EngineIdle.D(),
		},
	}
	if g.proxy, err = proxy.New(o); err != nil {
		return nil, err
	}
	g.clients = g.proxy.Server()
	g.clients.Handler, g.clients.ConnState = g.connections.serve(g.proxy), g.connections.note

	console, err := g.newConsole(metrics, telemetry.Handler(registry, log))
	if err != nil {
		return nil, err
	}
	g.admin = &http.Server{
		Handler:           console,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       adminRead,
		MaxHeaderBytes:    64 << 10,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if err := secure(g.clients, cfg.TLS, log); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if err := secure(g.admin, cfg.Admin.TLS, log); err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	return g, nil
}

// poolOptions maps the configured models to pools.
func poolOptions(cfg *config.Config, log *slog.Logger) ([]pool.Options, error) {
	var all []pool.Options
	for _, m := range cfg.Models {
		o := pool.Options{
			Name: m.Name, ServedName: m.ServedName, Aliases: m.Aliases,
			Policy: m.Policy, Shadow: m.Shadow, SpillThreshold: int(m.SpillThreshold), HostTier: hostTier(m.HostTier),
			Limits:  routing.Limits{Patience: m.Patience.D(), Waiting: m.Waiting, Wait: m.Wait.D()},
			LiveFor: m.LiveFor.D(), IdleFor: m.IdleFor.D(),
			MaxConversations: cfg.Session.MaxConversations, Stuck: cfg.Timeouts.Stuck.D(), Logger: log,
		}
		for _, e := range m.Engines {
			key, err := e.APIKey.Reveal()
			if err != nil {
				return nil, fmt.Errorf("api_key of engine %s: %w", e.URL, err)
			}
			o.Servers = append(o.Servers, pool.Server{URL: e.URL.String(), Key: key, Ranks: e.Ranks})
		}
		all = append(all, o)
	}
	return all, nil
}

func hostTier(word string) routing.HostTier {
	switch word {
	case "on":
		return routing.TierOn
	case "off":
		return routing.TierOff
	}
	return routing.TierTold
}

// openListeners are warnings of what other machines can reach.
func openListeners(cfg *config.Config) []string {
	var all []string
	if !config.Loopback(cfg.Listen) && len(cfg.Keys) == 0 {
		all = append(all, fmt.Sprintf("The client listener on %s is open to the network and asks for no key.", cfg.Listen))
	}
	if !config.Loopback(cfg.Admin.Listen) && cfg.Admin.Password.IsZero() {
		all = append(all, fmt.Sprintf("The admin listener on %s is open to the network and asks for no login (admin.open is true).", cfg.Admin.Listen))
	}
	return all
}

// ready says why the gateway takes no requests; nil when it does.
func (g *Gateway) ready() error {
	if g.stopping.Load() {
		return errors.New("the gateway is stopping")
	}
	return g.models.Ready()
}

// Start listens and begins to serve. It fails when an address cannot be had.
// After a success Stop must be called.
func (g *Gateway) Start() error { return g.StartOn(Listeners{}) }

// StartOn is Start with listeners that were handed over. Stop closes them here;
// their giver has copies of its own.
func (g *Gateway) StartOn(on Listeners) error {
	g.handed = on.Clients != nil
	if err := on.open(g.cfg.Listen, g.cfg.Admin.Listen); err != nil {
		return err
	}
	g.clientsAddr, g.adminAddr = on.Clients.Addr(), on.Admin.Addr()
	for _, w := range openListeners(g.cfg) {
		g.log.Warn(w)
	}

	ctx, cancel := context.WithCancel(context.Background())
	g.background = cancel
	g.traces.Set(g.tracer)
	g.running.Go(func() { g.models.Run(ctx) })
	g.running.Go(func() { g.expire(ctx) })
	judged, done := context.WithCancel(context.Background())
	g.running.Go(func() { g.turns.Run(ctx); done() })
	g.running.Go(func() { g.history.Run(judged) }) // as long as records may come
	g.running.Go(func() { observe(ctx, g.history, &g.caches, g.models) })
	g.running.Go(func() { g.events.Watch(ctx) })
	g.running.Go(func() { g.followKVEvents(ctx) })
	if g.store != nil {
		g.running.Go(func() { g.store.run(ctx, g.models) })
	}
	serve := func(s *http.Server, l net.Listener, t config.TLS, name string) {
		if err := serveOn(s, l, t); err != nil {
			g.failed <- fmt.Errorf("%s listener: %w", name, err)
		}
	}
	starting, started := context.WithCancel(ctx)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		awaitEngines(starting, g.models)
		serve(g.clients, rawtcp.Listener{Listener: on.Clients}, g.cfg.TLS, "client")
	})
	g.refuse = func() {
		started()
		on.Clients.Close()
		accepting.Wait()
	}
	g.running.Go(func() { serve(g.admin, on.Admin, g.cfg.Admin.TLS, "admin") })
	listening(g.log, "clients", g.URL())
	listening(g.log, "admin", g.AdminURL())
	return nil
}

// URL is the address for clients, AdminURL that of the console. They are known
// after Start.
func (g *Gateway) URL() string      { return scheme(g.cfg.TLS) + g.clientsAddr.String() }
func (g *Gateway) AdminURL() string { return scheme(g.cfg.Admin.TLS) + g.adminAddr.String() }

// expire forgets idle conversations.
func (g *Gateway) expire(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			g.table.Expire(now)
		case <-ctx.Done():
			return
		}
	}
}

// Stop refuses new requests, lets open answers end for at most the configured
// time, saves, and waits for everything that Start began. What waits for a replica
// goes on waiting for half of that time, so that what is begun has the other half
// to end; then it is refused.
func (g *Gateway) Stop() error {
	g.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.StopTimeout.D())
	defer cancel()
	waiting, enough := context.WithTimeout(ctx, g.cfg.StopTimeout.D()/2)
	g.running.Go(func() { <-waiting.Done(); g.models.RefuseHeld() })
	if !g.handed {
		// Nothing would take a connection between the end of the listener and the
		// next process. So it stays until the last answer has ended, and new requests
		// are told to come back. A listener that was handed over holds them instead.
		select {
		case <-g.proxy.Stopping():
		case <-ctx.Done():
		}
	}
	g.finish(ctx)
	enough()
	g.proxy.Close()
	g.admin.Close() // only now, so that a drain can be watched
	g.background()
	g.running.Wait()
	g.traces.Stop()
	return nil
}

// run serves until ctx ends or a listener fails, reads the configuration anew for
// each value of reload, when its file has changed and when askReload asks, and keeps the service
// manager informed.
func (g *Gateway) run(ctx context.Context, on Listeners, reload <-chan os.Signal, read func() (*config.Config, error)) error {
	if err := g.StartOn(on); err != nil {
		return err
	}
	alive, ended := context.WithCancel(context.WithoutCancel(ctx)) // to the end of Stop
	var beside sync.WaitGroup
	beside.Go(func() { systemd.KeepAlive(alive) })
	changed := make(chan struct{})
	if file := g.cfg.File(); file != "" {
		known, _ := content(file) // a file that is gone is told of when it is back
		beside.Go(func() { changes(alive, file, known, changed) })
	}
	defer beside.Wait()
	defer ended()
	g.notify("READY=1")
	for {
		select {
		case <-reload:
			_ = g.Reload(ctx, read) // which tells of an error itself
		case <-changed:
			_ = g.Reload(ctx, read)
		case answer := <-g.rereads:
			answer <- g.Reload(ctx, read)
		case <-ctx.Done():
			g.notify("STOPPING=1")
			g.log.Info("stopping", "open_answers_have", g.cfg.StopTimeout.String())
			return g.Stop()
		case failed := <-g.failed:
			return errors.Join(failed, g.Stop())
		}
	}
}

// notify tells the service manager of a state.
func (g *Gateway) notify(state string) {
	if err := systemd.Notify(state); err != nil {
		g.log.Warn("the service manager does not hear", "state", state, "error", err.Error())
	}
}
