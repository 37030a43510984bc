package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

const (
	// tickInterval is how often time passes in the pools.
	tickInterval = time.Second
	// heldInterval is how often it passes in the cores of those that hold requests.
	heldInterval = 100 * time.Millisecond
)

// SetOptions are what NewSet needs.
type SetOptions struct {
	// Models in the order of the configuration. One without a name stands for
	// whatever its servers serve.
	Models []Options
	// Watch makes what hears about a server; nil: an engine.Watcher. It must not
	// report before its Run.
	Watch func(base *url.URL, key string, report func(engine.Report)) (Source, error)
	// Client, Interval and Timeout are those of the engine.Watcher.
	Client            *http.Client
	Interval, Timeout time.Duration
	// Added is called for each pool before a request can find it, so that its
	// homes can be restored. Calls do not overlap.
	Added func(*Pool)
	// Logger gets what concerns no single model. Default none.
	Logger *slog.Logger
}

// Source hears about one server until its Run ends. Nudge asks it to look now and
// does not wait; SetKey gives it another API key. Both are safe for concurrent
// use.
type Source interface {
	Run(ctx context.Context) error
	Nudge()
	SetKey(key string)
}

// Set is the pools of a gateway, by the names that clients use, and what hears
// about their servers. Its methods are safe for concurrent use.
type Set struct {
	o       SetOptions
	reports chan heard
	changes chan change
	holding chan struct{} // a pool began to hold requests
	ended   chan struct{} // closed when Run has ended
	dir     atomic.Pointer[directory]

	// The rest belongs to NewSet and then to the goroutine of Run, as does what
	// each source has heard.
	models  []*model
	sources []*source // of all models, each once
}

// model is one entry of the configuration and its pools: one, or as many as its
// servers turn out to serve.
type model struct {
	o       Options
	sources []*source // in the order of o.Servers
	pools   []*Pool
	found   time.Time // when the first of its servers was discovered
}

// source is one server with the pools that it belongs to.
type source struct {
	Source
	base    *url.URL
	key     string
	stop    context.CancelFunc // nil while it does not run
	last    engine.Report
	members []member
	// stray says why a server that was discovered belongs to no pool.
	stray string
}

type member struct {
	model  *model
	pool   *Pool
	server *server // of the pool
}

// in says whether the server is one of a pool's.
func (src *source) in(p *Pool) bool {
	return slices.ContainsFunc(src.members, func(m member) bool { return m.pool == p })
}

type heard struct {
	source *source
	report engine.Report
}

// NewSet returns a set that hears nothing before Run. Pools of named models are
// there at once; the others appear when their servers were discovered.
func NewSet(o SetOptions) (*Set, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Added == nil {
		o.Added = func(*Pool) {}
	}
	if o.Client == nil {
		o.Client = engine.NewClient()
	}
	if o.Watch == nil {
		o.Watch = func(base *url.URL, key string, report func(engine.Report)) (Source, error) {
			return engine.NewWatcher(engine.WatcherOptions{
				Base: base, Key: key, Client: o.Client, Interval: o.Interval, Timeout: o.Timeout, Report: report,
			})
		}
	}
	s := &Set{o: o, reports: make(chan heard), changes: make(chan change), holding: make(chan struct{}, 1), ended: make(chan struct{})}
	if _, _, err := s.reconfigure(o.Models); err != nil {
		return nil, err
	}
	return s, nil
}

// Run hears about the servers and lets time pass in the pools until ctx ends and
// all sources have stopped. It returns nil. It must run once only.
func (s *Set) Run(ctx context.Context) error {
	defer close(s.ended)
	defer s.o.Client.CloseIdleConnections()
	running, stopped := 0, make(chan struct{})
	start := func() {
		for _, src := range s.sources {
			if src.stop != nil {
				continue
			}
			ctx, stop := context.WithCancel(ctx)
			src.stop = stop
			running++
			go func() {
				if err := src.Run(ctx); err != nil {
					s.o.Logger.Error("engine no longer watched", "url", src.base.String(), "error", err)
				}
				stop()
				stopped <- struct{}{}
			}()
		}
	}
	start()
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	quick := time.NewTicker(heldInterval)
	defer quick.Stop()
	for done := ctx.Done(); done != nil || running > 0; {
		select {
		case <-done:
			done = nil
		case <-stopped:
			running--
		case h := <-s.reports: // sources block on them, so these are read to the end
			s.hear(h.source, h.report)
		case c := <-s.changes:
			changes, gone, err := s.reconfigure(c.models)
			for _, src := range gone {
				src.stop()
			}
			start()
			c.done <- changed{changes, err}
		case <-ticker.C:
			for _, p := range s.Pools() {
				p.tick()
			}
		case <-s.holding:
			quick.Reset(heldInterval)
		case <-quick.C:
			hold := false
			for _, p := range s.Pools() {
				hold = p.tickHeld() || hold
			}
			if !hold {
				quick.Stop()
			}
		}
	}
	return nil
}

