package report

import (
	"fmt"
	"image/color"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// colour is one of the palette as it is drawn, on light ground.
type colour string

const (
	ink   colour = "#16191D"
	quiet colour = "#545C66"
	rule  colour = "#E3E6EA"
	paper colour = "#FFFFFF"

	cachedTokens   colour = "#2F86D0" // as on every page of the console
	computedTokens colour = "#4A1D8C"
)

// tones are the colours of the arms, in their order. Colour-blind readers can
// tell them apart.
func tones() []colour { return []colour{"#C97A00", "#1F4E8C", "#A855F7", "#5A2D0C"} }

// variables names the page's variable for each colour, which is another one on
// dark ground.
func variables() map[colour]string {
	names := map[colour]string{ink: "--ink", quiet: "--ink-2", rule: "--line", paper: "--panel", cachedTokens: "--cached", computedTokens: "--computed"}
	for i, c := range tones() {
		names[c] = fmt.Sprintf("--arm-%d", i)
	}
	return names
}

func (c colour) rgb() color.Color {
	v := color.NRGBA{A: 255}
	if _, err := fmt.Sscanf(string(c), "#%02X%02X%02X", &v.R, &v.G, &v.B); err != nil {
		panic(err) // of a constant above
	}
	return v
}

// mark is how an arm looks in every figure: beyond four arms the colours come
// again, with another dash.
type mark struct {
	colour colour
	dash   []vg.Length
	shape  draw.GlyphDrawer
}

func markOf(arm int) mark {
	shapes := [...]draw.GlyphDrawer{draw.CircleGlyph{}, square{}, draw.PyramidGlyph{}, diamond{}}
	dashes := [...][]vg.Length{nil, {5, 3}, {1.5, 2.5}}
	all := tones()
	return mark{all[arm%len(all)], dashes[arm/len(all)%len(dashes)], shapes[arm%len(shapes)]}
}

func (m mark) line(width vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: m.colour.rgb(), Width: width, Dashes: m.dash}
}

func (m mark) glyph() draw.GlyphStyle {
	return draw.GlyphStyle{Color: m.colour.rgb(), Radius: 3.2, Shape: m.shape}
}

// square and diamond are filled; those of package draw are not.
type (
	square  struct{}
	diamond struct{}
)

func (square) DrawGlyph(c *draw.Canvas, sty draw.GlyphStyle, at vg.Point) {
	r := sty.Radius * 0.9
	fill(c, vg.Point{X: at.X - r, Y: at.Y - r}, vg.Point{X: at.X + r, Y: at.Y - r}, vg.Point{X: at.X + r, Y: at.Y + r}, vg.Point{X: at.X - r, Y: at.Y + r})
}

func (diamond) DrawGlyph(c *draw.Canvas, sty draw.GlyphStyle, at vg.Point) {
	r := sty.Radius * 1.25
	fill(c, vg.Point{X: at.X, Y: at.Y - r}, vg.Point{X: at.X + r, Y: at.Y}, vg.Point{X: at.X, Y: at.Y + r}, vg.Point{X: at.X - r, Y: at.Y})
}

func fill(c *draw.Canvas, corners ...vg.Point) {
	var p vg.Path
	p.Move(corners[0])
	for _, corner := range corners[1:] {
		p.Line(corner)
	}
	p.Close()
	c.Fill(p)
}

// pen writes text.
type pen struct{ handler text.Handler }

func newPen() pen { return pen{text.Plain{Fonts: font.NewCache(liberation.Collection())}} }

func (p pen) style(size vg.Length, c colour, x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color: c.rgb(), Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: size},
		XAlign: x, YAlign: y, Handler: p.handler,
	}
}

func (p pen) bold(size vg.Length, c colour) text.Style {
	s := p.style(size, c, text.XLeft, text.YTop)
	s.Font.Weight = xfont.WeightBold
	return s
}
