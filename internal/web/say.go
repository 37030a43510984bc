package web

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// dash stands for what is not measured.
const dash = "–"

// The words of states that pages and probes look for.
const (
	ready    = "ready"
	draining = "draining"
)

// stateOrder lists the states as sentences name them, worst first.
var stateOrder = [...]string{"down", "stuck", "unknown", draining, ready}

// String is the number with one decimal, or a dash.
func (p percent) String() string {
	if !p.known() {
		return dash
	}
	return strconv.FormatFloat(float64(p), 'f', 1, 64) + "%"
}

// String is the number, or a dash.
func (c count) String() string {
	if c < 0 {
		return dash
	}
	return strconv.FormatInt(int64(c), 10)
}

// plural is one, or many with the number.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// tokens shortens a number of tokens: 940, 12.4k, 118k, 3.1M.
func tokens(n int64) string {
	switch {
	case n < 1000:
		return strconv.FormatInt(n, 10)
	case n < 99_950:
		return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1e3, 'f', 1, 64), ".0") + "k"
	case n < 999_500:
		return strconv.FormatFloat(float64(n)/1e3, 'f', 0, 64) + "k"
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64), ".0") + "M"
}

// about is a share in whole percent that never rounds something to nothing, or
// nearly all to all.
func about(p percent) string {
	switch {
	case !p.known():
		return dash
	case p > 0 && p < 1:
		return "under 1%"
	case p > 99 && p < 100:
		return "over 99%"
	}
	return strconv.FormatFloat(float64(p), 'f', 0, 64) + "%"
}

// span is a duration in words, to two units.
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

func countStates(v pool.View) map[string]int {
	states := map[string]int{}
	for _, r := range v.Replicas {
		states[r.State.String()]++
	}
	return states
}

func stateSentence(v pool.View) string { return statesSentence(countStates(v)) }

