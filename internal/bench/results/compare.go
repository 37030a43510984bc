package results

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Comparison is one arm and step against another, figure by figure.
type Comparison struct {
	Arms     string // "off", or "off → affinity"
	Sessions int
	Lines    []Line
}

// Line compares one column.
type Line struct {
	Column Column
	A, B   *float64 // means
	// Low and High are the 95% interval of B - A; nil with fewer than two runs on a
	// side.
	Low, High *float64
	Verdict   Verdict
}

// Interval prints the interval of the difference, signed.
func (l Line) Interval() string {
	if l.Low == nil || l.High == nil {
		return notMeasured
	}
	c := l.Column
	if c.Digits == 0 && max(math.Abs(*l.Low), math.Abs(*l.High)) < 100 {
		c.Digits = 1 // means of counts are not whole
	}
	signed := func(v *float64) string {
		if *v > 0 {
			return "+" + c.Format(v)
		}
		return c.Format(v)
	}
	return signed(l.Low) + " … " + signed(l.High)
}

// Verdict is what a comparison of a column says of the second side.
type Verdict string

// Verdicts. Differs stands for columns of which neither direction is better.
const (
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	Differs      Verdict = "differs"
	NoDifference Verdict = "no difference seen"
	Unknown      Verdict = "not known" // not measured on both sides, or too few runs
)

// resamples of a bootstrap interval.
const resamples = 2000

// Compare sets b's arms and steps against those of a that have the same name and
// the same sessions; where each has a single arm, these are compared whatever
// their names. It fails when nothing is common, and with an UnlikeError when
// workload or protocol differ: such figures do not compare.
func Compare(a, b *Results) ([]Comparison, error) {
	var unlike []Difference
	for _, d := range Differences(a, b) {
		if d.Unlike {
			unlike = append(unlike, d)
		}
	}
	if len(unlike) > 0 {
		return nil, UnlikeError{unlike}
	}
	return CompareUnlike(a, b)
}

