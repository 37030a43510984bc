// Package doctor tells in plain words what an engine offers to a gateway that
// keeps conversations at home, what is missing, and the flag that mends it; and
// what a client sends that is pointed at it. It asks engines for a handful of
// tokens. It routes nothing and changes nothing.
//
// Where to look: probe.go asks, findings.go judges (pure), remedies.go has what
// helps each kind of engine, kv.go listens to KV events, clients.go to clients.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"lmwarden/internal/engine"
	"lmwarden/internal/kvevents"
)

// Level is how much a finding matters.
type Level uint8

// Levels, the gravest last.
const (
	Good    Level = iota // as it should be
	Advice               // works, and could be better
	Missing              // routing is worse for it, or a client fails
)

// String is the word that stands before a finding.
func (l Level) String() string { return [...]string{"ok", "advice", "MISSING"}[l] }

// Finding is one statement about an engine or a client.
type Finding struct {
	Level  Level
	Says   string
	Remedy string // empty when there is nothing to do
}

// Report is what Examine found.
type Report struct {
	Engine   string // one line: what it is
	Findings []Finding
}

// Worst is the gravest level among findings.
func Worst(findings []Finding) Level {
	if len(findings) == 0 {
		return Good
	}
	return slices.MaxFunc(findings, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) }).Level
}

// Engine is what Examine looks at.
type Engine struct {
	Base *url.URL
	Key  string // its API key, empty for none
	// KVEvents is where a rank publishes its KV events; nil when nobody listens to them.
	KVEvents func(rank int) kvevents.Source
}

// Examine asks one engine. The error says that it cannot be asked at all, and what
// to do.
func Examine(ctx context.Context, client *http.Client, e Engine) (Report, error) {
	info, err := engine.Discover(ctx, client, e.Base, e.Key)
	if err != nil {
		return Report{}, err
	}
	p := probe{client: client, base: e.Base, key: e.Key, info: info}
	if e.KVEvents != nil {
		var sources []kvevents.Source
		for rank := range max(info.Ranks, 1) {
			sources = append(sources, e.KVEvents(rank))
		}
		p.ears = listenKV(ctx, sources)
		defer p.ears.on.Stop()
	}
	seen := p.ask(ctx)
	if e.KVEvents == nil && info.Kind == "vllm" {
		seen.kv = offersKV(ctx, e.Base, usualKVPort)
	}
	seen.hostMemory = hostMemory(e.Base)
	return Report{Engine: describe(info), Findings: judge(info, seen)}, nil
}

func describe(i engine.Info) string {
	s := engine.Title(i.Kind)
	if i.Kind == "unknown" {
		s = "an engine of unknown kind"
	}
	if i.Version != "" {
		s += " " + i.Version
	}
	s += ", model " + i.Models[0].ID
	if n := len(i.Models) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	if i.Ranks > 1 {
		s += fmt.Sprintf(", %d ranks", i.Ranks)
	}
	if i.CapacityTokens > 0 {
		s += fmt.Sprintf(", %s tokens of cache", grouped(i.CapacityTokens))
		if i.Ranks > 1 {
			s += " each"
		}
	}
	return s
}

// grouped is a number with commas between thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
