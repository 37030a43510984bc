package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReplicasAreDrainedAndResumedOnlyWhenConfirmed(t *testing.T) {
	g := &fake{data: some(t)}
	u := sit(t, g)
	u.press("down", "d")
	u.shows("[y/n] drain replica 1 of qwen? 3 live ones move")
	u.press("n")
	u.shows("drain replica 1 of qwen: not done")
	u.press("d", "enter", "d", "q")
	if u.quit || len(g.acts()) > 0 {
		t.Fatalf("without a yes: %v", g.acts())
	}
	u.press("d", "y")
	u.shows("drain replica 1 of qwen: done")
	u.press("right", "up", "r", "y")
	if diff := cmp.Diff([]string{"drain qwen 1", "resume org/llama 0"}, g.acts()); diff != "" {
		t.Error(diff)
	}
	g.refuse = errors.New("replica 0 is gone")
	u.press("r", "y")
	u.shows("resume replica 0 of org/llama: replica 0 is gone")
}

func TestNothingIsDrainedWhereNoReplicaIsShown(t *testing.T) {
	for name, keys := range map[string][]string{
		"conversations": {"tab", "d", "y"}, "no model": {"/", "z", "z", "enter", "d", "y"}, "typing": {"/", "d", "y", "enter"},
	} {
		g := &fake{data: some(t)}
		sit(t, g).press(keys...)
		if len(g.acts()) > 0 {
			t.Errorf("%s: %v", name, g.acts())
		}
	}
}

func TestWhatIsReadIsWhatIsShown(t *testing.T) {
	g := &fake{data: some(t)}
	u := sit(t, g)
	u.press("right", "tab", "s", "/", "c")
	if u.movesOf != "org/llama" {
		t.Errorf("the moves are those of %q", u.movesOf)
	}
	want := []Query{
		{}, {Model: "qwen"}, {Model: "org/llama"},
		{Conversations: true, Sort: "last_seen", Limit: shownConversations},
		{Conversations: true, Sort: "in_flight", Limit: shownConversations},
		{Conversations: true, Sort: "in_flight", Limit: searchedConversations},
	}
	var told []string
	for _, q := range want {
		told = append(told, fmt.Sprintf("read %+v", q))
	}
	if diff := cmp.Diff(told, g.told); diff != "" {
		t.Error(diff)
	}
}

// One question at a time: a slow gateway is not asked again before it answered,
// and is then asked for what the screen is by that time.
func TestASlowGatewayIsAskedOneThingAtATime(t *testing.T) {
	g := &fake{data: some(t)}
	s := screen{gateway: g}
	s, first := s.ask()
	if _, second := s.ask(); second != nil {
		t.Error("it was asked twice")
	}
	s.tab = conversations
	next, again := s.Update(first())
	if again == nil || len(g.told) != 1 {
		t.Fatalf("asked: %v", g.told)
	}
	if next, more := next.Update(again()); more != nil || next.(screen).data.Conversations == nil {
		t.Errorf("asked: %v", g.told)
	}
}

func TestABrokenFeedIsSaidAndMends(t *testing.T) {
	g := &fake{data: some(t)}
	u := sit(t, g)
	u.shows("0 s old")
	g.err = errors.New("connection refused")
	u.see(tick(noon.Add(time.Second)))
	u.see(tick(noon.Add(7 * time.Second)))
	u.shows("NO ANSWER, 7 s old", "connection refused", "qwen")
	g.err = nil
	u.see(tick(noon.Add(8 * time.Second)))
	u.shows("0 s old")
	u.hides("NO ANSWER", "connection refused")
}

func TestARefusalEndsTheProgram(t *testing.T) {
	g := &fake{data: some(t)}
	u := sit(t, g)
	g.err = fmt.Errorf("%w: wrong password", ErrRefused)
	u.see(tick(noon.Add(time.Second)))
	if !u.quit || !errors.Is(u.refused, ErrRefused) {
		t.Errorf("quit %v, %v", u.quit, u.refused)
	}
}

func TestReplicasAreSorted(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	order := func() (all string) {
		for _, line := range u.lines() {
			for _, state := range []string{"ready", "draining", "down"} {
				if strings.Contains(line, state) && strings.Contains(line, "1,038") {
					all += state[:2] + " "
				}
			}
		}
		return all
	}
	for _, want := range []string{"re dr do ", "dr re do ", "dr re do ", "dr re do ", "re dr do "} {
		if got := order(); got != want {
			t.Errorf("by %s: %s, want %s", u.order(overview), got, want)
		}
		u.press("s")
	}
}

func TestFilters(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	u.press("/", "L", "l", "x", "backspace", "enter")
	u.shows("org/llama")
	u.press("tab", "/", "c", "-", "4", "9", "enter")
	u.shows("c-49", `with "c-49" among the first 50`, "the gateway knows more")
	u.hides("c-48")
	u.press("/", "q")
	if u.quit {
		t.Error("a letter of the filter ended the program")
	}
	u.shows(`No conversation has "c-49q" in it`)
	u.press("esc")
	u.shows("c-00")
}

func TestConversationsScrollToTheirEnds(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	u.press("tab", "up")
	u.shows("1 to ", "c-00")
	for range 20 {
		u.press("pgdown")
	}
	u.shows("50 to 50 of 50", "c-49")
	u.press("pgup", "k")
	u.hides("c-00")
}

func TestQuit(t *testing.T) {
	u := sit(t, &fake{data: some(t)})
	if u.press("q"); !u.quit {
		t.Error("it goes on")
	}
}
