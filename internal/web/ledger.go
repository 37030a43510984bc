package web

import (
	"cmp"
	"maps"
	"slices"

	"lmwarden/internal/stats"
)

// rereads is what was read again although it had been cached: by cause, and by
// hour, replica and cause.
type rereads struct {
	Causes []causeRow
	Hours  []hourRow
	More   string // how many older hours are left out, empty when none is
}

// causeRow is what one cause made replicas read again.
type causeRow struct {
	Cause, Explain, Turns, Reread string
	Share                         bar
}

// hourRow is what one cause made a replica read again within an hour.
type hourRow struct {
	Hour, Date                    string
	Replica, Cause, Turns, Reread string
}

// hoursShown is how many rows of hours a page has.
const hoursShown = 200

func rereadsOf(ledger []stats.Ledger) rereads {
	r := rereads{Causes: causesOf(ledger)}
	left := 0
	for _, l := range slices.Backward(ledger) { // the newest first
		if l.Reread == 0 {
			continue
		}
		if len(r.Hours) == hoursShown {
			left++
			continue
		}
		r.Hours = append(r.Hours, hourRow{
			rfc3339(l.Hour), l.Hour.UTC().Format("2 Jan 15:04 UTC"),
			stats.ReplicaName(l.Replica), l.Cause, thousands(l.Turns), thousands(l.Reread),
		})
	}
	if left > 0 {
		r.More = plural(left, "One older row is", "%d older rows are") + " left out."
	}
	return r
}

// causesOf sums the ledger by cause, the dearest first.
func causesOf(ledger []stats.Ledger) []causeRow {
	type sum struct{ turns, reread int64 }
	sums := map[string]sum{}
	var all int64
	for _, l := range ledger {
		s := sums[l.Cause]
		sums[l.Cause] = sum{s.turns + l.Turns, s.reread + l.Reread}
		all += l.Reread
	}
	causes := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b].reread, sums[a].reread), cmp.Compare(a, b))
	})
	var rows []causeRow
	for _, c := range causes {
		s := sums[c]
		if s.reread == 0 {
			continue
		}
		rows = append(rows, causeRow{c, causeExplained(c), thousands(s.turns), tokens(s.reread), barOf("hit", share(s.reread, all))})
	}
	return rows
}
