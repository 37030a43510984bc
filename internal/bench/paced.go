package bench

import (
	"fmt"
	"time"
)

// Paced is the workload with the pauses of recorded sessions: each later turn,
// those of sub-agents too, waits as long as one drawn from all that were recorded
// between an answer and the next turn.
type Paced struct {
	ClaudeCode
	from   string
	pauses []time.Duration
}

// PacedBy takes the pauses of a trace, none longer than it allows. It fails when
// no session there has a second turn.
func (w ClaudeCode) PacedBy(t *Trace) (Paced, error) {
	p := Paced{ClaudeCode: w, from: t.name}
	for _, s := range t.sessions {
		p.collect(s)
	}
	if len(p.pauses) == 0 {
		return p, fmt.Errorf("%s has no session with a second turn: there is no pause to draw", t.name)
	}
	return p, nil
}

func (w *Paced) collect(s traceSession) {
	for i, t := range s.turns {
		if i > 0 {
			w.pauses = append(w.pauses, t.think)
		}
		for _, a := range t.agents {
			w.collect(a)
		}
	}
}

// Settings implements Workload.
func (w Paced) Settings() any {
	return struct {
		Name      string `json:"name"`
		ThinkFrom string `json:"think_from"`
		ClaudeCode
	}{"claude-code", w.from, w.ClaudeCode}
}

// Session implements Workload. The pauses are the same in all arms, as the sizes
// are.
func (w Paced) Session(p Place) (Session, bool) {
	s, ok := w.ClaudeCode.Session(p)
	return w.pace(s, contentID(idPause, p.Seed, uint64(p.Draw), uint64(p.Step), uint64(p.Client), uint64(p.N))), ok
}

func (w Paced) pace(s Session, drawn uint64) Session {
	turn := s.Turn
	s.Turn = func(n int) Turn {
		t := turn(n)
		if n > 0 {
			t.Think = w.pauses[contentID(drawn, uint64(n))%uint64(len(w.pauses))]
		}
		agents := make([]Session, len(t.Agents))
		for i, a := range t.Agents {
			agents[i] = w.pace(a, contentID(drawn, uint64(n), uint64(i)))
		}
		t.Agents = agents
		return t
	}
	return s
}
