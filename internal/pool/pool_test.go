package pool

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

func TestNewRefusesWhatCannotWork(t *testing.T) {
	one := []Server{{URL: "a"}}
	tests := []struct {
		o    Options
		want string
	}{
		{Options{Servers: one}, "without a name"},
		{Options{Name: "m"}, `model "m" has no engine`},
		{Options{Name: "m", Servers: one, Policy: "best"}, `unknown policy "best": the policies are off`},
		{Options{Name: "m", Servers: one, SpillThreshold: -1}, "-1"},
		{Options{Name: "m", Servers: []Server{{URL: "ftp://a"}}}, "not http"},
		{Options{Name: "m", Servers: []Server{{URL: "a", Ranks: -1}}}, "-1 ranks"},
		{Options{Name: "m", Servers: []Server{{URL: "a"}, {URL: "http://a/v1/"}}}, "listed twice"},
		{Options{Name: "m", Servers: []Server{{URL: "a", Ranks: 1}}, IdleFor: -1}, "negative"},
		{Options{Name: "m", Servers: one, IdleFor: -1}, "negative"},
	}
	for _, test := range tests {
		if _, err := New(test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want ...%s...", test.o, err, test.want)
		}
	}
}

func TestReplicasAreNumberedWhenTheRanksAreKnown(t *testing.T) {
	two, four := info(2, "m"), info(4, "m")
	down := bad(engine.Info{}, engine.Down)
	now := func(r engine.Report) engine.Report { r.Time = time.Now(); return r }
	tests := []struct {
		name    string
		servers []Server
		heard   func(p *Pool)
		want    string
	}{
		{"all stated", []Server{{URL: "a", Ranks: 2}, {URL: "b", Ranks: 1}}, func(p *Pool) {}, "unknown unknown unknown"},
		{"nobody heard", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) {}, ""},
		{"one heard, the other still asked", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) { p.Observe(0, good(two)) }, ""},
		{"all down", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) { p.Observe(0, now(down)); p.Observe(1, now(down)) }, ""},
		{"both heard", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) { p.Observe(1, good(info(1, "m"))); p.Observe(0, good(two)) },
			"ready ready ready"},
		{"the other is down", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) { p.Observe(0, now(down)); p.Observe(1, good(two)) },
			"down down ready ready"},
		{"the other is down and stated", []Server{{URL: "a", Ranks: 1}, {URL: "b"}}, func(p *Pool) { p.Observe(1, good(two)) },
			"unknown ready ready"},
		{"the other hangs", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) {
			p.Observe(0, good(two))
			time.Sleep(buildGrace)
			p.Observe(0, good(two))
		}, "ready ready unknown unknown"},
		{"the other has fewer than was guessed", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) {
			p.Observe(1, now(down))
			p.Observe(0, good(two))
			p.Observe(1, good(info(1, "m")))
		}, "ready ready ready"},
		{"it has more", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) {
			p.Observe(1, now(down))
			p.Observe(0, good(two))
			p.Observe(1, good(four))
		}, "ready ready ready ready ready ready"},
		{"it lost some", []Server{{URL: "a"}, {URL: "b"}}, func(p *Pool) {
			p.Observe(0, good(two))
			p.Observe(1, good(two))
			p.Observe(0, good(info(1, "m")))
		}, "ready down ready ready"},
		{"the page of a server with stated ranks is broken", []Server{{URL: "a", Ranks: 2}}, func(p *Pool) {
			p.Observe(0, good(engine.Info{Kind: "unknown", Ranks: 1, Models: two.Models}))
		}, "ready ready"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t, test.servers...)
				test.heard(p)
				wantStates(t, p, test.want)
			})
		})
	}
}

