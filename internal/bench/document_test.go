package bench

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write measured tables into the documents, from many seeds")

// inDocument holds the table that follows some text of a document to rows of one that was measured
// with fewer seeds: those that begin with the same labels have cells that are near.
// With -update it writes the table of many seeds instead.
func inDocument(t *testing.T, name, after, table string, labels int, near func(documented, now string) bool, many func() string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	document := string(data)
	before, rest, found := strings.Cut(document, after)
	table0 := strings.Index(rest, "\n| ") + 1
	length := strings.Index(rest[table0:], "\n\n") + 1
	if !found || table0 == 0 || length == 0 {
		t.Fatalf("%s has no table after %q: put a line of one there", name, after)
	}
	start := len(before) + len(after) + table0
	if *update {
		document = document[:start] + many() + document[start+length:]
		if err := os.WriteFile(path, []byte(document), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	rows := map[string][]string{}
	for row := range strings.Lines(document[start : start+length]) {
		cells := strings.Split(row, "|")
		rows[strings.Join(cells[:1+labels], "|")] = cells
	}
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		documented := rows[strings.Join(cells[:1+labels], "|")]
		same := len(documented) == len(cells)
		for i := 0; same && i < len(cells); i++ {
			same = near(strings.TrimSpace(documented[i]), strings.TrimSpace(cells[i]))
		}
		if !same {
			t.Errorf("docs/%s is stale, it has\n%s\nand now it is\n%sWrite it anew: go test ./internal/bench -run '^%s$' -update",
				name, strings.Join(documented, "|"), row, t.Name())
		}
	}
}

// number reads a figure of a table.
func number(text string) (float64, bool) {
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	return v, err == nil
}
