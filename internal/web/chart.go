package web

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// chart is a drawing of numbers over time or over turns, made here and not in
// the browser: it needs no script, and the page that shows it holds the same
// numbers as a table. Heights are pixels; widths are columns, which the browser
// stretches.
type chart struct {
	// Summary says in one sentence what the drawing shows, for those who do not
	// see it; Caption says what is measured and what a high value means.
	Summary, Caption string
	Height, Full     int // of the plot, and with what stands below it
	Columns          int
	Peak             float64 // what the axis had to hold
	Y                []gridLine
	X                []axisLabel
	Marks            []mark
	Strip            []stripCell
	Hits             []hit
	Legend           []legendKey
	Heads            []string // of the table, the column's own name first
	Rows             []tableRow
}

type gridLine struct {
	At, Text string
	TextAt   string // baseline of the text
}

// axisLabel is a text below the plot. Time is zero for one that is no time.
type axisLabel struct {
	At, Anchor string
	Y          int
	Text       string
	Time       string // RFC 3339; the script shows it in the viewer's zone
	Date       bool   // a day counts more than its hour
	Minor      bool   // left out on narrow screens
}

type mark struct {
	Class, D string
	Line     bool
}

// stripCell is the replica of a column.
type stripCell struct {
	X, Width, Class, Text, Middle string
	Y, TextY                      int
}

// hit is the area of a column, with what the cursor reads there.
type hit struct {
	X         int
	Time, Say string
}

type legendKey struct{ Class, Label string }

type tableRow struct {
	Time, Name string // one of them
	Cells      []string
}

// column is one interval or one turn.
type column struct {
	Time    time.Time // zero for a turn
	Name    string    // of a turn
	Note    string    // below the name
	Strip   string    // text of the replica's cell
	Colour  string    // class of the replica's cell; empty for none
	Failure bool
}

// series is one number per column; NaN is a gap.
type series struct {
	Label, Class string
	Values       []float64
}

// total is the sum of the series' known values.
func (s series) total() (sum float64) {
	for _, v := range s.Values {
		if !math.IsNaN(v) {
			sum += v
		}
	}
	return sum
}

// plotHeight is that of a page's main drawing.
const plotHeight = 180

// frame is the size of a drawing. Reach is what its axis holds at least: drawings
// side by side get the largest Peak of all.
type frame struct {
	Height int
	Reach  float64
}

// reach is the largest number that an axis goes to, whatever a file says.
const reach = 1e15

// bars draws amounts per column, stacked in the order of the series from zero.
func bars(f frame, columns []column, unit func(float64) string, stack ...series) chart {
	height := f.Height
	c := chart{Height: height, Columns: len(columns)}
	most := f.Reach
	tops := make([]float64, len(columns))
	for _, s := range stack {
		for i, v := range s.Values {
			if v > 0 {
				tops[i] += v
				most = max(most, tops[i])
			}
		}
	}
	most = min(most, reach)
	c.Peak = most
	top, step := roundAxis(most)
	scale := float64(height) / top
	for v := 0.0; v <= top*1.001; v += step {
		c.grid(float64(height)-v*scale, unit(v))
	}
	below := make([]float64, len(columns))
	gap := barGap(len(columns))
	for _, s := range stack {
		var d strings.Builder
		for i, v := range s.Values {
			if !(v > 0) {
				continue
			}
			low := float64(height) - below[i]*scale
			below[i] += v
			high := float64(height) - below[i]*scale
			if low < float64(height) && low-high > 1.5 {
				low-- // a line of background parts neighbours
			}
			fmt.Fprintf(&d, "M%s %sh%sV%sh-%sz", short(float64(i)+gap/2), short(low), short(1-gap), short(high), short(1-gap))
		}
		c.Marks = append(c.Marks, mark{Class: s.Class, D: d.String()})
	}
	c.finish(columns, unit, stack, len(stack) > 1)
	return c
}

// barGap is the share of a column that stays free between bars.
func barGap(columns int) float64 {
	if columns <= 24 {
		return 0.36
	}
	return 0.1
}

// lines draws states or quantiles as steps; gaps stay gaps. A logarithmic axis
// begins at floor.
func lines(f frame, columns []column, unit func(float64) string, logFloor float64, all ...series) chart {
	height := f.Height
	c := chart{Height: height, Columns: len(columns)}
	most := f.Reach
	for _, s := range all {
		for _, v := range s.Values {
			if v > most { // NaN is not
				most = v
			}
		}
	}
	most = min(most, reach)
	c.Peak = most
	var y func(float64) float64
	if logFloor > 0 {
		decades := max(math.Ceil(math.Log10(max(most, logFloor*10)/logFloor)-1e-9), 1)
		y = func(v float64) float64 {
			return float64(height) * (1 - math.Log10(max(v, logFloor)/logFloor)/decades)
		}
		for i := 0.0; i <= decades; i++ {
			v := logFloor * math.Pow(10, i)
			c.grid(y(v), unit(v))
		}
	} else {
		top, step := roundAxis(most)
		y = func(v float64) float64 { return float64(height) * (1 - v/top) }
		for v := 0.0; v <= top*1.001; v += step {
			c.grid(y(v), unit(v))
		}
	}
	for _, s := range all {
		var d strings.Builder
		drawing := false
		for i, v := range s.Values {
			switch {
			case math.IsNaN(v):
			case drawing:
				fmt.Fprintf(&d, "V%sh1", short(y(v)))
			default:
				fmt.Fprintf(&d, "M%d %sh1", i, short(y(v)))
			}
			drawing = !math.IsNaN(v)
		}
		c.Marks = append(c.Marks, mark{Class: s.Class, D: d.String(), Line: true})
	}
	c.finish(columns, unit, all, false)
	return c
}

