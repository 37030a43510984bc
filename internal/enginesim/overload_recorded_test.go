package enginesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// overload is an arm of overload.txt: conversations without end, so many open at a
// time.
type overload struct {
	open   int
	sticky bool
}

// overloadRun is what an overload gave.
type overloadRun struct {
	turnsPerMin, cached, session float64 // turns, share of the prompt tokens, seconds
}

func (o overload) run(t testing.TB, seed uint64) overloadRun {
	t.Helper()
	const took, system, growth = 25 * time.Second, 2000, 350
	w := recordedBox(t)
	end := w.now.Add(took)
	rng := rand.New(rand.NewPCG(seed, 0))
	think := func() time.Duration { return time.Duration(rng.Int64N(int64(300 * time.Millisecond))) }
	var sum tally
	var inFlight [2]int
	turns, conversations, ended, talked := 0, 0, 0, time.Duration(0)
	var talk func()
	talk = func() {
		conversations++
		history := chat{seed: uint64(conversations)}
		begin, turn, home := w.now, 0, AnyRank
		if o.sticky {
			home = 0
			if inFlight[1] < inFlight[0] {
				home = 1
			}
		}
		var next func()
		next = func() {
			tokens := system + growth + 29 + turn*(growth+crowdAnswer+21)
			turn++
			s := Sequence{Prompt: history.grow(t, tokens), Output: history.answer(crowdAnswer)}
			var rank int
			rank = w.submit(0, home, s, func(e Emit) {
				if e.First {
					sum.add(usage{len(s.Prompt), e.Cached, e.Created})
				}
				if !e.Done {
					return
				}
				inFlight[rank]--
				if w.now.After(end) {
					return
				}
				turns++
				after := next
				if turn == crowdTurns {
					ended++
					talked += w.now.Sub(begin)
					after = talk
				}
				w.after(think()+crowdWay, after)
			})
			inFlight[rank]++
		}
		next()
	}
	for range o.open {
		w.after(think()+crowdWay, talk)
	}
	w.run()
	return overloadRun{
		turnsPerMin: float64(turns) / took.Minutes(),
		cached:      float64(sum.cached) / float64(sum.prompt),
		session:     talked.Seconds() / float64(ended),
	}
}

// How many turns a box gets done, when its caches hold all conversations and when they
// hold a third, follows from the time of its steps and from what it finds cached.
func TestOverloadAsRecorded(t *testing.T) {
	const seeds = 2
	rows := 0
	for _, line := range recording(t, "overload.txt") {
		var open int
		var arm string
		var a, b overloadRun
		if n, _ := fmt.Sscan(line, &open, &arm, &a.turnsPerMin, &b.turnsPerMin, &a.cached, &b.cached, &a.session, &b.session); n != 8 {
			continue
		}
		rows++
		t.Run(fmt.Sprint(open, " ", arm), func(t *testing.T) {
			t.Parallel()
			o := overload{open, arm == "sticky"}
			var mean overloadRun
			for seed := range uint64(seeds) {
				r := o.run(t, seed)
				mean.turnsPerMin += r.turnsPerMin / seeds
				mean.cached += r.cached / seeds
				mean.session += r.session / seeds
			}
			want := overloadRun{(a.turnsPerMin + b.turnsPerMin) / 2, (a.cached + b.cached) / 2, (a.session + b.session) / 2}
			t.Logf("got %.3g, recorded %.3g", mean, want)
			if math.Abs(mean.turnsPerMin/want.turnsPerMin-1) > 0.13 || math.Abs(mean.session/want.session-1) > 0.15 || math.Abs(mean.cached-want.cached) > 0.05 {
				t.Errorf("got %.3g, recorded %.3g and %.3g", mean, a, b)
			}
		})
	}
	if rows != 7 {
		t.Errorf("%d rows in the recording, want 7", rows)
	}
}
