package report

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"lmwarden/internal/bench/results"
)

// Mechanism draws what routing does to a conversation: its first turns over the
// replicas, with what of each prompt was found in the cache and what was computed,
// one arm beside the other. The conversation is the first that came so far; false
// says that there is none of which replicas and cached tokens are known.
func Mechanism(r *results.Results) (Figure, bool) {
	all := journeysOf(r)
	if len(all) == 0 {
		return Figure{}, false
	}
	return all.figure("mechanism", all.longest()), true
}

// turnsShown of a conversation.
const turnsShown = 4

// journeys are conversations beside each other, on the same scale.
type journeys []journey

// journey is one arm's conversation.
type journey struct {
	arm      string
	replicas []int // that have a lane
	turns    []results.Request
}

// lanesShown is up to how many replicas have a lane each even when the
// conversation was never there.
const lanesShown = 8

func journeysOf(r *results.Results) journeys {
	var all journeys
	used := map[int]bool{}
	for _, arm := range r.Arms {
		if turns := firstConversation(r.Requests, arm.Name); turns != nil {
			all = append(all, journey{arm: arm.Name, turns: turns})
			for _, q := range turns {
				used[*q.Replica] = true
			}
		}
	}
	if replicas, _ := r.Box["replicas"].(float64); replicas <= lanesShown {
		for i := range int(replicas) {
			used[i] = true
		}
	}
	var lanes []int
	for i := range used {
		lanes = append(lanes, i)
	}
	slices.Sort(lanes)
	for i := range all {
		all[i].replicas = lanes
	}
	return all
}

// firstConversation returns the first turns of the first conversation under an
// arm of which enough is known; nil when there is none.
func firstConversation(requests []results.Request, arm string) []results.Request {
	turns := map[string][]results.Request{}
	for _, q := range requests {
		if q.Arm != arm || q.Session == nil || q.Turn == nil || q.Parent != nil || q.End != results.Finished ||
			q.Replica == nil || q.PromptTokens == nil || q.CachedTokens == nil || q.TTFB == nil {
			continue
		}
		list := turns[*q.Session]
		if *q.Turn != len(list)+1 {
			continue
		}
		list = append(list, q)
		if turns[*q.Session] = list; len(list) == turnsShown {
			return list
		}
	}
	return nil
}

// Sizes in points.
const (
	journeyWidth = 340
	laneHeight   = 40
	laneTop      = 58 // from the top to the first lane
	barHeight    = 20
	laneNames    = 60
)

// longest is the most tokens of a prompt.
func (all journeys) longest() int {
	most := 1
	for _, j := range all {
		for _, q := range j.turns {
			most = max(most, *q.PromptTokens)
		}
	}
	return most
}

// figure draws prompts in proportion to the longest.
func (all journeys) figure(name string, longest int) Figure {
	height := laneTop + laneHeight*len(all[0].replicas) + 62
	return Figure{name, all.text(), journeyWidth * len(all), height, journeysDrawing{all, longest}}
}

type journeysDrawing struct {
	journeys
	longest int
}

func (d journeysDrawing) draw(c draw.Canvas) {
	p := newPen()
	for i, j := range d.journeys {
		right := journeyWidth * (len(d.journeys) - 1 - i)
		j.draw(draw.Crop(c, vg.Length(journeyWidth*i), -vg.Length(right), 0, 0), p, d.longest)
	}
}

func (j journey) draw(c draw.Canvas, p pen, longest int) {
	left := c.Min.X + 8
	c.FillText(p.bold(titleSize, ink), vg.Point{X: left, Y: c.Max.Y - 8}, "Policy "+j.arm)
	c.FillText(p.style(textSize, quiet, text.XLeft, text.YTop), vg.Point{X: left, Y: c.Max.Y - 26}, j.sum())

	lane := func(i int) vg.Length { return c.Max.Y - laneTop - laneHeight*vg.Length(i+1) + 10 }
	for i, replica := range j.replicas {
		c.StrokeLine2(draw.LineStyle{Color: rule.rgb(), Width: 1}, left, lane(i), c.Max.X-8, lane(i))
		c.FillText(p.style(textSize, quiet, text.XLeft, text.YBottom), vg.Point{X: left, Y: lane(i) + 3}, fmt.Sprintf("replica %d", replica))
	}
	step := (c.Max.X - 8 - left - laneNames) / turnsShown
	column := p.style(textSize, quiet, text.XLeft, text.YTop)
	under := lane(len(j.replicas)-1) - 8
	for i, q := range j.turns {
		x, y := left+laneNames+step*vg.Length(i), lane(slices.Index(j.replicas, *q.Replica))+1
		wide := func(tokens int) vg.Length { return (step - 8) * vg.Length(tokens) / vg.Length(longest) }
		cached := wide(*q.CachedTokens)
		bar(c, cachedTokens, x, y, cached)
		if cached > 0 {
			cached++ // parts the colours
		}
		bar(c, computedTokens, x+cached, y, wide(*q.PromptTokens-*q.CachedTokens))
		c.FillText(column, vg.Point{X: x, Y: under}, fmt.Sprintf("turn %d", *q.Turn))
		c.FillText(column, vg.Point{X: x, Y: under - 14}, fmt.Sprintf("%.2f s", *q.TTFB))
	}
	c.FillText(column, vg.Point{X: left, Y: under - 14}, "first byte")

	x := left
	for _, kind := range []struct {
		colour colour
		name   string
	}{{cachedTokens, "found in the cache"}, {computedTokens, "computed"}} {
		square := vg.Point{X: x, Y: c.Min.Y + 9}
		c.SetColor(kind.colour.rgb())
		fill(&c, square, vg.Point{X: x + 10, Y: square.Y}, vg.Point{X: x + 10, Y: square.Y + 10}, vg.Point{X: x, Y: square.Y + 10})
		name := p.style(textSize, ink, text.XLeft, text.YBottom)
		c.FillText(name, vg.Point{X: x + 15, Y: square.Y - 1.5}, kind.name)
		x += 15 + name.Width(kind.name) + 18
	}
}

func bar(c draw.Canvas, colour colour, x, y, wide vg.Length) {
	if wide <= 0 {
		return
	}
	c.SetColor(colour.rgb())
	fill(&c, vg.Point{X: x, Y: y}, vg.Point{X: x + wide, Y: y}, vg.Point{X: x + wide, Y: y + barHeight}, vg.Point{X: x, Y: y + barHeight})
}

// sum says how much of the prompts was computed.
func (j journey) sum() string {
	prompt, cached := 0.0, 0.0
	for _, q := range j.turns {
		prompt += float64(*q.PromptTokens)
		cached += float64(*q.CachedTokens)
	}
	computed := prompt - cached
	whole := results.Column{}
	return fmt.Sprintf("%s of %s prompt tokens computed", whole.Format(&computed), whole.Format(&prompt))
}

func (all journeys) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "The first %d turns of one conversation over the replicas.", turnsShown)
	for _, j := range all {
		fmt.Fprintf(&b, " Policy %s: %s; replicas", j.arm, j.sum())
		for i, q := range j.turns {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, " %d", *q.Replica)
		}
		b.WriteByte('.')
	}
	return b.String()
}
