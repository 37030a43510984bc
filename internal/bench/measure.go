package bench

import (
	"cmp"
	"math"
	"slices"
	"time"

	"lmwarden/internal/bench/results"
	"lmwarden/internal/routing"
)

// measure turns an observation into figures. What cannot be known is not
// measured: a turn without counts gives no cached share, a system that does not
// tell replicas gives no spread.
func measure(o Observation, clients, replicas, blockTokens int) results.Measures {
	var finished []Record
	var failed, cut int
	for _, r := range o.Records {
		switch r.End {
		case Finished:
			finished = append(finished, r)
		case Cut:
			cut++
		case Failed:
			failed++
		}
	}
	turns := slices.DeleteFunc(slices.Clone(finished), func(r Record) bool { return r.N == 0 })

	output, known := 0, len(finished) > 0
	for _, r := range finished {
		output += max(r.Output, 0)
		known = known && r.Output >= 0
	}
	m := results.Measures{
		SessionsPerHour:  results.Figure(float64(len(o.Ended)) / o.Length.Hours()),
		ReplicasBusy:     results.Figure(o.Busy),
		PrefixHitPercent: percent(o.Moved.CachedTokens, o.Moved.PromptTokens),
		StayedPercent:    stayed(o.Records),
		Turns:            count(len(finished)),
		Cut:              count(cut),
		Failed:           count(failed),
		Jain:             jain(turns, clients),
		RereadTokens:     reread(turns, blockTokens),
		FirstTurnSpread:  firstTurnSpread(o.Records, replicas),
		Preemptions:      results.Figure(o.Moved.Preemptions),
	}
	if known || len(finished) == 0 {
		m.OutputTokensPerMin = results.Figure(float64(output) / o.Length.Minutes())
	}

	ttfb := delays(o.Records, func(r Record) time.Duration { return r.First })
	m.TTFBP50, m.TTFBP95, m.TTFBP99, m.TTFBMax = quantile(ttfb, 0.5), quantile(ttfb, 0.95), quantile(ttfb, 0.99), quantile(ttfb, 1)
	m.TTFBMean = mean(ttfb)
	ttft := delays(o.Records, func(r Record) time.Duration { return r.Token })
	m.TTFTP50, m.TTFTP95 = quantile(ttft, 0.5), quantile(ttft, 0.95)
	e2e := seconds(turns, func(r Record) time.Duration { return r.Last - r.Sent })
	m.E2EP50, m.E2EP95 = quantile(e2e, 0.5), quantile(e2e, 0.95)

	var itl, sessions []float64
	for _, r := range turns {
		if r.Token >= 0 && r.Output > 1 {
			itl = append(itl, betweenTokens(r.Result))
		}
	}
	m.ITLMean = mean(itl)
	for _, s := range o.Ended {
		sessions = append(sessions, (s.To - s.From).Seconds())
	}
	m.SessionMean = mean(sessions)
	m.Spills, m.Moves = countReason(o.Records, routing.Spilled), countReason(o.Records, routing.Moved)
	return m
}

func count(n int) *float64 { return results.Figure(float64(n)) }

func percent(part, whole float64) *float64 { return results.Figure(100 * part / whole) }

// delays are the sorted times from sending a turn to a moment of its answer, of all
// turns that had it and did not fail.
func delays(records []Record, moment func(Record) time.Duration) []float64 {
	had := slices.DeleteFunc(slices.Clone(records), func(r Record) bool { return r.N == 0 || r.End == Failed || moment(r) < 0 })
	return seconds(had, func(r Record) time.Duration { return moment(r) - r.Sent })
}

// seconds are the sorted values of a time of each record.
func seconds(records []Record, of func(Record) time.Duration) []float64 {
	values := make([]float64, len(records))
	for i, r := range records {
		values[i] = of(r).Seconds()
	}
	slices.Sort(values)
	return values
}

// quantile is the nearest rank of sorted values.
func quantile(sorted []float64, q float64) *float64 {
	if len(sorted) == 0 {
		return nil
	}
	return results.Figure(sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)])
}

func mean(values []float64) *float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return results.Figure(sum / float64(len(values)))
}

