package pool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// configure puts another configuration of the model in force, whose options New
// takes, and tells in words what it changes. Servers keep their state by their
// URL. Leases on servers that are no longer there go on to their end.
//
// Policy and threshold change only if the configuration of them did: otherwise
// what an operator set at run time would not outlast a reload.
func (p *Pool) configure(o Options) (changes []string, err error) {
	o.fill()
	p.mu.Lock()
	defer p.unlock()
	servers, err := p.serversOf(o)
	if err != nil {
		return nil, err
	}
	old := p.configured
	p.configured = o
	change := func(format string, args ...any) {
		changes = append(changes, fmt.Sprintf("model %q: ", p.name)+fmt.Sprintf(format, args...))
	}

	var errs []error
	if !slices.Equal(o.Aliases, old.Aliases) {
		change("aliases %q", o.Aliases)
	}
	if o.Policy != old.Policy {
		change("policy %s", o.Policy)
		errs = append(errs, p.setPolicy(o.Policy))
	}
	if o.SpillThreshold != old.SpillThreshold {
		change("spill threshold %s", orWord(o.SpillThreshold, "auto"))
		errs = append(errs, p.setSpillThreshold(o.SpillThreshold))
	}
	if o.Shadow != old.Shadow {
		change("shadow policy %s", orWord(o.Shadow, "none"))
		errs = append(errs, p.setShadow(o.Shadow))
	}
	if o.HostTier != old.HostTier {
		change("host tier %s", hostTierInWords(o.HostTier))
		if p.opts.HostTier = o.HostTier; p.core != nil {
			p.core.SetHostTier(o.HostTier)
		}
	}
	if o.Limits != old.Limits {
		change("limits of what waits: %s", limitsInWords(o.Limits))
		errs = append(errs, p.setLimits(o.Limits))
	}
	if o.LiveFor != old.LiveFor || o.IdleFor != old.IdleFor || o.MaxConversations != old.MaxConversations {
		change("conversations are live for %v and kept for %v", o.LiveFor, o.IdleFor)
		errs = append(errs, p.setRetention(o))
	}

	former := p.servers
	p.servers = servers
	for i, s := range servers {
		key, ranks := o.Servers[i].Key, o.Servers[i].Ranks
		switch {
		case !slices.Contains(former, s):
			change("engine %s added", s.base)
		case s.key != key:
			change("another API key for engine %s", s.base)
		}
		if s.stated != ranks {
			change("ranks of engine %s: %s", s.base, orWord(ranks, "as many as it has"))
		}
		s.key, s.stated = key, ranks
	}
	for _, s := range former {
		if !slices.Contains(servers, s) {
			change("engine %s removed", s.base)
		}
	}
	if len(changes) == 0 && !slices.Equal(servers, former) {
		change("engines in another order")
	}
	now := time.Now()
	if o.ServedName != old.ServedName {
		change("served name %s", orWord(o.ServedName, "as the engines say"))
		p.served, p.root, p.found = o.ServedName, "", time.Time{}
	}
	for _, s := range servers {
		p.recognise(now, s)
	}
	p.settle(now)
	return changes, errors.Join(errs...)
}

// serversOf are the servers of a configuration: those that the pool has, and new
// ones. Callers hold mu.
func (p *Pool) serversOf(o Options) ([]*server, error) {
	var list []*server
	for _, configured := range o.Servers {
		base, err := engine.ParseBase(configured.URL)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(p.servers, func(s *server) bool { return *s.base == *base }); i >= 0 {
			list = append(list, p.servers[i])
		} else {
			list = append(list, newServer(base, configured))
		}
	}
	return list, nil
}

func (p *Pool) setRetention(o Options) error {
	p.opts.LiveFor, p.opts.IdleFor, p.opts.MaxConversations = o.LiveFor, o.IdleFor, o.MaxConversations
	if p.core == nil {
		return nil
	}
	return p.core.SetRetention(o.LiveFor, o.IdleFor, o.MaxConversations)
}

func (p *Pool) setShadow(name string) error {
	p.opts.Shadow = name
	if p.core == nil {
		return nil
	}
	return p.core.SetShadow(name)
}

func hostTierInWords(t routing.HostTier) string {
	switch t {
	case routing.TierOn:
		return "on"
	case routing.TierOff:
		return "off"
	}
	return "as the engines say"
}

func (p *Pool) setLimits(l routing.Limits) error {
	p.opts.Limits = l
	if p.core == nil {
		return nil
	}
	return p.core.SetLimits(l)
}

func limitsInWords(l routing.Limits) string {
	return fmt.Sprintf("patience %s, %s requests, a wait of %s",
		orWord(l.Patience, "auto"), orWord(l.Waiting, "as many as usual"), orWord(l.Wait, "as long as usual"))
}

// orWord is a value for people, in whose place a word stands when it is not set.
func orWord[T int | string | time.Duration](v T, word string) string {
	var none T
	if v == none {
		return word
	}
	return fmt.Sprint(v)
}
