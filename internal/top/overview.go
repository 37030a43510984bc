package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
)

// evictionLine is the KV use, in percent, from which an engine soon evicts.
const evictionLine = 90

// stale is the age from which what an engine said is no more trusted.
const stale = 5 * time.Second

// overview is the screen of one model.
func (s screen) overview(width, room int) []string {
	lines := append(s.tiles(width), "")
	m, _ := s.selected()
	if m == nil {
		return append(lines, s.nothing(len(s.data.Models), "model"))
	}
	lines = append(lines, s.heading(m))
	lines = append(lines, s.pills(m, width)...)
	lines = append(lines, "")
	rows := s.rows(m)
	// At least four lines stay for moves and events below a long table.
	most := max(room-len(lines)-len(s.old(m))-5, 3)
	lines = append(lines, s.replicas(rows, width, most)...)
	lines = append(lines, s.old(m)...)
	lines = append(lines, "")
	lines = append(lines, s.moves(m)...)
	return append(lines, s.events()...)
}

// tiles are the rates.
func (s screen) tiles(width int) []string {
	value := func(id, format string) string {
		v := s.data.Overview.Tiles[id].Value
		if v == nil {
			return unknown
		}
		return fmt.Sprintf(format, *v)
	}
	return flow(width, "Requests/min "+value("requests", "%.0f"), "Output tokens/s "+value("output", "%.0f"),
		"Cached "+value("cached", "%.1f%%"), "TTFB p95 "+value("ttfb", "%.2f s"))
}

// nothing says why a table has no rows.
func (s screen) nothing(known int, what string) string {
	switch {
	case s.at.IsZero():
		return "Reading …"
	case known > 0:
		return fmt.Sprintf("No %s has %q in it; esc ends the filter.", what, s.filter[s.tab])
	}
	return fmt.Sprintf("No %s is known yet.", what)
}

func (s screen) heading(m *Model) string {
	text := s.theme.title.Render(clean(m.Name))
	if n := len(s.models()); n > 1 {
		for i, other := range s.models() {
			if other.Name == m.Name {
				text += fmt.Sprintf("  (model %d of %d)", i+1, n)
			}
		}
	}
	if s.sort[overview] > 0 {
		text += s.theme.dim.Render("  by " + strings.ReplaceAll(s.order(overview), "_", " "))
	}
	if f := s.filter[overview]; f != "" {
		text += s.theme.dim.Render("  filter: " + f)
	}
	return text
}

// pills are the facts of a model's routing.
func (s screen) pills(m *Model, width int) []string {
	threshold := strconv.Itoa(m.SpillThreshold.Value)
	if m.SpillThreshold.Auto {
		threshold += " (auto)"
	}
	affinity := m.Affinity
	if m.Policy != "affinity" && m.Policy != m.Affinity {
		affinity += " (" + m.Policy + ")"
	}
	pills := []string{
		"Affinity " + clean(affinity), "Spill threshold " + threshold,
		"Sticky " + percent(m.StickyPercent), fmt.Sprintf("In flight %d", m.InFlight),
	}
	if m.Queue.Waiting > 0 {
		held := fmt.Sprintf("Held here %d", m.Queue.Waiting)
		if m.Queue.Longest != nil {
			held += fmt.Sprintf(", longest %.0f s", *m.Queue.Longest)
		}
		pills = append(pills, held)
	}
	w := m.WorkingSet
	set := []string{
		count(m.Conversations.Live, "live conversation"),
		fmt.Sprintf("working set %s of %s tokens", number(w.Tokens), number(w.Capacity)),
	}
	if w.Fits != nil {
		set = append(set, number(w.Fits)+" fit")
	}
	lines := flow(width, set...)
	if w.Tokens != nil && w.Capacity != nil && *w.Tokens > *w.Capacity {
		for i := range lines {
			lines[i] = s.theme.warn.Render(lines[i])
		}
	}
	return append(flow(width, pills...), lines...)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return thousands(int64(n)) + " " + what + "s"
}

var replicaColumns = []column{
	{title: "  #", left: true},
	{title: "state", left: true},
	{title: "in flight"},
	{title: "sticky", drop: 2},
	{title: "spilled in", drop: 5},
	{title: "moved in", drop: 6},
	{title: "pinned", drop: 7},
	{title: "running"},
	{title: "waiting", drop: 1},
	{title: "KV used"},
	{title: "", left: true, drop: 3}, // its bar
	{title: "cached", drop: 9},
	{title: "hit rate"},
	{title: "live", drop: 4},
	{title: "at", left: true, most: 40, drop: 8},
}

