package report

import (
	"cmp"
	"slices"
	"strconv"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// chart is a figure before it is drawn: lines over the numbers of sessions.
type chart struct {
	title, note string
	sessions    []int
	y           scale
	lines       []line
}

// line is one arm. Its points stand in the order of sessions.
type line struct {
	name   string
	mark   mark
	points []point
}

// point is one step; a step that was not measured has none, and parts the line.
type point struct {
	step      int // index into chart.sessions
	value     float64
	low, high float64 // 95% interval; equal when there is none
}

// Sizes of a figure in points, small so that its text is still read on a page of
// 360 pixels.
const (
	width, height = 340, 260
	titleSize     = 13
	textSize      = 11
	lineWidth     = 2
	gapToNames    = 9
	swatch        = 16  // of a line, beside its name
	rise          = 1.2 // digits and small letters stand above the middle of a line
)

func (c chart) draw(canvas draw.Canvas) {
	p := newPen()
	canvas.FillText(p.bold(titleSize, ink), vg.Point{X: canvas.Min.X + 8, Y: canvas.Max.Y - 8}, c.title)
	canvas.FillText(p.style(textSize, quiet, text.XLeft, text.YTop), vg.Point{X: canvas.Min.X + 8, Y: canvas.Max.Y - 26}, c.note)

	axisText := p.style(textSize, quiet, text.XRight, text.YCenter)
	left, right := vg.Length(0), vg.Length(0)
	for _, v := range c.y.ticks {
		left = max(left, axisText.Width(tickText(v)))
	}
	nameText := p.style(textSize, ink, text.XLeft, text.YCenter)
	for _, l := range c.lines {
		right = max(right, nameText.Width(l.name))
	}
	// Browsers without the font take one that is up to a seventh wider.
	right = min(right*1.15, 100)
	area := draw.Crop(canvas, 8+left+8, -(gapToNames + swatch + 5 + right + 4), 40, -54)
	place := placement{area, c}

	c.drawGrid(place, axisText, p)
	for i, l := range c.lines {
		l.draw(place, vg.Length(i)-vg.Length(len(c.lines)-1)/2)
	}
	c.drawNames(place, nameText)
}

func (c chart) drawGrid(at placement, axisText text.Style, p pen) {
	area := at.area
	grid := draw.LineStyle{Color: rule.rgb(), Width: 1}
	for _, v := range c.y.ticks {
		y := at.y(v)
		area.StrokeLine2(grid, area.Min.X, y, area.Max.X, y)
		area.FillText(axisText, vg.Point{X: area.Min.X - 8, Y: y + rise}, tickText(v))
	}
	ticks := p.style(textSize, quiet, text.XCenter, text.YTop)
	for i, n := range c.sessions {
		area.FillText(ticks, vg.Point{X: at.x(i), Y: area.Min.Y - 6}, strconv.Itoa(n))
	}
	area.FillText(ticks, vg.Point{X: area.Center().X, Y: area.Min.Y - 21}, "sessions at once")
}

// draw draws the line so far aside that intervals at one place do not hide each
// other. An interval that is no taller than its point is not seen, one that goes
// beyond the axis ends open.
func (l line) draw(at placement, aside vg.Length) {
	c := &at.area
	thin := draw.LineStyle{Color: l.mark.colour.rgb(), Width: 1}
	place := func(step int, v float64) vg.Point { return vg.Point{X: at.x(step) + 3*aside, Y: at.y(v)} }
	var run []vg.Point
	for i, p := range l.points {
		low, high := place(p.step, p.low), place(p.step, p.high)
		if high.Y-low.Y > 2*l.mark.glyph().Radius {
			const half = 2.5
			c.StrokeLine2(thin, low.X, low.Y, high.X, min(high.Y, c.Max.Y))
			for _, v := range []float64{p.low, p.high} {
				if y := at.chart.y; v >= y.low && v <= y.high {
					end := place(p.step, v)
					c.StrokeLine2(thin, end.X-half, end.Y, end.X+half, end.Y)
				}
			}
		}
		if i > 0 && l.points[i-1].step != p.step-1 {
			c.StrokeLines(l.mark.line(lineWidth), run)
			run = nil
		}
		run = append(run, place(p.step, p.value))
	}
	c.StrokeLines(l.mark.line(lineWidth), run)
	for _, p := range l.points {
		c.DrawGlyphNoClip(l.mark.glyph(), place(p.step, p.value))
	}
}

// drawNames writes each line's name beside its end, and as far from the next
// name as a line of text needs.
func (c chart) drawNames(at placement, style text.Style) {
	type name struct {
		line
		y vg.Length
	}
	var names []name
	for _, l := range c.lines {
		if n := len(l.points); n > 0 {
			names = append(names, name{l, at.y(l.points[n-1].value)})
		}
	}
	slices.SortStableFunc(names, func(a, b name) int { return cmp.Compare(b.y, a.y) })
	const apart = textSize + 3
	for i := 1; i < len(names); i++ {
		names[i].y = min(names[i].y, names[i-1].y-apart)
	}
	// What was pushed out below moves up again.
	floor := at.area.Min.Y
	for i := len(names) - 1; i >= 0; i-- {
		names[i].y = max(names[i].y, floor)
		floor = names[i].y + apart
	}
	x := at.area.Max.X + gapToNames
	for _, n := range names {
		at.area.StrokeLine2(n.mark.line(1.5), x, n.y, x+swatch, n.y)
		at.area.DrawGlyphNoClip(n.mark.glyph(), vg.Point{X: x + swatch/2, Y: n.y})
		at.area.FillText(style, vg.Point{X: x + swatch + 5, Y: n.y + rise}, n.name)
	}
}

// placement maps figures to places in an area.
type placement struct {
	area  draw.Canvas
	chart chart
}

// x spreads the steps as their numbers of sessions are.
func (p placement) x(step int) vg.Length {
	const margin = 8
	all := p.chart.sessions
	low, high := slices.Min(all), slices.Max(all)
	share := 0.5
	if high > low {
		share = float64(all[step]-low) / float64(high-low)
	}
	return p.area.Min.X + margin + vg.Length(share)*(p.area.Max.X-p.area.Min.X-2*margin)
}

func (p placement) y(v float64) vg.Length { return p.area.Y(p.chart.y.at(v)) }
