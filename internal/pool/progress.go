package pool

import (
	"fmt"
	"math"
	"time"

	"lmwarden/internal/engine"
)

// defaultStuck is longer than a healthy rank was silent while another rank of its
// server hung and the API process that they share with it stood still: 8.7 s,
// and 7.4 s for the metrics page (measured on vLLM 0.32).
const defaultStuck = 15 * time.Second

// patience bounds, in multiples of the limit for a silence, what a rank may earn
// by being slow.
const patience = 4

// progress tells a replica that works from one that is stuck: it was given
// requests, and shows no sign of life.
//
// Signs of life are a byte of any answer of the replica, and any change of its
// part of the metrics page, gauges included: vLLM renews the running and waiting
// requests and the KV use after each step, and the KV use grows with each piece
// of a prompt that is read. So a long prompt read alone, which brings neither a
// byte nor a count for half a minute, is no silence. The page of an engine that
// hangs stands still in all of it.
//
// Where no answer has begun, silence may still be one long step, as on a CPU, or
// an answer that does not stream. It counts only with a witness (a page that would
// show tokens and stands still, or a server that answers no probe), and the replica
// earns twice the longest silence that it ended by itself. While it has ended none,
// nothing is known and the limit is twice as long.
//
// Where all answers have begun and the page says that nothing is left to do, what
// is silent are clients that do not read.
type progress struct {
	sent, begun int // attempts open there; those of them whose answer began
	// since is the last sign of life, or when the replica was given something to
	// do, or when it ceased to have.
	since   time.Time
	longest time.Duration // silence before a first byte that ended by itself
	stuck   bool
}

// begin counts an attempt.
func (g *progress) begin(now time.Time) {
	if g.sent == 0 {
		g.since = now
	}
	g.sent++
}

// end takes an attempt back.
func (g *progress) end(now time.Time, begun bool) {
	g.sent--
	if begun {
		g.begun--
	}
	if g.sent == 0 {
		g.since = now
	}
}

// sign takes a sign of life.
func (g *progress) sign(now time.Time) {
	if g.sent > 0 && g.begun == 0 && !g.stuck {
		g.longest = max(g.longest, now.Sub(g.since), 1) // 0 is for not known
	}
	g.since, g.stuck = now, false
}

// restarted forgets the pace of another process.
func (g *progress) restarted() { g.longest = 0 }

// check lets time pass. A witness is there when the replica would have shown a
// sign of life even before the first byte of an answer; idle is set when its page
// says that it has nothing to do.
func (g *progress) check(now time.Time, limit time.Duration, witness, idle bool) {
	if idle && g.begun > 0 && g.begun == g.sent {
		g.since, g.stuck = now, false
	}
	silent := now.Sub(g.since)
	switch {
	case g.sent == 0:
		// It got rid of what it hung in. Nothing more will show whether it works
		// again, so that has to be tried some time.
		g.stuck = g.stuck && silent < patience*limit
	case g.begun > 0 || witness:
		g.stuck = g.stuck || silent >= g.earned(limit)
	}
}

// earned is the limit for a silence of this replica.
func (g *progress) earned(limit time.Duration) time.Duration {
	if g.longest == 0 {
		return 2 * limit
	}
	return min(max(2*g.longest, limit), patience*limit)
}

// trouble says what is wrong; empty when nothing is.
func (g *progress) trouble(now time.Time) string {
	if !g.stuck {
		return ""
	}
	return fmt.Sprintf("stuck: %d in flight and no sign of progress for %v", g.sent, now.Sub(g.since).Round(time.Second))
}

// moved reports whether a replica's part of the metrics page changed.
func moved(was, is engine.Sample) bool {
	differ := func(a, b float64) bool { return a != b && !(math.IsNaN(a) && math.IsNaN(b)) }
	return differ(was.Running, is.Running) || differ(was.Waiting, is.Waiting) || differ(was.KVUsed, is.KVUsed) ||
		differ(was.PromptTokens, is.PromptTokens) || differ(was.CachedTokens, is.CachedTokens) ||
		differ(was.PrefixQueries, is.PrefixQueries) || differ(was.PrefixHits, is.PrefixHits) ||
		differ(was.GenerationTokens, is.GenerationTokens) || differ(was.Preemptions, is.Preemptions)
}
