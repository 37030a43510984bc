package enginesim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tally sums usage up.
type tally struct{ prompt, cached int }

func (s *tally) add(u usage) { s.prompt += u.Prompt; s.cached += u.Cached }

// share is the cached share as the recordings print it.
func (s tally) share() string { return fmt.Sprintf("%.3f", float64(s.cached)/float64(s.prompt)) }

var shareOf = regexp.MustCompile(`cached share (?:\d+/\d+ = )?(\d\.\d+)`)

func recordedShare(t testing.TB, line string) string {
	t.Helper()
	m := shareOf.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("no cached share in %q", line)
	}
	return m[1]
}

// startAt lets the balancer choose until its next choice is the rank at which a
// recording began; the requests before it leave nothing in the cache.
func (w *world) startAt(rank int) {
	w.t.Helper()
	one := Sequence{Prompt: []Token{'x'}, Output: []Token{'y'}}
	for _, at := w.ask(AnyRank, one); at == rank; _, at = w.ask(AnyRank, one) {
	}
}

func TestGrowingConversationOverTheBalancerAsRecorded(t *testing.T) {
	lines := recording(t, "balancer.txt")
	for _, tc := range []struct {
		title string
		rank  int
	}{
		{"turn engine prompt_tokens cached_tokens", AnyRank},
		{"the same kind of conversation, header pinned", 0},
	} {
		w := recordedBox(t)
		var c chat
		var sum tally
		turns := 0
		for _, line := range section(t, lines, tc.title) {
			row := numbers(line) // turn, engine, prompt, cached
			if strings.HasPrefix(line, "cached share") {
				if got, want := sum.share(), recordedShare(t, line); got != want {
					t.Errorf("%s: cached share %s, recorded %s", tc.title, got, want)
				}
				break
			}
			if turns++; turns == 1 {
				w.startAt(row[1])
			}
			got, rank := w.ask(tc.rank, Sequence{Prompt: c.grow(t, row[2]), Output: c.answer(8)})
			sum.add(got)
			if rank != row[1] || got.Prompt != row[2] || got.Cached != row[3] {
				t.Errorf("%s: got rank %d %+v, recorded %v", tc.title, rank, got, row)
			}
			w.now = w.now.Add(5 * time.Millisecond)
		}
		if turns != 12 {
			t.Errorf("%s: %d turns in the recording, want 12", tc.title, turns)
		}
	}
}