func TestOperatorsControls(t *testing.T) {
	for _, built := range []bool{true, false} {
		p := newPool(t, Server{URL: "a"})
		hear := func() { p.Observe(0, good(info(2, "m"))) }
		if built {
			hear()
		}
		if v := p.View().Routing; v.Policy != "patience" || !v.SpillAuto || v.SpillThreshold != 8 || v.WorkingSet.Tokens != -1 {
			t.Errorf("built %v: at first %+v", built, v)
		}
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return p.SetPolicy("round-robin") }, "round-robin"},
			{func() error { return p.SetAffinity(false) }, "off"},
			{func() error { return p.SetAffinity(false) }, "off"},
			{func() error { return p.SetAffinity(true) }, "round-robin"},
		} {
			if err := step.do(); err != nil || p.View().Routing.Policy != step.want {
				t.Errorf("built %v: policy %q, want %q (%v)", built, p.View().Routing.Policy, step.want, err)
			}
		}
		if err := p.SetPolicy("best"); err == nil || !strings.Contains(err.Error(), `unknown policy "best": the policies are off`) {
			t.Errorf("built %v: %v", built, err)
		}
		if err := p.SetSpillThreshold(-1); err == nil {
			t.Errorf("built %v: a negative threshold is taken", built)
		}
		if err := p.SetSpillThreshold(3); err != nil {
			t.Error(err)
		}
		if !built {
			hear()
		}
		if v := p.View().Routing; v.Policy != "round-robin" || v.SpillThreshold != 3 || v.SpillAuto {
			t.Errorf("built %v: %+v", built, v)
		}
	}
}

