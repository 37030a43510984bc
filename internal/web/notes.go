package web

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/pool"
)

// note is something the operator should know, with what helps.
type note struct {
	Level level
	Text  string
}

// level says how much a note matters; it is a class of the stylesheet.
type level string

const (
	bad  level = "bad"  // requests suffer now
	warn level = "warn" // routing is worse than it could be, or blind
	info level = "info" // so it is with this engine
)

// notesOf lists what is wrong or missing at a model, the worst first.
func notesOf(v pool.View, t Tokens) []note {
	var notes []note
	for _, s := range v.Servers {
		notes = append(notes, serverNotes(s)...)
	}
	notes = append(notes, staleNotes(v)...)
	if t.Unmeasured > 0 {
		notes = append(notes, note{warn, fmt.Sprintf("The engine did not tell the cached part of %s of %s prompt tokens, so the cached share leaves them out. "+
			"Start vLLM with --enable-prompt-tokens-details; on /v1/responses it never tells.",
			about(share(t.Unmeasured, t.Cached+t.Computed+t.Unmeasured)), tokens(t.Cached+t.Computed+t.Unmeasured))})
	}
	rank := func(n note) int { return slices.Index([]level{bad, warn, info}, n.Level) }
	slices.SortStableFunc(notes, func(a, b note) int { return cmp.Compare(rank(a), rank(b)) })
	return notes
}

func serverNotes(s pool.ServerView) []note {
	var notes []note
	if s.Error != "" {
		notes = append(notes, note{bad, s.URL + ": " + s.Error + "."})
	}
	if len(s.Blind) > 0 {
		helps := "One server per card helps."
		const codex = "/v1/responses"
		if from := engine.HonouredFrom(s.Info.Kind, codex); from != "" && slices.Contains(s.Blind, codex) {
			helps = fmt.Sprintf("What helps: %s %s, or one server per card.", engine.Title(s.Info.Kind), from)
		}
		notes = append(notes, note{info, fmt.Sprintf("%s: %s ignores the choice of a rank on this route, so its own balancer places these requests; they count as “engine”, never as sticky. %s",
			strings.Join(s.Blind, ", "), s.URL, helps)})
	}
	if s.Info.Kind != "" && !s.Info.HasMetrics {
		notes = append(notes, note{warn, s.URL + " has no metrics page that can be read: running, waiting, KV used and hit rate are not known, and placement goes by the gateway’s own counts."})
	}
	if s.Info.HasMetrics && !s.Info.PrefixCaching {
		notes = append(notes, note{warn, s.URL + " says that its prefix cache is off: affinity brings nothing there. “warden doctor” says which flag turns it on."})
	}
	return notes
}

// staleNotes name the replicas whose scraped numbers are old.
func staleNotes(v pool.View) []note {
	var old []string
	var age string
	for i, r := range v.Replicas {
		if r.ScrapeAge >= 0 && stale(r) {
			old = append(old, fmt.Sprint(i))
			age = span(r.ScrapeAge)
		}
	}
	if len(old) == 0 {
		return nil
	}
	which := "replica " + old[0]
	if len(old) > 1 {
		which = "replicas " + strings.Join(old, ", ")
	}
	return []note{{warn, fmt.Sprintf("The metrics of %s are %s old. Running, waiting, KV used and hit rate stand grey; placement goes by the gateway’s own counts.", which, age)}}
}

// stale says whether a replica's scraped numbers are too old to be read as
// present ones.
func stale(r pool.ReplicaView) bool {
	const tooOld = 5 * time.Second
	return r.Load.Stale || r.ScrapeAge > tooOld
}
