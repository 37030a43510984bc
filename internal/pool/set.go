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
	"sync"
	"sync/atomic"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// tickInterval is how often time passes in the cores.
const tickInterval = time.Second

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

// Source hears about one server until its Run ends; Nudge asks it to look now
// and does not wait.
type Source interface {
	Run(ctx context.Context) error
	Nudge()
}

// Set is the pools of a gateway, by the names that clients use, and what hears
// about their servers. Its methods are safe for concurrent use.
type Set struct {
	o       SetOptions
	sources []*source
	reports chan heard
	dir     atomic.Pointer[directory]

	// models belongs to NewSet and then to the goroutine of Run, as does what
	// each source has heard.
	models []*model
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
	last    engine.Report
	members []member
	// stray says why a server that was discovered belongs to no pool.
	stray string
}

type member struct {
	model *model
	pool  *Pool
	index int // the server's index in the pool
}

type heard struct {
	source *source
	report engine.Report
}

// NewSet returns a set that hears nothing before Run. Pools of named models are
// there at once; the others appear when their servers were discovered.
func NewSet(o SetOptions) (*Set, error) {
	if len(o.Models) == 0 {
		return nil, errors.New("no model and no engine is configured")
	}
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
	s := &Set{o: o, reports: make(chan heard)}
	for _, mo := range o.Models {
		if err := s.addModel(mo); err != nil {
			return nil, err
		}
	}
	s.publish()
	return s, nil
}

func (s *Set) addModel(o Options) error {
	m := &model{o: o}
	for _, server := range o.Servers {
		src, err := s.source(server)
		if err != nil {
			return err
		}
		m.sources = append(m.sources, src)
	}
	if o.Name == "" {
		// What would fail later, with nobody at the terminal, fails now.
		o.Name = "unnamed"
		if _, err := New(o); err != nil {
			return err
		}
		s.models = append(s.models, m)
		return nil
	}
	for _, other := range s.models {
		if other.o.Name == o.Name {
			return fmt.Errorf("model %q is configured twice", o.Name)
		}
	}
	s.models = append(s.models, m)
	return s.addPool(m, o, m.sources)
}

// source finds or makes the source of a server. Two models may share one.
func (s *Set) source(server Server) (*source, error) {
	base, err := engine.ParseBase(server.URL)
	if err != nil {
		return nil, err
	}
	for _, src := range s.sources {
		if *src.base == *base {
			if src.key != server.Key {
				return nil, fmt.Errorf("engine %s has two different API keys", base)
			}
			return src, nil
		}
	}
	src := &source{base: base, key: server.Key}
	src.Source, err = s.o.Watch(base, server.Key, func(r engine.Report) { s.reports <- heard{src, r} })
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", base, err)
	}
	s.sources = append(s.sources, src)
	return src, nil
}

// addPool makes a pool and lets it hear what is known of its servers, which may
// be enough to number its replicas.
func (s *Set) addPool(m *model, o Options, sources []*source) error {
	p, err := New(o)
	if err != nil {
		return err
	}
	for i, src := range sources {
		p.servers[i].look = src.Nudge
	}
	s.o.Added(p)
	m.pools = append(m.pools, p)
	for i, src := range sources {
		src.members = append(src.members, member{model: m, pool: p, index: i})
		if !src.last.Time.IsZero() {
			p.Observe(i, src.last)
		}
	}
	return nil
}

// Run hears about the servers and lets time pass in the pools until ctx ends and
// all sources have stopped. It returns nil. It must run once only.
func (s *Set) Run(ctx context.Context) error {
	var sources sync.WaitGroup
	for _, src := range s.sources {
		sources.Go(func() {
			if err := src.Run(ctx); err != nil {
				s.o.Logger.Error("engine no longer watched", "url", src.base.String(), "error", err)
			}
		})
	}
	// Sources block on reports, so these are read until the last one has stopped.
	stopped := make(chan struct{})
	go func() {
		<-ctx.Done()
		sources.Wait()
		close(stopped)
	}()

	defer s.o.Client.CloseIdleConnections()
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stopped:
			return nil
		case h := <-s.reports:
			s.hear(h.source, h.report)
		case <-ticker.C:
			for _, p := range s.Pools() {
				p.tick()
			}
		}
	}
}

