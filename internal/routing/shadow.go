package routing

import "maps"

// shadow is a second policy, which is asked about each request that arrives and
// decides nothing.
type shadow struct {
	policy policy // nil for none
	name   string
	seen   ShadowView
}

// ShadowView counts what another policy would have done with each request, where
// everything stood when it came. What would have come of it is not known: where
// the other policy is patience, nobody waits, since nobody was held before.
// Requests with a pin are left out.
type ShadowView struct {
	Policy   string
	Requests int64
	Same     int64 // would have gone to the same replica at once
	Held     int64
	Refused  int64
	Reasons  map[Reason]int64 // of the others
}

// SetShadow names the policy to ask, "" for none, and counts from 0. It fails on
// an unknown name.
func (c *Core) SetShadow(name string) error {
	if name == "" {
		c.shadow = shadow{}
		return nil
	}
	p, err := policyByName(name)
	if err != nil {
		return err
	}
	c.shadow = shadow{policy: p, name: name, seen: ShadowView{Policy: name, Reasons: make(map[Reason]int64)}}
	return nil
}

// decideBesideShadow decides, and counts what the shadow would have done.
func (c *Core) decideBesideShadow(q *request) (Decision, Action) {
	if c.shadow.policy == nil || q.Pin != None {
		return c.decideOrHold(q)
	}
	would, kind := c.askShadow(q)
	d, verdict := c.decideOrHold(q)
	c.shadow.note(would, kind, d, verdict.Kind)
	return d, verdict
}

// askShadow is what the shadow would do with q. It counts and changes nothing.
func (c *Core) askShadow(q *request) (Decision, ActionKind) {
	real := c.policy
	c.policy = c.shadow.policy
	defer func() { c.policy = real }()
	in, refusal := c.query(q)
	if refusal != "" {
		return Decision{}, Refuse
	}
	if c.patient() && q.mayWait() {
		ch, ok := patience{}.arrive(c, q, &in)
		if !ok {
			return Decision{}, c.holdOrRefuse(q, &in).Kind
		}
		return c.reasoned(q, &in, ch), Dispatch
	}
	return c.reasoned(q, &in, c.policy.choose(c, &in)), Dispatch
}

// note compares what the shadow would have done with what is done.
func (s *shadow) note(would Decision, kind ActionKind, d Decision, done ActionKind) {
	n := &s.seen
	n.Requests++
	switch kind {
	case Hold:
		n.Held++
	case Refuse:
		n.Refused++
	default:
		n.Reasons[would.Reason]++
		if done == Dispatch && would.Replica == d.Replica && would.Server == d.Server {
			n.Same++
		}
	}
}

// view is nil when there is no shadow.
func (s *shadow) view() *ShadowView {
	if s.policy == nil {
		return nil
	}
	v := s.seen
	v.Reasons = maps.Clone(v.Reasons)
	return &v
}
