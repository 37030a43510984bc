package report

import (
	"cmp"
	"slices"

	"lmwarden/internal/bench/results"
)

// endRow says how the requests of a step ended, arm by arm.
type endRow struct {
	Sessions int
	Cells    []endCell
}

type endCell struct {
	Arm                   string
	Finished, Cut, Failed string
	SomeFailed            bool
}

func endRows(r *results.Results) []endRow {
	var all []endRow
	for _, sessions := range r.Steps() {
		row := endRow{Sessions: sessions}
		for i := range r.Arms {
			cell := endCell{Arm: r.Arms[i].Name}
			var m results.Measures
			count := results.Column{}
			if s := r.Arms[i].Step(sessions); s != nil {
				m = s.Measures
				if len(s.Runs) > 1 {
					count.Digits = 1 // means need not be whole
				}
			}
			cell.Finished, cell.Cut, cell.Failed = count.Format(m.Turns), count.Format(m.Cut), count.Format(m.Failed)
			cell.SomeFailed = m.Failed != nil && *m.Failed > 0
			row.Cells = append(row.Cells, cell)
		}
		all = append(all, row)
	}
	return all
}

// errorCount is how often requests of a step failed with the same words.
type errorCount struct {
	errorPlace
	Count int
}

type errorPlace struct {
	Arm      string
	Sessions int
	Message  string
}

// errorCounts lists the errors arm by arm and step by step, the most frequent
// first.
func errorCounts(r *results.Results) []errorCount {
	counts := map[errorPlace]int{}
	var all []errorCount
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.End != results.Failed {
			continue
		}
		at := errorPlace{q.Arm, q.Sessions, "no reason known"}
		if q.Error != nil {
			at.Message = *q.Error
		}
		if counts[at] == 0 {
			all = append(all, errorCount{errorPlace: at})
		}
		counts[at]++
	}
	for i := range all {
		all[i].Count = counts[all[i].errorPlace]
	}
	arms := armNames(r)
	slices.SortStableFunc(all, func(a, b errorCount) int {
		return cmp.Or(
			cmp.Compare(slices.Index(arms, a.Arm), slices.Index(arms, b.Arm)),
			cmp.Compare(a.Sessions, b.Sessions), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Message, b.Message),
		)
	})
	return all
}
