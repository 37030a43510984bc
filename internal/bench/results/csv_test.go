package results

import (
	"encoding/csv"
	"strconv"
	"strings"
	"testing"
)

// table.csv says what results.json says, cell by cell.
func TestCSV(t *testing.T) {
	r := sample()
	var b strings.Builder
	if err := r.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	index := map[string]int{}
	for i, name := range rows[0] {
		index[name] = i
	}
	if len(rows) != 4 || len(index) != 3+2*len(Columns()) {
		t.Fatalf("%d rows of %d different columns, want 4 of %d", len(rows), len(index), 3+2*len(Columns()))
	}
	equal := func(row []string, column string, want *float64) {
		got := row[index[column]]
		if v, err := strconv.ParseFloat(got, 64); want == nil && got != "" || want != nil && (err != nil || v != *want) {
			t.Errorf("%s at %s sessions: %s is %q", row[index["arm"]], row[index["sessions"]], column, got)
		}
	}
	for _, row := range rows[1:] {
		sessions, err := strconv.Atoi(row[index["sessions"]])
		if err != nil {
			t.Fatal(err)
		}
		s := r.Arm(row[index["arm"]]).Step(sessions)
		if runs := row[index["runs"]]; runs != strconv.Itoa(len(s.Runs)) {
			t.Errorf("%s runs, want %d", runs, len(s.Runs))
		}
		for _, c := range Columns() {
			equal(row, c.Name, c.Of(&s.Measures))
			equal(row, c.Name+"_ci", c.Of(&s.CI))
		}
	}
}
