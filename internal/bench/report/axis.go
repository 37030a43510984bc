package report

import (
	"math"
	"slices"
	"strconv"

	"lmwarden/internal/bench/results"
)

// scale maps a figure to a place between the ends of an axis, 0 to 1.
type scale struct {
	low, high float64
	log       bool
	ticks     []float64
}

// at gives what lies below a log axis its lower end.
func (s scale) at(v float64) float64 {
	if s.log {
		return math.Log(max(v, s.low)/s.low) / math.Log(s.high/s.low)
	}
	return (v - s.low) / (s.high - s.low)
}

// least is what a log axis still shows of a time, in seconds.
const least = 0.001

// logScale spans the values between steps of 1, 2 and 5.
func logScale(values []float64) scale {
	low, high := math.Inf(1), least
	for _, v := range values {
		low, high = min(low, max(v, least)), max(high, v)
	}
	s := scale{low: least, high: least, log: true}
	var all []float64
	for exponent := -3; exponent <= 9; exponent++ {
		for _, step := range []float64{1, 2, 5} {
			all = append(all, step*math.Pow(10, float64(exponent)))
		}
	}
	for i, v := range all {
		if v <= low*(1+1e-9) {
			s.low = v
		}
		if s.high = v; v >= high && i > 0 && v > s.low {
			break
		}
	}
	decades := math.Log10(s.high / s.low)
	for i, v := range all {
		// Beyond three decades there is room for the whole ones only.
		if v >= s.low*(1-1e-9) && v <= s.high*(1+1e-9) && (decades <= 3 || i%3 == 0) {
			s.ticks = append(s.ticks, v)
		}
	}
	return s
}

// linearScale goes from zero to a round number that no value exceeds.
func linearScale(values []float64) scale {
	high := slices.Max(values)
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, factor := range []float64{1, 2, 2.5, 5, 10} {
		if high/(step*factor) <= 5 {
			step *= factor
			break
		}
	}
	s := scale{}
	for i := 0; s.high < high*(1-1e-9) || i == 0; i++ {
		s.high = float64(i+1) * step
	}
	for i := 0; float64(i)*step <= s.high; i++ {
		s.ticks = append(s.ticks, float64(i)*step)
	}
	return s
}

// tickText prints a tick: whole numbers with thousands apart.
func tickText(v float64) string {
	if v == math.Trunc(v) {
		return results.Column{}.Format(&v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
