package web

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
)

// conversationPage is one conversation, turn by turn.
type conversationPage struct {
	page
	Row      rowOnPage
	Parent   string // path of the conversation that started it, empty for none
	ParentID string
	Say      string
	API      string
	Turns    chart
	Log      []turnRow // the same turns, newest first
	Reread   []rereadNote
	Older    string // link to earlier turns, empty at the first
	Latest   string // link back to the latest turns
	Note     string // why there are no turns to show
	Children []rowOnPage
	Replicas []string // where it may be moved to
	Open     bool
	Homeless bool
	Served   bool // its model is
}

// turnRow is a turn in the table.
type turnRow struct {
	Time            time.Time
	Replica, Colour string
	Reason, Why     string
	Outcome         string
	Failed          bool
	Prompt, Output  string
	Cached          bar
	Waited          string
	TTFB, Duration  string
}

// rereadNote says of a turn how much was read again, and why.
type rereadNote struct {
	Level        level
	Strong, Rest string
}

// turnsShown is how many turns the drawing has.
const turnsShown = 40

func (h *Handler) conversationPage(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	c, ok := h.o.Conversations.Find(id)
	if !ok {
		h.notFound(w, r, fmt.Sprintf("There is no conversation %q, or it was idle for too long and is forgotten.", id))
		return
	}
	before, err := cursorOf(r.URL.Query())
	if err != nil {
		h.badRequest(w, r, err)
		return
	}
	pool, _ := h.find(c.Model)
	p := conversationPage{page: h.page(r, navConversations, c.Name, "/api"+conversationPath(c.Name)), API: "/api" + conversationPath(c.Name), Open: c.Open > 0}
	p.Row = p.page.Row(h.conversationRow(c, pool))
	p.Homeless = p.Row.Colour == ""
	if parent := c.Parent.Name(); parent != "" {
		p.Parent, p.ParentID = conversationPath(parent), parent
	}
	replicas := 0
	if p.Served = pool != nil; p.Served {
		v := pool.View()
		p.Refresh = listRefresh(v.Routing.Known)
		replicas = len(v.Replicas)
		for i := range replicas {
			if n := strconv.Itoa(i); n != p.Row.Home {
				p.Replicas = append(p.Replicas, n)
			}
		}
	}
	p.Say = fmt.Sprintf("%s in %s", plural(int(c.Turns), "1 turn", "%d turns"), span(c.LastSeen.Sub(c.FirstSeen)))
	if c.PromptTokens >= 0 {
		p.Say += " · context " + p.Row.Context + " tokens"
	}
	turns, next, err := h.history.Turns(r.Context(), c.Name, turnsShown, before)
	switch {
	case err != nil:
		p.Note = sentenceOf(err.Error())
	case len(turns) == 0:
		p.Note = "No turn has ended yet."
	default:
		p.Turns, p.Log, p.Reread = turnsOf(turns, replicas, int(c.Turns), before == 0)
	}
	if next != 0 {
		p.Older = conversationPath(c.Name) + "?before=" + strconv.FormatInt(next, 10)
	}
	if before != 0 {
		p.Latest = conversationPath(c.Name)
	}
	children, _, err := h.o.Conversations.Conversations(session.Query{Parent: c.Key, Limit: 50})
	if err != nil {
		p.Warnings = append(p.Warnings, sentenceOf(err.Error()))
	}
	for _, child := range children {
		p.Children = append(p.Children, p.page.Row(h.conversationRow(child, pool)))
	}
	h.render(w, r, http.StatusOK, "conversation.html", p)
}

// turnsOf draws turns, which come newest first. total is how many there are in
// all; it numbers the latest when they are the first page.
func turnsOf(turns []stats.Turn, replicas, total int, numbered bool) (chart, []turnRow, []rereadNote) {
	n := len(turns)
	columns := make([]column, n)
	cached := series{"Prompt, cached (measured)", "cached", unknown(n)}
	computed := series{"Prompt, computed", "computed", unknown(n)}
	completion := series{"Completion", "completion", unknown(n)}
	var log []turnRow
	var notes []rereadNote
	first := total - n + 1
	if !numbered || first < 1 {
		first = 1
	}
	var ended time.Time
	for i := range n {
		t := &turns[n-1-i]
		name := "turn " + strconv.Itoa(first+i)
		if !numbered {
			name = t.Time.UTC().Format("15:04:05")
		}
		col := column{Name: name, Strip: replicaText(t.Replica), Colour: "fill-none", Failure: failed(t)}
		if t.Replica >= 0 {
			col.Colour = "fill-" + strings.TrimPrefix(replicaColour(t.Replica, replicas), "rep ")
		}
		begun := t.Time.Add(-t.Duration)
		if gap := begun.Sub(ended); !ended.IsZero() && gap >= time.Minute {
			col.Note = "after " + shortSpan(gap)
		}
		if t.Waited >= time.Second {
			col.Note = "waited " + shortSpan(t.Waited)
		}
		if col.Failure {
			col.Note = "✕ " + strings.ReplaceAll(t.Outcome, "_", " ")
		}
		ended = t.Time
		columns[i] = col
		if t.Prompt >= 0 {
			cached.Values[i] = float64(min(max(t.Cached, 0), t.Prompt))
			computed.Values[i] = float64(t.Prompt) - cached.Values[i]
		}
		if t.Completion >= 0 {
			completion.Values[i] = float64(t.Completion)
		}
		if note, ok := rereadOf(name, t); ok {
			notes = append(notes, note)
		}
		log = append(log, turnRowOf(t, replicas))
	}
	c := bars(frame{Height: plotHeight}, columns, compact, cached, computed, completion)
	c.Summary = fmt.Sprintf("Tokens of %d turns and the replica that served each.", n)
	c.Caption = "Tokens of each turn, the replica that served it below. Purple after the first turn was read although an earlier turn had been there."
	for i, j := 0, len(log)-1; i < j; i, j = i+1, j-1 {
		log[i], log[j] = log[j], log[i]
	}
	return c, log, notes
}

