package results

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// NewStep averages the runs of one step. parts are each run's replicas and
// turns, in the order of runs; a part that a run does not have counts as one
// without turns.
func NewStep(sessions int, runs []Run, replicas, byTurn [][]Part) Step {
	s := Step{Sessions: sessions, Runs: runs, Replicas: meanParts(replicas), ByTurn: meanParts(byTurn)}
	for _, c := range Columns() {
		var values []float64
		for i := range runs {
			if v := c.Of(&runs[i].Measures); v != nil {
				values = append(values, *v)
			}
		}
		*c.at(&s.Measures), *c.at(&s.CI) = Figure(mean(values)), Figure(halfWidth(values))
	}
	return s
}

func meanParts(runs [][]Part) []Part {
	byIndex := map[int][]Part{}
	for _, parts := range runs {
		for _, p := range parts {
			byIndex[p.Index] = append(byIndex[p.Index], p)
		}
	}
	means := []Part{}
	for _, index := range slices.SortedFunc(maps.Keys(byIndex), cmp.Compare[int]) {
		parts := byIndex[index]
		// over averages a figure; of a count, a run without the part has zero.
		over := func(of func(Part) *float64, missing int) *float64 {
			var values []float64
			for _, p := range parts {
				if v := of(p); v != nil {
					values = append(values, *v)
				}
			}
			if len(values) == 0 {
				return nil
			}
			return Figure(mean(append(values, make([]float64, missing)...)))
		}
		missing := len(runs) - len(parts)
		means = append(means, Part{
			Index:            index,
			Turns:            over(func(p Part) *float64 { return p.Turns }, missing),
			FirstTurns:       over(func(p Part) *float64 { return p.FirstTurns }, missing),
			PrefixHitPercent: over(func(p Part) *float64 { return p.PrefixHitPercent }, 0),
			TTFBP50:          over(func(p Part) *float64 { return p.TTFBP50 }, 0),
		})
	}
	return means
}

// mean is NaN without values.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// halfWidth is that of the 95% confidence interval of the mean by Student's t;
// NaN with fewer than two values.
func halfWidth(values []float64) float64 {
	n := len(values)
	if n < 2 {
		return math.NaN()
	}
	return student95(n-1) * math.Sqrt(variance(values)/float64(n))
}

// variance is that of a sample of at least two values.
func variance(values []float64) float64 {
	m, squares := mean(values), 0.0
	for _, v := range values {
		squares += (v - m) * (v - m)
	}
	return squares / float64(len(values)-1)
}

// student95 is the 97.5% quantile of Student's t distribution with so many
// degrees of freedom: exact to three decimals up to 10, and Cornish and Fisher's
// expansion around the normal quantile beyond (off by less than 0.001 there).
func student95(freedom int) float64 {
	exact := [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}
	if freedom <= len(exact) {
		return exact[freedom-1]
	}
	const z = 1.959964
	v := float64(freedom)
	return z + (math.Pow(z, 3)+z)/(4*v) +
		(5*math.Pow(z, 5)+16*math.Pow(z, 3)+3*z)/(96*v*v) +
		(3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*math.Pow(z, 3)-15*z)/(384*v*v*v)
}