// replicas is the table of a model's replicas, at most so many around the selected
// one.
func (s screen) replicas(rows []Replica, width, most int) []string {
	at := 0
	var cells [][]cell
	for i, r := range rows {
		mark := "  "
		style := lipgloss.NewStyle()
		if r.Index == s.replica && s.interactive() {
			at, mark, style = i, "▸ ", s.theme.selected
		}
		kv := lipgloss.NewStyle()
		if r.KVUsed != nil && *r.KVUsed >= evictionLine {
			kv = s.theme.bad
		}
		cells = append(cells, []cell{
			{mark + strconv.Itoa(r.Index), style}, {clean(r.State), s.stateStyle(r.State)}, plain(strconv.Itoa(r.InFlight)),
			plain(thousands(r.Sticky)), plain(thousands(r.SpilledIn)), plain(thousands(r.MovedIn)), plain(thousands(r.ClientPinned)),
			plain(number(r.Running)), plain(number(r.Waiting)), {percent(r.KVUsed), kv}, {bar(r.KVUsed), kv},
			plain(cached(r)), plain(percent(r.PrefixHit)), plain(strconv.Itoa(r.LiveConversations)), {clean(r.URL), s.theme.dim},
		})
	}
	first := min(max(at-most/2, 0), max(len(cells)-most, 0))
	lines := table(replicaColumns, cells, width, s.theme.dim)
	shown := append(lines[:1:1], lines[1+first:1+min(first+most, len(cells))]...)
	if len(cells) > most {
		shown = append(shown, s.theme.dim.Render(fmt.Sprintf("  %d to %d of %d", first+1, first+most, len(cells))))
	}
	return shown
}

// cached is how many tokens a replica's prefix cache has, by the engine's own word or,
// marked as such, by the gateway's estimate.
func cached(r Replica) string {
	switch {
	case r.KVEvents != nil && r.KVEvents.CachedTokens != nil:
		return thousands(*r.KVEvents.CachedTokens)
	case r.CachedEstimate != nil:
		return "~" + thousands(*r.CachedEstimate)
	}
	return unknown
}

func (s screen) stateStyle(state string) lipgloss.Style {
	switch state {
	case "ready":
		return s.theme.good
	case "down", "stuck":
		return s.theme.bad
	}
	return s.theme.warn
}

// old says of which replicas the engines' numbers are old.
func (s screen) old(m *Model) []string {
	var lines []string
	for _, r := range m.Replicas {
		if r.ScrapeAge == nil {
			continue
		}
		if age := time.Duration(*r.ScrapeAge) * time.Millisecond; age > stale {
			lines = append(lines, s.theme.warn.Render(fmt.Sprintf("! What the engine of replica %d said is %s old.", r.Index, since(time.Time{}.Add(age), time.Time{}))))
		}
	}
	return lines
}

// moves are the requests of the last hour that left their home.
func (s screen) moves(of *Model) []string {
	lines := []string{s.theme.dim.Render("Left their home in the last hour")}
	switch {
	case s.movesOf != of.Name:
		return append(lines, "  reading …")
	case s.data.MovesUnknown != "":
		return append(lines, "  not known: "+clean(s.data.MovesUnknown))
	case len(s.data.Moves) == 0:
		return append(lines, "  none")
	}
	for i, m := range s.data.Moves {
		if i == 3 {
			lines = append(lines, fmt.Sprintf("  and %d other kinds", len(s.data.Moves)-i))
			break
		}
		why := ""
		if m.Why != nil {
			why = " (" + *m.Why + ")"
		}
		lines = append(lines, clean(fmt.Sprintf("  %s → %s  %s%s: %s", number(m.From), number(m.To), m.Reason, why, count(int(m.Requests), "request"))))
	}
	return lines
}

// events are the latest; the screen has room for a few.
func (s screen) events() []string {
	var lines []string
	for _, e := range s.data.Overview.Events {
		style := lipgloss.NewStyle()
		switch e.Level {
		case "bad":
			style = s.theme.bad
		case "warn":
			style = s.theme.warn
		}
		about := ""
		if e.Model != nil && len(s.data.Models) > 1 {
			about = clean(*e.Model) + ": "
		}
		lines = append(lines, fmt.Sprintf("%9s  %s", since(s.now, e.Time)+" ago", style.Render(about+clean(e.Text))))
	}
	if len(lines) == 0 {
		return nil
	}
	return append([]string{s.theme.dim.Render("Latest events")}, lines...)
}

// interactive says whether somebody can select something.
func (s screen) interactive() bool { return s.gateway != nil }
