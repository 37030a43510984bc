package report

import (
	"bytes"
	"fmt"
	"html"
	"image/png"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure is a drawing.
type Figure struct {
	Name string // of its files without their ending
	Text string // says in words what it shows

	width, height int // points
	drawing       drawing
}

type drawing interface{ draw(draw.Canvas) }

// SVG is the figure as a file. Equal figures give equal bytes.
func (f Figure) SVG() []byte {
	body := strings.ReplaceAll(f.body(), "font-family:Liberation Sans", "font-family:"+sans)
	return []byte(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">
<rect width="100%%" height="100%%" fill="%s"/>
%s`, f.width, f.height, f.width, f.height, html.EscapeString(f.Text), paper, body))
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
	return fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="%s">`, f.width, f.height, html.EscapeString(f.Text), sans) +
		strings.NewReplacer(swap...).Replace(body)
}

// body is the drawing with its closing tag.
func (f Figure) body() string {
	canvas := vgsvg.New(vg.Length(f.width), vg.Length(f.height))
	f.drawing.draw(draw.New(canvas))
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
	canvas := vgimg.NewWith(vgimg.UseWH(vg.Length(f.width), vg.Length(f.height)), vgimg.UseDPI(216), vgimg.UseBackgroundColor(paper.rgb()))
	f.drawing.draw(draw.New(canvas))
	var b bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&b, canvas.Image()); err != nil {
		return nil, fmt.Errorf("draw %s: %w", f.Name, err)
	}
	return b.Bytes(), nil
}