// statesSentence says how many replicas are in which state.
func statesSentence(states map[string]int) string {
	total := 0
	for _, n := range states {
		total += n
	}
	if total > 0 && states[ready] == total {
		return plural(total, "The replica is ready.", "All %d replicas are ready.")
	}
	var parts []string
	for _, s := range stateOrder {
		if n := states[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(parts) == 0 {
		return "There are no replicas."
	}
	return plural(total, "1 replica: ", "%d replicas: ") + strings.Join(parts, ", ") + "."
}

// factsOf is the line under a model's name.
func factsOf(v pool.View) []string {
	var facts []string
	if v.ServedName != "" && v.ServedName != v.Name {
		facts = append(facts, v.ServedName)
	}
	var engines []string
	context := int64(0)
	for _, s := range v.Servers {
		if name := engineName(s); name != "" && !slices.Contains(engines, name) {
			engines = append(engines, name)
		}
		for _, m := range s.Info.Models {
			if m.ID == v.ServedName {
				context = max(context, m.MaxModelLen)
			}
		}
	}
	facts = append(facts, engines...)
	behind := ""
	if n := len(v.Servers); n > 0 {
		behind = " behind " + plural(n, "one server", "%d servers")
	}
	facts = append(facts, plural(len(v.Replicas), "1 replica", "%d replicas")+behind)
	if context > 0 {
		facts = append(facts, contextSize(context)+" context")
	}
	return facts
}

// contextSize is a context length as people name it: 32k for 32,768.
func contextSize(n int64) string {
	if n >= 1024 && n%1024 == 0 {
		return strconv.FormatInt(n/1024, 10) + "k"
	}
	return tokens(n)
}

// engineName is the engine's kind and version, empty when neither is known.
func engineName(s pool.ServerView) string {
	if s.Info.Kind == "" {
		return s.Info.Version
	}
	return strings.TrimSpace(engine.Title(s.Info.Kind) + " " + s.Info.Version)
}

// sentence is a statement of which the first words count most.
type sentence struct{ Strong, Rest string }

// sayOf puts what routing did into words.
func sayOf(v pool.View, t Tokens) []sentence {
	var say []sentence
	c := countRequests(v)
	turns := c.placed + c.sticky + c.spilled + c.moved
	switch {
	case v.Routing.Policy == off:
		say = append(say, sentence{"The engine’s own balancer chooses", "; no rank is sent, except for clients that name one."})
	case turns == 0:
		say = append(say, sentence{"No turn yet.", " New conversations go to the replica with the least load and stay there."})
	default:
		say = append(say, sentence{about(share(c.sticky, turns)), fmt.Sprintf(" of turns went to their conversation’s replica, %s were new, %s moved or spilled.",
			about(share(c.placed, turns)), about(share(c.moved+c.spilled, turns)))})
	}
	if v.Routing.Instead != "" {
		say = append(say, sentence{capital(v.Routing.Instead) + " decides in place of " + v.Routing.Policy, ": " + insteadBecause(v.Routing.InsteadWhy) + "."})
	}
	if s := v.Routing.Shadow; s != nil && s.Requests > 0 {
		say = append(say, sentence{"Shadow " + s.Policy, fmt.Sprintf(": of %s requests it would have sent %s to the same replica at once and let %s wait.",
			thousands(s.Requests), about(share(s.Same, s.Requests)), about(share(s.Held, s.Requests)))})
	}
	if measured := t.Cached + t.Computed; measured > 0 {
		say = append(say, sentence{"Cached share " + about(share(t.Cached, measured)), fmt.Sprintf(" of %s prompt tokens measured.", tokens(measured))})
	}
	if n := v.Routing.EngineChosen; n > 0 && v.Routing.Policy != off {
		say = append(say, sentence{"", plural(int(n), "1 request was", "%d requests were") + " placed by the engine’s own balancer."})
	}
	return say
}

// workingSet compares what live conversations need with what the caches hold.
type workingSet struct {
	Known    bool
	Room     string // where the capacity ends in the bar, in thousandths
	Over     bool   // more is needed than there is
	Segments []segment
	Strong   string
	Rest     string
	Alert    string
}

// segment is one replica's part of the bar, in thousandths.
type segment struct {
	Class    string
	X, Width string
	Title    string
}

func workingSetOf(v pool.View) workingSet {
	set := v.Routing.WorkingSet
	if set.Capacity <= 0 || set.Tokens < 0 {
		return workingSet{}
	}
	total := int64(0)
	for _, r := range v.Replicas {
		total += liveTokens(r, set.Shared)
	}
	scale := 1000 / float64(max(set.Capacity, total))
	w := workingSet{Known: true, Room: decimal(scale * float64(set.Capacity)), Over: total > set.Capacity}
	var crowded []int
	x := 0.0
	for i, r := range v.Replicas {
		need := liveTokens(r, set.Shared)
		if width := scale * float64(need); width > 0 {
			class := "fill-" + strings.TrimPrefix(replicaColour(i, len(v.Replicas)), "rep ")
			// The gap parts neighbours that are alike to some eyes.
			w.Segments = append(w.Segments, segment{class, decimal(x), decimal(max(width-2, 1)), fmt.Sprintf("Replica %d: %s", i, tokens(need))})
			x += width
		}
		if r.Load.Capacity > 0 && need > r.Load.Capacity {
			crowded = append(crowded, i)
		}
	}
	w.Alert = crowdedSentence(v, crowded)
	w.Strong = fmt.Sprintf("%s, %s of %s tokens (%s).", plural(v.Routing.Live, "1 conversation", "%d conversations"),
		tokens(set.Tokens), tokens(set.Capacity), about(share(set.Tokens, set.Capacity)))
	switch more := set.Fits - v.Routing.Live; {
	case set.Fits < 0:
	case more > 0:
		w.Rest = fmt.Sprintf("About %d more of this size fit before replicas begin to forget.", more)
	case more == 0:
		w.Rest = "No more of this size fit before replicas begin to forget."
	default:
		w.Rest = fmt.Sprintf("Only %d of this size fit: replicas forget, and turns are read again.", set.Fits)
	}
	return w
}

// crowdedSentence names the replicas that hold more live context than they
// cache, empty when there are none.
func crowdedSentence(v pool.View, crowded []int) string {
	if len(crowded) == 0 {
		return ""
	}
	first := v.Replicas[crowded[0]]
	if len(crowded) == 1 {
		return fmt.Sprintf("Replica %d holds %s of live context and caches %s: its conversations push each other out.",
			crowded[0], tokens(liveTokens(first, v.Routing.WorkingSet.Shared)), tokens(first.Load.Capacity))
	}
	names := make([]string, len(crowded))
	for i, c := range crowded {
		names[i] = strconv.Itoa(c)
	}
	return fmt.Sprintf("Replicas %s hold more live context than they cache: their conversations push each other out.", strings.Join(names, ", "))
}

// liveTokens is the context of a replica's live conversations, with the prefix
// that they share counted once.
func liveTokens(r pool.ReplicaView, shared int64) int64 {
	need := r.LiveTokens
	if shared > 0 && r.LiveConversations > 1 {
		need -= shared * int64(r.LiveConversations-1)
	}
	return max(need, 0)
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// serverFacts is one engine process in words.
type serverFacts struct {
	URL, Engine, Error string
	Facts              []string
}

func serversOf(servers []pool.ServerView) []serverFacts {
	var out []serverFacts
	for _, s := range servers {
		f := serverFacts{URL: s.URL, Engine: engineName(s), Error: s.Error}
		if f.Engine == "" {
			f.Engine = "not heard from yet"
		}
		if s.Info.Ranks > 0 {
			f.Facts = append(f.Facts, plural(s.Info.Ranks, "1 rank", "%d ranks"))
		}
		if s.Info.CapacityTokens > 0 {
			f.Facts = append(f.Facts, tokens(s.Info.CapacityTokens)+" tokens of KV cache a rank")
		}
		if s.Info.BlockSize > 0 {
			f.Facts = append(f.Facts, fmt.Sprintf("blocks of %d", s.Info.BlockSize))
		}
		if s.Info.Slots > 0 {
			f.Facts = append(f.Facts, plural(s.Info.Slots, "1 slot", "%d slots"))
		}
		if s.Info.HostTier {
			f.Facts = append(f.Facts, "host-memory tier on")
		}
		out = append(out, f)
	}
	return out
}

// decisionRow is a receipt for people.
type decisionRow struct {
	Time                 time.Time
	Reason, Conversation string
	Replica, Colour      string
	Why                  string
	Path                 string // of the conversation, or empty
	RequestID            string
	Compared             []string // the candidates, one sentence each
}

func decisionRowOf(e pool.Receipt, replicas int) decisionRow {
	d := e.Decision
	out := decisionRow{
		Time: e.Time.UTC(), Reason: string(d.Reason), Conversation: e.Conversation,
		Replica: replicaLabel(d.Replica), Colour: "rep", RequestID: e.RequestID,
	}
	if e.Conversation != "" {
		out.Path = conversationPath(e.Conversation)
	}
	if d.Replica >= 0 {
		out.Colour = replicaColour(d.Replica, replicas)
	}
	compared := ""
	for _, c := range d.Candidates {
		compared += " " + strconv.Itoa(int(c.InFlight))
		out.Compared = append(out.Compared, fmt.Sprintf("replica %d: %d in flight, KV %s, %s", c.Replica, c.InFlight, percent(100*c.KVUsed),
			plural(int(c.LiveConversations), "1 live conversation", "%d live conversations")+" of "+tokens(c.LiveTokens)+" tokens"))
	}
	if compared != "" {
		compared = "; in flight" + compared
	}
	switch out.Reason {
	case "placed":
		out.Why = "new conversation" + compared
	case "stayed":
		out.Why = "went home"
	case "spilled":
		out.Why = fmt.Sprintf("home %s is full", replicaLabel(d.Home)) + compared
	case "moved":
		out.Why = string(d.Why)
		if d.From >= 0 {
			out.Why += fmt.Sprintf(", was at replica %d", d.From)
		}
		out.Why += compared
	case "pinned":
		out.Why = "the client named the replica"
	case "unbound":
		out.Why = "belongs to no conversation" + compared
	case off:
		out.Why = "affinity is off"
	case "engine":
		out.Why = "the engine ignores the choice on this route"
	}
	if d.Held != "" {
		out.Why += fmt.Sprintf("; waited %s at the gateway: %s", seconds(d.Waited.Seconds()), heldBecause(d.Held))
	}
	if d.Cold {
		out.Why += "; the engine restarted, its cache is cold"
	}
	return out
}

// insteadBecause says why another policy decides than the one that was set.
func insteadBecause(why routing.Why) string {
	switch why {
	case routing.TierServes:
		return "the engines keep in host memory what their caches push out, so that waiting would win nothing"
	case routing.ReadsQuickly:
		return "reading a conversation again takes next to no time, so that waiting would win nothing"
	}
	return string(why)
}

// heldBecause says why a request waits at the gateway.
func heldBecause(why routing.Why) string {
	switch why {
	case routing.NoRoom:
		return "it fitted on no replica beside what was there"
	case routing.HomeBusy:
		return "its history is at its home, where it did not fit"
	}
	return string(why)
}

// replicaLabel names a replica of a decision for people.
func replicaLabel(index int) string {
	if index < 0 {
		return "engine"
	}
	return strconv.Itoa(index)
}

// compact shortens an amount for an axis or a tile: 0, 0.4, 12, 12.4k, 3.1M.
func compact(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return dash
	case f != 0 && math.Abs(f) < 10:
		return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64)
	case f >= 1e9:
		return strconv.FormatFloat(f/1e9, 'f', 1, 64) + "G"
	}
	return tokens(int64(math.Round(f)))
}

// seconds writes a time for people: 12 ms, 0.38 s, 12.5 s, 3 min.
func seconds(f float64) string {
	switch {
	case math.IsNaN(f) || f < 0:
		return dash
	case f < 0.1:
		return strconv.FormatFloat(math.Round(f*1000), 'f', 0, 64) + " ms"
	case f < 10:
		return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64) + " s"
	case f < 120:
		return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + " s"
	}
	return span(time.Duration(f * float64(time.Second)))
}
