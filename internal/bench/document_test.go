package bench

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write measured tables into the documents, from many seeds")

// inDocument holds the first table of a document to a table of fewer seeds: the
// same words, and numbers that are near. With -update it writes the table of many
// seeds instead.
func inDocument(t *testing.T, name, table string, many func() string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	document := string(data)
	start := strings.Index(document, "\n| ") + 1
	length := strings.Index(document[start:], "\n\n") + 1
	if start == 0 || length == 0 {
		t.Fatalf("%s has no table: put a line of one where it belongs", name)
	}
	if *update {
		document = document[:start] + many() + document[start+length:]
		if err := os.WriteFile(path, []byte(document), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := sameTable(document[start:start+length], table); err != "" {
		t.Errorf("docs/%s is stale (%s): go test ./internal/bench -run '^%s$' -update", name, err, t.Name())
	}
}

// sameTable says where two tables differ by more than chance; empty when nowhere.
// A number that a ± follows may be off by three of these half widths and a twentieth
// of itself, any other in a cell with a ± is not looked at (it follows from it), and
// in a cell without ± everything is the same.
func sameTable(a, b string) string {
	rowsA, rowsB := strings.Split(a, "\n"), strings.Split(b, "\n")
	if len(rowsA) != len(rowsB) {
		return strconv.Itoa(len(rowsA)) + " lines, now " + strconv.Itoa(len(rowsB))
	}
	for i := range rowsA {
		cellsA, cellsB := strings.Split(rowsA[i], "|"), strings.Split(rowsB[i], "|")
		if len(cellsA) != len(cellsB) {
			return rowsA[i]
		}
		for j := range cellsA {
			if !sameCell(cellsA[j], cellsB[j]) {
				return strings.TrimSpace(cellsA[j]) + ", now " + strings.TrimSpace(cellsB[j])
			}
		}
	}
	return ""
}

var measuredCell = regexp.MustCompile(`^(.*?)(\S+) ± (\S+)`)

func sameCell(a, b string) bool {
	ma, mb := measuredCell.FindStringSubmatch(a), measuredCell.FindStringSubmatch(b)
	if ma == nil || mb == nil {
		return a == b || strings.Contains(a, "%")
	}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		if err != nil {
			return math.NaN()
		}
		return v
	}
	va, vb, half := number(ma[2]), number(mb[2]), number(ma[3])
	return ma[1] == mb[1] && math.Abs(va-vb) <= 3*half+0.05*math.Abs(va)
}
