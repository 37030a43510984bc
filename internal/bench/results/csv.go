package results

import (
	"encoding/csv"
	"io"
	"strconv"
)

// WriteCSV writes table.csv: one row per arm and step, in it the number of runs
// and then, for each column, the mean and (as NAME_ci) the half width of its 95%
// confidence interval, at full precision. What was not measured is an empty cell.
func (r *Results) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	header := []string{"arm", "sessions", "runs"}
	for _, column := range Columns() {
		header = append(header, column.Name, column.Name+"_ci")
	}
	rows := [][]string{header}
	for _, arm := range r.Arms {
		for i := range arm.Steps {
			s := &arm.Steps[i]
			row := []string{arm.Name, strconv.Itoa(s.Sessions), strconv.Itoa(len(s.Runs))}
			for _, column := range Columns() {
				row = append(row, cell(column.Of(&s.Measures)), cell(column.Of(&s.CI)))
			}
			rows = append(rows, row)
		}
	}
	return c.WriteAll(rows)
}

func cell(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}
