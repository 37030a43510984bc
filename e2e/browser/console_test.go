package browser

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The parts follow each other at one gateway under load, since gateway and browser
// take seconds to start.
func TestConsole(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	data := t.TempDir()
	measure(t, filepath.Join(data, "benchmarks"))
	b := newBox(t, 3, "--data", data)
	release := b.hold(3)
	defer release()
	wardentest.WaitFor(t, patience, "some conversations", func() error {
		if n := len(b.Conversations(t)); n < 6 || b.turns.Load() < 20 {
			return fmt.Errorf("%d conversations, %d turns", n, b.turns.Load())
		}
		return nil
	})
	for _, part := range []struct {
		name  string
		check func(*testing.T, *box, *tab)
	}{
		{"counters under load", countersUnderLoad},
		{"numbers", numbers},
		{"affinity", affinity},
		{"receipts", receipts},
		{"keyboard", keyboard},
		{"looks", looks},
		{"history", history},
	} {
		t.Run(part.name, func(t *testing.T) { part.check(t, b, open(t, browser, b.Admin, "/")) })
	}
	t.Run("a feed that breaks", func(t *testing.T) { feed(t, b, browser) })
}

// measure makes a folder with two measurements.
func measure(t *testing.T, folder string) {
	t.Helper()
	before := filepath.Join(folder, "before")
	command(t, "", "simulate", "--arms", "off,affinity", "--sessions", "4", "--seeds", "1", "--out", before)
	if err := os.CopyFS(filepath.Join(folder, "after"), os.DirFS(before)); err != nil {
		t.Fatal(err)
	}
}

// rows are the replicas of a page, by column.
func (p *tab) rows() []map[string]string {
	p.t.Helper()
	return eval[[]map[string]string](p, `[...document.querySelectorAll("tr[data-replica]")].map((r) =>
		Object.fromEntries([...r.querySelectorAll("[data-col]")].map((c) => [c.dataset.col, c.textContent.trim()])))`)
}

