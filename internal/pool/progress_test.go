package pool

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// rig is a pool of one server of two ranks that scrapes once a second, whose
// page the test changes.
type rig struct {
	t *testing.T
	p *Pool
	engine.Report
}

func inRig(t *testing.T, i engine.Info, f func(b *rig)) {
	synctest.Test(t, func(t *testing.T) {
		b := &rig{t: t, p: newPool(t, Server{URL: "http://a", Ranks: 2})}
		b.Report = good(i)
		b.pass(0)
		f(b)
	})
}

// pass lets seconds pass, with a scrape and a tick in each.
func (b *rig) pass(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		b.scrape()
		b.p.tick()
	}
	b.scrape()
}

func (b *rig) scrape() {
	r := b.Report
	r.Time = time.Now()
	r.Samples = append([]engine.Sample(nil), r.Samples...)
	b.p.Observe(0, r)
}

func (b *rig) want(states string) {
	b.t.Helper()
	wantStates(b.t, b.p, states)
}

// begun is a stream on a replica whose answer began.
func (b *rig) begun(replica int) *Lease {
	l := b.sent(replica)
	l.FirstByte()
	return l
}

// sent is a request on a replica that has no answer yet.
func (b *rig) sent(replica int) *Lease {
	b.t.Helper()
	return acquire(b.t, b.p, pinned(replica, replica))
}

func TestAReplicaWhoseStreamsStandStillIsStuck(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		l, other := b.begun(1), b.begun(0)
		for range 14 {
			b.pass(1)
			other.Progress()
			b.Samples[0].GenerationTokens++ // the other rank works
			b.want("ready ready")
		}
		b.pass(1)
		b.want("ready stuck")
		for n := range 4 {
			if l := acquire(b.t, b.p, turn(10+n)); l.Decision().Replica != 0 {
				t.Error("a new conversation was placed on a stuck replica")
			}
		}
		if trouble := b.p.View().Servers[0].Error; trouble == "" {
			t.Error("the page does not say so")
		}
		// Its own conversation goes there: the cache is there, and it recovers.
		if d := acquire(b.t, b.p, turn(1)).Decision(); d.Reason != routing.Stayed || d.Replica != 1 {
			t.Errorf("a turn of the stuck replica's conversation: %+v", d)
		}
		l.Progress()
		b.pass(1)
		b.want("ready ready")
	})
}

// vLLM 0.32: a rank was stopped for 20 s, and the API process of both stood still
// for 8.7 s of it.
func TestARankIsNotStuckForTheStallOfItsServer(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		l := b.begun(0)
		b.begun(1)
		page := b.Samples
		b.Samples, b.Health, b.Err = nil, engine.Silent, errPage
		b.pass(9)
		b.Samples, b.Health, b.Err = page, engine.Up, nil
		l.Progress()
		b.pass(6)
		b.want("ready stuck")
	})
}

func TestWhatShowsThatARankWorks(t *testing.T) {
	for name, change := range map[string]func(s *engine.Sample){
		"tokens are generated":        func(s *engine.Sample) { s.GenerationTokens++ },
		"prompts are read":            func(s *engine.Sample) { s.PromptTokens++ },
		"requests are preempted":      func(s *engine.Sample) { s.Preemptions++ },
		"a piece of a prompt is read": func(s *engine.Sample) { s.KVUsed += 0.01 },
		"others' requests come":       func(s *engine.Sample) { s.Waiting++ },
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, info(2, "m"), func(b *rig) {
				b.begun(0)
				b.sent(1)
				for range 8 {
					b.pass(10)
					change(&b.Samples[0])
					change(&b.Samples[1])
				}
				b.want("ready ready")
				b.pass(60)
				b.want("stuck stuck")
				change(&b.Samples[1])
				b.scrape()
				b.want("stuck ready")
			})
		})
	}
}

