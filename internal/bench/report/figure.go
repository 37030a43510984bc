package report

import (
	"bytes"
	"fmt"
	"html"
	"image/png"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"lmwarden/internal/bench/results"
)

// Figure is a drawing of one column over the numbers of sessions, one line per
// arm, with 95% intervals where runs repeat.
type Figure struct {
	Name  string // of the column, and of the files without their ending
	Title string
	Note  string // unit, and which way is better
	chart chart
}

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

// Figures are those of a measurement. A column that was not measured has none.
func Figures(r *results.Results) []Figure {
	sessions := r.Steps()
	slices.Sort(sessions)
	columns := map[string]results.Column{}
	for _, c := range results.Columns() {
		columns[c.Name] = c
	}
	var all []Figure
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
		all = append(all, Figure{p.column, p.title, p.note, c})
	}
	for i := range all {
		if c := &all[i].chart; len(c.y.ticks) == 0 {
			c.y = logScale(times)
		}
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

// SVG is the figure as a file. Equal figures give equal bytes.
func (f Figure) SVG() []byte {
	body := strings.ReplaceAll(f.body(), "font-family:Liberation Sans", "font-family:"+sans)
	return []byte(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">
<rect width="100%%" height="100%%" fill="%s"/>
%s`, width, height, width, height, html.EscapeString(f.text()), paper, body))
}

// sans has the widths of the font that the places of texts were computed with
// first.
const sans = "Liberation Sans,Arial,Helvetica,sans-serif"

// inline is the figure within the page, in whose light and dark it takes part.
func (f Figure) inline() string {
	var swap []string
	for c, name := range variables() {
		swap = append(swap, string(c), "var("+name+")")
	}
	body := strings.ReplaceAll(f.body(), "font-family:Liberation Sans;", "")
	return fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="%s">`, width, height, html.EscapeString(f.text()), sans) +
		strings.NewReplacer(swap...).Replace(body)
}

// body is the drawing with its closing tag.
func (f Figure) body() string {
	canvas := vgsvg.New(width, height)
	f.chart.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		panic(err) // a buffer takes everything
	}
	_, body, _ := strings.Cut(b.String(), "<svg ")
	_, body, _ = strings.Cut(body, ">\n")
	return body
}

// PNG is the figure as a picture for places that show no SVG, at 216 dots per
// inch.
func (f Figure) PNG() ([]byte, error) {
	canvas := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(216), vgimg.UseBackgroundColor(paper.rgb()))
	f.chart.draw(draw.New(canvas))
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&b, canvas.Image()); err != nil {
		return nil, fmt.Errorf("draw %s: %w", f.Name, err)
	}
	return b.Bytes(), nil
}

// text says in words what the figure shows.
func (f Figure) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s).", f.Title, f.Note)
	for _, l := range f.chart.lines {
		if len(l.points) == 0 {
			fmt.Fprintf(&b, " %s: not measured.", l.name)
			continue
		}
		first, last := l.points[0], l.points[len(l.points)-1]
		fmt.Fprintf(&b, " %s: %s at %d sessions", l.name, shortText(first.value), f.chart.sessions[first.step])
		if len(l.points) > 1 {
			fmt.Fprintf(&b, ", %s at %d", shortText(last.value), f.chart.sessions[last.step])
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