func TestAffinityComesBackAfterAStartWithout(t *testing.T) {
	p, err := New(Options{Name: "m", Policy: "off", Servers: []Server{{URL: "a", Ranks: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetAffinity(true); err != nil || p.View().Routing.Policy != "patience" {
		t.Errorf("%q %v", p.View().Routing.Policy, err)
	}
}

func TestDrain(t *testing.T) {
	p := twoByTwo(t)
	l := acquire(t, p, turn(1))
	l.End(routing.Outcome{OK: true})
	home := l.Decision().Replica
	if err := p.Drain(home); err != nil {
		t.Fatal(err)
	}
	l = acquire(t, p, turn(1))
	defer l.End(routing.Outcome{})
	if d := l.Decision(); d.Replica == home || d.Why != routing.HomeDraining {
		t.Errorf("%+v", d)
	}
	for replica, want := range map[int]string{-1: "has replicas 0 to 3", 4: "has replicas 0 to 3"} {
		if err := p.Drain(replica); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("drain %d: %v", replica, err)
		}
		if err := p.Resume(replica); err == nil {
			t.Errorf("resume %d: no error", replica)
		}
	}
	if err := newPool(t, Server{URL: "a", Ranks: 1}).Drain(1); err == nil || !strings.Contains(err.Error(), "only replica 0") {
		t.Error(err)
	}
	if err := newPool(t, Server{URL: "a"}).Drain(0); err == nil || !strings.Contains(err.Error(), "no engine") {
		t.Error(err)
	}
}

func TestMoveAndRelease(t *testing.T) {
	p := twoByTwo(t)
	if p.Release(key(1)) || p.Move(key(1), 0) == nil {
		t.Error("an unknown conversation was released or moved")
	}
	acquire(t, p, turn(1)).End(routing.Outcome{OK: true})
	if err := p.Move(key(1), 3); err != nil {
		t.Fatal(err)
	}
	if h, _ := p.Home(key(1)); h.Replica != 3 {
		t.Errorf("home %+v", h)
	}
	if err := p.Move(key(1), 4); err == nil || !strings.Contains(err.Error(), "0 to 3") {
		t.Error(err)
	}
	if !p.Release(key(1)) {
		t.Error("not released")
	}
	if h, _ := p.Home(key(1)); h.Replica != routing.None {
		t.Errorf("still at home: %+v", h)
	}
	unbuilt := newPool(t, Server{URL: "a"})
	if _, known := unbuilt.Home(key(1)); known || unbuilt.Release(key(1)) || unbuilt.Move(key(1), 0) == nil {
		t.Error("a pool without replicas knows a conversation")
	}
}

func TestSnapshotAndRestore(t *testing.T) {
	old := twoByTwo(t)
	for n := range 6 {
		acquire(t, old, turn(n)).End(routing.Outcome{OK: true, Known: true, Prompt: 10})
	}
	var homes []SavedHome
	for n := range 6 {
		h, known := old.Saved(key(n))
		if !known {
			t.Fatalf("conversation %d is not to be saved", n)
		}
		h.Epoch = 5 // of a life of the gateway that saw five of the engine
		homes = append(homes, h)
	}
	if _, known := old.Saved(key(7)); known {
		t.Error("a conversation that never was is to be saved")
	}

	// Before the engines are there, when they are, and twice.
	heard := func(p *Pool) {
		p.Observe(0, good(info(2, "m")))
		p.Observe(1, good(info(2, "m")))
	}
	for name, restore := range map[string]func(p *Pool){
		"before": func(p *Pool) {
			p.Restore(homes)
			for n, h := range homes {
				if again, known := p.Saved(key(n)); !known || again.At != h.At {
					t.Errorf("conversation %d is not saved again: %+v", n, again)
				}
			}
			heard(p)
		},
		"after": func(p *Pool) { heard(p); p.Restore(homes); p.Restore(homes) },
	} {
		// The engines are in another order now.
		p := newPool(t, Server{URL: "http://b"}, Server{URL: "http://a"})
		restore(p)
		for n := range 6 {
			was, _ := old.Home(key(n))
			l := acquire(t, p, turn(n))
			if d := l.Decision(); d.Reason != routing.Stayed || d.Replica != (was.Replica+2)%4 || d.Cold {
				t.Errorf("%s: conversation %d was on %d: %+v", name, n, was.Replica, d)
			}
			l.End(routing.Outcome{})
		}
	}
}

// A home on a replica that is not there waits for it, unless the conversation
// comes back first.
func TestAHomeWaitsForItsReplica(t *testing.T) {
	p := newPool(t, Server{URL: "a"})
	waits := func(n int) SavedHome {
		return SavedHome{At: Place{"http://a", 3}, SpilledTo: Place{"http://a", 2}, Home: routing.Home{Key: key(n), Turns: 5, LastSeen: time.Now()}}
	}
	p.Restore([]SavedHome{waits(1), waits(2)})
	p.Observe(0, good(info(2, "m")))
	if h, known := p.Home(key(1)); !known || h.Replica != routing.None || h.Turns != 5 {
		t.Errorf("home %+v, known %v", h, known)
	}
	l := acquire(t, p, turn(2))
	home := l.Decision().Replica
	l.End(routing.Outcome{OK: true})
	p.Observe(0, good(info(4, "m")))
	if h, _ := p.Home(key(1)); h.Replica != 3 || h.LastSpill != 2 {
		t.Errorf("home %+v, want it on replica 3", h)
	}
	if h, _ := p.Home(key(2)); h.Replica != home {
		t.Errorf("home %+v, want it where it was placed since", h)
	}
}

func TestAShadowAndAHostTier(t *testing.T) { synctest.Test(t, shadowAndHostTier) }

func shadowAndHostTier(t *testing.T) {
	o := Options{Name: "m", Servers: []Server{{URL: "http://a"}}, Shadow: "round-robin"}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	tiered := info(2, "m")
	tiered.HostTier = true
	p.Observe(0, good(tiered))
	time.Sleep(2 * time.Second) // the bubble's time; the core looks every second
	p.tick()
	for n := range 3 {
		acquire(t, p, turn(n)).End(routing.Outcome{OK: true})
	}
	v := p.View()
	if !v.Replicas[0].Load.HostTier || v.Routing.Policy != "patience" || v.Routing.Instead != "affinity" {
		t.Errorf("with a tier: %q, in its place %q", v.Routing.Policy, v.Routing.Instead)
	}
	if s := v.Routing.Shadow; s == nil || s.Policy != "round-robin" || s.Requests != 3 {
		t.Errorf("shadow %+v", s)
	}
	o.Shadow, o.HostTier = "", routing.TierOff
	changes, err := p.configure(o)
	if want := []string{`model "m": shadow policy none`, `model "m": host tier off`}; err != nil || !slices.Equal(changes, want) {
		t.Errorf("%q, %v", changes, err)
	}
	if v := p.View().Routing; v.Shadow != nil {
		t.Errorf("shadow %+v after it was taken away", v.Shadow)
	}
}
