package pool

import (
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
// what an operator set at run time would not outlast a reload. LiveFor, IdleFor
// and MaxConversations are for new pools.
func (p *Pool) configure(o Options) (changes []string, err error) {
	o.fill()
	p.mu.Lock()
	defer p.unlock()
	now := time.Now()
	change := func(format string, args ...any) {
		changes = append(changes, fmt.Sprintf("model %q: ", p.name)+fmt.Sprintf(format, args...))
	}
	old := p.configured
	p.configured = o

	if !slices.Equal(o.Aliases, old.Aliases) {
		change("aliases %q", o.Aliases)
	}
	if o.Policy != old.Policy {
		change("policy %s", o.Policy)
		if err := p.setPolicy(o.Policy); err != nil {
			return nil, err
		}
	}
	if o.SpillThreshold != old.SpillThreshold {
		change("spill threshold %s", thresholdText(o.SpillThreshold))
		if err := p.setSpillThreshold(o.SpillThreshold); err != nil {
			return nil, err
		}
	}

	before := p.servers
	p.servers = nil
	for _, n := range o.Servers {
		base, err := engine.ParseBase(n.URL)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(before, func(s *server) bool { return *s.base == *base })
		if at < 0 {
			change("engine %s added", base)
			p.servers = append(p.servers, newServer(base, n))
			continue
		}
		s := before[at]
		if s.key != n.Key {
			change("another API key for engine %s", base)
		}
		if s.stated != n.Ranks {
			change("ranks of engine %s: %s", base, ranksText(n.Ranks))
		}
		s.key, s.stated = n.Key, n.Ranks
		p.servers = append(p.servers, s)
	}
	for _, s := range before {
		if !slices.Contains(p.servers, s) {
			change("engine %s removed", s.base)
		}
	}

	if o.ServedName != old.ServedName {
		change("served name %q", o.ServedName)
		p.served, p.root, p.found = o.ServedName, "", time.Time{}
	}
	for _, s := range p.servers {
		p.recognise(now, s)
	}
	p.settle(now)
	return changes, nil
}

// retire refuses what waits in a pool that is no longer in the configuration.
// Its leases go on to their end.
func (p *Pool) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.held {
		l.refused = &Refused{Why: routing.NoReplica}
		p.release(l)
	}
}

func thresholdText(n int) string {
	if n == 0 {
		return "auto"
	}
	return fmt.Sprint(n)
}

func ranksText(n int) string {
	if n == 0 {
		return "as it says"
	}
	return fmt.Sprint(n)
}
