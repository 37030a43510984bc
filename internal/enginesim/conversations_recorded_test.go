package enginesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// crowd is one arm of conversations.txt: conversations at once, eight turns
// each, on the recorded box.
type crowd struct {
	conversations  int
	system, growth int // bytes of the system prompt and of each turn
	arm            string
}

// crowdRun is what one run of a crowd gave.
type crowdRun struct {
	tally
	ttft, wall time.Duration // the mean time to a first token, and the time of all
}

func (r crowdRun) cachedShare() float64 { return float64(r.cached) / float64(r.prompt) }

const (
	crowdTurns  = 8
	crowdAnswer = 24 // tokens
	// crowdWay is how long a prompt is on its way through client and API server: the
	// first token of a short one took 14 ms on an idle machine, 6 of them the step.
	crowdWay = 8 * time.Millisecond
	// crowdSpread is the time within which the conversations begin. The recording
	// does not tell it. It is fitted to the times of the rows whose cached share does
	// not depend on times, see TestTimesOfConversationsThatFit.
	crowdSpread = 1300 * time.Millisecond
)

// run lets the crowd talk once, to a box whose steps take slow times as long as the
// preset's. The seed decides when conversations begin, their think times, and the
// ranks of the random arm.
func (c crowd) run(t testing.TB, seed uint64, slow float64) crowdRun {
	t.Helper()
	var r crowdRun
	p := mustPreset(t, "cpu-tiny")
	for _, cost := range []*float64{&p.OverheadMS, &p.WeightsMS, &p.LinearUSPerToken, &p.AttentionNSPerTokenContext, &p.KVReadUSPerContextToken} {
		*cost *= slow
	}
	w := newWorld(t, BoxOptions{Params: p, Ranks: 2})
	begin := w.now
	rng := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for k := range c.conversations {
		history := chat{seed: uint64(k)}
		turn := 0
		var next func()
		next = func() {
			// The marks take 29 tokens in a first prompt, and 21 more in each turn.
			tokens := c.system + c.growth + 29 + turn*(c.growth+crowdAnswer+21)
			turn++
			rank := AnyRank
			switch c.arm {
			case "pinned":
				rank = k % 2
			case "random":
				rank = rng.IntN(2)
			}
			s := Sequence{Prompt: history.grow(t, tokens), Output: history.answer(crowdAnswer)}
			sent := w.now.Add(-crowdWay)
			w.submit(0, rank, s, func(e Emit) {
				if e.First {
					r.add(usage{len(s.Prompt), e.Cached, e.Created})
					r.ttft += w.now.Sub(sent) / time.Duration(c.conversations*crowdTurns)
				}
				if e.Done && turn < crowdTurns {
					w.after(upTo(300*time.Millisecond)+crowdWay, next)
				}
			})
		}
		w.after(upTo(crowdSpread)+crowdWay, next)
	}
	w.run()
	r.wall = w.now.Sub(begin)
	return r
}

// crowdRuns are several runs of a crowd.
type crowdRuns []crowdRun

func (c crowd) runs(t testing.TB, n int, slow float64) crowdRuns {
	t.Helper()
	var rs crowdRuns
	for seed := range uint64(n) {
		rs = append(rs, c.run(t, seed, slow))
	}
	return rs
}

// slowness is how much longer the steps took on the recorded machine, which other
// work shared, than the preset says: by the time that the rows took in all.
func (c crowd) slowness(t testing.TB, rows crowdRuns) float64 {
	t.Helper()
	wall := func(r crowdRun) float64 { return r.wall.Seconds() }
	const few = 4
	recorded, _ := rows.mean(wall)
	one, _ := c.runs(t, few, 1).mean(wall)
	two, _ := c.runs(t, few, 2).mean(wall)
	return 1 + (recorded-one)/(two-one)
}

// mean is the mean of a figure over the runs, and its standard deviation.
func (rs crowdRuns) mean(of func(crowdRun) float64) (mean, deviation float64) {
	for _, r := range rs {
		mean += of(r) / float64(len(rs))
	}
	for _, r := range rs {
		deviation += math.Pow(of(r)-mean, 2) / float64(len(rs)-1)
	}
	return mean, math.Sqrt(deviation)
}

var crowdRow = regexp.MustCompile(`^system +(\d+) turn +(\d+) (\w+) +seed (\d): cached (\d+)/(\d+) .* mean TTFT (\d+) ms; wall ([\d.]+ s)`)

