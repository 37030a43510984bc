package top

import (
	"cmp"
	"context"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// key carries out what a key asks for.
func (s screen) key(m tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	switch {
	case m.String() == "ctrl+c":
		return s, tea.Quit
	case s.asked != nil:
		return s.confirm(m.String())
	case s.typing:
		return s.typed(m)
	}
	s.said = ""
	switch m.String() {
	case "q":
		return s, tea.Quit
	case "tab", "shift+tab":
		s.tab = 1 - s.tab
		return s.ask()
	case "s":
		s.sort[s.tab] = (s.sort[s.tab] + 1) % len(sorts[s.tab])
		s.first = 0
		return s.ask()
	case "/":
		s.typing = true
	case "esc":
		s.filter[s.tab], s.first = "", 0
		return s.ask()
	case "down", "j":
		return s.move(1), nil
	case "up", "k":
		return s.move(-1), nil
	case "pgdown", "space":
		return s.move(max(s.height/2, 1)), nil
	case "pgup":
		return s.move(-max(s.height/2, 1)), nil
	case "right", "l":
		return s.turn(1).ask()
	case "left", "h":
		return s.turn(-1).ask()
	case "d", "r":
		shown, replica := s.selected()
		if s.tab == overview && replica != nil {
			s.asked = &action{shown.Name, replica.Index, m.String() == "d"}
		}
	}
	return s, nil
}

// confirm takes the answer to a question: y does it, every other key does not.
func (s screen) confirm(key string) (tea.Model, tea.Cmd) {
	a := *s.asked
	s.asked = nil
	if key != "y" {
		s.said = a.String() + ": not done"
		return s, nil
	}
	gateway := s.gateway
	return s, func() tea.Msg {
		do := gateway.Resume
		if a.drain {
			do = gateway.Drain
		}
		return acted{a, do(context.Background(), a.model, a.replica)}
	}
}

// typed edits the filter.
func (s screen) typed(m tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	f := &s.filter[s.tab]
	switch m.String() {
	case "enter":
		s.typing = false
	case "esc":
		s.typing, *f = false, ""
	case "backspace":
		if letters := []rune(*f); len(letters) > 0 {
			*f = string(letters[:len(letters)-1])
		}
	default:
		*f += clean(m.Text)
	}
	s.first = 0
	return s.ask()
}

// move selects another replica, or scrolls the conversations.
func (s screen) move(by int) screen {
	if s.tab == conversations {
		s.first = min(max(s.first+by, 0), max(len(s.listed())-1, 0))
		return s
	}
	shown, _ := s.selected()
	if shown == nil {
		return s
	}
	rows := s.rows(shown)
	at := slices.IndexFunc(rows, func(r Replica) bool { return r.Index == s.replica })
	if len(rows) > 0 {
		s.replica = rows[min(max(at+by, 0), len(rows)-1)].Index
	}
	return s
}

// turn shows another model.
func (s screen) turn(by int) screen {
	models := s.models()
	if len(models) == 0 || s.tab != overview {
		return s
	}
	shown, _ := s.selected()
	at := slices.IndexFunc(models, func(m Model) bool { return m.Name == shown.Name })
	s.model, s.replica = models[(at+by+len(models))%len(models)].Name, 0
	return s
}

// models are those that the filter lets through.
func (s screen) models() []Model {
	var all []Model
	for _, m := range s.data.Models {
		if contains(m.Name, s.filter[overview]) {
			all = append(all, m)
		}
	}
	return all
}

// selected is the model shown and its selected replica, nil where there is none.
func (s screen) selected() (*Model, *Replica) {
	models := s.models()
	if len(models) == 0 {
		return nil, nil
	}
	m := &models[max(slices.IndexFunc(models, func(m Model) bool { return m.Name == s.model }), 0)]
	for i := range m.Replicas {
		if m.Replicas[i].Index == s.replica {
			return m, &m.Replicas[i]
		}
	}
	return m, nil
}

// rows are a model's replicas in the order that was chosen; the busiest first.
func (s screen) rows(m *Model) []Replica {
	value := func(r Replica) float64 {
		switch s.order(overview) {
		case "in_flight":
			return float64(r.InFlight)
		case "kv_used":
			return known(r.KVUsed)
		case "waiting":
			return known(r.Waiting)
		}
		return 0
	}
	rows := slices.Clone(m.Replicas)
	slices.SortStableFunc(rows, func(a, b Replica) int { return cmp.Compare(value(b), value(a)) })
	return rows
}

// known is a number, or less than any when it is not measured.
func known[N int64 | float64](n *N) float64 {
	if n == nil {
		return -1
	}
	return float64(*n)
}

// listed are the conversations that the filter lets through.
func (s screen) listed() []Conversation {
	f := s.filter[conversations]
	if f == "" {
		return s.data.Conversations
	}
	var all []Conversation
	for _, c := range s.data.Conversations {
		if contains(c.ID, f) || contains(c.Model, f) || contains(c.Source, f) || contains(text(c.Client), f) || contains(text(c.Parent), f) {
			all = append(all, c)
		}
	}
	return all
}

func contains(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
