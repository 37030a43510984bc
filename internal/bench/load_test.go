package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// observe runs a protocol of one arm and returns its observations.
func observe(t *testing.T, p Protocol, w Workload, s System) []Observation {
	t.Helper()
	if p.Arms == nil {
		p.Arms = []string{"arm"}
	}
	var all []Observation
	if err := p.Run(context.Background(), 1, w, s, func(o Observation) { all = append(all, o) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// ends counts the records by how they ended.
func ends(o Observation) map[End]int {
	n := map[End]int{}
	for _, r := range o.Records {
		n[r.End]++
	}
	return n
}

const sec = time.Second

func TestClosedLoopAndCut(t *testing.T) {
	w := PublishedWorkload()
	w.Turns = 3
	// Turns of 4 s in sessions of 12 s: in 30 s each client ends two sessions and one
	// turn, and is cut in the next.
	f := newFake(4 * sec)
	all := observe(t, Protocol{Sessions: []int{2, 5}, Step: 30 * sec}, w, f)
	for i, clients := range []int{2, 5} {
		o := all[i]
		if diff := cmp.Diff(map[End]int{Finished: 7 * clients, Cut: clients}, ends(o)); diff != "" {
			t.Errorf("%d clients (-want +got):\n%s", clients, diff)
		}
		if o.Length != 30*sec || len(o.Ended) != 2*clients {
			t.Errorf("%d clients: %v, %d sessions; want 30s, %d", clients, o.Length, len(o.Ended), 2*clients)
		}
		for _, e := range o.Ended {
			if e.To-e.From != 12*sec {
				t.Errorf("a session took %v, want 12s", e.To-e.From)
			}
		}
	}
	if len(f.open) != 0 {
		t.Errorf("%d turns are open at the end", len(f.open))
	}
}

// In an open loop sessions arrive whether or not the system keeps up, and wait
// for a client at their own cost.
func TestOpenLoop(t *testing.T) {
	w := PublishedWorkload()
	w.Turns = 1
	// 300 sessions arrive in 10 minutes. Two clients that need 5 s for each are
	// served 240; four are served nearly all.
	p := Protocol{Sessions: []int{2, 4}, Step: 10 * time.Minute, Rate: 30}
	all := observe(t, p, w, newFake(5*sec))
	var arrived []int
	for i, o := range all {
		arrived = append(arrived, len(o.Records))
		waited := time.Duration(0)
		for _, r := range o.Records {
			if r.End == Finished {
				waited = max(waited, r.Last-r.Sent-5*sec)
			}
		}
		n := ends(o)
		t.Logf("%d clients: %v, longest wait %v", p.Sessions[i], n, waited)
		if i == 0 && (n[Finished] < 230 || n[Finished] > 240 || n[Cut] < 20 || waited < time.Minute) {
			t.Errorf("2 clients, too few: %v, longest wait %v", n, waited)
		}
		if i == 1 && (n[Cut] > 20 || waited > time.Minute) {
			t.Errorf("4 clients, enough: %v, longest wait %v", n, waited)
		}
		for _, e := range o.Ended {
			if e.To-e.From < 5*sec {
				t.Fatalf("a session of 5 s took %v", e.To-e.From)
			}
		}
	}
	for _, n := range arrived {
		if n < 250 || n > 350 {
			t.Errorf("%d sessions arrived in 10 minutes at 30 a minute", n)
		}
	}
	// Without a length it ends with the workload.
	s := script{plain(1, Turn{}), plain(2, Turn{}), plain(3, Turn{})}
	if o := observe(t, Protocol{Sessions: []int{1}, Rate: 600}, s, newFake(5*sec))[0]; len(o.Ended) != 3 {
		t.Errorf("%d of 3 sessions ended", len(o.Ended))
	}
}

func TestOnlyTheLastStepDrains(t *testing.T) {
	w := PublishedWorkload()
	w.Turns = 3
	f := newFake(4 * sec)
	all := observe(t, Protocol{Sessions: []int{1, 2}, Step: 26 * sec, Drain: time.Minute}, w, f)
	if diff := cmp.Diff(map[End]int{Finished: 6, Cut: 1}, ends(all[0])); diff != "" {
		t.Errorf("first step (-want +got):\n%s", diff)
	}
	// The third session begins at 24 s and ends at 36 s; no fourth begins.
	if diff := cmp.Diff(map[End]int{Finished: 18}, ends(all[1])); diff != "" {
		t.Errorf("last step (-want +got):\n%s", diff)
	}
	if f.now != 26*sec+36*sec+2*settle || all[1].Length != 26*sec {
		t.Errorf("ended at %v with a length of %v; want 66s and 26s", f.now, all[1].Length)
	}

	all = observe(t, Protocol{Sessions: []int{1, 2}, Step: 26 * sec, Drain: 5 * sec, DrainAll: true}, w, newFake(4*sec))
	if diff := cmp.Diff(map[End]int{Finished: 7, Cut: 1}, ends(all[0])); diff != "" {
		t.Errorf("first of the steps that drain for 5 s (-want +got):\n%s", diff)
	}
}

func TestThinkTimeAndAgents(t *testing.T) {
	agents := []Session{plain(21, Turn{}, Turn{Think: 3 * sec}), plain(22, Turn{})}
	s := script{plain(7, Turn{Agents: agents, Beside: []Turn{{}}}, Turn{Think: 2 * sec})}
	f := newFake(10 * sec)
	o := observe(t, Protocol{Sessions: []int{3}}, s, f)[0]

	type sent struct {
		At              time.Duration
		Session, Parent uint64
	}
	var got []sent
	for i, r := range f.starts {
		got = append(got, sent{f.sentAt[i] - settle, r.Session, r.Parent})
	}
	want := []sent{
		{0, 0, 0}, {0, 7, 0}, // the first turn and the request beside it
		{10 * sec, 21, 7}, {10 * sec, 22, 7}, {23 * sec, 21, 7}, // sub-agents
		{35 * sec, 7, 0}, // when the slower one has ended, and after thinking
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if o.Length != 45*sec || len(o.Ended) != 1 {
		t.Errorf("length %v, %d sessions; the step ends with its last session, at 45s", o.Length, len(o.Ended))
	}
	n := map[int]int{}
	for _, r := range o.Records {
		n[r.N]++
	}
	if diff := cmp.Diff(map[int]int{0: 1, 1: 3, 2: 2}, n); diff != "" {
		t.Errorf("numbers of the turns (-want +got):\n%s", diff)
	}
}

func TestFailedTurnEndsItsSession(t *testing.T) {
	s := script{plain(1, Turn{}, Turn{}), plain(2, Turn{}), plain(3, Turn{Agents: []Session{plain(1, Turn{})}}, Turn{})}
	f := newFake(10 * sec)
	f.fails = func(r Request) bool { return r.Session == 1 }
	o := observe(t, Protocol{Sessions: []int{1}}, s, f)[0]
	// Session 1 fails at once. A sub-agent that fails does not end its parent.
	if diff := cmp.Diff(map[End]int{Finished: 3, Failed: 2}, ends(o)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(o.Ended) != 2 {
		t.Errorf("%d sessions ended, want 2", len(o.Ended))
	}
	if got := f.sentAt[1] - f.sentAt[0]; got != 11*sec {
		t.Errorf("the next session began after %v, want a second of rest after a failure at 10s", got)
	}
}

func TestArmsInOrder(t *testing.T) {
	f := newFake(sec)
	places := map[int]int{}
	w := recorder{ClaudeCode: PublishedWorkload(), saw: func(p Place) { places[p.Arm*10+p.Draw]++ }}
	observe(t, Protocol{Arms: []string{"a", "b"}, Sessions: []int{1}, Step: 3 * sec, Cold: true}, w, f)
	if diff := cmp.Diff([]string{"a", "b"}, f.arms); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]bool{false, true}, f.colds); diff != "" {
		t.Errorf("cold: the first arm finds empty caches anyhow (-want +got):\n%s", diff)
	}
	observe(t, Protocol{Arms: []string{"a", "b"}, Sessions: []int{1}, Step: 3 * sec, Fresh: true}, w, newFake(sec))
	if diff := cmp.Diff(map[int]int{0: 2, 10: 1, 11: 1}, places); diff != "" {
		t.Errorf("arm x 10 + draw (-want +got):\n%s", diff)
	}
}

type recorder struct {
	ClaudeCode
	saw func(Place)
}

func (r recorder) Session(p Place) (Session, bool) {
	r.saw(p)
	return r.ClaudeCode.Session(p)
}

func TestInterruptHandsOverWhatThereIs(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := newFake(4 * sec)
	f.After(settle+10*sec, cancel)
	var all []Observation
	err := Protocol{Arms: []string{"a", "b"}, Sessions: []int{1, 2}, Step: 30 * sec, Drain: 30 * sec}.
		Run(ctx, 1, PublishedWorkload(), f, func(o Observation) { all = append(all, o) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(all) != 1 || len(f.open) != 0 {
		t.Fatalf("%d steps handed over, %d turns open; want 1 and none", len(all), len(f.open))
	}
	if diff := cmp.Diff(map[End]int{Finished: 2, Cut: 1}, ends(all[0])); diff != "" || all[0].Length != 10*sec {
		t.Errorf("length %v (-want +got):\n%s", all[0].Length, diff)
	}
}

func TestProtocolsThatMakeNoSense(t *testing.T) {
	good := PublishedProtocol()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Protocol){
		"no arms":         func(p *Protocol) { p.Arms = nil },
		"an arm twice":    func(p *Protocol) { p.Arms = []string{"off", "off"} },
		"no steps":        func(p *Protocol) { p.Sessions = nil },
		"no sessions":     func(p *Protocol) { p.Sessions = []int{4, 0} },
		"a step twice":    func(p *Protocol) { p.Sessions = []int{4, 4} },
		"negative step":   func(p *Protocol) { p.Step = -1 },
		"negative drain":  func(p *Protocol) { p.Drain = -1 },
		"a step for ever": func(p *Protocol) { p.Step = 0 },
	} {
		p := PublishedProtocol()
		change(&p)
		err := p.Run(context.Background(), 1, PublishedWorkload(), newFake(sec), func(Observation) { t.Errorf("%s: it ran", name) })
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