func failed(t *stats.Turn) bool { return t.Outcome != "" && t.Outcome != "ok" }

func replicaText(replica int) string {
	switch replica {
	case stats.EngineChosen:
		return "engine"
	case stats.NoReplica:
		return dash
	}
	return strconv.Itoa(replica)
}

func turnRowOf(t *stats.Turn, replicas int) turnRow {
	row := turnRow{Time: t.Time, Replica: replicaText(t.Replica), Colour: "rep", Reason: t.Reason, Why: t.Why, Outcome: strings.ReplaceAll(t.Outcome, "_", " "), Failed: failed(t),
		Prompt: dash, Output: dash, Cached: barOf("hit", percent(math.NaN())), Waited: dash, TTFB: dash, Duration: seconds(t.Duration.Seconds())}
	if t.Replica >= 0 {
		row.Colour = replicaColour(t.Replica, replicas)
	}
	if t.Prompt >= 0 {
		row.Prompt = tokens(t.Prompt)
		if t.Cached >= 0 {
			row.Cached = barOf("hit", share(t.Cached, t.Prompt))
		}
	}
	if t.Completion >= 0 {
		row.Output = tokens(t.Completion)
	}
	if t.Waited > 0 {
		row.Waited = seconds(t.Waited.Seconds())
	}
	if t.TTFB > 0 {
		row.TTFB = seconds(t.TTFB.Seconds())
	}
	return row
}

// rereadOf is the sentence on a turn that read again what had been cached.
func rereadOf(name string, t *stats.Turn) (rereadNote, bool) {
	if t.Cause == "" || t.Reread <= 0 {
		return rereadNote{}, false
	}
	n := rereadNote{Level: bad, Strong: fmt.Sprintf("%s read %s tokens again.", capital(name), tokens(t.Reread)), Rest: " " + causeExplained(t.Cause)}
	if t.Changed.Part != "" {
		n.Level = warn
		n.Rest += " " + changeSentence(t.Changed)
	}
	if (t.Reason == string(routing.Moved) || t.Reason == string(routing.Spilled)) && t.From >= 0 && t.Replica >= 0 {
		n.Rest += fmt.Sprintf(" It was at replica %d (%s) and went to %d.", t.From, t.Why, t.Replica)
	}
	return n, true
}

// changeSentence says what a client changed of its own prompt, and where.
func changeSentence(c stats.Change) string {
	var text, part string
	switch c.Part {
	case "attribution":
		return "It is Claude Code’s attribution line, which changes at the start of the prompt: set CLAUDE_CODE_ATTRIBUTION_HEADER=0."
	case "message":
		part = "message"
		text = fmt.Sprintf("Message %d is not what it sent a turn before", c.Message+1)
	case "system":
		part = "system text"
		text = "The system text is not what it sent a turn before"
	case "tools":
		part = "list of tools"
		text = "The list of tools is not what it sent a turn before"
	default:
		part = "part"
		text = fmt.Sprintf("The part %q is not what it sent a turn before", c.Part)
	}
	switch {
	case c.Offset >= 0 && c.Within > 0:
		text += fmt.Sprintf(": changed at byte %s of the %s, within %s", thousands(c.Offset), part, plural(int(c.Within), "1 byte", "%d bytes"))
	case c.Offset >= 0:
		text += fmt.Sprintf(": it ends at byte %s", thousands(c.Offset))
	}
	if c.Byte >= 0 {
		text += fmt.Sprintf("; the %s begins at byte %s of the request", part, thousands(c.Byte))
	}
	return text + "."
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// shortSpan is a pause: 40 s, 12 min, 3 h.
func shortSpan(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

// causes says what each cause of a turn that was not cached means.
var causes = map[string]string{
	"moved":          "We moved the conversation to a replica where nothing of it was cached.",
	"spilled":        "Its home was full, so it went to a replica that did not hold it.",
	"restarted":      "The engine restarted and its cache was gone.",
	"changed-prompt": "The client changed its own prompt.",
	"balanced":       "The engine’s own balancer chose the replica, or the client named it.",
	"evicted":        "The replica’s cache was full and had let go of it.",
	"unknown":        "Nothing that we see explains it.",
}

func causeExplained(cause string) string {
	if text, ok := causes[cause]; ok {
		return text
	}
	return "Cause: " + cause + "."
}