func (c *chart) grid(at float64, text string) {
	c.Y = append(c.Y, gridLine{short(at + 0.5), text, short(at + 4.5)})
}

// top is the room above the plot for half a line of text, left that of the axis.
const topRoom = 8

// finish adds what is below the plot, the areas of the cursor, the legend and the
// table.
func (c *chart) finish(columns []column, unit func(float64) string, all []series, total bool) {
	c.Full = c.Height + topRoom + 20
	c.Heads = append(c.Heads, "Time")
	for _, s := range all {
		c.Legend = append(c.Legend, legendKey{s.Class, s.Label})
		c.Heads = append(c.Heads, s.Label)
	}
	if total {
		c.Heads = append(c.Heads, "Total")
	}
	turns := len(columns) > 0 && columns[0].Time.IsZero()
	if turns {
		c.Heads[0] = "Turn"
		c.turnAxis(columns)
	} else {
		c.timeAxis(columns)
	}
	for i, col := range columns {
		var say []string
		row := tableRow{Name: col.Name}
		if !turns {
			row = tableRow{Time: rfc3339(col.Time)}
		}
		sum, known := 0.0, false
		for _, s := range all {
			v := s.Values[i]
			text := dash
			if !math.IsNaN(v) {
				text, known, sum = unit(v), true, sum+v
			}
			row.Cells = append(row.Cells, text)
			say = append(say, strings.ToLower(s.Label)+" "+text)
		}
		if total {
			text := dash
			if known {
				text = unit(sum)
			}
			row.Cells = append(row.Cells, text)
		}
		h := hit{X: i, Time: row.Time, Say: strings.Join(say, " · ")}
		if turns {
			h.Say = col.Name + ": " + h.Say
			if col.Strip != "" {
				h.Say += " · replica " + col.Strip
			}
		}
		c.Hits = append(c.Hits, h)
		c.Rows = append(c.Rows, row)
	}
}

// timeAxis labels five instants.
func (c *chart) timeAxis(columns []column) {
	n := len(columns)
	if n == 0 {
		return
	}
	step := time.Minute
	if n > 1 {
		step = columns[1].Time.Sub(columns[0].Time)
	}
	long := time.Duration(n)*step > 36*time.Hour
	for i := range 5 {
		at := float64(i) / 4
		t := columns[0].Time.Add(time.Duration(at * float64(n) * float64(step)))
		c.X = append(c.X, axisLabel{
			At: short(100 * at), Anchor: [...]string{"start", "middle", "middle", "middle", "end"}[i],
			Y: c.Height + topRoom + 16, Text: t.UTC().Format("15:04"), Time: rfc3339(t), Date: long, Minor: i%2 == 1,
		})
	}
}

// turnAxis draws the replica under each turn, and names as many as there is room
// for.
func (c *chart) turnAxis(columns []column) {
	const cell = 20
	n := len(columns)
	every := (n + 11) / 12
	for i, col := range columns {
		middle := short(100 * (float64(i) + 0.5) / float64(n))
		if col.Colour != "" {
			s := stripCell{X: short(100 * (float64(i) + 0.02) / float64(n)), Width: short(100 * 0.96 / float64(n)), Class: col.Colour, Middle: middle, Y: c.Height + topRoom + 4, TextY: c.Height + topRoom + 18}
			if n <= 30 {
				s.Text = col.Strip
			}
			c.Strip = append(c.Strip, s)
		}
		if i%every == 0 {
			c.X = append(c.X, axisLabel{At: middle, Anchor: "middle", Y: c.Height + cell + topRoom + 24, Text: col.Name, Minor: (i/every)%3 != 0})
		}
		if col.Note != "" && n <= 30 {
			c.X = append(c.X, axisLabel{At: middle, Anchor: "middle", Y: c.Height + cell + topRoom + 38, Text: col.Note, Minor: n > 4})
		}
	}
	c.Full += cell + 8
	if slices.ContainsFunc(columns, func(c column) bool { return c.Note != "" }) {
		c.Full += 16
	}
}

// roundAxis is the end of an axis from zero that holds most, and the distance of
// its lines: 1, 2 or 5 times a power of ten, four or five of them.
func roundAxis(most float64) (top, step float64) {
	if !(most > 1e-9) {
		return 1, 1
	}
	raw := most / 4
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	step = 10 * power
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*power {
			step = m * power
			break
		}
	}
	return step * math.Ceil(most/step-1e-9), step
}

// short writes a coordinate. One far outside ends at the edge of what a browser can
// draw.
func short(f float64) string {
	f = min(max(f, -1e6), 1e6)
	return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
}

// sparkline is a small line without axes, in a box of 100 by 30.
type sparkline struct{ D, Class string }

func sparklineOf(class string, values []float64) sparkline {
	most := 0.0
	for _, v := range values {
		if v > most {
			most = v
		}
	}
	if most == 0 {
		most = 1
	}
	var d strings.Builder
	drawing := false
	for i, v := range values {
		if math.IsNaN(v) {
			drawing = false
			continue
		}
		command := "L"
		if !drawing {
			command = "M"
		}
		drawing = true
		fmt.Fprintf(&d, "%s%s %s", command, short(100*float64(i)/float64(max(len(values)-1, 1))), short(29-28*v/most))
	}
	return sparkline{d.String(), class}
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