// hear hands a report to the pools of its server, and makes pools of models that
// it is the first to tell of.
func (s *Set) hear(src *source, r engine.Report) {
	if !slices.Contains(s.sources, src) {
		return // it was removed while it reported
	}
	before := src.last
	src.last = r
	stranger := len(src.members) == 0
	if stranger {
		logReport(s.o.Logger, src.base, before, r)
	}
	for _, member := range src.members {
		member.pool.hear(member.server, r)
	}
	for _, m := range s.models {
		if slices.Contains(m.sources, src) {
			if err := s.grow(m); err != nil {
				s.o.Logger.Error("model cannot be served", "error", err)
			}
		}
	}
	if stranger || !slices.Equal(before.Info.Models, r.Info.Models) {
		s.publish()
	}
}

// addPool makes a pool of some of a model's servers and lets it hear what is
// known of them, which may be enough to number its replicas.
func (s *Set) addPool(m *model, o Options) error {
	p, err := New(o)
	if err != nil {
		return err
	}
	p.holding = s.holding
	s.o.Added(p)
	m.pools = append(m.pools, p)
	s.enlist()
	return nil
}

// enlist tells the sources which pools have their servers. A pool hears what is
// known of those that it has not heard itself.
func (s *Set) enlist() {
	for _, src := range s.sources {
		src.members = nil
	}
	for _, m := range s.models {
		for _, p := range m.pools {
			for _, server := range p.servers {
				src := s.sources[slices.IndexFunc(s.sources, func(src *source) bool { return *src.base == *server.base })]
				src.members, src.stray = append(src.members, member{m, p, server}), ""
				if server.last.Time.Before(src.last.Time) {
					p.hear(server, src.last)
				}
			}
		}
	}
}

// publish writes the names down anew.
func (s *Set) publish() {
	d := newDirectory(slices.Concat(s.poolLists()...))
	d.awaiting = slices.ContainsFunc(d.pools, func(p *Pool) bool { return !p.recognised() })
	for _, src := range s.sources {
		if len(src.members) > 0 {
			continue
		}
		d.awaiting = d.awaiting || src.stray == ""
		d.unassigned = append(d.unassigned, ServerView{
			URL: src.base.String(), Info: src.last.Info, Error: cmp.Or(src.stray, errText(src.last.Err)),
		})
	}
	s.dir.Store(d)
}

func (s *Set) poolLists() [][]*Pool {
	lists := make([][]*Pool, len(s.models))
	for i, m := range s.models {
		lists[i] = m.pools
	}
	return lists
}

// Lookup finds the pool for a name as a client sent it: the model's name, an
// exact alias, a served name, then a glob alias. An empty name finds the only
// pool there is.
//
// While there are servers that were not discovered yet, an unknown name may be
// theirs: it finds a pool that refuses with routing.NoReplica.
func (s *Set) Lookup(model string) (*Pool, bool) {
	d := s.dir.Load()
	if p, ok := d.lookup(model); ok {
		return p, true
	}
	if !d.awaiting || model == "" && len(d.pools) > 0 {
		return nil, false
	}
	return newUnheard(model), true
}

// newUnheard returns a pool without servers.
func newUnheard(name string) *Pool {
	return &Pool{
		name: name, since: time.Now(), log: slog.New(slog.DiscardHandler), lastOn: defaultPolicy,
		opts: routing.Options{Policy: defaultPolicy},
	}
}

// Pools lists the pools in the order of the configuration.
func (s *Set) Pools() []*Pool { return slices.Clone(s.dir.Load().pools) }

// Unassigned lists the servers that belong to no pool: nobody knows yet what
// they serve, or they came too late.
func (s *Set) Unassigned() []ServerView { return s.dir.Load().unassigned }

// Ready is nil when at least one replica of each model is ready; else it says
// what is missing.
func (s *Set) Ready() error {
	d := s.dir.Load()
	var errs []error
	for _, p := range d.pools {
		v := p.View()
		if slices.ContainsFunc(v.Replicas, func(r ReplicaView) bool { return r.State == routing.Ready }) {
			continue
		}
		errs = append(errs, fmt.Errorf("model %q has no ready replica%s", p.name, because(v.Servers)))
	}
	if len(d.pools) == 0 {
		errs = append(errs, fmt.Errorf("no engine was reached yet%s", because(d.unassigned)))
	}
	return errors.Join(errs...)
}

// because lists what is wrong with servers.
func because(servers []ServerView) string {
	var list []string
	for _, s := range servers {
		if s.Error != "" {
			list = append(list, s.Error)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return ": " + strings.Join(list, "; ")
}
