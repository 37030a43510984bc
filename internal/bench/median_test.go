package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/bench/results"
)

// ablation is a row of docs/why-the-median-inverts.md: an arm, perhaps with
// something taken away.
type ablation struct {
	name    string
	arm     string
	spill   int
	forgets bool
}

const never = 1_000_000

func ablations() []ablation {
	return []ablation{
		{"off: random for each turn", "off", 0, true},
		{"not sticky, least in flight for each turn", "least-inflight", 0, true},
		{"not sticky, round robin", "round-robin", 0, true},
		{"on: sticky, random homes, spill at 8", PublishedOn, 0, true},
		{"on, spill at 4", PublishedOn, 4, true},
		{"on, never a spill", PublishedOn, never, true},
		{"affinity: sticky, least loaded homes", "affinity", 0, true},
		{"off, a cache that never forgets", "off", 0, false},
		{"on, a cache that never forgets", PublishedOn, 0, false},
	}
}

// waits is what the rows show: turns in a second, shares from 0 to 100, times in
// seconds.
type waits struct {
	turns, hits, mean, p50, p95, spread float64
	// p50Waited is the median of the time waited: half of all waiting is in waits that
	// are longer.
	p50Waited float64
	// uneven is the standard deviation over the replicas of the turns that each has,
	// averaged over time.
	uneven, firstP50, laterP50 float64
}

func (w *waits) columns() []struct {
	title  string
	value  *float64
	digits int
} {
	return []struct {
		title  string
		value  *float64
		digits int
	}{
		{"turns/s", &w.turns, 2}, {"prefix hits %", &w.hits, 0}, {"TTFB mean s", &w.mean, 1}, {"p50", &w.p50, 1}, {"p95", &w.p95, 1},
		{"sd / mean", &w.spread, 2}, {"p50 by time waited", &w.p50Waited, 1}, {"sd of turns at a replica", &w.uneven, 1},
		{"p50 of first turns", &w.firstP50, 1}, {"p50 of later turns", &w.laterP50, 1},
	}
}

// measureWaits runs an ablation for ten minutes after a first one that is not
// looked at.
func measureWaits(t *testing.T, a ablation, sessions int, seed uint64) waits {
	t.Helper()
	const warm, length = time.Minute, 10 * time.Minute
	box := published(t, 1).Box
	box.SpillThreshold = a.spill
	if !a.forgets {
		box.Engine.HostKVGiB, box.Engine.HostLinkGBPerS = 1e6, 1e9
	}
	v := newTestBox(t, box, seed)
	p := Protocol{Arms: []string{a.arm}, Sessions: []int{sessions}, Step: warm + length}
	var o Observation
	if err := p.Run(context.Background(), seed, PublishedWorkload(), v, func(all Observation) { o = all }); err != nil {
		t.Fatal(err)
	}
	from := settle + warm
	o.Records = slices.DeleteFunc(o.Records, func(r Record) bool { return r.First < 0 || r.Sent < from })
	var w waits
	w.uneven = unevenness(o.Records, box.Replicas)

	finished, prompt, cached := 0, 0, 0
	var first, later []float64
	for _, r := range o.Records {
		ttfb := (r.First - r.Sent).Seconds()
		if r.N == 1 {
			first = append(first, ttfb)
		} else {
			later = append(later, ttfb)
		}
		if r.End == Finished {
			finished++
			prompt += r.Prompt
			cached += r.Cached
		}
	}
	w.turns = float64(finished) / length.Seconds()
	w.hits = 100 * float64(cached) / float64(prompt)
	all := slices.Concat(first, later)
	for _, sorted := range [][]float64{first, later, all} {
		slices.Sort(sorted)
	}
	w.firstP50, w.laterP50 = *quantile(first, 0.5), *quantile(later, 0.5)
	w.p50, w.p95, w.mean = *quantile(all, 0.5), *quantile(all, 0.95), *mean(all)
	waited, squares := 0.0, 0.0
	for _, s := range all {
		squares += (s - w.mean) * (s - w.mean) / float64(len(all))
	}
	w.spread = math.Sqrt(squares) / w.mean
	for _, s := range all {
		if waited += s; waited >= w.mean*float64(len(all))/2 {
			w.p50Waited = s
			break
		}
	}
	return w
}

