package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/routing"
)

func TestIncidentTexts(t *testing.T) {
	for _, tc := range []struct {
		kind IncidentKind
		text string
		want Incident
	}{
		{Kill, "1@60s", Incident{Kind: Kill, Replica: 1, At: time.Minute}},
		{Kill, "0@0s+30s", Incident{Kind: Kill, For: 30 * time.Second}},
		{Slow, "2x1.5@1m+500ms", Incident{Kind: Slow, Replica: 2, Factor: 1.5, At: time.Minute, For: 500 * time.Millisecond}},
		{DrainReplica, "3@2m", Incident{Kind: DrainReplica, Replica: 3, At: 2 * time.Minute}},
	} {
		got, err := ParseIncident(tc.kind, tc.text)
		if err != nil || got != tc.want {
			t.Errorf("%s %q is %+v, %v; want %+v", tc.kind, tc.text, got, err, tc.want)
		}
		_, text, _ := strings.Cut(got.String(), " ")
		if again, err := ParseIncident(tc.kind, text); err != nil || again != got {
			t.Errorf("%q reads as %+v, %v", got, again, err)
		}
	}
	for _, tc := range []struct {
		kind IncidentKind
		text string
	}{
		{Kill, ""}, {Kill, "1"}, {Kill, "@60s"}, {Kill, "-1@60s"}, {Kill, "1@60"}, {Kill, "1@-60s"}, {Kill, "1@60s+0s"}, {Kill, "1@60s+"},
		{Kill, "1x3@60s"}, {Slow, "1@60s"}, {Slow, "1x1@60s"}, {Slow, "1xNaN@60s"}, {Slow, "1x1e9@60s"},
	} {
		if i, err := ParseIncident(tc.kind, tc.text); err == nil {
			t.Errorf("%s %q was read as %+v", tc.kind, tc.text, i)
		}
	}
}

// withIncidents runs two minutes of affinity with eight sessions on four servers of
// one replica.
func withIncidents(t *testing.T, servers int, incidents ...Incident) (records []Record, moved Counters) {
	t.Helper()
	v := newTestBox(t, Box{
		Engine: mustPreset(t, "a4000-qwen3-4b"), Replicas: 4, Servers: servers, RoundTrip: 220 * time.Millisecond, Incidents: incidents,
	}, 1)
	p := Protocol{Arms: []string{"affinity"}, Sessions: []int{8}, Step: 2 * time.Minute}
	if err := p.Run(context.Background(), 1, PublishedWorkload(), v, func(o Observation) {
		records, moved = o.Records, o.Moved
		for i := range records {
			records[i].Sent -= settle // to the start of the step
			records[i].First -= settle
			records[i].Token -= settle
			records[i].Last -= settle
		}
	}); err != nil {
		t.Fatal(err)
	}
	return records, moved
}

func TestKilledReplicaReturnsCold(t *testing.T) {
	const died, back = 40 * time.Second, 60 * time.Second
	records, moved := withIncidents(t, 4, Incident{Kind: Kill, Replica: 1, At: died, For: back - died})
	failed, replaced, first := 0, 0, Record{}
	asked := 0
	for _, r := range records {
		if r.End == Finished {
			asked += r.Prompt
		}
		switch {
		case r.End == Failed:
			failed++
			if r.Replica != 1 || r.Sent > died || r.First < 0 || r.Error != "the engine died while it answered" {
				t.Errorf("failed: %+v", r)
			}
		case r.Replica == 1 && r.Sent > died && r.Sent < back-time.Second:
			t.Errorf("a dead replica served %+v", r)
		case r.Replica == 1 && r.Sent > back && (first.Sent == 0 || r.Sent < first.Sent):
			first = r
		}
		if r.Reason == string(routing.Moved) {
			replaced++
			if r.Sent < died-30*time.Second || r.Replica == 1 {
				t.Errorf("moved: %+v", r)
			}
		}
	}
	// Of its two conversations, some may have been between two turns.
	if failed > 2 || failed+replaced < 1 {
		t.Errorf("%d turns failed and %d conversations moved", failed, replaced)
	}
	if first.N != 1 || first.Cached != 0 {
		t.Errorf("the first turn after its return is %+v, want a new conversation, cold", first)
	}
	if float64(asked) > moved.PromptTokens {
		t.Errorf("clients count %d prompt tokens of finished turns, the engines, of both lives, %v", asked, moved.PromptTokens)
	}
}

