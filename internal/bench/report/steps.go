package report

import (
	"slices"

	"lmwarden/internal/bench/results"
)

// stepView is everything of one number of sessions: a row per column, in it a
// cell per arm.
type stepView struct {
	Sessions int
	Rows     []stepRow
	Parts    []partTable
}

type stepRow struct {
	Column results.Column
	Cells  []stepCell
}

type stepCell struct{ Arm, Text, Interval string }

// partTable are the turns of a step by replica, or by their number.
type partTable struct {
	Title, Head string
	Rows        []partRow
	Left        int // parts that are not shown
}

type partRow struct {
	Arm                     string
	Index                   int
	Turns, First, Hits, P50 string
}

// partsShown is how many rows of one arm a part table has.
const partsShown = 24

func stepViews(r *results.Results) []stepView {
	var all []stepView
	for _, sessions := range r.Steps() {
		v := stepView{Sessions: sessions}
		for _, c := range results.Columns() {
			row := stepRow{Column: c}
			for i := range r.Arms {
				cell := stepCell{Arm: r.Arms[i].Name, Text: c.Format(nil)}
				if s := r.Arms[i].Step(sessions); s != nil {
					cell.Text = c.Format(c.Of(&s.Measures))
					if ci := c.Of(&s.CI); ci != nil {
						cell.Interval = "± " + c.Format(ci)
					}
				}
				row.Cells = append(row.Cells, cell)
			}
			v.Rows = append(v.Rows, row)
		}
		v.Parts = slices.DeleteFunc([]partTable{
			partsOf(r, sessions, "Turns by replica", "replica", func(s *results.Step) []results.Part { return s.Replicas }),
			partsOf(r, sessions, "Turns by their number", "turn", func(s *results.Step) []results.Part { return s.ByTurn }),
		}, func(t partTable) bool { return len(t.Rows) == 0 })
		all = append(all, v)
	}
	return all
}

func partsOf(r *results.Results, sessions int, title, head string, of func(*results.Step) []results.Part) partTable {
	t := partTable{Title: title, Head: head}
	count, percent, seconds := results.Column{Digits: 0}, results.Column{Digits: 1}, results.Column{Digits: 2}
	for i := range r.Arms {
		s := r.Arms[i].Step(sessions)
		if s == nil {
			continue
		}
		parts := of(s)
		if len(parts) > partsShown {
			t.Left += len(parts) - partsShown
			parts = parts[:partsShown]
		}
		for _, p := range parts {
			t.Rows = append(t.Rows, partRow{r.Arms[i].Name, p.Index, count.Format(p.Turns), count.Format(p.FirstTurns), percent.Format(p.PrefixHitPercent), seconds.Format(p.TTFBP50)})
		}
	}
	return t
}
