package pool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lmwarden/internal/engine"
)

// founding is a model that a server serves and no pool has.
type founding struct {
	names   []engine.Model
	sources []*source
}

// grow makes the pools of an entry that has no name, as its servers tell what
// they serve. At first it waits for all of them, but not long. A server that
// keeps silent is taken to serve the same model as the others, when that is but
// one; what comes later founds a pool or joins one.
func (s *Set) grow(m *model) error {
	if m.o.Name != "" {
		return nil
	}
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

	var errs []error
	var founded []*founding
	for _, src := range known {
		for _, family := range families(src.last.Info.Models) {
			if p := s.serving(family); p != nil {
				errs = append(errs, s.join(m, src, p))
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
	for _, f := range founded {
		o := m.options(func(src *source) bool { return slices.Contains(f.sources, src) })
		o.Name, o.ServedName = f.names[0].ID, f.names[0].ID
		if len(m.pools) > 0 {
			o.Aliases = nil // one name cannot stand for two models
		}
		errs = append(errs, s.addPool(m, o))
	}
	return errors.Join(errs...)
}

// join adds a server to the pool whose model it turned out to serve.
func (s *Set) join(m *model, src *source, p *Pool) error {
	if !slices.Contains(m.pools, p) {
		if src.stray == "" {
			src.stray = fmt.Sprintf("serves %q, which has an entry of its own: list the engine there", p.Name())
			s.o.Logger.Warn("engine not used", "url", src.base.String(), "error", src.stray)
		}
		return nil
	}
	changes, err := p.configure(m.optionsOf(p, func(other *source) bool { return other == src || other.in(p) }))
	for _, c := range changes {
		s.o.Logger.Info("engine found", "change", c)
	}
	s.enlist()
	return err
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

func sameModel(a, b []engine.Model) bool {
	return slices.ContainsFunc(a, func(m engine.Model) bool {
		return slices.ContainsFunc(b, func(o engine.Model) bool { return m.ID == o.ID || m.Root == o.Root })
	})
}
