package report

import (
	"fmt"
	"slices"
	"strings"

	"lmwarden/internal/bench/results"
)

// picture says how a column is drawn.
type picture struct {
	column, title, note string
	log                 bool
	most                float64 // no value can be higher, and the axis shows it; 0 is no bound
}

func pictures(r *results.Results) []picture {
	replicas, _ := r.Box["replicas"].(float64) // 0 where it is not known
	return []picture{
		{"ttfb_p50_s", "Time to first byte, median", "seconds, log scale; lower is better", true, 0},
		{"ttfb_p95_s", "Time to first byte, 95th percentile", "seconds, log scale; lower is better", true, 0},
		{"prefix_hit_percent", "Prefix cache hits", "% of prompt tokens; higher is better", false, 100},
		{"output_tokens_per_min", "Output", "tokens per minute; higher is better", false, 0},
		{"sessions_per_hour", "Sessions", "completed per hour; higher is better", false, 0},
		{"replicas_busy", "Replicas busy", "mean over the step; higher is better", false, replicas},
	}
}

// Figures are those of a measurement: a column each over the numbers of sessions,
// with a line per arm, and intervals where runs repeat. A column that was not
// measured has none.
func Figures(r *results.Results) []Figure {
	sessions := r.Steps()
	slices.Sort(sessions)
	columns := map[string]results.Column{}
	for _, c := range results.Columns() {
		columns[c.Name] = c
	}
	var names []string
	var charts []chart
	var times []float64 // of both times, so that their axes agree
	for _, p := range pictures(r) {
		c := chart{title: p.title, note: p.note, sessions: sessions}
		var values []float64
		for i := range r.Arms {
			l := lineOf(&r.Arms[i], columns[p.column], p.most, sessions)
			l.mark = markOf(i)
			c.lines = append(c.lines, l)
			for _, at := range l.points {
				values = append(values, at.value)
				// A wider interval than this would leave no room for the lines.
				if at.high-at.low <= at.value {
					values = append(values, at.low, at.high)
				}
			}
		}
		if len(values) == 0 {
			continue
		}
		if p.log {
			times = append(times, values...)
		} else {
			c.y = linearScale(append(values, p.most))
		}
		names, charts = append(names, p.column), append(charts, c)
	}
	var all []Figure
	for i, c := range charts {
		if len(c.y.ticks) == 0 {
			c.y = logScale(times)
		}
		all = append(all, Figure{names[i], c.text(), width, height, c})
	}
	return all
}

func lineOf(arm *results.Arm, column results.Column, most float64, sessions []int) line {
	l := line{name: arm.Name}
	for i, n := range sessions {
		s := arm.Step(n)
		if s == nil {
			continue
		}
		v := column.Of(&s.Measures)
		if v == nil {
			continue
		}
		p := point{i, *v, *v, *v}
		if ci := column.Of(&s.CI); ci != nil {
			p.low, p.high = max(*v-*ci, 0), *v+*ci
			if most > 0 {
				p.high = max(min(p.high, most), *v)
			}
		}
		l.points = append(l.points, p)
	}
	return l
}

// text says in words what the chart shows.
func (c chart) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s).", c.title, c.note)
	for _, l := range c.lines {
		if len(l.points) == 0 {
			fmt.Fprintf(&b, " %s: not measured.", l.name)
			continue
		}
		first, last := l.points[0], l.points[len(l.points)-1]
		fmt.Fprintf(&b, " %s: %s at %d sessions", l.name, shortText(first.value), c.sessions[first.step])
		if len(l.points) > 1 {
			fmt.Fprintf(&b, ", %s at %d", shortText(last.value), c.sessions[last.step])
		}
		b.WriteByte('.')
	}
	return b.String()
}

// shortText prints a figure with the digits that a glance needs.
func shortText(v float64) string {
	c := results.Column{}
	if v < 100 {
		c.Digits = 2
	}
	return c.Format(&v)
}
