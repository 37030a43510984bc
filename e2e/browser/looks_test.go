package browser

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var pages = []string{"/", "/models/" + model, "/conversations", "/conversations/{conversation}", "/stats?range=15m", "/stats?measure=ttfb&group=replica", "/benchmarks", "/benchmarks/before", "/benchmarks?run=before&run=after", "/settings", "/connect", "/none"}

// looksOfPages are the ways to look at each page: each width and each scheme.
var looksOfPages = []struct {
	scheme string
	width  int64
}{{"light", 1240}, {"dark", 1240}, {"dark", 360}}

// axeCore is the script that finds faults of accessibility, nil where it is not
// installed.
func axeCore(t *testing.T) []byte {
	t.Helper()
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Logf("accessibility is not checked, since axe-core is not installed (e2e/run installs it from npm): %v", err)
	}
	return axe
}

// looks opens each page in all ways.
func looks(t *testing.T, b *box, p *tab) {
	defer b.pause()() // it costs the machine what the browser needs
	axe := axeCore(t)
	conversation := b.Conversations(t)[0].ID
	for _, path := range pages {
		path = strings.ReplaceAll(path, "{conversation}", conversation)
		p.expectBreaks(path == "/none") // whose status the browser writes to its console
		for _, look := range looksOfPages {
			p.prefer(look.scheme)
			p.size(look.width)
			p.visit(path)
			p.look(axe, path, look.scheme, look.width)
		}
	}
}

// look checks a page's width, colours and accessibility: as it comes, and with
// everything opened that can be.
func (p *tab) look(axe []byte, path, scheme string, width int64) {
	p.t.Helper()
	where := fmt.Sprintf("%s, %s, %d px", path, scheme, width)
	p.lookAt(axe, where, scheme, width)
	opened := eval[int](p, `(() => { const all = [...document.querySelectorAll("details:not([open])")]; all.forEach((d) => { d.open = true }); return all.length })()`)
	if opened > 0 {
		p.lookAt(axe, fmt.Sprintf("%s, with %d opened", where, opened), scheme, width)
	}
}

func (p *tab) lookAt(axe []byte, where, scheme string, width int64) {
	p.t.Helper()
	if over := eval[int64](p, `document.documentElement.scrollWidth`); over > width {
		p.t.Errorf("%s: is %d px wide", where, over)
	}
	if dark := eval[bool](p, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).every((c) => c < 100)`); dark != (scheme == "dark") {
		p.t.Errorf("%s: the background is dark: %v", where, dark)
	}
	if axe == nil {
		return
	}
	p.do(chromedp.Evaluate[chromedp.Void](string(axe)))
	for _, fault := range eval[[]string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations
		.filter((v) => v.impact === "serious" || v.impact === "critical")
		.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " (" + n.failureSummary + ")").join("; ")))`) {
		p.t.Errorf("%s: %s", where, fault)
	}
}

// keyboard walks the model's page with Tab alone: everything that can be used is
// reached, in view and marked; a drawing reads out; a replica is drained and
// resumed.
func keyboard(t *testing.T, b *box, p *tab) {
	defer b.pause()()
	p.visit("/models/" + model)
	p.do(chromedp.Evaluate[chromedp.Void](`void (window.confirm = (q) => { window.asked = q; return true })`))
	p.press(kb.Tab)
	if got := eval[string](p, `document.activeElement.className`); got != "skip" {
		t.Errorf("the first stop is %q, not the way past the links", got)
	}
	p.press(kb.Enter)
	p.press(kb.Tab)
	if !eval[bool](p, `document.querySelector("main").contains(document.activeElement)`) {
		t.Error("after skipping to the content the next stop is elsewhere")
	}

	want := eval[int](p, `(() => {
		window.stops = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0);
		document.activeElement.blur();
		document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute("tabindex");
		return stops.length })()`)
	seen := map[int]bool{}
	unmarked := map[string]bool{}
	for range want + 5 {
		p.press(kb.Tab)
		stop := eval[struct {
			At     int
			Marked bool
			Text   string
		}](p, `(() => { const e = document.activeElement; return { At: stops.indexOf(e), Marked: getComputedStyle(e).outlineStyle !== "none", Text: e.outerHTML.slice(0, 100) } })()`)
		if stop.At < 0 || seen[stop.At] {
			continue
		}
		seen[stop.At] = true
		if !stop.Marked {
			unmarked[stop.Text] = true
		}
	}
	if len(seen) != want || want < 20 {
		t.Errorf("%d of %d stops are reached", len(seen), want)
	}
	for text := range unmarked {
		t.Errorf("no mark on the focus of %s", text)
	}

	p.do(chromedp.Focus(chromedp.CSS(".plot")))
	p.press(kb.End)
	p.press(kb.ArrowLeft)
	if said := eval[string](p, `document.querySelector(".readout").textContent`); !strings.Contains(said, "·") {
		t.Errorf("the drawing reads out %q", said)
	}

	for _, wish := range []struct{ name, state string }{{"Drain", "draining"}, {"Resume", "ready"}} {
		p.do(chromedp.Focus(chromedp.CSS(`[aria-label="` + wish.name + ` replica 3"]`)))
		p.press(kb.Enter)
		p.until("replica 3 to be "+wish.state, fmt.Sprintf(`document.querySelector("tr[data-replica='3']").dataset.state === %q`, wish.state))
		if state := b.Model(t, model).Replicas[3].State; state != wish.state {
			t.Errorf("after %s replica 3 is %s", wish.name, state)
		}
		if asked := eval[string](p, `window.asked`); !strings.HasPrefix(asked, wish.name+" replica 3?") {
			t.Errorf("%s asks %q", wish.name, asked)
		}
	}
}
