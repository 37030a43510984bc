package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lmwarden/internal/bench/results"
)

// drawn is a figure read back: its horizontal rules with their labels, and the
// strokes of each arm's line.
type drawn struct {
	rules  []float64 // y in the order of drawing
	labels []float64
	lines  map[colour][][2]float64 // points of all strokes
	gaps   map[colour]int          // strokes after the first
}

func read(t *testing.T, f Figure) drawn {
	t.Helper()
	d := drawn{lines: map[colour][][2]float64{}, gaps: map[colour]int{}}
	number := regexp.MustCompile(`[ML]([-\d.e]+),([-\d.e]+)`)
	for _, e := range parse(t, f.SVG(), true) {
		style := e.attrs["style"]
		switch {
		case e.name == "path" && strings.Contains(style, "stroke:"+string(rule)):
			y, err := strconv.ParseFloat(number.FindStringSubmatch(e.attrs["d"])[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			d.rules = append(d.rules, y)
		case e.name == "text" && len(d.labels) < len(d.rules):
			v, err := strconv.ParseFloat(strings.ReplaceAll(e.text, ",", ""), 64)
			if err != nil {
				t.Fatalf("label of a rule: %v", err)
			}
			d.labels = append(d.labels, v)
		case e.name == "path" && strings.Contains(style, fmt.Sprintf("stroke-width:%d", lineWidth)):
			for _, c := range tones() {
				if !strings.Contains(style, "stroke:"+string(c)) {
					continue
				}
				if len(d.lines[c]) > 0 {
					d.gaps[c]++
				}
				for _, m := range number.FindAllStringSubmatch(e.attrs["d"], -1) {
					x, errX := strconv.ParseFloat(m[1], 64)
					y, errY := strconv.ParseFloat(m[2], 64)
					if errX != nil || errY != nil {
						t.Fatalf("path %q", e.attrs["d"])
					}
					d.lines[c] = append(d.lines[c], [2]float64{x, y})
				}
			}
		}
	}
	return d
}

// value is what a height means by the labels of the rules.
func (d drawn) value(y float64, log bool) float64 {
	last := len(d.rules) - 1
	share := (y - d.rules[0]) / (d.rules[last] - d.rules[0])
	low, high := d.labels[0], d.labels[last]
	if log {
		return low * math.Pow(high/low, share)
	}
	return low + share*(high-low)
}

// Each arm is one line, whose points stand where axis labels say that the
// measured figures are.
func TestFiguresShowResults(t *testing.T) {
	r := sample()
	figures := Figures(r)
	if len(figures) != len(pictures(r)) {
		t.Fatalf("%d figures, want %d", len(figures), len(pictures(r)))
	}
	columns := map[string]results.Column{}
	for _, c := range results.Columns() {
		columns[c.Name] = c
	}
	for _, f := range figures {
		d := read(t, f)
		if len(d.rules) < 3 || len(d.labels) != len(d.rules) {
			t.Fatalf("%s: %d rules with %d labels", f.Name, len(d.rules), len(d.labels))
		}
		for i, arm := range r.Arms {
			points := d.lines[tones()[i]]
			var want []float64
			for _, n := range r.Steps() {
				if s := arm.Step(n); s != nil {
					if v := columns[f.Name].Of(&s.Measures); v != nil {
						want = append(want, *v)
					}
				}
			}
			if len(points) != len(want) {
				t.Errorf("%s, %s: %d points, want %d", f.Name, arm.Name, len(points), len(want))
				continue
			}
			for j := range want {
				if got := d.value(points[j][1], f.drawing.(chart).y.log); math.Abs(got-want[j]) > 0.005*want[j] {
					t.Errorf("%s, %s: point %d is at %v, want %v", f.Name, arm.Name, j, got, want[j])
				}
				if j > 0 && points[j][0] <= points[j-1][0] {
					t.Errorf("%s, %s: point %d is not to the right of the one before", f.Name, arm.Name, j)
				}
			}
		}
		// The first two arms have no figure for the middle step, the third has one step.
		if d.gaps[tones()[0]] != 1 || d.gaps[tones()[1]] != 1 || d.gaps[tones()[2]] != 0 {
			t.Errorf("%s: gaps %v", f.Name, d.gaps)
		}
	}
}

func TestFiguresAreTheSameEachTime(t *testing.T) {
	again := Figures(sample())
	for i, f := range Figures(sample()) {
		if !bytes.Equal(f.SVG(), again[i].SVG()) {
			t.Errorf("%s.svg differs", f.Name)
		}
	}
}

func TestTimesShareAnAxis(t *testing.T) {
	all := Figures(sample())
	if a, b := all[0].drawing.(chart).y, all[1].drawing.(chart).y; a.low != b.low || a.high != b.high {
		t.Errorf("median from %v to %v, 95th percentile from %v to %v", a.low, a.high, b.low, b.high)
	}
}

func TestWhatWasNotMeasuredIsNotDrawn(t *testing.T) {
	r := sample()
	for i := range r.Arms {
		for j := range r.Arms[i].Steps {
			r.Arms[i].Steps[j].PrefixHitPercent = nil
		}
	}
	for _, f := range Figures(r) {
		if f.Name == "prefix_hit_percent" {
			t.Error("there is a figure of a column that was not measured")
		}
	}
}

// An interval ends where no value can be.
func TestIntervalsStayInBounds(t *testing.T) {
	arm := results.Arm{Steps: []results.Step{{
		Sessions: 4, Measures: results.Measures{PrefixHitPercent: fig(99)}, CI: results.Measures{PrefixHitPercent: fig(300)},
	}}}
	for _, c := range results.Columns() {
		if c.Name == "prefix_hit_percent" {
			if p := lineOf(&arm, c, 100, []int{4}).points[0]; p.low != 0 || p.high != 100 {
				t.Errorf("interval from %v to %v", p.low, p.high)
			}
		}
	}
}

// The colours on light ground are those of the figures' files, so that a page and
// a file look alike.
func TestPageHasThePalette(t *testing.T) {
	css, err := files.ReadFile("page.css")
	if err != nil {
		t.Fatal(err)
	}
	for c, name := range variables() {
		if want := name + ": light-dark(" + strings.ToLower(string(c)) + ","; !bytes.Contains(css, []byte(want)) {
			t.Errorf("page.css has no %q", want)
		}
	}
	for _, f := range Figures(sample()) {
		if fixed := regexp.MustCompile(`#[0-9A-Fa-f]{6}`).FindString(f.inline()); fixed != "" {
			t.Errorf("%s within the page has %s, which does not follow light and dark", f.Name, fixed)
		}
	}
}

func TestManyArmsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for i := range 12 {
		m := markOf(i)
		key := fmt.Sprint(m.colour, m.dash)
		if seen[key] {
			t.Errorf("arm %d looks like another", i)
		}
		seen[key] = true
	}
}

func TestScales(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 20).Draw(t, "values")
		for _, s := range []scale{linearScale(values), logScale(values)} {
			if n := len(s.ticks); n < 2 || n > 12 || !slices.IsSorted(s.ticks) {
				t.Fatalf("ticks %v", s.ticks)
			}
			for _, v := range append(values, s.ticks...) {
				if at := s.at(v); !(at >= -1e-9 && at <= 1+1e-9) {
					t.Fatalf("log %v: %v is at %v of %v to %v", s.log, v, at, s.low, s.high)
				}
			}
			seen := map[string]bool{}
			for _, v := range s.ticks {
				if seen[tickText(v)] {
					t.Fatalf("ticks %v: two are written %s", s.ticks, tickText(v))
				}
				seen[tickText(v)] = true
			}
		}
	})
}
