package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// plan is a configuration that was checked, with the sources that it needs.
type plan struct {
	models  []*model
	sources []*source          // of all models, each once
	keys    map[*source]string // their API keys
}

// change is a configuration on its way to the goroutine of Run.
type change struct {
	models []Options
	done   chan changed
}

type changed struct {
	changes []string
	err     error
}

// Reconfigure puts other models in force while Run runs, and tells in words what
// that changes. Pools are the same by their name, servers by their URL: they keep
// state, conversations and open requests. Requests that are open in what is
// removed go on to their end. A configuration that cannot be is an error and
// changes nothing. The error is ctx's cause when Run does not run.
func (s *Set) Reconfigure(ctx context.Context, models []Options) (changes []string, err error) {
	done := make(chan changed, 1)
	select {
	case s.changes <- change{models, done}:
		c := <-done
		return c.changes, c.err
	case <-s.ended:
		return nil, errors.New("the gateway has stopped")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Set) reconfigure(models []Options) (changes []string, gone []*source, err error) {
	p, err := s.plan(models)
	if err != nil {
		return nil, nil, err
	}
	return s.apply(p)
}

// plan checks a configuration. It changes nothing.
func (s *Set) plan(models []Options) (*plan, error) {
	if len(models) == 0 {
		return nil, errors.New("no model and no engine is configured")
	}
	p := &plan{keys: map[*source]string{}}
	for _, o := range models {
		m := &model{o: o}
		for _, server := range o.Servers {
			src, err := s.source(p, server)
			if err != nil {
				return nil, err
			}
			m.sources = append(m.sources, src)
		}
		if o.Name == "" {
			o.Name = "unnamed"
		} else if slices.ContainsFunc(p.models, func(other *model) bool { return other.o.Name == o.Name }) {
			return nil, fmt.Errorf("model %q is configured twice", o.Name)
		}
		// What would fail later, with nobody at the terminal, fails now.
		if _, err := New(o); err != nil {
			return nil, err
		}
		p.models = append(p.models, m)
	}
	return p, nil
}

// source finds or makes the source of a server. Two models may share one.
func (s *Set) source(p *plan, server Server) (*source, error) {
	base, err := engine.ParseBase(server.URL)
	if err != nil {
		return nil, err
	}
	same := func(src *source) bool { return *src.base == *base }
	if i := slices.IndexFunc(p.sources, same); i >= 0 {
		src := p.sources[i]
		if p.keys[src] != server.Key {
			return nil, fmt.Errorf("engine %s has two different API keys", base)
		}
		return src, nil
	}
	var src *source
	if i := slices.IndexFunc(s.sources, same); i >= 0 {
		src = s.sources[i]
	} else {
		src = &source{base: base, key: server.Key}
		src.Source, err = s.o.Watch(base, server.Key, func(r engine.Report) { s.reports <- heard{src, r} })
		if err != nil {
			return nil, fmt.Errorf("engine %s: %w", base, err)
		}
	}
	p.sources = append(p.sources, src)
	p.keys[src] = server.Key
	return src, nil
}

// apply puts a plan in force. It returns what it changes, in words, and the
// sources that are no longer needed.
func (s *Set) apply(p *plan) (changes []string, gone []*source, err error) {
	before, known := slices.Concat(s.poolLists()...), s.sources
	s.models, s.sources = p.models, p.sources
	for _, src := range p.sources {
		if key := p.keys[src]; src.key != key {
			src.key = key
			src.SetKey(key)
		}
	}
	for _, src := range known {
		if !slices.Contains(s.sources, src) {
			gone = append(gone, src)
		}
	}

	before = s.adopt(before)
	for _, p := range before {
		changes = append(changes, fmt.Sprintf("model %q removed", p.Name()))
		p.close(routing.NoReplica)
	}
	var errs []error
	for _, m := range s.models {
		for _, p := range m.pools {
			of := func(src *source) bool { return m.o.Name != "" || src.in(p) }
			more, err := p.configure(m.optionsOf(p, of))
			changes, errs = append(changes, more...), append(errs, err)
		}
	}
	s.enlist()
	for _, m := range s.models {
		if m.o.Name != "" && len(m.pools) == 0 {
			changes = append(changes, fmt.Sprintf("model %q added", m.o.Name))
			errs = append(errs, s.addPool(m, m.options(func(*source) bool { return true })))
		}
		if m.o.Name == "" {
			for _, src := range m.sources {
				if !slices.Contains(known, src) {
					changes = append(changes, fmt.Sprintf("engine %s added", src.base))
				}
			}
			errs = append(errs, s.grow(m))
		}
	}
	s.publish()
	return changes, gone, errors.Join(errs...)
}

// adopt gives the models the pools that they had: one with a name that of this
// name, one without those that share a server with it. It returns the rest.
func (s *Set) adopt(pools []*Pool) (rest []*Pool) {
	take := func(m *model, fits func(*Pool) bool) {
		for i, p := range pools {
			if p != nil && fits(p) {
				m.pools = append(m.pools, p)
				pools[i] = nil
			}
		}
	}
	for _, m := range s.models {
		if m.o.Name != "" {
			take(m, func(p *Pool) bool { return p.Name() == m.o.Name })
		}
	}
	for _, m := range s.models {
		if m.o.Name == "" {
			take(m, func(p *Pool) bool {
				return slices.ContainsFunc(m.sources, func(src *source) bool { return src.in(p) })
			})
		}
	}
	return slices.DeleteFunc(pools, func(p *Pool) bool { return p == nil })
}

// options are those of a pool of some of the model's servers.
func (m *model) options(of func(*source) bool) Options {
	o := m.o
	o.Servers = nil
	for i, src := range m.sources {
		if of(src) {
			server := m.o.Servers[i]
			server.look = src.Nudge
			o.Servers = append(o.Servers, server)
		}
	}
	return o
}

// optionsOf are those of one of the model's pools, which may have found its name
// by asking.
func (m *model) optionsOf(p *Pool, of func(*source) bool) Options {
	o := m.options(of)
	if o.Name == "" {
		o.Name, o.ServedName = p.Name(), p.statedName()
		if p != m.pools[0] {
			o.Aliases = nil
		}
	}
	return o
}
