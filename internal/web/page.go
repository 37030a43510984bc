package web

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/pool"
)

func parsePages() (*template.Template, error) {
	return template.New("pages").ParseFS(files, "templates/*.html")
}

// page is what every page has.
type page struct {
	Title    string
	Now      time.Time
	Version  string
	Started  time.Time
	Warnings []string
}

func (h *Handler) page(title string) page {
	return page{Title: title, Now: h.o.Now().UTC(), Version: h.version(), Started: h.started.UTC(), Warnings: h.o.Warnings()}
}

// Stamp is a time for the datetime attribute.
func (p page) Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Date is a time for people; the script turns it into the viewer's zone.
func (p page) Date(t time.Time) string { return t.UTC().Format("2 January 2006 15:04 UTC") }

// Clock is the time of a day for people.
func (p page) Clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// Ago is the span from a time to now, in words.
func (p page) Ago(t time.Time) string { return span(p.Now.Sub(t)) }

// overview is the page with all models.
type overview struct {
	page
	Heading string
	Say     string
	Models  []card
	// Unassigned are the engines that belong to no model.
	Unassigned []serverFacts
}

// modelPage is the page of one model.
type modelPage struct {
	page
	Card       card
	Facts      []string
	Answers    []string // further names
	Default    string   // the alias that maps here by default
	Notes      []note
	Say        []sentence
	Since      time.Time
	WorkingSet workingSet
	Servers    []serverFacts
	Decisions  []decisionRow
}

// card is the data-parallel routing card.
type card struct {
	Name     string
	Path     string // of the page
	API      string // of the model
	Heading  string // the replicas' state in a sentence
	Affinity bool
	Policy   string
	Pills    []pill
	// Threshold is what the form shows: auto, or the number.
	Threshold string
	Rows      []row
	// Actions says whether the rows have buttons.
	Actions bool
}

// pill is a short fact with its explanation.
type pill struct {
	ID, Label, Value, Explain string
	On                        bool
}

// row is one replica of the card. Numbers are text: a dash where not measured.
type row struct {
	Index                                  int
	Colour                                 string // class of the chip
	Where                                  string // URL and rank
	State                                  string
	InFlight, Live                         int
	Sticky, SpilledIn, Pinned              int64
	Running, Waiting                       string
	KV, Hit                                bar
	Stale                                  bool
	Draining                               bool
	DrainPath, ResumePath, DrainQ, ResumeQ string
}

// bar is a share drawn as a bar with its number.
type bar struct {
	Class string
	Width string // 0 to 100, for the drawing
	Text  string // with the percent sign, or a dash
}

// evictionLine is the KV use, in percent, from which an engine soon evicts.
const evictionLine = 90

func kvBar(p percent) bar {
	if p >= evictionLine {
		return barOf("full", p)
	}
	return barOf("", p)
}

func barOf(class string, p percent) bar {
	width := 0.0
	if p.known() {
		width = min(float64(p), 100)
	}
	return bar{class, decimal(width), p.String()}
}

// cardOf makes the card of a view.
func cardOf(v pool.View, actions bool) card {
	escaped := url.PathEscape(v.Name)
	m := modelOf(v)
	c := card{
		Name: v.Name, Path: "/models/" + escaped, API: "/api/models/" + escaped,
		Heading: stateSentence(v), Affinity: m.Affinity == "on", Policy: m.Policy, Actions: actions,
		Threshold: "auto",
	}
	threshold := strconv.Itoa(m.SpillThreshold.Value)
	if m.SpillThreshold.Auto {
		threshold += " (auto)"
	} else {
		c.Threshold = threshold
	}
	c.Pills = []pill{
		{"affinity", "Affinity", m.Affinity, affinityExplained(c.Affinity), c.Affinity},
		{"spill-threshold", "Spill threshold", threshold, fmt.Sprintf("a request leaves its home only when the home has %d requests in flight", m.SpillThreshold.Value), false},
		{"sticky", "Sticky", m.StickyPercent.String(), "share of the turns with a home that went there", false},
		{"in-flight", "In flight", strconv.Itoa(m.InFlight), "requests that the gateway has open", false},
	}
	for i, r := range v.Replicas {
		c.Rows = append(c.Rows, rowOf(m.Replicas[i], r, len(v.Replicas), c.API))
	}
	return c
}

func affinityExplained(on bool) string {
	if on {
		return "a conversation's turns go to the replica that holds its cache"
	}
	return "the engine's own balancer chooses"
}