// Counters only grow, so while agents are at work a page shows at least what the
// API said before and at most what it says after.
func countersUnderLoad(t *testing.T, b *box, p *tab) {
	sticky := func() (n int) {
		for _, r := range b.Model(t, model).Replicas {
			n += r.Sticky
		}
		return n
	}
	last := -1
	for range 3 {
		began := b.turns.Load()
		wardentest.WaitFor(t, patience, "further turns", func() error {
			if b.turns.Load() < began+5 {
				return errors.New("none")
			}
			return nil
		})
		for _, path := range []string{"/", "/models/" + model} {
			least := sticky()
			p.visit(path)
			shown := 0
			for _, r := range p.rows() {
				shown += number(t, r["sticky"])
			}
			if most := sticky(); shown < least || shown > most || shown <= last {
				t.Errorf("%s shows %d sticky turns between %d and %d, %d before", path, shown, least, most, last)
			}
			last = shown - 1 // the other page may be as old
		}
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
	if err != nil {
		t.Fatalf("%q where a number belongs", text)
	}
	return n
}

// While agents pause and some streams stay open nothing changes, and pages, API and
// the simulation's own counts have to agree.
func numbers(t *testing.T, b *box, p *tab) {
	defer b.pause()()
	open := func() (all []int) {
		for _, r := range b.sim(t).Ranks {
			all = append(all, r.Open)
		}
		return all
	}
	if n := open(); n[0]+n[1]+n[2]+n[3] != 3 {
		t.Fatalf("%v streams are open, want 3", n)
	}
	for _, path := range []string{"/", "/models", "/models/" + model} {
		p.visit(path)
		p.waitSame("the replicas of "+path, func() (page, truth any) {
			var shown, inFlight, running []string
			for _, r := range p.rows() {
				shown = append(shown, r["in_flight"]+" "+r["sticky"]+" "+r["live_conversations"])
				inFlight, running = append(inFlight, r["in_flight"]), append(running, r["running"])
			}
			var api, sim []string
			at := open()
			for i, r := range b.Model(t, model).Replicas {
				api = append(api, fmt.Sprint(r.InFlight, " ", r.Sticky, " ", r.Live))
				sim = append(sim, strconv.Itoa(at[i]))
			}
			return [][]string{shown, inFlight, running}, [][]string{api, sim, sim}
		})
	}

	p.visit("/conversations")
	p.waitSame("the conversations", func() (page, truth any) {
		page = eval[[]string](p, `[...document.querySelectorAll("tr[data-conversation]")].map((r) =>
			[r.dataset.conversation, ...["Home", "Turns", "Spills", "Moves", "Open"].map((k) => r.querySelector("[data-k=" + k + "]").textContent.trim())].join(" "))`)
		var list []string
		for _, c := range b.Conversations(t)[:len(page.([]string))] {
			list = append(list, fmt.Sprint(c.ID, " ", *c.Home, " ", c.Turns, " ", c.Spills, " ", c.Moves, " ", c.InFlight))
		}
		return page, list
	})
	all := b.Conversations(t)
	for i := range 4 {
		p.visit("/conversations?replica=" + strconv.Itoa(i))
		want := 0
		for _, c := range all {
			if *c.Home == i {
				want++
			}
		}
		if n := eval[int](p, `document.querySelectorAll("tr[data-conversation]").length`); n != min(want, 50) || want == 0 {
			t.Errorf("%d conversations of replica %d, want %d", n, i, want)
		}
	}

	served := 0
	for _, r := range b.sim(t).Ranks {
		served += r.Served
	}
	turns := 0
	for _, c := range all {
		turns += c.Turns
	}
	if int(b.turns.Load()) != served || turns != served+3 {
		t.Errorf("the agents had %d answers, the simulation served %d, the conversations have %d turns, 3 of them open", b.turns.Load(), served, turns)
	}

	// One conversation, turn by turn.
	i := slices.IndexFunc(all, func(c wardentest.Conversation) bool { return c.Turns == turnsOfConversation })
	if i < 0 {
		t.Fatal("no conversation has ended")
	}
	path := "/conversations/" + all[i].ID
	p.visit(path)
	p.waitSame(path, func() (page, truth any) {
		page = eval[[]string](p, `[...document.querySelectorAll("[aria-labelledby=log] tbody tr")].map((r) =>
			["Replica", "Decision", "Prompt", "Completion"].map((k) => r.querySelector("[data-k='" + k + "']").textContent.trim().split(" ")[0]).join(" "))`)
		var list []string
		for _, h := range get[struct {
			History []struct {
				Replica    int
				Reason     string
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}](t, b.Admin+"/api"+path).History {
			list = append([]string{fmt.Sprint(h.Replica, " ", h.Reason, " ", short(h.Prompt), " ", h.Completion)}, list...)
		}
		return page, list
	})

	p.visit("/settings")
	if page, api := eval[string](p, `document.querySelector("pre").textContent`), get[struct{ YAML string }](t, b.Admin+"/api/settings").YAML; page != api || !strings.Contains(api, b.engine) {
		t.Errorf("the page's configuration is not the API's:\n%s\n%s", page, api)
	}
}

// short is a number of tokens as pages write it.
func short(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1000, 'f', 1, 64), ".0") + "k"
}

// waitSame waits until what the page shows is the truth.
func (p *tab) waitSame(what string, ask func() (page, truth any)) {
	p.t.Helper()
	wardentest.WaitFor(p.t, patience, what, func() error {
		if page, truth := ask(); fmt.Sprint(page) != fmt.Sprint(truth) {
			return fmt.Errorf("the page shows\n%v, not\n%v", page, truth)
		}
		return nil
	})
}

