package routing

// HostTier says whether the engines keep in the host's memory what their caches
// push out, as vLLM does with --kv-offloading-size.
type HostTier uint8

const (
	TierTold HostTier = iota // as Load says
	TierOn
	TierOff
)

// With such a tier a conversation that was pushed out is soon back, and holding
// requests wins no more: affinity gives as many tokens, and nobody waits long. So
// patience decides as affinity does while every replica that is up has the tier,
// and the tier is large enough. It is when of what the caches hold no more at
// least tierFinds (by trials in virtual time) is found again.
const (
	tierFinds = 0.8
	// tierFindsAgain is the same once the tier was found too small, so that the
	// choice does not swing.
	tierFindsAgain = 0.95
	// enoughGone is how many turns must have looked, each for leastGone tokens.
	enoughGone = 16
	leastGone  = 1024
)

// SetHostTier overrides what the engines tell, with the next second.
func (c *Core) SetHostTier(t HostTier) { c.tier.option = t }

// tier is what is known of the host-memory tier.
type tier struct {
	option HostTier
	on     bool // every replica that is up has it
	serves bool // and it makes patience needless
}

// judgeTier looks at the tier anew.
func (c *Core) judgeTier() {
	t, found := &c.tier, &c.learned.found
	if t.on = c.everyTier(); !t.on {
		*found = average{} // of a tier that is gone
	}
	least := tierFindsAgain
	if t.serves || found.samples < enoughGone {
		least = tierFinds
	}
	t.serves = t.on && (found.samples < enoughGone || found.value >= least)
}

func (c *Core) everyTier() bool {
	if c.tier.option != TierTold {
		return c.tier.option == TierOn
	}
	up := 0
	for _, r := range c.replicas {
		if r.state == Down {
			continue
		}
		if !r.load.HostTier {
			return false
		}
		up++
	}
	return up > 0
}

// learnGone learns how much of what the cache of a turn's home had lost the engine
// found after all.
func (c *Core) learnGone(q *request, o Outcome) {
	if !c.tier.on || q.decision.Reason != Stayed || q.decision.Cold {
		return
	}
	if q.lost < leastGone || !o.CachedKnown || o.Prompt < q.context {
		return // too little, or its history was changed
	}
	beyond := o.Cached - (q.context - q.lost)
	c.learned.found.add(min(max(float64(beyond)/float64(q.lost), 0), 1), 1.0/16)
}
