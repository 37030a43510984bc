package top

import (
	"context"
	"errors"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"
)

// readEvery is how often the gateway is asked.
const readEvery = time.Second

// How many conversations are read: so many for a screen, or more when a filter is
// to find some among them.
const (
	shownConversations    = 200
	searchedConversations = 1000
)

// tab is one of the two screens.
type tab int

const (
	overview tab = iota
	conversations
)

// sorts are the orders of each table, the first at the start. Conversations are
// sorted by the gateway, which knows them all.
var sorts = [...][]string{
	overview:      {"index", "in_flight", "kv_used", "waiting"},
	conversations: {"last_seen", "in_flight", "prompt_tokens", "turns", "cached_tokens", "first_seen"},
}

// screen is the state of the display. It knows no clock: times come in messages.
type screen struct {
	gateway Gateway
	address string // of the gateway, for the header
	theme   theme

	width, height int
	now           time.Time
	tab           tab
	sort          [2]int    // by tab, into sorts
	filter        [2]string // by tab
	typing        bool      // the filter
	model         string    // whose replicas are shown; empty for the first
	replica       int       // that is selected, by its index
	first         int       // row of the conversations that is shown
	asked         *action
	said          string // what became of the last action

	reading bool
	data    Snapshot  // the latest, empty before the first
	movesOf string    // the model of data.Moves
	at      time.Time // of data
	broken  error     // of the last reading, nil when it succeeded
	refused error     // why the program ended by itself
}

// action is what waits for a confirmation.
type action struct {
	model   string
	replica int
	drain   bool
}

func (a action) String() string {
	verb := "resume"
	if a.drain {
		verb = "drain"
	}
	return fmt.Sprintf("%s replica %d of %s", verb, a.replica, clean(a.model))
}

// What Update is told beside keys and sizes.
type (
	tick time.Time
	// read is what came of a query.
	read struct {
		at       time.Time
		query    Query
		snapshot Snapshot
		err      error
	}
	// acted is what came of an action.
	acted struct {
		action action
		err    error
	}
)

// Init implements tea.Model.
func (s screen) Init() tea.Cmd { return func() tea.Msg { return tick(time.Now()) } }

func nextTick() tea.Cmd { return tea.Tick(readEvery, func(t time.Time) tea.Msg { return tick(t) }) }

// Update implements tea.Model.
func (s screen) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case tick:
		s.now = time.Time(m)
		s, cmd := s.ask()
		return s, tea.Batch(nextTick(), cmd)
	case read:
		return s.took(m)
	case acted:
		s.said = m.action.String() + ": done"
		if m.err != nil {
			s.said = m.action.String() + ": " + m.err.Error()
		}
		return s.ask()
	case tea.KeyPressMsg:
		return s.key(m)
	}
	return s, nil
}

// query is what the screen needs now.
func (s screen) query() Query {
	if s.tab == overview {
		q := Query{}
		if m, _ := s.selected(); m != nil {
			q.Model = m.Name
		}
		return q
	}
	q := Query{Conversations: true, Sort: s.order(conversations), Limit: shownConversations}
	if s.filter[s.tab] != "" {
		q.Limit = searchedConversations
	}
	return q
}

// order is by what a table is sorted.
func (s screen) order(t tab) string { return sorts[t][s.sort[t]] }

// ask reads from the gateway, one query at a time.
func (s screen) ask() (screen, tea.Cmd) {
	if s.reading {
		return s, nil
	}
	s.reading = true
	gateway, q := s.gateway, s.query()
	return s, func() tea.Msg {
		snapshot, err := gateway.Read(context.Background(), q)
		return read{time.Now(), q, snapshot, err}
	}
}

func (s screen) took(m read) (tea.Model, tea.Cmd) {
	s.reading, s.now, s.broken = false, m.at, m.err
	if errors.Is(m.err, ErrRefused) { // asking again would lock the login
		s.refused = m.err
		return s, tea.Quit
	}
	if m.err == nil {
		was := s.data
		s.data, s.at = m.snapshot, m.at
		if m.query.Conversations {
			s.data.Moves, s.data.MovesUnknown = was.Moves, was.MovesUnknown
		} else {
			s.data.Conversations, s.data.More, s.movesOf = was.Conversations, was.More, m.query.Model
		}
	}
	if m.query != s.query() { // the screen is another by now
		return s.ask()
	}
	return s, nil
}
