package web

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
)

// colour is linear light, 0 to 1.
type colour [3]float64

func parseColour(t *testing.T, hex string) colour {
	t.Helper()
	n, err := strconv.ParseUint(hex, 16, 24)
	if err != nil {
		t.Fatal(err)
	}
	var c colour
	for i := range c {
		v := float64(n>>(16-8*i)&255) / 255
		if v <= 0.04045 {
			c[i] = v / 12.92
		} else {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return c
}

// stylesheet reads the pairs of light and dark.
func stylesheet(t *testing.T) map[string][2]colour {
	t.Helper()
	css, err := files.ReadFile("static/console.css")
	if err != nil {
		t.Fatal(err)
	}
	pairs := map[string][2]colour{}
	for _, m := range regexp.MustCompile(`--([a-z0-9-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)`).FindAllSubmatch(css, -1) {
		pairs[string(m[1])] = [2]colour{parseColour(t, string(m[2])), parseColour(t, string(m[3]))}
	}
	return pairs
}

// contrast is the ratio of WCAG 2.
func contrast(a, b colour) float64 {
	l := func(c colour) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	return max(l(a), l(b)) / min(l(a), l(b))
}

// sights turns a colour into what eyes see: normal, and without one kind of cone
// (Machado, Oliveira and Fernandes 2009, severity 1, in linear light).
var sights = map[string][3][3]float64{
	"normal": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protan": {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deutan": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritan": {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func seen(m [3][3]float64, c colour) colour {
	var out colour
	for i, row := range m {
		out[i] = min(max(row[0]*c[0]+row[1]*c[1]+row[2]*c[2], 0), 1)
	}
	return out
}

// difference is CIE76: the distance in CIELAB under D65.
func difference(a, b colour) float64 {
	lab := func(c colour) [3]float64 {
		f := func(v float64) float64 {
			if v > 216.0/24389 {
				return math.Cbrt(v)
			}
			return (24389.0/27*v + 16) / 116
		}
		x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.95047)
		y := f(0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2])
		z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.08883)
		return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
	}
	p, q := lab(a), lab(b)
	return math.Sqrt((p[0]-q[0])*(p[0]-q[0]) + (p[1]-q[1])*(p[1]-q[1]) + (p[2]-q[2])*(p[2]-q[2]))
}

func TestReplicaColoursCanBeToldApart(t *testing.T) {
	css := stylesheet(t)
	for theme, least := range []struct{ contrast, difference float64 }{{3.3, 33.9}, {4, 42.4}} {
		for i := range 4 {
			a := css[fmt.Sprintf("r%d", i)][theme]
			if got := contrast(a, css["panel"][theme]); got < least.contrast {
				t.Errorf("theme %d: replica %d has %.2f:1 to the panel", theme, i, got)
			}
			for j := range i {
				b := css[fmt.Sprintf("r%d", j)][theme]
				for name, m := range sights {
					if got := difference(seen(m, a), seen(m, b)); got < least.difference {
						t.Errorf("theme %d: replicas %d and %d differ by %.1f in %s sight", theme, j, i, got, name)
					}
				}
			}
		}
	}
}

func TestTokenColoursCanBeToldApart(t *testing.T) {
	css := stylesheet(t)
	for theme, least := range []float64{27.5, 45.5} {
		for _, name := range []string{"cached", "computed", "completion"} {
			if got := contrast(css[name][theme], css["panel"][theme]); got < 3.3 {
				t.Errorf("theme %d: %s has %.2f:1 to the panel", theme, name, got)
			}
		}
		for name, m := range sights {
			if got := difference(seen(m, css["cached"][theme]), seen(m, css["computed"][theme])); got < least {
				t.Errorf("theme %d: cached and computed differ by %.1f in %s sight", theme, got, name)
			}
		}
	}
}

func TestTextCanBeRead(t *testing.T) {
	css := stylesheet(t)
	for theme := range 2 {
		for _, c := range []struct {
			text, ground string
			least        float64
		}{
			{"ink", "panel", 7}, {"ink", "bg", 7}, {"ink", "soft", 7}, {"ink", "warn-soft", 7}, {"ink", "bad-soft", 7},
			{"ink-2", "panel", 4.5}, {"ink-2", "bg", 4.5}, {"ink-2", "soft", 4.5}, {"ink-3", "panel", 4.5}, {"ink-3", "bg", 4.5},
			{"accent", "panel", 4.5}, {"accent", "bg", 4.5}, {"accent", "accent-soft", 4.5},
			{"ok", "ok-soft", 4.5}, {"warn", "warn-soft", 4.5}, {"bad", "bad-soft", 4.5},
			{"on-r0", "r0", 4.5}, {"on-r1", "r1", 4.5}, {"on-r2", "r2", 4.5}, {"on-r3", "r3", 4.5},
			// Shapes have their number or word beside them.
			{"cached", "panel", 3.3}, {"warn", "panel", 3.3}, {"ok", "panel", 3.3}, {"bad", "panel", 3.3},
		} {
			if got := contrast(css[c.text][theme], css[c.ground][theme]); got < c.least {
				t.Errorf("theme %d: %s on %s has %.2f:1, want %.1f", theme, c.text, c.ground, got, c.least)
			}
		}
	}
}
