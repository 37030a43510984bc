package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// View implements tea.Model.
func (s screen) View() tea.View {
	v := tea.NewView(strings.Join(s.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "warden top"
	return v
}

// lines is the whole screen, at most as high and as wide as the terminal.
func (s screen) lines() []string {
	width, height := cmp.Or(s.width, 80), cmp.Or(s.height, 24)
	head, foot := s.header(width), s.footer(width)
	room := max(height-len(head)-len(foot), 0)
	var body []string
	if s.tab == overview {
		body = s.overview(width, room)
	} else {
		body = s.conversations(width, room)
	}
	body = body[:min(len(body), room)]
	for len(body) < room {
		body = append(body, "")
	}
	all := append(append(head, body...), foot...)
	all = all[:min(len(all), height)]
	for i, line := range all {
		all[i] = lipgloss.NewStyle().MaxWidth(width).Render(line)
	}
	return all
}

// header says what is looked at, in what state it is, and how old that is.
func (s screen) header(width int) []string {
	tabs := [...]string{overview: " Overview ", conversations: " Conversations "}
	for i, name := range tabs {
		if tab(i) == s.tab {
			tabs[i] = s.theme.tab.Render("[" + strings.TrimSpace(name) + "]")
		}
	}
	freshness := s.freshness()
	lines := []string{
		ends(s.theme.title.Render("LM Warden")+" "+clean(s.data.Overview.Version), s.theme.dim.Render(clean(s.address)), width),
		ends(strings.Join(tabs[:], " "), freshness, width),
	}
	o := s.data.Overview
	if o.State != "" {
		lines = append(lines, clean(o.State))
	}
	for _, w := range o.Warnings {
		lines = append(lines, s.theme.warn.Render("! "+clean(w)))
	}
	if o.History != nil {
		lines = append(lines, s.theme.warn.Render("! "+clean(*o.History)))
	}
	return append(lines, s.theme.dim.Render(strings.Repeat("─", width)))
}

// freshness says how old the data is, and what is wrong with the gateway.
func (s screen) freshness() string {
	age := "never read"
	if !s.at.IsZero() {
		age = since(s.now, s.at) + " old"
	}
	if s.broken != nil {
		return s.theme.bad.Render("NO ANSWER, " + age)
	}
	return s.theme.dim.Render(age)
}

func (s screen) footer(width int) []string {
	what := ""
	switch {
	case s.asked != nil:
		what = s.theme.warn.Render(s.question())
	case s.typing:
		what = "Filter: " + s.filter[s.tab] + "▏  (enter keeps it, esc ends it)"
	case s.broken != nil:
		what = s.theme.bad.Render(clean(s.broken.Error()))
	case s.said != "":
		what = clean(s.said)
	}
	keys := []string{"tab conversations", "↑↓ replica", "d drain", "r resume", "s sort", "/ filter", "q quit"}
	if len(s.data.Models) > 1 {
		keys = slices.Insert(keys, 1, "←→ model")
	}
	if s.tab == conversations {
		keys = []string{"tab overview", "↑↓ scroll", "s sort", "/ filter", "q quit"}
	}
	lines := []string{what}
	for _, line := range flow(width, keys...) {
		lines = append(lines, s.theme.dim.Render(line))
	}
	return lines
}

// question is what an action needs an answer to.
func (s screen) question() string {
	a := *s.asked
	told := "It takes new conversations again."
	if a.drain {
		live := 0
		if m, r := s.selected(); r != nil && m.Name == a.model {
			live = r.LiveConversations
		}
		told = fmt.Sprintf("%d live ones move at their next turn.", live)
	}
	return "[y/n] " + a.String() + "? " + told
}

// flow puts texts beside each other, in as many lines as they need.
func flow(width int, texts ...string) []string {
	const between = "   "
	var lines []string
	for _, t := range texts {
		last := len(lines) - 1
		if last < 0 || lipgloss.Width(lines[last])+len(between)+lipgloss.Width(t) > width {
			lines = append(lines, t)
			continue
		}
		lines[last] += between + t
	}
	return lines
}

// ends puts one text at each end of a line.
func ends(left, right string, width int) string {
	blank := width - lipgloss.Width(left) - lipgloss.Width(right)
	if blank < 1 {
		return left + " " + right
	}
	return left + strings.Repeat(" ", blank) + right
}

// Numbers for people; a dash is not measured.

const unknown = "–"

func number[N int | int64](n *N) string {
	if n == nil {
		return unknown
	}
	return thousands(int64(*n))
}

// thousands has a comma after each three digits.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func percent(p *float64) string {
	if p == nil {
		return unknown
	}
	return strconv.FormatFloat(*p, 'f', 1, 64) + "%"
}

// barWidth is that of a full bar.
const barWidth = 8

func bar(p *float64) string {
	if p == nil {
		return ""
	}
	n := int(math.Round(min(max(*p, 0), 100) / 100 * barWidth))
	return strings.Repeat("█", n) + strings.Repeat("░", barWidth-n)
}

// since is a span of time in its largest unit.
func since(now, then time.Time) string {
	d := max(now.Sub(then), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