func rowOf(m replica, r pool.ReplicaView, replicas int, api string) row {
	path := fmt.Sprintf("%s/replicas/%d/", api, m.Index)
	out := row{
		Index: m.Index, Colour: replicaColour(m.Index, replicas), Where: m.URL, State: m.State,
		InFlight: m.InFlight, Live: m.LiveConversations,
		Sticky: m.Sticky, SpilledIn: m.SpilledIn, Pinned: m.ClientPinned,
		Running: m.Running.String(), Waiting: m.Waiting.String(),
		KV: kvBar(m.KVUsed), Hit: barOf("hit", m.PrefixHit),
		Stale: stale(r), Draining: m.State == draining,
		DrainPath: path + "drain", ResumePath: path + "resume",
		DrainQ: fmt.Sprintf("Drain replica %d? It takes no new conversations; %s at the next turn.",
			m.Index, plural(m.LiveConversations, "its live conversation moves", "its %d live conversations move")),
		ResumeQ: fmt.Sprintf("Resume replica %d? It takes new conversations again; those that left stay where they are.", m.Index),
	}
	if m.Rank >= 0 {
		out.Where += ", rank " + m.Rank.String()
	}
	if m.Epoch > 1 {
		out.Where += fmt.Sprintf(", life %d of its engine", m.Epoch)
	}
	return out
}

// replicaColour is the class of a replica's chip. Four colours can be told apart
// by everyone; with more replicas the number alone has to do.
func replicaColour(index, replicas int) string {
	if replicas > 4 {
		return "rep"
	}
	return "rep r" + strconv.Itoa(index)
}

func (h *Handler) overviewPage(w http.ResponseWriter, r *http.Request) {
	o := overview{page: h.page("Models")}
	live, inFlight, waiting := 0, 0, 0
	states := map[string]int{}
	for _, p := range h.o.Pools() {
		v := p.View()
		o.Models = append(o.Models, cardOf(v, false))
		for s, n := range countStates(v) {
			states[s] += n
		}
		live += v.Routing.Live
		inFlight += v.Routing.InFlight
		for _, r := range modelOf(v).Replicas {
			waiting += max(int(r.Waiting), 0)
		}
	}
	o.Heading = statesSentence(states)
	if len(o.Models) == 0 {
		o.Heading = "No model is known yet."
		o.Say = "The engines have not told what they serve."
	} else {
		o.Say = fmt.Sprintf("%s live, %s in flight, %d waiting in the engines’ queues.",
			plural(live, "1 conversation", "%d conversations"), plural(inFlight, "1 request", "%d requests"), waiting)
	}
	if h.o.Unassigned != nil {
		o.Unassigned = serversOf(h.o.Unassigned())
	}
	h.render(w, r, http.StatusOK, "overview.html", o)
}

func (h *Handler) modelPage(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	p, known := h.find(name)
	if p == nil {
		h.notFound(w, r, fmt.Sprintf("There is no model %q. Known: %s.", name, cmp.Or(strings.Join(known, ", "), "none yet")))
		return
	}
	v := p.View()
	var tokens Tokens
	if h.o.Tokens != nil {
		tokens = h.o.Tokens(v.Name)
	}
	m := modelPage{
		page: h.page(v.Name), Card: cardOf(v, true), Facts: factsOf(v), Since: v.Since,
		Notes: notesOf(v, tokens), Say: sayOf(v, tokens), WorkingSet: workingSetOf(v), Servers: serversOf(v.Servers),
	}
	if len(known) == 1 && slices.Contains(v.Aliases, h.o.DefaultAlias) {
		m.Default = h.o.DefaultAlias
	}
	for _, a := range v.Aliases {
		if a != m.Default {
			m.Answers = append(m.Answers, a)
		}
	}
	const shown = 10
	for _, e := range p.Receipts(shown) {
		m.Decisions = append(m.Decisions, decisionRowOf(e, len(v.Replicas)))
	}
	h.render(w, r, http.StatusOK, "model.html", m)
}

func (h *Handler) pageNotFound(w http.ResponseWriter, r *http.Request) {
	h.notFound(w, r, "There is no page "+r.URL.Path+".")
}

func (h *Handler) notFound(w http.ResponseWriter, r *http.Request, say string) {
	h.render(w, r, http.StatusNotFound, "notfound.html", struct {
		page
		Say string
	}{h.page("Not found"), say})
}

// render writes a page whole or not at all.
func (h *Handler) render(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var b bytes.Buffer
	if err := h.pages.ExecuteTemplate(&b, name, data); err != nil {
		h.o.Log.ErrorContext(r.Context(), "render a page", "page", name, "error", err)
		writeText(w, http.StatusInternalServerError, "the page could not be made; the log says why\n")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