// recordedCrowds returns what the recording says about each crowd, one run a
// row. Rows with seed 3 are of seven conversations.
func recordedCrowds(t testing.TB) map[crowd]crowdRuns {
	t.Helper()
	rows := make(map[crowd]crowdRuns)
	for _, line := range recording(t, "conversations.txt") {
		m := crowdRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		number := func(i int) int {
			n, err := strconv.Atoi(m[i])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		wall, err := time.ParseDuration(strings.ReplaceAll(m[8], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		c := crowd{conversations: 8, system: number(1), growth: number(2), arm: m[3]}
		if number(4) == 3 {
			c.conversations = 7
		}
		rows[c] = append(rows[c], crowdRun{
			tally: tally{cached: number(5), prompt: number(6)},
			ttft:  time.Duration(number(7)) * time.Millisecond,
			wall:  wall,
		})
	}
	if len(rows) != 14 {
		t.Fatalf("the recording has %d kinds of rows, want 14", len(rows))
	}
	return rows
}

// fits says that nothing of the crowd is evicted where its conversations stay.
func (c crowd) fits() bool { return c.arm == "pinned" && c.system <= 800 }

func TestPinnedConversationsThatFitAsRecorded(t *testing.T) {
	for c, rows := range recordedCrowds(t) {
		if !c.fits() {
			continue
		}
		for seed, want := range rows {
			if got := c.run(t, uint64(seed), 1).tally; got != want.tally {
				t.Errorf("%+v: got %+v, recorded %+v", c, got, want.tally)
			}
		}
	}
}

// The times of these rows say when the conversations began: if all begin at once, and
// steps are as fast as the first tokens tell, a run is over 0.8 s too early.
func TestTimesOfConversationsThatFit(t *testing.T) {
	for c, rows := range recordedCrowds(t) {
		if !c.fits() || c.conversations == 7 { // the machine was busy with those
			continue
		}
		runs := c.runs(t, 8, 1)
		for _, figure := range []struct {
			name   string
			of     func(crowdRun) float64
			within float64
		}{
			{"mean TTFT", func(r crowdRun) float64 { return r.ttft.Seconds() }, 0.15},
			{"wall time", func(r crowdRun) float64 { return r.wall.Seconds() }, 0.1},
		} {
			got, _ := runs.mean(figure.of)
			want, _ := rows.mean(figure.of)
			if math.Abs(got/want-1) > figure.within {
				t.Errorf("%+v: %s %.3f s, recorded %.3f s", c, figure.name, got, want)
			}
		}
	}
}

// The other rows depend on times and chance: two recorded runs of one row differ by
// up to 0.14. Where they agree within 3 points, the mean of the modelled runs must be
// within 3 points of theirs, else between the two. Both means are of a few draws, so
// what is beyond that counts when it is more than their standard error,
//
//	s * sqrt(1/modelled + 1/recorded).
//
// s is the standard deviation of the modelled runs, 0.01 to 0.06, since two recorded
// ones say little about theirs. With 16 modelled runs, 8/9 of the square of this error
// are the recording's: more of them would tell no more.
func TestConversationsAtOnceAsRecorded(t *testing.T) {
	const modelled, agree = 16, 0.03
	share := crowdRun.cachedShare
	for c, rows := range recordedCrowds(t) {
		if c.conversations == 7 || c.fits() {
			continue // a single run, or exact
		}
		t.Run(fmt.Sprint(c.system, " ", c.arm), func(t *testing.T) {
			t.Parallel()
			low, high := share(rows[0]), share(rows[1])
			low, high = min(low, high), max(low, high)
			if high-low <= agree {
				middle := (low + high) / 2
				low, high = middle-agree, middle+agree
			}
			slow := c.slowness(t, rows)
			runs := c.runs(t, modelled, slow)
			if runs[0].prompt != rows[0].prompt {
				t.Fatalf("%d prompt tokens, recorded %d", runs[0].prompt, rows[0].prompt)
			}
			mean, s := runs.mean(share)
			beyond := max(low-mean, mean-high, 0)
			chance := s * math.Sqrt(1./modelled+1./float64(len(rows)))
			t.Logf("%.1f times as slow: cached share %.3f (s %.3f), recorded %.3f and %.3f: beyond by %.3f, chance %.3f",
				slow, mean, s, share(rows[0]), share(rows[1]), beyond, chance)
			if beyond > chance {
				t.Errorf("mean cached share %.3f, want %.3f to %.3f, give or take %.3f", mean, low, high, chance)
			}
		})
	}
}

// Staying wins as long as the caches hold most of the conversations.
func TestPinningWinsAsRecorded(t *testing.T) {
	for _, c := range []crowd{{8, 200, 150, "pinned"}, {8, 800, 250, "pinned"}, {8, 1500, 300, "pinned"}} {
		pinned, _ := c.runs(t, 4, 1).mean(crowdRun.cachedShare)
		c.arm = "none"
		if none, _ := c.runs(t, 4, 1).mean(crowdRun.cachedShare); pinned < none+0.1 {
			t.Errorf("%+v: cached share %.3f over the balancer, %.3f pinned", c, none, pinned)
		}
	}
}
