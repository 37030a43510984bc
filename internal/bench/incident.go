package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Incident is something that happens to a replica of a Box in every step.
type Incident struct {
	Kind    IncidentKind
	Replica int
	// At is how long after the start of a step it begins, For how long it lasts; 0 is
	// to the end of the step.
	At, For time.Duration
	// Factor is how many times as long a slow replica takes.
	Factor float64
}

// IncidentKind says what happens.
type IncidentKind string

// Kinds of incidents.
const (
	// Kill ends the replica's server with all of its replicas, which are one failure
	// domain. It returns with empty caches.
	Kill IncidentKind = "kill"
	Slow IncidentKind = "slow"
	// DrainReplica keeps new turns away, as an operator does before work on a card.
	DrainReplica IncidentKind = "drain"
)

// maxFactor is more than any card that still counts as running.
const maxFactor = 1000

// ParseIncident reads REPLICA@TIME, REPLICA@TIME+TIME when it does not last to the
// end of the step, and for a slow one REPLICAxFACTOR in place of REPLICA.
func ParseIncident(kind IncidentKind, text string) (Incident, error) {
	form := "REPLICA@TIME or REPLICA@TIME+TIME, as in 1@60s or 1@60s+30s"
	if kind == Slow {
		form = "REPLICAxFACTOR@TIME or REPLICAxFACTOR@TIME+TIME, as in 1x3@60s or 1x3@60s+30s"
	}
	bad := fmt.Errorf("%q: write %s", text, form)
	i := Incident{Kind: kind}
	who, when, ok := strings.Cut(text, "@")
	if !ok {
		return i, bad
	}
	var err error
	if kind == Slow {
		var factor string
		who, factor, _ = strings.Cut(who, "x")
		if i.Factor, err = strconv.ParseFloat(factor, 64); err != nil || !(i.Factor > 1 && i.Factor <= maxFactor) {
			return i, fmt.Errorf("%w; the factor is above 1 and at most %d", bad, maxFactor)
		}
	}
	if i.Replica, err = strconv.Atoi(who); err != nil || i.Replica < 0 {
		return i, bad
	}
	at, length, limited := strings.Cut(when, "+")
	if i.At, err = time.ParseDuration(at); err != nil || i.At < 0 {
		return i, bad
	}
	if limited {
		if i.For, err = time.ParseDuration(length); err != nil || i.For <= 0 {
			return i, bad
		}
	}
	return i, nil
}

// String is the kind and the text that ParseIncident reads.
func (i Incident) String() string {
	text := fmt.Sprintf("%s %d", i.Kind, i.Replica)
	if i.Kind == Slow {
		text += "x" + strconv.FormatFloat(i.Factor, 'g', -1, 64)
	}
	text += "@" + i.At.String()
	if i.For > 0 {
		text += "+" + i.For.String()
	}
	return text
}

// MarshalText implements encoding.TextMarshaler.
func (i Incident) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// condition is what incidents make of a replica.
type condition struct {
	slow     float64 // times as long; 0 is as it should be
	draining bool
}

// Begin implements System.
func (v *virtual) Begin(Step) {
	step := v.step
	// later does something in this step and not in the next one.
	later := func(d time.Duration, do func()) {
		v.After(d, func() {
			if v.step == step {
				do()
			}
		})
	}
	for _, i := range v.box.Incidents {
		later(i.At, func() {
			v.strike(i)
			if i.For > 0 {
				later(i.For, func() { v.mend(i) })
			}
		})
	}
}

// mendAll ends the incidents of a step with the step.
func (v *virtual) mendAll() {
	v.step++
	for _, i := range v.box.Incidents {
		v.mend(i)
	}
}

func (v *virtual) strike(i Incident) {
	switch c := &v.conditions[i.Replica]; i.Kind {
	case Kill:
		v.kill(v.replicas[i.Replica].server)
	case Slow:
		c.slow = i.Factor
	case DrainReplica:
		c.draining = true
		v.tellStates()
	}
}

func (v *virtual) mend(i Incident) {
	switch c := &v.conditions[i.Replica]; i.Kind {
	case Kill:
		if server := v.replicas[i.Replica].server; v.servers[server] == nil {
			v.start(server) // the gateway hears of it from the next scrape
		}
	case Slow:
		c.slow = 0
	case DrainReplica:
		if c.draining {
			c.draining = false
			v.tellStates()
		}
	}
}

// kill ends a server. The gateway sees its connections break, tries elsewhere what
// has no byte of an answer yet, and breaks off the rest.
func (v *virtual) kill(server int) {
	if v.servers[server] == nil {
		return
	}
	v.servers[server] = nil
	for _, r := range v.replicas {
		if r.server == server {
			v.retire(r)
		}
	}
	var lost []*flight
	for _, f := range v.open() {
		if f.replica >= 0 && f.result.End == "" && v.replicas[f.replica].server == server {
			f.replica = -1
			lost = append(lost, f)
		}
	}
	if len(lost) > 0 {
		v.tellStates()
	}
	for _, f := range lost {
		if f.result.First >= 0 {
			v.fail(f, "the engine died while it answered")
		} else {
			v.retry(f)
		}
	}
}