// The recording gives no lengths for its interleaved conversations. These grow as
// the one above does, from a beginning that gives the recorded share of those that
// stay; the share of those that hop and every rank follow.
func TestInterleavedConversationsOverTheBalancerAsRecorded(t *testing.T) {
	const first, growth = 441, 158
	rows := 0
	for _, line := range recording(t, "balancer.txt") {
		if !strings.Contains(line, "conversations strictly interleaved") {
			continue
		}
		rows++
		var want []string
		for _, m := range regexp.MustCompile(`'([01]+)'`).FindAllStringSubmatch(line, -1) {
			want = append(want, m[1])
		}
		w := recordedBox(t)
		start, _ := strconv.Atoi(want[0][:1])
		w.startAt(start)
		got := make([]string, len(want))
		chats := make([]chat, len(want))
		var sum tally
		for turn := range len(want[0]) {
			for k := range chats {
				if turn == 0 {
					chats[k].seed = uint64(k)
				}
				u, rank := w.ask(AnyRank, Sequence{Prompt: chats[k].grow(t, first+turn*growth), Output: chats[k].answer(8)})
				got[k] += strconv.Itoa(rank)
				sum.add(u)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: recorded -, got +:\n%s", line, diff)
		}
		if got, want := sum.share(), recordedShare(t, line); got != want {
			t.Errorf("%s: cached share %s", line, got)
		}
	}
	if rows != 4 {
		t.Errorf("%d rows in the recording, want 4", rows)
	}
}

func TestConcurrentRequestsSpreadAsRecorded(t *testing.T) {
	lines := recording(t, "balancer.txt")
	want := numbers(section(t, lines, "12 concurrent requests")[0])[2:] // run, 0, N, 0, 1, N, 0
	w := recordedBox(t)
	var got [2]int
	for k := range 12 {
		c := chat{seed: uint64(k)}
		got[w.submit(0, AnyRank, Sequence{Prompt: c.grow(t, 300), Output: c.answer(64)}, func(Emit) {})]++
	}
	w.run()
	if got[0] != want[0] || got[1] != want[3] {
		t.Errorf("ranks got %v, recorded %v", got, want)
	}
}

func TestBalancerCountsHeaderChosenRequestsAsRecorded(t *testing.T) {
	low, high := 12, 0 // of the twelve, on rank 1
	for _, line := range recording(t, "balancer.txt") {
		if strings.HasPrefix(line, "12 short ones went to") {
			on1 := numbers(line)[5] // 12, 0, N, 0, 1, N, 0
			low, high = min(low, on1), max(high, on1)
		}
	}
	w := recordedBox(t)
	for k := range 6 {
		c := chat{seed: uint64(k)}
		w.submit(0, 0, Sequence{Prompt: c.grow(t, 300), Output: c.answer(2000)}, func(Emit) {})
	}
	w.run(w.now.Add(500 * time.Millisecond))
	on1 := 0
	for k := range 12 {
		c := chat{seed: uint64(100 + k)}
		on1 += w.submit(0, AnyRank, Sequence{Prompt: c.grow(t, 300), Output: c.answer(8)}, func(Emit) {})
	}
	w.run()
	if on1 < low || on1 > high {
		t.Errorf("%d of 12 went to rank 1, recorded %d to %d", on1, low, high)
	}
}

// On one connection all turns come to one of the two API servers.
func TestTwoAPIServersOverOneConnectionAsRecorded(t *testing.T) {
	rows := 0
	for _, line := range recording(t, "balancer.txt") {
		m := regexp.MustCompile(`one keep-alive connection: engines ([01]+)`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows++
		w := newWorld(t, BoxOptions{Params: mustPreset(t, "cpu-tiny"), Ranks: 2, APIServers: 2})
		var c chat
		var sum tally
		got := ""
		for turn := range len(m[1]) {
			s := Sequence{Prompt: c.grow(t, 505+turn*158), Output: c.answer(8)}
			var u usage
			rank := w.submit(1, AnyRank, s, func(e Emit) {
				if e.First {
					u = usage{len(s.Prompt), e.Cached, e.Created}
				}
			})
			w.run()
			sum.add(u)
			got += strconv.Itoa(rank)
		}
		if got != m[1] || sum.share() != recordedShare(t, line) {
			t.Errorf("%s: got %s, share %s", line, got, sum.share())
		}
	}
	if rows != 2 {
		t.Errorf("%d rows in the recording, want 2", rows)
	}
}

// Each choice was made with these counts in view and in flight.
func TestBalancerChoosesAsRecorded(t *testing.T) {
	choices := 0
	for _, line := range recording(t, "choices.txt") {
		var view [2]Load
		var inFlight [2]int
		var start, want int
		if n, _ := fmt.Sscanf(line, "%d %d %f %d %d %d %f %d %d -> %d",
			&view[0].Waiting, &view[0].Running, &view[0].KVUsed, &inFlight[0],
			&view[1].Waiting, &view[1].Running, &view[1].KVUsed, &inFlight[1], &start, &want); n != 10 {
			continue
		}
		choices++
		b, err := NewBalancer(BalancerOptions{Params: mustPreset(t, "cpu-tiny"), Ranks: 2, Clients: 1})
		if err != nil {
			t.Fatal(err)
		}
		b.view, b.inFlight, b.start = view[:], inFlight[:], start
		if got := b.Choose(time.Time{}); got != want {
			t.Errorf("%s: got %d", line, got)
		}
	}
	if choices != 128 {
		t.Errorf("%d choices in the recording, want 128", choices)
	}
}
