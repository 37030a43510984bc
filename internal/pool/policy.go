package pool

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"lmwarden/internal/routing"
)

// Auto stands for the policy that suits the engines: patience, or affinity where
// one of them keeps what leaves its cache in host memory, from where it is soon
// back.
const Auto = "auto"

const (
	policyOff      = "off"
	policyAffinity = "affinity"
	policyPatience = "patience"
)

// SetPolicy switches the policy by name, one of routing.Policies() or Auto.
func (p *Pool) SetPolicy(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setPolicy(name)
}

// SetAffinity switches between "off" and what was last set that was not "off".
func (p *Pool) SetAffinity(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !on {
		return p.setPolicy(policyOff)
	}
	return p.setPolicy(p.lastOn)
}

// setPolicy is SetPolicy for callers that hold mu.
func (p *Pool) setPolicy(name string) error {
	if known := routing.Policies(); name != Auto && !slices.Contains(known, name) {
		return fmt.Errorf("unknown policy %q: the policies are %s and %s", name, strings.Join(known, ", "), Auto)
	}
	if err := p.usePolicy(p.resolve(name)); err != nil {
		return err
	}
	p.policy = name
	if name != policyOff {
		p.lastOn = name
	}
	return nil
}

func (p *Pool) usePolicy(name string) error {
	if p.core != nil {
		if err := p.core.SetPolicy(name); err != nil {
			return err
		}
	}
	p.opts.Policy = name
	return nil
}

// resolve is the policy of routing that a policy stands for. Callers hold mu.
func (p *Pool) resolve(name string) string {
	if name != Auto {
		return name
	}
	if slices.ContainsFunc(p.servers, func(s *server) bool { return s.last.Info.HostTier }) {
		return policyAffinity
	}
	return policyPatience
}

// adapt puts in force what Auto has come to mean. Callers hold mu.
func (p *Pool) adapt() {
	to := p.resolve(p.policy)
	if to == p.opts.Policy {
		return
	}
	if err := p.usePolicy(to); err != nil {
		p.note(slog.LevelError, "policy cannot be set", "error", err)
		return
	}
	why := "no engine keeps a cache in host memory"
	if to == policyAffinity {
		why = "an engine keeps a cache in host memory"
	}
	p.note(slog.LevelInfo, "policy chosen", "policy", to, "why", why)
}