// history compares the table of the tokens' drawing with the API.
func history(t *testing.T, b *box, p *tab) {
	defer b.pause()()
	p.visit("/stats?range=15m&step=10s")
	p.waitSame("the tokens of each step", func() (page, truth any) {
		type cell struct {
			Time string
			Text string
		}
		cells := eval[[]cell](p, `[...document.querySelector(".numbers").querySelectorAll("tbody tr")].map((r) =>
			({Time: r.querySelector("time").getAttribute("datetime"), Text: r.lastElementChild.textContent.trim()}))`)
		api := map[string]int{}
		for _, s := range get[struct {
			Series []struct {
				Time             string
				Cached, Computed int
			}
		}](t, b.Admin+"/api/stats/tokens?range=15m&step=10s").Series {
			api[s.Time] = s.Cached + s.Computed
		}
		running := time.Now().UTC().Add(-10 * time.Second).Format(time.RFC3339) // its rate is over a part of it
		var shown, want []string
		for _, c := range cells {
			if n, known := api[c.Time]; known && c.Time < running && n > 0 {
				shown, want = append(shown, c.Text), append(want, compact(float64(n)/10))
			}
		}
		if len(shown) == 0 {
			return "nothing", "some steps with tokens"
		}
		return shown, want
	})
}

// compact is a rate as the drawings' tables write it.
func compact(v float64) string {
	if v < 10 {
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return short(int(math.Round(v)))
}

// affinity switches it off and on again: from a second after the click no decision
// is another one than the page says.
func affinity(t *testing.T, b *box, p *tab) {
	p.visit("/models/" + model)
	for _, on := range []bool{false, true} {
		clicked := time.Now()
		if on {
			p.do(chromedp.Focus(chromedp.CSS(".switch")))
			p.press(" ")
		} else {
			p.do(chromedp.Click(chromedp.CSS(".switch")))
		}
		p.until("the switch to follow", fmt.Sprintf(`document.querySelector(".switch").getAttribute("aria-checked") === "%v"`, on))
		wardentest.WaitFor(t, patience, "turns after the switch", func() error {
			seen := 0
			for _, d := range b.Decisions(t) {
				if d.Time.After(clicked.Add(time.Second)) {
					if seen++; (d.Reason == "off") == on {
						t.Errorf("%v after affinity was set to %v: %s", d.Time.Sub(clicked), on, d.Reason)
					}
				}
			}
			if seen < 10 {
				return fmt.Errorf("%d turns", seen)
			}
			return nil
		})
	}
}

// receipts: an opened one stays with its row, and so does the focus.
func receipts(t *testing.T, b *box, p *tab) {
	defer b.pause()() // so that only what the test asks moves the row
	ask := func(session string) {
		t.Helper()
		res, err := b.ask(t.Context(), session, map[string]any{"model": model, "max_tokens": 5, "messages": []message{{"user", "hello"}}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	ask("first-turn") // is placed, which a turn that stays home is not: it has a receipt
	decisions := b.Decisions(t)
	latest := decisions[len(decisions)-1].RequestID
	p.visit("/models/" + model)
	const rows = `[...document.querySelectorAll("[aria-labelledby=decisions] tbody tr")]`
	p.until("the latest decision", fmt.Sprintf(`%s[0].dataset.key.startsWith(%q)`, rows, latest)) // the page may have been a moment old
	key := eval[string](p, `(() => { const row = `+rows+`[0]; row.querySelector("details summary").focus(); return row.dataset.key })()`)
	p.press(kb.Enter)
	const more = 3
	for range more {
		ask("receipts")
	}
	p.until("the row to move down", fmt.Sprintf(`%s.findIndex((r) => r.dataset.key === %q) === %d`, rows, key, more))
	if open := eval[[]string](p, rows+`.filter((r) => r.querySelector("details[open]")).map((r) => r.dataset.key)`); !slices.Equal(open, []string{key}) {
		t.Errorf("the receipts of %q are open, want %q", open, key)
	}
	if focus := eval[string](p, `document.activeElement.closest("tr")?.dataset.key ?? ""`); focus != key {
		t.Errorf("the focus is in the row %q, want %q", focus, key)
	}
}
