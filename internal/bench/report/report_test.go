package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/bench/results"
)

func fig(v float64) *float64 { return results.Figure(v) }

// sample has three arms: two steps of three runs, three steps of which the middle
// one was not measured, and a step of one run with almost nothing measured.
func sample() *results.Results {
	step := func(sessions int, scale float64, seeds int) results.Step {
		var runs []results.Run
		for i := range seeds {
			v := scale * (1 + 0.02*float64(i))
			runs = append(runs, results.Run{Seed: uint64(i + 1), Measures: results.Measures{
				SessionsPerHour: fig(100 * v), OutputTokensPerMin: fig(4321 * v), TTFBP50: fig(0.25 / v), TTFBP95: fig(3 / v),
				ReplicasBusy: fig(min(v, 4)), PrefixHitPercent: fig(min(25*v, 100)), Turns: fig(50 * v), Cut: fig(4), Failed: fig(0), StayedPercent: fig(100),
			}})
		}
		return results.NewStep(sessions, runs, [][]results.Part{{{Index: 0, Turns: fig(7), PrefixHitPercent: fig(12.5)}}}, nil)
	}
	hole := step(8, 1, 1)
	hole.Measures, hole.CI = results.Measures{Failed: fig(3)}, results.Measures{}
	name, message := "0a", "refused: <no replica>"
	return &results.Results{
		Schema: results.Schema, Workload: results.Settings{"name": "claude-code", "turns": 6.0},
		Protocol: results.Settings{"step_s": 180.0}, Box: results.Settings{"replicas": 4.0, "engine": map[string]any{"kv_tokens": 40000.0}},
		Arms: []results.Arm{
			{Name: "off", Steps: []results.Step{step(4, 1, 3), step(16, 1.5, 3)}},
			{Name: "affinity", Steps: []results.Step{step(4, 2, 3), hole, step(16, 3, 3)}},
			{Name: `<b>"url"</b>`, Steps: []results.Step{step(4, 1.01, 3)}},
		},
		Requests: []results.Request{
			{Arm: "affinity", Sessions: 8, Seed: 1, Session: &name, End: results.Failed, Error: &message},
			{Arm: "affinity", Sessions: 8, Seed: 1, Session: &name, End: results.Failed, Error: &message},
			{Arm: "affinity", Sessions: 8, Seed: 1, Session: &name, End: results.Finished},
		},
	}
}

// element is a start tag, the tags around it, and its own text.
type element struct {
	name  string
	attrs map[string]string
	over  *element
	text  string
}

// around is the nearest attribute of that name.
func (e *element) around(attr string) string {
	for ; e != nil; e = e.over {
		if v, ok := e.attrs[attr]; ok {
			return v
		}
	}
	return ""
}

func (e *element) has(class string) bool {
	return strings.Contains(" "+e.attrs["class"]+" ", " "+class+" ")
}

// parse reads a page, or strictly a figure.
func parse(t *testing.T, data []byte, strict bool) []*element {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(data))
	if d.Strict = strict; !strict {
		d.AutoClose, d.Entity = xml.HTMLAutoClose, xml.HTMLEntity
	}
	var all []*element
	var open *element
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			open = &element{name: token.Name.Local, attrs: map[string]string{}, over: open}
			for _, a := range token.Attr {
				open.attrs[a.Name.Local] = a.Value
			}
			all = append(all, open)
		case xml.EndElement:
			open = open.over
		case xml.CharData:
			if open != nil {
				open.text += string(token)
			}
		}
	}
}

func pageOf(t *testing.T, r *results.Results) ([]byte, []*element) {
	t.Helper()
	page, err := HTML(r, Machine{CPU: "Model 1", Cores: 2, OS: "an OS", Go: "go1", Program: "warden 1"})
	if err != nil {
		t.Fatal(err)
	}
	return page, parse(t, page, false)
}

