package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"lmwarden/internal/bench/results"
)

//go:embed page.html page.css
var files embed.FS

// page is what page.html shows: a measurement, or the comparison of two.
type page struct {
	Title, Lead string
	Stopped     string // why the measurement is not whole
	Loop        string // what the way of sending does to the figures
	Style       template.CSS
	Differences []results.Difference // between two measurements
	Contrasts   []contrast
	Figures     []shown
	Mechanism   []shown
	Arms        []string
	Ends        []endRow
	Errors      []errorCount
	Steps       []stepView
	Groups      []group // settings and machine
}

type shown struct {
	Name, Caption string
	SVG           template.HTML
}

func (f Figure) shown() shown { return shown{f.Name, f.Text, template.HTML(f.inline())} }

// group is named settings.
type group struct {
	Name     string
	Settings []setting
}

type setting struct{ Name, Value string }

// HTML is a measurement as one page that loads nothing.
func HTML(r *results.Results, m Machine) ([]byte, error) {
	p := page{
		Title:     "Measurement: " + strings.Join(armNames(r), " → "),
		Lead:      lead(r),
		Stopped:   stopped(r),
		Loop:      loop(r),
		Contrasts: contrastsOf(r),
		Arms:      armNames(r),
		Ends:      endRows(r),
		Errors:    errorCounts(r),
		Steps:     stepViews(r),
		Groups: []group{
			{"Workload", settingsOf("", r.Workload)}, {"Protocol", settingsOf("", r.Protocol)},
			{"Box", settingsOf("", r.Box)}, {"Machine", m.settings()},
		},
	}
	for _, f := range Figures(r) {
		p.Figures = append(p.Figures, f.shown())
	}
	all := journeysOf(r)
	longest := all.longest()
	for i := range all {
		p.Mechanism = append(p.Mechanism, all[i:i+1].figure(fmt.Sprintf("mechanism-%d", i), longest).shown())
	}
	return p.render()
}

// CompareHTML is the comparison of the measurements a and b, called by these
// names, as one page that loads nothing.
func CompareHTML(a, b string, differences []results.Difference, all []results.Comparison) ([]byte, error) {
	return page{
		Title: "Comparison", Lead: fmt.Sprintf("A is %s, B is %s. Each cell shows A → B; a verdict is on B.", a, b),
		Differences: differences, Contrasts: groupContrasts(all, false),
	}.render()
}

func (p page) render() ([]byte, error) {
	style, err := files.ReadFile("page.css")
	if err != nil {
		return nil, err
	}
	p.Style = template.CSS(style)
	t, err := template.New("page.html").ParseFS(files, "page.html")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func armNames(r *results.Results) []string {
	var names []string
	for _, a := range r.Arms {
		names = append(names, a.Name)
	}
	return names
}

// lead says what the figures are means of.
func lead(r *results.Results) string {
	fewest, most := 0, 0
	for _, a := range r.Arms {
		for i, s := range a.Steps {
			if n := len(s.Runs); i == 0 && fewest == 0 || n < fewest {
				fewest = n
			}
			most = max(most, len(s.Runs))
		}
	}
	switch {
	case most <= 1:
		return "One run of each arm and step: there are no intervals, and nothing can be said about chance. Repeat it with more seeds for verdicts."
	case fewest == most:
		return fmt.Sprintf("Means of %d runs with their 95%% confidence intervals.", most)
	default:
		return fmt.Sprintf("Means of %d to %d runs with their 95%% confidence intervals.", fewest, most)
	}
}

// stopped says why a measurement ended before its time, if it did.
func stopped(r *results.Results) string {
	why, _ := r.Box["stopped"].(string)
	return why
}

// loop says what was left out where nobody asked (coordinated omission).
func loop(r *results.Results) string {
	if _, open := r.Protocol["sessions_per_min"]; open {
		return "Open loop: sessions began at random times, however busy the box was, and waits count from when a session was to begin."
	}
	return "Closed loop: a client that waits sends nothing, so a slow arm was asked less than a fast one. Read the waits together with the throughput."
}

// settingsOf lists settings by name, those of a part as PART.NAME.
func settingsOf(at string, s map[string]any) []setting {
	var all []setting
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if part, ok := s[name].(map[string]any); ok {
			all = append(all, settingsOf(at+name+".", part)...)
			continue
		}
		all = append(all, setting{at + name, results.SettingText(s[name])})
	}
	return all
}
