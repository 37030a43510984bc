package session

import (
	"testing"
	"time"
)

var start = time.Date(2026, 10, 4, 8, 0, 0, 0, time.UTC)

func table(t testing.TB, o Options) *Table {
	t.Helper()
	tab, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}