// Every figure of results.json, and its interval, stands in the page where its
// arm, sessions and column say, and nothing else does.
func TestPageShowsResults(t *testing.T) {
	r := sample()
	_, all := pageOf(t, r)
	want, got := map[string]string{}, map[string]string{}
	for _, sessions := range r.Steps() {
		for _, arm := range r.Arms {
			for _, c := range results.Columns() {
				key := fmt.Sprintf("%d %s %s", sessions, arm.Name, c.Name)
				want[key] = "–"
				if s := arm.Step(sessions); s != nil {
					want[key] = c.Format(c.Of(&s.Measures))
					if ci := c.Of(&s.CI); ci != nil {
						want[key] += " ± " + c.Format(ci)
					}
				}
			}
		}
	}
	contrasts := map[string]string{}
	for _, e := range all {
		if e.name != "span" || e.over.attrs["data-column"] == "" || !e.has("v") && !e.has("ci") {
			continue
		}
		arm, key := e.over.attrs["data-arm"], e.around("data-sessions")+" "+e.over.attrs["data-arm"]+" "+e.over.attrs["data-column"]
		switch {
		case arm == "":
			contrasts[key] += e.text + ";"
		case e.has("ci"):
			got[key] += " " + e.text
		default:
			got[key] = e.text
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cells (-results +page):\n%s", diff)
	}
	// The arms beside the first, in the order of the tables.
	off, on := r.Arms[0].Step(16), r.Arms[1].Step(16) // the third has no such step
	for _, c := range results.Columns()[:results.Published] {
		wanted := c.Format(c.Of(&off.Measures)) + " → " + c.Format(c.Of(&on.Measures)) + ";" + c.Format(c.Of(&off.Measures)) + " → –;"
		if got := contrasts["16  "+c.Name]; got != wanted {
			t.Errorf("%s at 16: %q, want %q", c.Name, got, wanted)
		}
	}
}

func TestPageSaysVerdicts(t *testing.T) {
	_, all := pageOf(t, sample())
	verdicts := map[string]int{}
	words := map[string]string{}
	for i, e := range all {
		if e.has("verdict") {
			verdicts[e.text]++
			if !strings.Contains(e.attrs["title"], "95% interval") {
				t.Errorf("a verdict without its interval: %v", e.attrs)
			}
		}
		if e.name == "dd" && e.over.over.has("words") {
			words[all[i-1].text] += "[" + e.text + "]"
		}
	}
	if verdicts["▲ better"] == 0 || verdicts["▼ worse"] != 0 || verdicts["= no difference seen"] == 0 {
		t.Errorf("verdicts %v", verdicts)
	}
	// affinity halves the times at both steps; the third arm has one step, a hundredth
	// apart and the same in every run.
	if got, want := words["TTFB p50 s"], "[better at 4 and 16; not known at 8][better at 4; not known at 16 and 8]"; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}
	if got, want := words["stayed %"], "[no difference seen at 4 and 16; not known at 8][no difference seen at 4; not known at 16 and 8]"; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}

	r := sample()
	for i := range r.Arms {
		for j := range r.Arms[i].Steps {
			s := &r.Arms[i].Steps[j]
			*s = results.NewStep(s.Sessions, s.Runs[:1], nil, nil)
		}
	}
	page, all := pageOf(t, r)
	for _, e := range all {
		if e.has("verdict") || e.has("words") || e.has("ci") {
			t.Errorf("one run, and yet %s %v", e.name, e.attrs)
		}
	}
	if !bytes.Contains(page, []byte("One run of each arm and step")) {
		t.Error("the page does not say that there was one run")
	}
}

func TestPageShowsFailures(t *testing.T) {
	page, all := pageOf(t, sample())
	var failed []string
	for _, e := range all {
		if e.has("failed") {
			failed = append(failed, e.around("data-sessions")+" "+e.around("data-k")+" "+e.text)
		}
	}
	if diff := cmp.Diff([]string{"8 affinity 3 failed"}, failed); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	if want := "2 × refused: &lt;no replica&gt;"; !bytes.Contains(page, []byte(want)) {
		t.Errorf("the page has no %q", want)
	}
}

