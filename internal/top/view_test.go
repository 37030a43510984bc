package top

import (
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestOverviewInAnOrdinaryTerminal(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	want := strings.TrimPrefix(`
LM Warden 1.2                                              http://127.0.0.1:8101
[Overview]  Conversations                                                0 s old
6 replicas: 2 draining, 2 down, 2 ready.
! The client listener is open.
────────────────────────────────────────────────────────────────────────────────
Requests/min 51   Output tokens/s 144   Cached 44.2%   TTFB p95 –

qwen  (model 1 of 2)
Affinity on   Spill threshold 8 (auto)   Sticky 98.7%   In flight 5
12 live conversations   working set 118,000 of 160,000 tokens   16 fit

  #  state     in flight  sticky  running  waiting  KV used            hit rate
▸ 0  ready             2   1,038        2        0    61.2%  █████░░░     82.2%
  1  draining          3   1,038        3        1    97.5%  ████████     82.2%
  2  down              0   1,038        –        –        –               82.2%
! What the engine of replica 2 said is 14 s old.

Left their home in the last hour
  1 → 2  spilled (home full): 5 requests
Latest events
2 min ago  qwen: Replica 1 drains.

tab conversations   ←→ model   ↑↓ replica   d drain   r resume   s sort
/ filter   q quit`, "\n")
	if diff := cmp.Diff(want, u.text()); diff != "" {
		t.Error(diff)
	}
}

func TestConversationsInAnOrdinaryTerminal(t *testing.T) {
	g := &fake{data: some(t)}
	g.data.Models = g.data.Models[:1]
	u := sit(t, g)
	u.see(tea.WindowSizeMsg{Width: 80, Height: 12})
	u.press("tab")
	want := strings.TrimPrefix(`
LM Warden 1.2                                              http://127.0.0.1:8101
 Overview  [Conversations]                                               0 s old
6 replicas: 2 draining, 2 down, 2 ready.
! The client listener is open.
────────────────────────────────────────────────────────────────────────────────
1 to 3 of 50 by last seen; the gateway knows more
conversation  client       home  turns  context  cached  in flight       seen
c-00          claude-code     0      0   12,000   50.0%          0    0 s ago
c-01          claude-code     1      1   12,001   50.0%          1  1 min ago
c-02          claude-code     2      2   12,002   50.0%          0  2 min ago

tab overview   ↑↓ scroll   s sort   / filter   q quit`, "\n")
	if diff := cmp.Diff(want, u.text()); diff != "" {
		t.Error(diff)
	}
}

// Whatever the size and the names, a screen fits and steers no terminal.
func TestEveryScreenFits(t *testing.T) {
	data := some(t)
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.String().Draw(rt, "name") + "\x1b[31m\u202e界界界"
		data := data
		data.Models = append([]Model{}, data.Models...)
		data.Models[0].Name, data.Overview.State = name, name
		data.Conversations = append([]Conversation{}, data.Conversations...)
		data.Conversations[0].ID, data.Conversations[0].Client = name, &name
		data.MovesUnknown = rapid.SampledFrom([]string{"", name}).Draw(rt, "moves unknown")
		u := sit(t, &fake{data: data})
		width, height := rapid.IntRange(1, 200).Draw(rt, "width"), rapid.IntRange(1, 60).Draw(rt, "height")
		u.see(tea.WindowSizeMsg{Width: width, Height: height})
		u.press(rapid.SliceOfN(rapid.SampledFrom([]string{"tab", "down", "up", "pgdown", "d", "r", "y", "s", "/", "x", "esc", "enter", "right", "left"}), 0, 12).Draw(rt, "keys")...)
		lines := u.lines()
		if len(lines) > height {
			rt.Fatalf("%d lines of %d", len(lines), height)
		}
		for _, line := range lines {
			if w := lipgloss.Width(line); w > width {
				rt.Fatalf("a line is %d wide, of %d: %q", w, width, line)
			}
			if strings.ContainsAny(line, "\x1b\u202e\n") {
				rt.Fatalf("a name steers the terminal: %q", line)
			}
		}
	})
}

func TestALongTableShowsTheSelectedReplica(t *testing.T) {
	g := &fake{data: some(t)}
	r := g.data.Models[0].Replicas[0]
	for i := 3; i < 64; i++ {
		r.Index = i
		g.data.Models[0].Replicas = append(g.data.Models[0].Replicas, r)
	}
	u := sit(t, g)
	for range 40 {
		u.press("j")
	}
	u.shows("▸ 40", "of 64", "Left their home", "q quit")
}

func TestBeforeTheFirstAnswerNothingIsClaimed(t *testing.T) {
	u := &user{t: t, screen: screen{gateway: &fake{}, width: 80, height: 24}}
	u.shows("never read", "Reading")
	u.hides("No model")
}

func TestAFullCacheAndAGoneReplicaStandOut(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	u.theme = styles(true)
	red := u.theme.bad.Render("97.5%")
	u.shows(red, u.theme.bad.Render("down"), u.theme.warn.Render("draining"), u.theme.good.Render("ready"))
}

func TestWhatTheGatewayHoldsIsShown(t *testing.T) {
	g := &fake{data: some(t)}
	longest := 2.4
	g.data.Models[0].Policy, g.data.Models[0].Queue.Waiting, g.data.Models[0].Queue.Longest = "patience", 3, &longest
	sit(t, g).shows("Affinity on (patience)", "Held here 3, longest 2 s")
}

func TestSince(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 59 * time.Second: "59 s", time.Hour - 1: "59 min", 47 * time.Hour: "47 h", 72 * time.Hour: "3 days",
	} {
		if got := since(noon, noon.Add(-d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
