package report

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lmwarden/internal/bench/results"
)

// conversation is the requests of a session: replica, prompt tokens and cached
// tokens of each turn.
func conversation(arm, session string, turns ...[3]int) []results.Request {
	var all []results.Request
	for i, turn := range turns {
		n, ttfb := i+1, 0.25
		all = append(all, results.Request{
			Arm: arm, Session: &session, Turn: &n, TTFB: &ttfb, End: results.Finished,
			Replica: &turn[0], PromptTokens: &turn[1], CachedTokens: &turn[2],
		})
	}
	return all
}

func TestMechanismShowsAConversation(t *testing.T) {
	r := &results.Results{
		Box:  results.Settings{"replicas": 3.0},
		Arms: []results.Arm{{Name: "off"}, {Name: "unknown"}, {Name: "affinity"}},
	}
	cutShort := conversation("off", "a", [3]int{0, 100, 0}, [3]int{0, 100, 0})
	off := [][3]int{{2, 1000, 0}, {0, 1200, 0}, {2, 1400, 1000}, {1, 1600, 1600}}
	on := [][3]int{{1, 800, 400}, {1, 1000, 800}, {1, 1200, 1000}, {1, 1400, 1200}, {1, 9000, 0}}
	r.Requests = append(cutShort, conversation("off", "b", off...)...)
	unknown := conversation("unknown", "c", off...)
	unknown[1].Replica = nil
	r.Requests = append(append(r.Requests, unknown...), conversation("affinity", "d", on...)...)

	f, ok := Mechanism(r)
	if !ok {
		t.Fatal("no drawing")
	}
	if want := "Policy off: 2,600 of 5,200 prompt tokens computed; replicas 2, 0, 2, 1."; !strings.Contains(f.Text, want) {
		t.Errorf("text %q has no %q", f.Text, want)
	}
	type box struct{ x, y, wide float64 }
	boxes := map[colour][]box{}
	corner := regexp.MustCompile(`^M([\d.]+),([\d.]+)L([\d.]+),`)
	for _, e := range parse(t, f.SVG(), true) {
		for _, c := range []colour{cachedTokens, computedTokens} {
			if e.name != "path" || !strings.Contains(e.attrs["style"], "fill:"+string(c)) {
				continue
			}
			var v [3]float64
			for i, text := range corner.FindStringSubmatch(e.attrs["d"])[1:] {
				var err error
				if v[i], err = strconv.ParseFloat(text, 64); err != nil {
					t.Fatal(err)
				}
			}
			if wide := v[2] - v[0]; math.Abs(wide-10) > 0.1 || v[1] > 20 { // the legend's are ten wide, at the bottom
				boxes[c] = append(boxes[c], box{v[0], v[1], wide})
			}
		}
	}
	// Per turn with such tokens one box, as wide as these are many, on the lane of its
	// replica: the higher the number, the lower.
	lane := map[int]float64{}
	unit := 0.0
	next := map[colour]int{}
	for _, turn := range append(off, on[:turnsShown]...) {
		for c, tokens := range map[colour]int{cachedTokens: turn[2], computedTokens: turn[1] - turn[2]} {
			if tokens == 0 {
				continue
			}
			if next[c] == len(boxes[c]) {
				t.Fatalf("%d boxes of %s are too few", next[c], c)
			}
			b := boxes[c][next[c]]
			next[c]++
			if unit == 0 {
				unit = b.wide / float64(tokens)
			}
			if math.Abs(b.wide-unit*float64(tokens)) > 0.02 {
				t.Errorf("%d tokens are %.2f wide, want %.2f", tokens, b.wide, unit*float64(tokens))
			}
			if y, seen := lane[turn[0]]; seen && y != b.y {
				t.Errorf("replica %d is at %v and %v", turn[0], y, b.y)
			}
			lane[turn[0]] = b.y
		}
	}
	if next[cachedTokens] != len(boxes[cachedTokens]) || next[computedTokens] != len(boxes[computedTokens]) {
		t.Errorf("boxes drawn: %d and %d, want %d and %d", len(boxes[cachedTokens]), len(boxes[computedTokens]), next[cachedTokens], next[computedTokens])
	}
	if !(lane[0] > lane[1] && lane[1] > lane[2]) {
		t.Errorf("lanes %v", lane)
	}

	r.Requests = cutShort
	if _, ok := Mechanism(r); ok {
		t.Error("a conversation that was cut short was drawn")
	}
}