// unevenness sweeps over the times at which turns come and go.
func unevenness(records []Record, replicas int) float64 {
	type change struct {
		at time.Duration
		on int
		by float64
	}
	var changes []change
	for _, r := range records {
		changes = append(changes, change{r.Sent, r.Replica, 1}, change{max(r.Last, r.First), r.Replica, -1})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	has := make([]float64, replicas)
	sum := 0.0
	for i, c := range changes {
		has[c.on] += c.by
		if i+1 == len(changes) {
			break
		}
		m, squares := *mean(has), 0.0
		for _, n := range has {
			squares += (n - m) * (n - m) / float64(replicas)
		}
		sum += math.Sqrt(squares) * (changes[i+1].at - c.at).Seconds()
	}
	return sum / (changes[len(changes)-1].at - changes[0].at).Seconds()
}

// measureAblations measures all of them, each as the mean over seeds.
func measureAblations(t *testing.T, sessions []int, seeds int) (table string, byName map[string]waits) {
	t.Helper()
	var b strings.Builder
	byName = map[string]waits{}
	b.WriteString("| sessions | arm |")
	for _, c := range new(waits).columns() {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 2+len(new(waits).columns())) + "\n")
	for _, n := range sessions {
		for _, a := range ablations() {
			var total waits
			for seed := range seeds {
				one := measureWaits(t, a, n, uint64(seed+1))
				for i, c := range total.columns() {
					*c.value += *one.columns()[i].value / float64(seeds)
				}
			}
			byName[a.name] = total
			fmt.Fprintf(&b, "| %d | %s |", n, a.name)
			for _, c := range total.columns() {
				fmt.Fprintf(&b, " %.*f |", c.digits, *c.value)
			}
			b.WriteByte('\n')
		}
	}
	return b.String(), byName
}

// The published medians are worse with affinity once the caches are full, because
// affinity evens the queues, and not because it is sticky.
func TestWhyTheMedianInverts(t *testing.T) {
	measureArms := func(seeds int, arms ...string) (table string, r *results.Results) {
		r, err := Simulate(context.Background(), published(t, seeds, arms...), nil)
		if err != nil {
			t.Fatal(err)
		}
		return waitsTable(r), r
	}
	table, r := measureArms(2, "off", "least-inflight", "affinity")
	inDocument(t, "why-the-median-inverts.md", "## Measured", table, 2, nearWait, func() string {
		table, _ := measureArms(12, "off", "least-inflight", "round-robin", "affinity", PublishedOn)
		return table
	})
	for _, sessions := range []int{24, 32} {
		off := r.Arm("off").Step(sessions)
		for _, name := range []string{"least-inflight", "affinity"} {
			even := r.Arm(name).Step(sessions)
			if *even.TTFBP50 <= *off.TTFBP50 || *even.TTFBP95 >= 0.75**off.TTFBP95 {
				t.Errorf("%d sessions: p50 and p95 are %v and %v with off, %v and %v with %s", sessions, *off.TTFBP50, *off.TTFBP95, *even.TTFBP50, *even.TTFBP95, name)
			}
			if !near(*even.TTFBMean, *off.TTFBMean, 0.15) {
				t.Errorf("%d sessions: the mean wait is %v with off, %v with %s", sessions, *off.TTFBMean, *even.TTFBMean, name)
			}
		}
		least, affinity := r.Arm("least-inflight").Step(sessions), r.Arm("affinity").Step(sessions)
		if !near(*least.TTFBP50, *affinity.TTFBP50, 0.05) || !near(*least.TTFBP95, *affinity.TTFBP95, 0.05) {
			t.Errorf("%d sessions: p50 and p95 are %v and %v with least in flight, %v and %v with affinity", sessions, *least.TTFBP50, *least.TTFBP95, *affinity.TTFBP50, *affinity.TTFBP95)
		}
		if *least.StayedPercent > 80 || *affinity.StayedPercent < 95 {
			t.Errorf("%d sessions: %v%% stayed with least in flight, %v%% with affinity", sessions, *least.StayedPercent, *affinity.StayedPercent)
		}
	}
}

