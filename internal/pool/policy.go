package pool

import (
	"fmt"
	"slices"
	"strings"

	"lmwarden/internal/routing"
)

const (
	defaultPolicy = "patience"
	policyOff     = "off"
)

// SetPolicy switches the policy by name. SetAffinity(true) restores the last
// policy that was not "off".
func (p *Pool) SetPolicy(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setPolicy(name)
}

// SetAffinity switches between "off" and the last other policy.
func (p *Pool) SetAffinity(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !on {
		return p.setPolicy(policyOff)
	}
	return p.setPolicy(p.lastOn)
}

func (p *Pool) setPolicy(name string) error {
	if known := routing.Policies(); !slices.Contains(known, name) {
		return fmt.Errorf("unknown policy %q: the policies are %s", name, strings.Join(known, ", "))
	}
	if p.core != nil {
		if err := p.core.SetPolicy(name); err != nil {
			return err
		}
	}
	p.opts.Policy = name
	if name != policyOff {
		p.lastOn = name
	}
	return nil
}
