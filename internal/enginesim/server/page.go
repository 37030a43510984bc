package server

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is a metrics page under construction, in the text format of Prometheus' Python
// client: labels in alphabetical order, every number as a float, and a gauge of creation
// times after each counter and histogram.
type page struct {
	text    strings.Builder
	model   string
	created time.Time // of all series
}

// label is a name and its value.
type label struct{ name, value string }

// series is the values that the ranks have for one additional label; without a name there is
// none.
type series struct {
	label label
	ranks []float64
}

func (p *page) gauge(name, help string, all ...series) {
	p.family(name, help, "gauge")
	p.ranks(name, all)
}

// counter writes a counter. name has no suffix; the samples get theirs.
func (p *page) counter(name, help string, all ...series) {
	p.family(name+"_total", help, "counter")
	p.ranks(name+"_total", all)
	p.family(name+"_created", help, "gauge")
	p.ranks(name+"_created", p.createdSeries(all))
}

func (p *page) createdSeries(all []series) []series {
	created := make([]series, len(all))
	for i, s := range all {
		created[i] = series{s.label, slices.Repeat([]float64{unixSeconds(p.created)}, len(s.ranks))}
	}
	return created
}

// histogram writes a histogram with one series per rank.
func (p *page) histogram(name, help string, ranks []histogram) {
	p.family(name, help, "histogram")
	for rank, h := range ranks {
		below := int64(0)
		for i, bound := range h.bounds {
			below += h.counts[i]
			p.sample(name+"_bucket", float64(below), p.of(rank, label{"le", pythonFloat(bound)})...)
		}
		all := float64(below + h.counts[len(h.bounds)])
		p.sample(name+"_bucket", all, p.of(rank, label{"le", "+Inf"})...)
		p.sample(name+"_count", all, p.of(rank)...)
		p.sample(name+"_sum", h.sum, p.of(rank)...)
	}
	p.family(name+"_created", help, "gauge")
	for rank := range ranks {
		p.sample(name+"_created", unixSeconds(p.created), p.of(rank)...)
	}
}

func (p *page) family(name, help, kind string) {
	p.text.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

func (p *page) ranks(name string, all []series) {
	for _, s := range all {
		for rank, value := range s.ranks {
			if s.label.name == "" {
				p.sample(name, value, p.of(rank)...)
			} else {
				p.sample(name, value, p.of(rank, s.label)...)
			}
		}
	}
}

// of are the labels of a rank's series.
func (p *page) of(rank int, more ...label) []label {
	return append(more, label{"engine", strconv.Itoa(rank)}, label{"model_name", p.model})
}

func (p *page) sample(name string, value float64, labels ...label) {
	p.text.WriteString(name)
	slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	for i, l := range labels {
		separator := ","
		if i == 0 {
			separator = "{"
		}
		p.text.WriteString(separator + l.name + `="` + escapeLabel(l.value) + `"`)
	}
	if len(labels) > 0 {
		p.text.WriteByte('}')
	}
	p.text.WriteString(" " + sampleValue(value) + "\n")
}

func escapeLabel(value string) string {
	if !strings.ContainsAny(value, "\\\n\"") {
		return value
	}
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value)
}

// sampleValue prints a value as the Python client does: with an exponent from 1e6 on, of at least
// two digits however large it is.
func sampleValue(v float64) string {
	s := pythonFloat(v)
	point := strings.IndexByte(s, '.')
	if v <= 0 || point <= 6 {
		return s
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:point]+s[point+1:], "0.")
	return mantissa + "e+0" + strconv.Itoa(point-1)
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