// The replicas of a server live and die together.
func TestKilledServerRefusesUntilItReturns(t *testing.T) {
	records, _ := withIncidents(t, 1, Incident{Kind: Kill, Replica: 1, At: 40 * time.Second, For: 20 * time.Second})
	refused, later := 0, 0
	for _, r := range records {
		if strings.HasPrefix(r.Error, "refused") {
			refused++
			if r.Last < 40*time.Second || r.Last > 62*time.Second {
				t.Errorf("refused: %+v", r)
			}
		}
		if r.Sent > 62*time.Second && r.End == Finished {
			later++
		}
	}
	if refused < 8 || later < 8 {
		t.Errorf("%d turns were refused, %d finished later", refused, later)
	}
}

func TestSlowReplicaTakesLonger(t *testing.T) {
	const factor = 3
	records, _ := withIncidents(t, 4, Incident{Kind: Slow, Replica: 2, Factor: factor, At: 0, For: 100 * time.Second})
	var slow, others, n, m float64
	for _, r := range records {
		if r.End != Finished || r.Last > 100*time.Second {
			continue
		}
		if took := (r.Last - r.First).Seconds(); r.Replica == 2 {
			slow, n = slow+took, n+1
		} else {
			others, m = others+took, m+1
		}
	}
	if ratio := slow / n / (others / m); ratio < 0.7*factor || ratio > 1.3*factor {
		t.Errorf("answers take %.1f times as long on the slow replica, want about %d", ratio, factor)
	}
}

func TestDrainedReplicaTakesNothingNew(t *testing.T) {
	const from, to = 40 * time.Second, 80 * time.Second
	records, _ := withIncidents(t, 1, Incident{Kind: DrainReplica, Replica: 0, At: from, For: to - from})
	before, after := 0, 0
	for _, r := range records {
		switch {
		case r.End == Failed:
			t.Errorf("failed: %+v", r)
		case r.Replica != 0:
		case r.Sent > from && r.Sent < to-time.Second:
			t.Errorf("the draining replica was given %+v", r)
		case r.Sent < from:
			before++
		default:
			after++
		}
	}
	if before < 8 || after < 1 {
		t.Errorf("it had %d turns before and %d after", before, after)
	}
}

// What is not over at the end of a step is over before the next one.
func TestIncidentsEndWithTheStep(t *testing.T) {
	v := newTestBox(t, Box{
		Engine: mustPreset(t, "tiny-fast"), Replicas: 2, Servers: 2, RoundTrip: 20 * time.Millisecond,
		Incidents: []Incident{{Kind: Kill, Replica: 0, At: 4 * time.Second}, {Kind: Kill, Replica: 1, At: time.Hour}},
	}, 1)
	p := Protocol{Arms: []string{"affinity"}, Sessions: []int{4, 6}, Step: 8 * time.Second}
	if err := p.Run(context.Background(), 1, PublishedWorkload(), v, func(o Observation) {
		start, served := o.Records[0].Sent, 0
		for _, r := range o.Records {
			if r.Replica == 0 && r.Sent < start+4*time.Second {
				served++
			}
			if r.Replica == 0 && r.Sent > start+4*time.Second {
				t.Errorf("step %d: a dead replica served %+v", o.Sessions, r)
			}
		}
		if served == 0 {
			t.Errorf("step %d began without replica 0", o.Sessions)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for i, r := range v.replicas {
		if r.box == nil || v.epochs[i] != 3-2*i {
			t.Errorf("replica %d is in life %d", i, v.epochs[i])
		}
	}
}
