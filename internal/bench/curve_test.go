package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// docs/patience.svg is the trade-off of the patience, by the present code:
//
//	UPDATE_DOCS=1 go test -run PatienceCurve ./internal/bench
//
// It takes half a minute, so it is not drawn with every test.
func TestPatienceCurve(t *testing.T) {
	if os.Getenv("UPDATE_DOCS") == "" {
		t.Skip("draws docs/patience.svg where UPDATE_DOCS is set")
	}
	curves := []curve{{sessions: 24, colour: "#1F4E8C"}, {sessions: 32, colour: "#C97A00"}}
	measure := func(arm string, patience time.Duration, label string) {
		s := published(t, 4, arm)
		s.Seed = 101
		s.Box.Patience = patience
		s.Protocol.Sessions, s.Protocol.Step, s.Protocol.Drain = []int{24, 32}, 15*time.Minute, 0
		r, err := Simulate(context.Background(), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range curves {
			m := r.Arms[0].Steps[i].Measures
			curves[i].points = append(curves[i].points, curvePoint{*m.TTFBP95, *m.OutputTokensPerMin, label})
		}
	}
	for _, seconds := range []int{18, 21, 24, 28, 35, 45, 60} {
		measure("patience", time.Duration(seconds)*time.Second, fmt.Sprint(seconds))
	}
	measure("patience", 0, "automatic")
	measure("affinity", 0, "affinity")
	if err := os.WriteFile("../../docs/patience.svg", []byte(drawCurves(curves)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// curve is points at fixed patiences, and two others behind them.
type curve struct {
	sessions int
	colour   string
	points   []curvePoint
}

type curvePoint struct {
	p95, tokens float64
	label       string
}

// drawCurves draws tokens a minute over the tail.
func drawCurves(curves []curve) string {
	const width, height, left, right, top, bottom = 680, 400, 60, 660, 60, 350
	const p95From, p95To, tokensFrom, tokensTo = 15.0, 75.0, 11_000.0, 18_000.0
	x := func(p95 float64) float64 { return left + (p95-p95From)/(p95To-p95From)*(right-left) }
	y := func(tokens float64) float64 { return bottom - (tokens-tokensFrom)/(tokensTo-tokensFrom)*(bottom-top) }
	var b strings.Builder
	text := func(x, y float64, anchor, colour, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, colour, s)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" font-family="Liberation Sans,Arial,Helvetica,sans-serif" font-size="12" role="img" aria-label="Output tokens per minute against the 95th percentile of the time to the first byte, for several patiences, with 24 and 32 sessions.">
<rect width="100%%" height="100%%" fill="#FFFFFF"/>
`, width, height, height)
	text(left, 24, "start", "#16191D", "What patience trades: output tokens per minute against the tail")
	text(left, 42, "start", "#545C66", "four cards, 15-minute windows, seeds 101 to 104; the numbers are seconds of patience")
	for tokens := tokensFrom; tokens <= tokensTo; tokens += 1000 {
		fmt.Fprintf(&b, "<path d=\"M%d,%.1fH%d\" stroke=\"#E3E6EA\"/>\n", left, y(tokens), right)
		text(left-8, y(tokens)+4, "end", "#545C66", fmt.Sprintf("%.0fk", tokens/1000))
	}
	for p95 := p95From; p95 <= p95To; p95 += 10 {
		text(x(p95), bottom+18, "middle", "#545C66", fmt.Sprint(p95))
	}
	text((left+right)/2, bottom+38, "middle", "#545C66", "TTFB p95, s")
	for _, c := range curves {
		var path []string
		for _, p := range c.points[:len(c.points)-2] {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.p95), y(p.tokens)))
			text(x(p.p95)-6, y(p.tokens)-7, "end", c.colour, p.label)
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x(p.p95), y(p.tokens), c.colour)
		}
		fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", strings.Join(path, " "), c.colour)
		for _, p := range c.points[len(c.points)-2:] {
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#FFFFFF\" stroke=\"%s\" stroke-width=\"2\"/>\n", x(p.p95), y(p.tokens), c.colour)
			text(x(p.p95)+9, y(p.tokens)+14, "start", c.colour, fmt.Sprintf("%s, %d sessions", p.label, c.sessions))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