// CompareUnlike is Compare without its look at the settings. Whoever shows the
// outcome shows the Differences too.
func CompareUnlike(a, b *Results) ([]Comparison, error) {
	var all []Comparison
	for i := range a.Arms {
		other := b.Arm(a.Arms[i].Name)
		if len(a.Arms) == 1 && len(b.Arms) == 1 {
			other = &b.Arms[0]
		}
		if other != nil {
			all = append(all, CompareArms(&a.Arms[i], other)...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the measurements have no arm and number of sessions in common: one has %s, the other %s", a.extent(), b.extent())
	}
	return all, nil
}

// extent names the arms and steps.
func (r *Results) extent() string {
	var arms []string
	for _, a := range r.Arms {
		var sessions []string
		for _, s := range a.Steps {
			sessions = append(sessions, strconv.Itoa(s.Sessions))
		}
		arms = append(arms, fmt.Sprintf("%s at %s sessions", a.Name, strings.Join(sessions, ", ")))
	}
	return strings.Join(arms, " and ")
}

// CompareArms sets the steps of b against those of a with the same sessions.
func CompareArms(a, b *Arm) []Comparison {
	name := a.Name
	if b.Name != a.Name {
		name += " → " + b.Name
	}
	var all []Comparison
	for i := range a.Steps {
		if t := b.Step(a.Steps[i].Sessions); t != nil {
			all = append(all, Comparison{Arms: name, Sessions: t.Sessions, Lines: compareSteps(&a.Steps[i], t)})
		}
	}
	return all
}

func compareSteps(a, b *Step) []Line {
	seeds := func(s *Step) (list []uint64) {
		for _, r := range s.Runs {
			list = append(list, r.Seed)
		}
		return list
	}
	paired := slices.Equal(seeds(a), seeds(b))
	var lines []Line
	for _, c := range Columns() {
		l := Line{Column: c, A: c.Of(&a.Measures), B: c.Of(&b.Measures), Verdict: Unknown}
		if low, high, ok := interval(valuesOf(a, c), valuesOf(b, c), paired); ok {
			l.Low, l.High = Figure(low), Figure(high)
			l.Verdict = verdict(c.Better, low, high)
		}
		lines = append(lines, l)
	}
	return lines
}

// valuesOf are a column's figures by run; NaN where it was not measured.
func valuesOf(s *Step, c Column) []float64 {
	values := make([]float64, len(s.Runs))
	for i := range s.Runs {
		values[i] = math.NaN()
		if v := c.Of(&s.Runs[i].Measures); v != nil {
			values[i] = *v
		}
	}
	return values
}

func verdict(better Direction, low, high float64) Verdict {
	switch {
	case low <= 0 && high >= 0:
		return NoDifference
	case better == Neither:
		return Differs
	case (low > 0) == (better == Higher):
		return Better
	default:
		return Worse
	}
}

// interval is that of mean(b) - mean(a) at 95%: of the percentile bootstrap
// (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13)
// and of Student's t, Welch's for unpaired runs, the ends farther out. Of few
// runs the bootstrap knows too little: two that happen to agree would always make
// a difference. Paired runs had the same seed and are drawn together. The random
// source is fixed: a comparison says the same each time.
func interval(a, b []float64, paired bool) (low, high float64, ok bool) {
	if paired {
		var d []float64
		for i := range a {
			if !math.IsNaN(a[i]) && !math.IsNaN(b[i]) {
				d = append(d, b[i]-a[i])
			}
		}
		a, b = []float64{0, 0}, d
	} else {
		a, b = measured(a), measured(b)
	}
	if len(a) < 2 || len(b) < 2 {
		return 0, 0, false
	}
	low, high = bootstrap(a, b)
	if t := welch(a, b); !math.IsNaN(t) {
		center := mean(b) - mean(a)
		low, high = min(low, center-t), max(high, center+t)
	}
	return low, high, true
}

func bootstrap(a, b []float64) (low, high float64) {
	rng := rand.New(rand.NewPCG(1, 2))
	drawn := func(values []float64) float64 {
		sum := 0.0
		for range values {
			sum += values[rng.IntN(len(values))]
		}
		return sum / float64(len(values))
	}
	differences := make([]float64, resamples)
	for i := range differences {
		differences[i] = drawn(b) - drawn(a)
	}
	slices.Sort(differences)
	const tail = resamples / 40
	return differences[tail], differences[resamples-1-tail]
}

// welch is the half width of the 95% interval of mean(b) - mean(a) (Welch, "The
// generalization of 'Student's' problem when several different population
// variances are involved", 1947); NaN when no value differs from another. Zeros
// on one side make it Student's interval of the other.
func welch(a, b []float64) float64 {
	of := func(values []float64) (squaredError, freedom float64) {
		v, n := variance(values)/float64(len(values)), float64(len(values)-1)
		return v, v * v / n
	}
	va, fa := of(a)
	vb, fb := of(b)
	freedom := (va + vb) * (va + vb) / (fa + fb)
	if math.IsNaN(freedom) {
		return math.NaN()
	}
	return student95(max(int(freedom), 1)) * math.Sqrt(va+vb)
}

func measured(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), math.IsNaN)
}

// ComparisonTable prints comparisons as Markdown, one row per column and step;
// rows that were not measured on both sides are left out.
func ComparisonTable(all []Comparison) string {
	var b strings.Builder
	b.WriteString("| arms | sessions | column | A | B | B - A, 95% interval | verdict on B |\n|" + strings.Repeat(" --- |", 7) + "\n")
	for _, c := range all {
		for _, l := range c.Lines {
			if l.A == nil || l.B == nil {
				continue
			}
			fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s |\n", c.Arms, c.Sessions, l.Column.Title,
				l.Column.Format(l.A), l.Column.Format(l.B), l.Interval(), l.Verdict)
		}
	}
	return b.String()
}