func TestPageSaysSettingsAndMachine(t *testing.T) {
	_, all := pageOf(t, sample())
	got := map[string]string{}
	for i, e := range all {
		if e.name == "dd" {
			got[all[i-1].text] = e.text
		}
	}
	for name, want := range map[string]string{"turns": "6", "name": "claude-code", "step_s": "180", "engine.kv_tokens": "40000", "CPU": "Model 1", "cores": "2", "system": "an OS", "Go": "go1", "program": "warden 1"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// How requests were sent decides how waits are read.
func TestPageSaysWhichLoop(t *testing.T) {
	r := sample()
	closed, _ := pageOf(t, r)
	r.Protocol["sessions_per_min"] = 20.0
	open, _ := pageOf(t, r)
	if !bytes.Contains(closed, []byte("Closed loop: ")) || !bytes.Contains(open, []byte("Open loop: ")) {
		t.Error("the page does not say whether it was a closed or an open loop")
	}
}

// The page asks nobody for anything, whatever arms and errors are called.
func TestPageLoadsNothing(t *testing.T) {
	page, all := pageOf(t, sample())
	for _, e := range all {
		for _, attr := range []string{"src", "href", "action", "srcset"} {
			if v, ok := e.attrs[attr]; ok {
				t.Errorf("%s has %s=%q", e.name, attr, v)
			}
		}
		if e.name == "script" || e.name == "link" || e.name == "b" {
			t.Errorf("there is a %s", e.name)
		}
		if e.name == "style" && (strings.Contains(e.text, "url(") || strings.Contains(e.text, "@import")) {
			t.Error("the style sheet loads something")
		}
	}
	if bytes.Contains(page, []byte("http:")) || bytes.Contains(page, []byte("https:")) {
		t.Error("the page names an address")
	}
	if again, _ := pageOf(t, sample()); !bytes.Equal(page, again) {
		t.Error("equal measurements gave different pages")
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := Write(dir, sample(), ThisMachine("warden")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"results.json", "requests.jsonl", "table.md", "table.csv", "report.html", "aiperf/affinity-8-1/profile_export.jsonl", "aiperf/affinity-8-1/profile_export_aiperf.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range Figures(sample()) {
		svg, err := os.ReadFile(filepath.Join(dir, f.Name+".svg"))
		if err != nil || !bytes.Equal(svg, f.SVG()) {
			t.Errorf("%s.svg: %v", f.Name, err)
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if b := picture.Bounds(); b.Dx() != 3*width || b.Dy() != 3*height {
			t.Errorf("%s.png is %v", f.Name, b)
		}
	}
}

func TestComparisonPage(t *testing.T) {
	a, b := sample(), sample()
	b.Arms = b.Arms[:2]
	b.Box["replicas"], b.Workload["turns"] = 8.0, 7.0
	all, err := results.CompareUnlike(a, b)
	if err != nil {
		t.Fatal(err)
	}
	page, err := CompareHTML("before", "a<b", results.Differences(a, b), all)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, want := range []string{"A is before, B is a&lt;b.", "workload.turns", "box.replicas", "do not compare", "no difference seen at every step"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	rows := 0
	for _, e := range parse(t, page, false) {
		if e.name == "tr" && e.attrs["data-sessions"] != "" {
			rows++
			if n, err := strconv.Atoi(e.attrs["data-sessions"]); err != nil || n < 4 {
				t.Errorf("row of %q sessions", e.attrs["data-sessions"])
			}
		}
	}
	if rows != 5 { // two steps of off, three of affinity
		t.Errorf("%d rows, want 5", rows)
	}
	if strings.Contains(text, "<figure") || strings.Contains(text, "<h2>All figures</h2>") {
		t.Error("a comparison shows parts of a measurement")
	}
}

func TestPageOfWhatWasInterrupted(t *testing.T) {
	r := sample()
	if page, _ := pageOf(t, r); bytes.Contains(page, []byte("Not whole")) {
		t.Error("the page of a whole measurement says that it is not")
	}
	r.Arms = r.Arms[:1]
	r.Box["stopped"] = "interrupted"
	page, all := pageOf(t, r)
	if !bytes.Contains(page, []byte("Not whole: interrupted.")) {
		t.Error("the page does not say that it is not whole")
	}
	rows := 0
	for _, e := range all {
		if e.name == "tr" && e.attrs["data-sessions"] != "" {
			rows++
		}
	}
	if rows != 4 { // two steps, once with their figures and once with their ends
		t.Errorf("%d rows, want 4", rows)
	}
	r.Arms = nil
	if page, _ := pageOf(t, r); !bytes.Contains(page, []byte("Machine")) {
		t.Error("nothing was measured, and the page has no machine")
	}
}

func FuzzPage(f *testing.F) {
	data, err := sample().JSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema": 1, "box": {"replicas": -1e300}, "arms": [{"name": "a", "steps": [{"sessions": 4, "ttfb_p50_s": 1e300, "replicas_busy": 1e-300, "ci": {"replicas_busy": 1e300}}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := results.Parse(data)
		if err != nil {
			return
		}
		page, err := HTML(r, Machine{})
		if err != nil {
			t.Fatal(err)
		}
		parse(t, page, false)
		for _, f := range Figures(r) {
			parse(t, f.SVG(), true)
		}
	})
}

func TestFirstValue(t *testing.T) {
	const cpuinfo = "processor\t: 0\nmodel name\t: Fast 3000 @ 2: GHz\nmodel name\t: other\n"
	if got := firstValue(strings.NewReader(cpuinfo), "model name", ":"); got != "Fast 3000 @ 2: GHz" {
		t.Errorf("model %q", got)
	}
	if got := firstValue(strings.NewReader(cpuinfo), "absent", ":"); got != "" {
		t.Errorf("absent key is %q", got)
	}
}
