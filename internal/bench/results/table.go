package results

import (
	"fmt"
	"strconv"
	"strings"
)

// notMeasured is what a table shows instead of a figure.
const notMeasured = "–"

// Table is table.md: the columns of the published table in its order, then the
// further ones; one row per step, and in each cell the arms in their order,
// joined by arrows. Where runs repeat, a second table has the half widths of the
// 95% confidence intervals of the means.
func (r *Results) Table() string {
	var b strings.Builder
	r.table(&b, func(s *Step) *Measures { return &s.Measures })
	if n := r.repeats(); n > 1 {
		fmt.Fprintf(&b, "\nMeans of %d runs. Half widths of their 95%% confidence intervals:\n\n", n)
		r.table(&b, func(s *Step) *Measures { return &s.CI })
	}
	return b.String()
}

func (r *Results) table(b *strings.Builder, of func(*Step) *Measures) {
	var names []string
	for _, a := range r.Arms {
		names = append(names, a.Name)
	}
	columns := Columns()
	arms := strings.Join(names, " → ")
	fmt.Fprintf(b, "| sessions (%s) |", arms)
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", c.Title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(columns)+1) + "\n")
	for _, sessions := range r.Steps() {
		fmt.Fprintf(b, "| %d |", sessions)
		for _, c := range columns {
			var cells []string
			measured := false
			for i := range r.Arms {
				cell := notMeasured
				if s := r.Arms[i].Step(sessions); s != nil {
					cell = c.Format(c.Of(of(s)))
				}
				measured = measured || cell != notMeasured
				cells = append(cells, cell)
			}
			if !measured {
				cells = cells[:1]
			}
			fmt.Fprintf(b, " %s |", strings.Join(cells, " → "))
		}
		b.WriteByte('\n')
	}
}

// Steps are the numbers of sessions of all arms, in the order in which they come.
func (r *Results) Steps() []int {
	var all []int
	seen := map[int]bool{}
	for _, a := range r.Arms {
		for _, s := range a.Steps {
			if !seen[s.Sessions] {
				seen[s.Sessions] = true
				all = append(all, s.Sessions)
			}
		}
	}
	return all
}

// repeats is the most runs that a step has.
func (r *Results) repeats() int {
	n := 0
	for _, a := range r.Arms {
		for _, s := range a.Steps {
			n = max(n, len(s.Runs))
		}
	}
	return n
}

// Format prints a figure with the column's digits and thousands apart.
func (c Column) Format(v *float64) string {
	if v == nil {
		return notMeasured
	}
	text := strconv.FormatFloat(*v, 'f', c.Digits, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}
