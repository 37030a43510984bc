package engine

import (
	"fmt"
	"slices"
	"time"
)

// rankPath is a generation route of an engine that has ranks, and the first
// version that sends a request on it to the rank that X-Data-Parallel-Rank names.
type rankPath struct {
	path                string
	major, minor, patch int
	// assumed is what holds for an engine that does not tell its version.
	assumed bool
}

func (r rankPath) honours(version string) bool {
	if _, known := parseVersion(version); !known {
		return r.assumed
	}
	return atLeast(version, r.major, r.minor, r.patch)
}

// HonoursRank reports whether an engine sends a request on this path to the
// rank that the header X-Data-Parallel-Rank names, by what is known of its
// version.
func HonoursRank(info Info, path string) bool {
	for _, r := range kindOf(info.Kind).ranks {
		if r.path == path {
			return r.honours(info.Version)
		}
	}
	return false
}

// HonouredFrom is the first version of a kind of engine that honours the rank on
// a path, empty when none does.
func HonouredFrom(kind, path string) string {
	for _, r := range kindOf(kind).ranks {
		switch {
		case r.path != path:
		case r.patch == 0:
			return fmt.Sprintf("%d.%d", r.major, r.minor)
		default:
			return fmt.Sprintf("%d.%d.%d", r.major, r.minor, r.patch)
		}
	}
	return ""
}

// BlindPaths lists the generation routes on which HonoursRank is false.
func BlindPaths(info Info) []string {
	var paths []string
	for _, r := range kindOf(info.Kind).ranks {
		if !r.honours(info.Version) {
			paths = append(paths, r.path)
		}
	}
	return paths
}

// settle is how long after an answer the engine's counters are taken to have
// moved. They move at the first output token; the rest is scheduling.
const settle = 100 * time.Millisecond

// RankLearner finds out from a server's counters that it ignores the rank
// header on some path. It looks at stretches between two scrapes in which the
// gateway had exactly one request there, sent to a named rank: when it was
// answered, that rank's prompt counter did not rise and another's did, the
// header was ignored. Other clients of the engine cannot fake this, since they
// only make counters rise.
//
// It is not safe for concurrent use.
type RankLearner struct {
	base     []Sample // of the last scrape with nothing open
	open     int
	requests int // since base
	path     string
	rank     int
	answered bool
	lastEnd  time.Time
}

// Begin says that a request was sent; rank is negative when it named none.
func (l *RankLearner) Begin(path string, rank int) {
	l.open++
	l.requests++
	l.path, l.rank, l.answered = path, rank, false
}

// End says that a request ended at t; answered is set when the engine gave a
// whole answer and counted its prompt.
func (l *RankLearner) End(t time.Time, answered bool) {
	l.open--
	l.answered = answered
	l.lastEnd = t
}

// Forget drops what the counters were, since they begin anew with another
// process. What is open stays so.
func (l *RankLearner) Forget() { l.base = nil }

// Scrape takes the samples of a scrape that began at t. It returns the path that
// proved to be blind, if one did.
func (l *RankLearner) Scrape(t time.Time, samples []Sample) (blind string, found bool) {
	if l.open > 0 || t.Sub(l.lastEnd) < settle {
		return "", false
	}
	base := l.base
	l.base = slices.Clone(samples)
	alone := l.requests == 1 && l.answered
	l.requests = 0
	if !alone || len(base) != len(samples) || l.rank < 0 || l.rank >= len(samples) {
		return "", false
	}
	rose := func(rank int) bool { return samples[rank].PromptTokens > base[rank].PromptTokens }
	if rose(l.rank) {
		return "", false
	}
	for rank := range samples {
		if rose(rank) {
			return l.path, true
		}
	}
	return "", false
}
