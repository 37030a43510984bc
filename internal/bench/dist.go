package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Dist is a distribution of sizes or times, by its text:
//
//	400              always 400
//	7200-7500        uniform, ends included
//	exp:400          exponential, mean 400
//	lognormal:400,4  median 400; one value in six is above 4 times that
//	none             always 0
//
// The zero Dist is always 0.
type Dist struct {
	kind dist
	a, b float64
}

type dist uint8

const (
	constant dist = iota
	uniform
	exponential
	lognormal
)

// Always is the distribution of one value.
func Always(v float64) Dist { return Dist{kind: constant, a: v} }

// Between is the uniform distribution of the values from low to high.
func Between(low, high float64) Dist { return Dist{kind: uniform, a: low, b: high} }

// ParseDist reads a distribution.
func ParseDist(text string) (Dist, error) {
	bad := func() (Dist, error) {
		return Dist{}, fmt.Errorf("%q is no distribution: write none, a number (400), a range (7200-7500), exp:MEAN or lognormal:MEDIAN,FACTOR", text)
	}
	if text == "none" {
		return Dist{}, nil
	}
	kind, rest, named := strings.Cut(text, ":")
	d := Dist{kind: constant}
	separator := ""
	switch {
	case !named:
		rest = text
		if strings.Contains(text, "-") {
			d.kind, separator = uniform, "-"
		}
	case kind == "exp":
		d.kind = exponential
	case kind == "lognormal":
		d.kind, separator = lognormal, ","
	default:
		return bad()
	}
	first, second := rest, "0"
	if separator != "" {
		var found bool
		if first, second, found = strings.Cut(rest, separator); !found {
			return bad()
		}
	}
	var ok1, ok2 bool
	d.a, ok1 = parseValue(first)
	d.b, ok2 = parseValue(second)
	if !ok1 || !ok2 || d.kind == uniform && d.b < d.a || d.kind == lognormal && d.b < 1 {
		return bad()
	}
	return d, nil
}

// most is the largest value: more tokens than any model reads, and four months.
const most = 1e7

// parseValue reads a number between 0 and most.
func parseValue(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && v >= 0 && v <= most
}

// String is the text that ParseDist reads.
func (d Dist) String() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	switch d.kind {
	case uniform:
		return number(d.a) + "-" + number(d.b)
	case exponential:
		return "exp:" + number(d.a)
	case lognormal:
		return "lognormal:" + number(d.a) + "," + number(d.b)
	}
	return number(d.a)
}

// MarshalText implements encoding.TextMarshaler.
func (d Dist) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Dist) UnmarshalText(text []byte) error {
	parsed, err := ParseDist(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}

// draw returns a value from 0 to most. A constant draws nothing from rng.
func (d Dist) draw(rng *rand.Rand) float64 {
	switch d.kind {
	case uniform:
		return d.a + rng.Float64()*(d.b-d.a)
	case exponential:
		return min(d.a*rng.ExpFloat64(), most)
	case lognormal:
		return min(d.a*math.Exp(rng.NormFloat64()*math.Log(d.b)), most)
	}
	return d.a
}

// tokens draws a number of tokens, at least 1.
func (d Dist) tokens(rng *rand.Rand) int {
	if d.kind == uniform {
		return max(1, int(d.a)+rng.IntN(int(d.b)-int(d.a)+1))
	}
	return max(1, int(math.Round(d.draw(rng))))
}