// hear hands a report to the pools of its server, and makes pools of models that
// it is the first to tell of.
func (s *Set) hear(src *source, r engine.Report) {
	before := src.last
	src.last = r
	stranger := len(src.members) == 0
	if stranger {
		logReport(s.o.Logger, src.base, before, r)
	}
	for _, member := range src.members {
		member.pool.Observe(member.index, r)
	}
	for _, m := range s.models {
		if m.o.Name == "" && slices.Contains(m.sources, src) {
			if err := s.grow(m); err != nil {
				s.o.Logger.Error("model cannot be served", "error", err)
			}
		}
	}
	if stranger || !slices.Equal(before.Info.Models, r.Info.Models) {
		s.publish()
	}
}

// founding is a model that a server serves and no pool has.
type founding struct {
	names   []engine.Model
	sources []*source
}

// grow makes the pools of an entry that has no name, as its servers tell what
// they serve. At first it waits for all of them, but not long. A server that
// keeps silent is taken to serve the same model as the others, when that is but
// one; what comes later can found a pool but not join one, since the replicas
// are numbered by then.
func (s *Set) grow(m *model) error {
	var free, known []*source
	waiting := false
	for _, src := range m.sources {
		if slices.ContainsFunc(src.members, func(member member) bool { return member.model == m }) {
			continue
		}
		free = append(free, src)
		if len(src.last.Info.Models) > 0 {
			known = append(known, src)
		}
		waiting = waiting || src.last.Time.IsZero()
	}
	if len(known) == 0 {
		return nil
	}
	now := time.Now()
	if m.found.IsZero() {
		m.found = now
	}
	begins := len(m.pools) == 0
	if begins && waiting && now.Sub(m.found) < buildGrace {
		return nil
	}

	var founded []*founding
	for _, src := range known {
		for _, family := range families(src.last.Info.Models) {
			if p := s.serving(family); p != nil {
				s.strays(src, p)
				continue
			}
			at := slices.IndexFunc(founded, func(f *founding) bool { return sameModel(f.names, family) })
			if at < 0 {
				founded = append(founded, &founding{names: family})
				at = len(founded) - 1
			}
			founded[at].sources = append(founded[at].sources, src)
		}
	}
	if begins && len(founded) == 1 {
		founded[0].sources = free
	}
	var errs []error
	for _, f := range founded {
		o := m.o
		o.Name, o.ServedName = f.names[0].ID, f.names[0].ID
		if len(m.pools) > 0 {
			o.Aliases = nil // one name cannot stand for two models
		}
		o.Servers = nil
		for _, src := range f.sources {
			o.Servers = append(o.Servers, m.o.Servers[slices.Index(m.sources, src)])
		}
		errs = append(errs, s.addPool(m, o, f.sources))
	}
	return errors.Join(errs...)
}

// serving finds the pool of a model.
func (s *Set) serving(family []engine.Model) *Pool {
	for _, m := range s.models {
		for _, p := range m.pools {
			if p.isOf(family) {
				return p
			}
		}
	}
	return nil
}

// strays notes that a server came too late for its pool.
func (s *Set) strays(src *source, p *Pool) {
	if src.stray == "" {
		src.stray = fmt.Sprintf("serves %q, whose replicas were numbered before it came: restart the gateway to use it", p.Name())
		s.o.Logger.Warn("engine not used", "url", src.base.String(), "error", src.stray)
	}
}

func sameModel(a, b []engine.Model) bool {
	return slices.ContainsFunc(a, func(m engine.Model) bool {
		return slices.ContainsFunc(b, func(o engine.Model) bool { return m.ID == o.ID || m.Root == o.Root })
	})
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