// A long step shows neither in a byte nor on the page.
func TestHowLongAPromptMayBeRead(t *testing.T) {
	tests := []struct {
		name        string
		first       int // seconds until the first answer began, 0 for none
		ready, then int // seconds of silence before the next
	}{
		{"nothing is known", 0, 29, 30},
		{"a quick engine", 1, 14, 15},
		{"a slow one", 12, 23, 24},
		{"a very slow one", 29, 57, 58},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inRig(t, info(2, "m"), func(b *rig) {
				if tt.first > 0 {
					l := b.sent(0)
					b.pass(tt.first)
					l.FirstByte()
					l.End(routing.Outcome{OK: true})
				}
				b.sent(0)
				b.pass(tt.ready)
				b.want("ready ready")
				b.pass(tt.then - tt.ready)
				b.want("stuck ready")
			})
		})
	}
}

// A hang teaches no patience, and a restarted engine begins anew.
func TestWhatIsNotLearnedOfAnEngine(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		l := b.sent(0)
		b.pass(12)
		l.FirstByte()
		l.End(routing.Outcome{OK: true})
		hung := b.sent(0)
		b.pass(40)
		b.want("stuck ready")
		hung.FirstByte()
		hung.End(routing.Outcome{OK: true})
		b.sent(0)
		b.pass(24)
		b.want("stuck ready")

		b.Epoch++
		b.Samples[0].GenerationTokens++
		b.pass(0)
		b.want("ready ready")
		b.pass(29)
		b.want("ready ready")
		b.pass(1)
		b.want("stuck ready")
	})
}

func TestAnEngineWithoutAPageIsStuckOnlyInMidAnswer(t *testing.T) {
	plain := engine.Info{Kind: "unknown", Ranks: 1, Models: []engine.Model{{ID: "m", Root: "m"}}}
	inRig(t, plain, func(b *rig) {
		waiting := b.sent(0)
		b.pass(300) // reading a prompt, or answering in one piece
		b.want("ready ready")
		waiting.FirstByte()
		b.pass(61)
		b.want("stuck ready")
	})
	inRig(t, plain, func(b *rig) {
		b.sent(0)
		b.Health, b.Err = engine.Silent, errPage
		b.pass(30) // it accepts everything and answers nothing, its probe included
		b.want("stuck ready")
	})
}

// One client that does not read must not take a replica from all others.
func TestAClientThatDoesNotReadMakesNoReplicaStuck(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		b.begun(0)
		b.pass(10)
		b.Samples[0].Running, b.Samples[0].Waiting = 0, 0 // its answer is done
		b.pass(300)
		b.want("ready ready")
		b.sent(0) // this one never reaches the engine
		b.pass(15)
		b.want("stuck ready")
	})
}

// Long answers that do not stream bring no byte. Only a page that would show them
// can tell that nothing happens.
func TestAPageThatTellsNothingIsNoWitness(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		b.sent(0)
		b.Samples, b.Err = nil, errPage
		b.pass(300)
		b.want("ready ready")
	})
	inRig(t, info(2, "m"), func(b *rig) {
		b.sent(0)
		for i := range b.Samples {
			b.Samples[i] = engine.Sample{Running: 1, KVUsed: math.NaN(), PromptTokens: -1, CachedTokens: -1,
				PrefixQueries: -1, PrefixHits: -1, GenerationTokens: -1, Preemptions: -1}
		}
		b.pass(300)
		b.want("ready ready")
	})
}

// Whoever hung in a stuck replica gives up in the end. It gets another chance,
// since nothing more would show that it works again.
func TestAStuckReplicaThatEmptiesIsTriedAgain(t *testing.T) {
	inRig(t, info(2, "m"), func(b *rig) {
		l := b.begun(0)
		b.pass(15)
		b.want("stuck ready")
		l.End(routing.Outcome{})
		b.pass(59)
		b.want("stuck ready")
		b.pass(1)
		b.want("ready ready")
		b.pass(100) // nothing to do is no silence
		b.want("ready ready")
	})
}

func TestTheLimitOfASilenceCanBeSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{Name: "m", Servers: []Server{{URL: "a", Ranks: 1}}, Stuck: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p.Observe(0, good(info(1, "m")))
		acquire(t, p, turn(1)).FirstByte()
		time.Sleep(59 * time.Second)
		p.tick()
		wantStates(t, p, "ready")
		time.Sleep(time.Second)
		p.tick()
		wantStates(t, p, "stuck")
	})
}