// waitsTable has the waits of the steps that overflow the caches.
func waitsTable(r *results.Results) string {
	var b strings.Builder
	var columns []results.Column
	for _, name := range []string{"stayed_percent", "prefix_hit_percent", "turns", "ttfb_mean_s", "ttfb_p50_s", "ttfb_p95_s"} {
		i := slices.IndexFunc(results.Columns(), func(c results.Column) bool { return c.Name == name })
		columns = append(columns, results.Columns()[i])
	}
	b.WriteString("| sessions | arm |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.Title)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 2+len(columns)) + "\n")
	for _, sessions := range []int{24, 32} {
		for i := range r.Arms {
			s := r.Arms[i].Step(sessions)
			fmt.Fprintf(&b, "| %d | %s |", sessions, r.Arms[i].Name)
			for _, c := range columns {
				fmt.Fprintf(&b, " %s ± %s |", c.Format(c.Of(&s.Measures)), c.Format(c.Of(&s.CI)))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// nearWait is nearMean for these tables.
func nearWait(documented, now string) bool { return nearMean("/ "+documented, "/ "+now) }

// Balance and stickiness one without the other.
func TestAblationOfBalanceAndStickiness(t *testing.T) {
	table, arms := measureAblations(t, []int{24}, 1)
	inDocument(t, "why-the-median-inverts.md", "## Taken apart", table, 2, nearFigure, func() string {
		table, _ := measureAblations(t, []int{24, 32}, 6)
		return table
	})
	a := ablations()
	off, least, robin, on, noSpill := arms[a[0].name], arms[a[1].name], arms[a[2].name], arms[a[3].name], arms[a[5].name]
	affinity, offKeeps, onKeeps := arms[a[6].name], arms[a[7].name], arms[a[8].name]
	for what, holds := range map[string]bool{
		"balance alone is as even as affinity":                    near(least.p95, affinity.p95, 0.1) && near(robin.p95, affinity.p95, 0.1) && near(least.p50, affinity.p50, 0.1),
		"stickiness alone has the best median and the worst tail": noSpill.p50 < least.p50 && noSpill.p50 < off.p50 && noSpill.p95 > 2*least.p95 && noSpill.p95 > off.p95,
		"what is even has its median at the mean, what is not has it below": near(least.p50, least.mean, 0.1) && near(affinity.p50, affinity.mean, 0.1) &&
			off.p50 < 0.95*off.mean && noSpill.p50 < 0.95*noSpill.mean,
		"waits spread as turns do over the replicas": noSpill.uneven > off.uneven && off.uneven > on.uneven && on.uneven > affinity.uneven &&
			noSpill.spread > off.spread && off.spread > on.spread && on.spread > affinity.spread,
		"the same work is done":                                         near(off.turns, least.turns, 0.2) && near(affinity.turns, least.turns, 0.05),
		"first turns are not why":                                       near(off.firstP50, off.laterP50, 0.3) && near(least.firstP50, least.laterP50, 0.3),
		"half of all waiting with off is in longer waits":               off.p50Waited > 1.3*least.p50Waited,
		"with caches that never forget stickiness wins median and tail": onKeeps.p50 < offKeeps.p50 && onKeeps.p95 < offKeeps.p95 && onKeeps.turns > 1.2*offKeeps.turns,
	} {
		if !holds {
			t.Errorf("it does not hold: %s\n%s", what, table)
		}
	}
}

func near(a, b, by float64) bool { return math.Abs(a-b) <= by*max(a, b) }

// nearFigure says whether a documented mean over a few runs fits one run.
func nearFigure(documented, now string) bool {
	a, isNumber := number(documented)
	b, _ := number(now)
	return !isNumber || math.Abs(a-b) <= 0.5*a+0.3
}
