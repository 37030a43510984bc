package bench

import (
	"fmt"
	"math"
	"strings"

	"lmwarden/internal/bench/results"
)

// publication is the published table: per number of sessions, and per column in
// the order of results.Columns, the arms off and on. 0 was not measured.
func publication() map[int][results.Published][2]float64 {
	return map[int][results.Published][2]float64{
		4:  {{180, 240}, {5886, 6744}, {2.05, 0.38}, {3.5, 2.84}, {2.71, 2.83}, {56.2, 86.4}, {0, 100}},
		8:  {{300, 380}, {8364, 10752}, {2.33, 0.48}, {6.32, 5.03}, {3.74, 3.74}, {44.3, 86.1}, {0, 100}},
		16: {{300, 360}, {9558, 12204}, {3.25, 0.85}, {26.24, 24.88}, {3.91, 3.69}, {33.2, 48.6}, {0, 100}},
		24: {{300, 420}, {9048, 11178}, {5.06, 13.14}, {58.82, 38.34}, {3.91, 4}, {32.8, 37.9}, {0, 89.1}},
		32: {{520, 620}, {14760, 16638}, {12.32, 27.66}, {82.84, 38.92}, {4, 4}, {31.6, 31.6}, {0, 67.3}},
	}
}

// PublishedArms are the arms that stand for the published ones, off and on.
func PublishedArms() []string { return []string{"off", PublishedOn} }

// Reproduced is a row of the published table beside simulated figures.
type Reproduced struct {
	Arm, Sessions int // Arm is an index of PublishedArms
	Cells         [results.Published]Cell
}

// Cell is one figure; nil was not measured.
type Cell struct {
	Column               results.Column
	Published, Simulated *float64
	HalfWidth            *float64 // of the 95% interval of the mean, with several runs
}

// Off is the logarithm of simulated over published; false when one is missing.
func (c Cell) Off() (float64, bool) {
	if c.Published == nil || c.Simulated == nil {
		return 0, false
	}
	return math.Log(*c.Simulated / *c.Published), true
}

func (c Cell) String() string {
	text := c.Column.Format(c.Published) + " / " + c.Column.Format(c.Simulated)
	if c.HalfWidth != nil {
		text += " ± " + c.Column.Format(c.HalfWidth)
	}
	if off, ok := c.Off(); ok {
		text += fmt.Sprintf(" (%+.0f%%)", 100*(math.Exp(off)-1))
	}
	return text
}

// Reproduction sets the steps of measured PublishedArms beside the published
// table; steps that it does not have are left out.
func Reproduction(r *results.Results) []Reproduced {
	var rows []Reproduced
	for arm, name := range PublishedArms() {
		a := r.Arm(name)
		if a == nil {
			continue
		}
		for i := range a.Steps {
			s := &a.Steps[i]
			printed, ok := publication()[s.Sessions]
			if !ok {
				continue
			}
			row := Reproduced{Arm: arm, Sessions: s.Sessions}
			for column, c := range results.Columns()[:results.Published] {
				cell := Cell{Column: c, Simulated: c.Of(&s.Measures), HalfWidth: c.Of(&s.CI)}
				if v := printed[column][arm]; v > 0 {
					cell.Published = &v
				}
				row.Cells[column] = cell
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// MeanOff is the mean of |Off| over the cells of a column, an index of
// results.Columns, and over how many it is; of none it is not a number.
func MeanOff(rows []Reproduced, column int) (mean float64, cells int) {
	for _, row := range rows {
		if off, ok := row.Cells[column].Off(); ok {
			mean += math.Abs(off)
			cells++
		}
	}
	return mean / float64(cells), cells
}

// OfArm returns the rows of one arm, an index of PublishedArms.
func OfArm(rows []Reproduced, arm int) []Reproduced {
	var of []Reproduced
	for _, row := range rows {
		if row.Arm == arm {
			of = append(of, row)
		}
	}
	return of
}

// ReproductionTable prints rows in Markdown: published / simulated ± half width
// (error). Its last rows are the mean factor by which a cell of a column is off, in
// each arm and in both.
func ReproductionTable(rows []Reproduced) string {
	var b strings.Builder
	b.WriteString("| arm | sessions |")
	for _, c := range results.Columns()[:results.Published] {
		fmt.Fprintf(&b, " %s |", c.Title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", results.Published+2) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | %d |", [...]string{"off", "on"}[row.Arm], row.Sessions)
		for _, c := range row.Cells {
			fmt.Fprintf(&b, " %s |", c)
		}
		b.WriteByte('\n')
	}
	for _, mean := range []struct {
		of   string
		rows []Reproduced
	}{{"off", OfArm(rows, 0)}, {"on", OfArm(rows, 1)}, {"both", rows}} {
		fmt.Fprintf(&b, "| mean error | %s |", mean.of)
		for i := range results.Published {
			if off, cells := MeanOff(mean.rows, i); cells > 0 {
				fmt.Fprintf(&b, " %.0f%% |", 100*(math.Exp(off)-1))
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
