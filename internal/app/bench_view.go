package app

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/live"
	"lmwarden/internal/bench/results"
)

// benchView shows how a measurement goes: a few lines that are drawn anew each
// second on a terminal, a plain line a second elsewhere, and a line for each
// step that has ended.
type benchView struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex
	drawn int // guarded by mu: lines that the next drawing replaces
}

func newBenchView(out io.Writer) *benchView {
	f, ok := out.(*os.File)
	return &benchView{out: out, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// follow shows the status once a second until the function that it returns is
// called, which waits for the end.
func (v *benchView) follow(status func() live.Status) (stop func()) {
	end := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if st := status(); st.Step.Arm != "" {
					v.show(st)
				}
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		showing.Wait()
		v.print("")
	}
}

func (v *benchView) show(st live.Status) {
	if !v.terminal {
		v.print(strings.Join(statusLines(st), "  ") + "\n")
		return
	}
	lines := statusLines(st)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.draw(strings.Join(lines, "\n") + "\n")
	v.drawn = len(lines)
}

// print writes text that stays.
func (v *benchView) print(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.draw(text)
	v.drawn = 0
}

// draw replaces what was drawn last. It is called with mu held.
func (v *benchView) draw(text string) {
	if v.drawn > 0 {
		const up, clearBelow = "\x1b[%dF", "\x1b[J"
		text = fmt.Sprintf(up+clearBelow, v.drawn) + text
	}
	fmt.Fprint(v.out, text)
}

func (v *benchView) warn(text string) { v.print("warden bench: " + text + "\n") }

// ended shows the figures of a step.
func (v *benchView) ended(m bench.Measured) {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s, %d sessions:", m.Seed, m.Arm, m.Sessions)
	for _, c := range results.Columns()[:results.Published] {
		fmt.Fprintf(&b, "  %s %s", c.Title, c.Format(c.Of(&m.Measures)))
	}
	if m.Failed != nil && *m.Failed > 0 {
		fmt.Fprintf(&b, "  failed %.0f", *m.Failed)
	}
	v.print(b.String() + "\n")
}

// statusLines are what a person wants to see of a step.
func statusLines(st live.Status) []string {
	at := fmt.Sprintf("%.0f s", st.Elapsed.Seconds())
	switch {
	case st.Awaiting:
		at = "over, waiting for engines to be ready"
	case st.Step.Length > 0 && st.Elapsed > st.Step.Length && st.Open == 0:
		at = "over"
	case st.Step.Length > 0 && st.Elapsed > st.Step.Length:
		at = fmt.Sprintf("%.0f s, draining", st.Elapsed.Seconds())
	case st.Step.Length > 0:
		at = fmt.Sprintf("%.0f of %.0f s", st.Elapsed.Seconds(), st.Step.Length.Seconds())
	}
	counts := fmt.Sprintf("requests %d, open %d, failed %d", st.Finished, st.Open, st.Failed)
	if st.TTFBP50 >= 0 {
		counts += fmt.Sprintf("  TTFB p50 %.2f s", st.TTFBP50.Seconds())
	}
	if minutes := st.Elapsed.Minutes(); st.Output > 0 && minutes > 0 {
		counts += fmt.Sprintf("  output %.0f tok/min", float64(st.Output)/minutes)
	}
	if st.Prompt > 0 {
		counts += fmt.Sprintf("  cached %.1f%%", 100*float64(st.Cached)/float64(st.Prompt))
	}
	lines := []string{fmt.Sprintf("%s, %d sessions, %s", st.Step.Arm, st.Step.Sessions, at), counts}
	if len(st.Running) > 0 {
		lines = append(lines, "running "+numbers(st.Running)+"  waiting "+numbers(st.Waiting))
	}
	if st.LastError != "" {
		lines = append(lines, "last failure: "+oneLine(st.LastError))
	}
	return lines
}

func numbers(values []float64) string {
	var texts []string
	for _, v := range values {
		if math.IsNaN(v) {
			texts = append(texts, "–")
		} else {
			texts = append(texts, strconv.FormatFloat(v, 'f', 0, 64))
		}
	}
	return strings.Join(texts, " ")
}

// oneLine keeps text of another program from wrapping or moving the cursor.
func oneLine(text string) string {
	const most = 100
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
