package report

import (
	"fmt"
	"strings"

	"lmwarden/internal/bench/results"
)

// contrast is a table of one arm against another in the columns of the published
// table, or of a single arm.
type contrast struct {
	Title    string
	Columns  []results.Column
	Rows     []contrastRow
	Verdicts []columnVerdict // none where no interval is known
}

type contrastRow struct {
	Sessions int
	Cells    []contrastCell
}

type contrastCell struct {
	results.Line
	Text string
}

// columnVerdict says in words at which numbers of sessions a column is what.
type columnVerdict struct{ Column, Text string }

// contrastsOf sets each further arm against the first. A step that an arm does
// not have, as of a measurement that was interrupted, stands there without
// figures.
func contrastsOf(r *results.Results) []contrast {
	var arms []results.Arm
	for _, a := range r.Arms {
		whole := results.Arm{Name: a.Name}
		for _, sessions := range r.Steps() {
			step := results.Step{Sessions: sessions}
			if s := a.Step(sessions); s != nil {
				step = *s
			}
			whole.Steps = append(whole.Steps, step)
		}
		arms = append(arms, whole)
	}
	if len(arms) == 1 {
		return groupContrasts(results.CompareArms(&arms[0], &arms[0]), true)
	}
	var all []contrast
	for i := 1; i < len(arms); i++ {
		all = append(all, groupContrasts(results.CompareArms(&arms[0], &arms[i]), false)...)
	}
	return all
}

// groupContrasts makes a table of the comparisons of the same arms, which follow
// each other; of single arms, when each is compared with itself.
func groupContrasts(all []results.Comparison, single bool) []contrast {
	var tables []contrast
	for _, c := range all {
		if len(tables) == 0 || tables[len(tables)-1].Title != c.Arms {
			tables = append(tables, contrast{Title: c.Arms, Columns: results.Columns()[:results.Published]})
		}
		t := &tables[len(tables)-1]
		row := contrastRow{Sessions: c.Sessions}
		for _, l := range c.Lines[:results.Published] {
			cell := contrastCell{Line: l, Text: l.Column.Format(l.A)}
			switch {
			case single:
				cell.Verdict = results.Unknown
			case l.A != nil || l.B != nil:
				cell.Text += " → " + l.Column.Format(l.B)
			}
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	for i := range tables {
		tables[i].Verdicts = tables[i].inWords()
	}
	return tables
}

func (t contrast) inWords() []columnVerdict {
	var all []columnVerdict
	order := []results.Verdict{results.Better, results.Worse, results.Differs, results.NoDifference, results.Unknown}
	known := false
	for i, c := range t.Columns {
		at := map[results.Verdict][]string{}
		for _, row := range t.Rows {
			v := row.Cells[i].Verdict
			at[v] = append(at[v], fmt.Sprint(row.Sessions))
			known = known || v != results.Unknown
		}
		var parts []string
		for _, v := range order {
			switch n := len(at[v]); {
			case n == len(t.Rows) && n > 1:
				parts = append(parts, string(v)+" at every step")
			case n > 0:
				parts = append(parts, string(v)+" at "+list(at[v]))
			}
		}
		all = append(all, columnVerdict{c.Title, strings.Join(parts, "; ")})
	}
	if !known {
		return nil
	}
	return all
}

// list joins words as a sentence does.
func list(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return words[0]
}

// Class is the verdict's in the style sheet.
func (c contrastCell) Class() string {
	return strings.ReplaceAll(string(c.Verdict), " ", "-")
}

// Sign stands before the verdict, so that colour alone says nothing.
func (c contrastCell) Sign() string {
	signs := map[results.Verdict]string{results.Better: "▲", results.Worse: "▼", results.Differs: "≠", results.NoDifference: "="}
	return signs[c.Verdict]
}

// Said says whether there is a verdict to show.
func (c contrastCell) Said() bool { return c.Verdict != results.Unknown }