// stayed is the share of the turns with a home that went there. A policy that
// gives no homes sends a turn home when it goes where the turn before it went.
func stayed(records []Record) *float64 {
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Sent, b.Sent) })
	last := map[uint64]int{}
	home, all := 0.0, 0.0
	for _, r := range records {
		if r.N == 0 {
			continue
		}
		before, seen := last[r.Session]
		if r.Replica >= 0 {
			last[r.Session] = r.Replica
		}
		switch routing.Reason(r.Reason) {
		case routing.Stayed:
			home++
			all++
		case routing.Spilled, routing.Moved:
			all++
		case routing.Off, routing.Engine:
			if seen && r.Replica >= 0 {
				all++
				if r.Replica == before {
					home++
				}
			}
		}
	}
	return percent(home, all)
}

// countReason is not measured when no record has a reason.
func countReason(records []Record, reason routing.Reason) *float64 {
	known, n := false, 0
	for _, r := range records {
		known = known || r.Reason != ""
		if r.Reason == string(reason) {
			n++
		}
	}
	if !known {
		return nil
	}
	return count(n)
}

// jain is the fairness index of the clients' finished turns (Jain, Chiu and Hawe,
// "A Quantitative Measure of Fairness", 1984): 1 when all had the same number,
// 1/clients when one had them all.
func jain(turns []Record, clients int) *float64 {
	n := make([]float64, clients)
	for _, r := range turns {
		n[r.Client]++
	}
	sum, squares := 0.0, 0.0
	for _, v := range n {
		sum += v
		squares += v * v
	}
	return results.Figure(sum * sum / (float64(clients) * squares))
}

// reread is the prompt tokens that were computed though an earlier turn of the
// conversation had computed them. The cache holds whole blocks, and never a
// prompt's last token.
func reread(turns []Record, blockTokens int) *float64 {
	total := 0
	for _, r := range turns {
		if r.Cached < 0 {
			return nil
		}
		if r.Known > 0 {
			total += max((r.Known-1)/blockTokens*blockTokens-r.Cached, 0)
		}
	}
	return count(total)
}

// firstTurnSpread is not measured when the replica of a first turn is not known.
func firstTurnSpread(records []Record, replicas int) *float64 {
	if replicas < 1 {
		return nil
	}
	on, all := make([]int, replicas), 0
	for _, r := range records {
		if r.N != 1 || r.Parent != 0 || r.Reason == "" || r.End == Failed && r.Replica < 0 {
			continue // reached no router, or no replica
		}
		if r.Replica < 0 || r.Replica >= replicas {
			return nil
		}
		on[r.Replica]++
		all++
	}
	return results.Figure(float64(slices.Max(on)) * float64(replicas) / float64(all))
}

// byReplica are the finished turns of each replica; none when it is not known
// which served them.
func byReplica(o Observation, replicas int) []results.Part {
	return partsOf(o.Records, func(r Record) (int, bool) { return r.Replica, r.Replica >= 0 && r.Replica < replicas })
}

// byTurn are the finished turns by their number.
func byTurn(o Observation) []results.Part {
	return partsOf(o.Records, func(r Record) (int, bool) { return r.N, r.N > 0 && r.Parent == 0 })
}

func partsOf(records []Record, index func(Record) (int, bool)) []results.Part {
	groups := map[int][]Record{}
	for _, r := range records {
		if i, ok := index(r); ok && r.End == Finished {
			groups[i] = append(groups[i], r)
		}
	}
	parts := make([]results.Part, 0, len(groups))
	for i, group := range groups {
		first, prompt, cached := 0, 0.0, 0.0
		for _, r := range group {
			if r.N == 1 {
				first++
			}
			if r.Prompt < 0 || r.Cached < 0 {
				prompt = math.NaN()
			}
			prompt += float64(r.Prompt)
			cached += float64(r.Cached)
		}
		parts = append(parts, results.Part{
			Index: i, Turns: count(len(group)), FirstTurns: count(first),
			PrefixHitPercent: percent(cached, prompt),
			TTFBP50:          quantile(seconds(group, func(r Record) time.Duration { return r.First - r.Sent }), 0.5),
		})
	}
	slices.SortFunc(parts, func(a, b results.Part) int { return cmp.Compare(a.Index, b.Index) })
	return parts
}
