package web

import (
	"fmt"
	"net/url"
	"strconv"

	"lmwarden/internal/pool"
)

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
		Name: v.Name, Path: modelPath(v.Name), API: "/api/models/" + escaped,
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
