package top

import (
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"
)

// theme are the styles of a screen. The zero theme has none.
type theme struct {
	title, tab, dim, good, warn, bad, selected lipgloss.Style
}

// styles are those of a terminal. The colours are of its own sixteen, so that they
// fit its background.
func styles(colours bool) theme {
	plain := lipgloss.NewStyle()
	t := theme{
		title: plain.Bold(true), tab: plain.Bold(true).Reverse(true), dim: plain.Faint(true), selected: plain.Bold(true),
		bad: plain.Bold(true),
	}
	if colours {
		t.good, t.warn, t.bad = plain.Foreground(lipgloss.Green), plain.Foreground(lipgloss.Yellow), t.bad.Foreground(lipgloss.Red)
	}
	return t
}

// column is a column of a table. In a narrow terminal the one with the largest
// drop leaves first; those with 0 stay.
type column struct {
	title string
	left  bool // else its cells end at the right
	most  int  // characters of a cell; 0 for any number
	drop  int
}

// cell is a text and how it looks.
type cell struct {
	text  string
	style lipgloss.Style
}

func plain(text string) cell { return cell{text: text} }

// gap stands between two columns.
const gap = "  "

// table lays rows out in columns of one width each, the first row being the
// titles, with as many columns as fit into width.
func table(columns []column, rows [][]cell, width int, head lipgloss.Style) []string {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = lipgloss.Width(c.title)
		for _, row := range rows {
			w := lipgloss.Width(row[i].text)
			if c.most > 0 {
				w = min(w, c.most)
			}
			widths[i] = max(widths[i], w)
		}
	}
	hidden := fit(columns, widths, width)
	line := func(row func(i int) cell) string {
		var parts []string
		for i, c := range columns {
			if hidden[i] {
				continue
			}
			one := row(i)
			text := clip(one.text, widths[i])
			blank := strings.Repeat(" ", widths[i]-lipgloss.Width(text))
			if c.left {
				parts = append(parts, one.style.Render(text)+blank)
			} else {
				parts = append(parts, blank+one.style.Render(text))
			}
		}
		return strings.TrimRight(strings.Join(parts, gap), " ")
	}
	lines := []string{line(func(i int) cell { return cell{columns[i].title, head} })}
	for _, row := range rows {
		lines = append(lines, line(func(i int) cell { return row[i] }))
	}
	return lines
}

// fit says which columns to leave out.
func fit(columns []column, widths []int, width int) (hidden []bool) {
	hidden = make([]bool, len(columns))
	for {
		total, worst := -len(gap), -1
		for i, c := range columns {
			if hidden[i] {
				continue
			}
			total += widths[i] + len(gap)
			if c.drop > 0 && (worst < 0 || c.drop > columns[worst].drop) {
				worst = i
			}
		}
		if total <= width || worst < 0 {
			return hidden
		}
		hidden[worst] = true
	}
}

// clip cuts a text without styles to a width.
func clip(s string, width int) string {
	if lipgloss.Width(s) <= width {
		return s
	}
	used, end := 0, 0
	for i, r := range s {
		w := lipgloss.Width(string(r))
		if used+w > width-1 {
			break
		}
		used, end = used+w, i+len(string(r))
	}
	if width < 1 {
		return ""
	}
	return s[:end] + "…"
}

// clean takes out of a text what would steer a terminal: names come from clients
// and engines.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}
