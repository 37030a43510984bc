package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/enginesim"
)

var replayed = TraceOptions{MaxThink: 10 * time.Second, BytesPerToken: 4}

// readLines reads a trace of the given lines.
func readLines(t *testing.T, lines ...string) *Trace {
	t.Helper()
	trace, err := ReadTrace([]string{traceFile(t, lines...)}, replayed)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func traceFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// all returns the sessions of a trace in the order of its files.
func (t *Trace) all(p Place) []Session {
	salt := salts{own: contentID(p.Seed, uint64(p.Arm), uint64(p.Step)), shared: contentID(p.Seed)}
	var all []Session
	for i := range t.sessions {
		all = append(all, t.sessions[i].replay(salt))
	}
	return all
}

func prompt(s Session, n int) []enginesim.Token { return appendPrompt(nil, s.Turn(n).Messages, 0) }

// common is how many leading tokens two prompts share.
func common(a, b []enginesim.Token) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestWekaSessions(t *testing.T) {
	lines := []string{
		`{"id":"a","block_size":64,"tool_tokens":100,"system_tokens":50,"requests":[
			{"type":"n","in":300,"out":20,"think_time":0,"hash_ranges":[[1,4]]},
			{"type":"subagent","tool_tokens":64,"system_tokens":64,"requests":[{"type":"n","in":130,"out":5,"hash_ranges":[[90,91]]}]},
			{"type":"s","in":450,"out":0,"think_time":12.5,"hash_ranges":[[1,4],[7,8]]},
			{"type":"s","in":330,"out":9,"think_time":3,"hash_ids":[1,2,50,51]}]}`,
		`{"id":"b","block_size":64,"tool_tokens":100,"system_tokens":50,"requests":[{"in":200,"out":7,"hash_ranges":[[1,3]]}]}`,
		``,
		`{"id":"empty","block_size":64,"requests":[]}`,
	}
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	all := readLines(t, lines...).all(Place{})
	if len(all) != 2 || all[0].Turns != 3 || all[1].Turns != 1 {
		t.Fatalf("sessions: %+v", all)
	}
	a, b := all[0], all[1]
	for n, want := range []struct {
		tokens, answer, known int
		think                 time.Duration
		agents                int
	}{
		{300, 20, 0, 0, 1},
		{450, 1, 256, 10 * time.Second, 0},
		{330, 9, 128, 3 * time.Second, 0},
	} {
		turn := a.Turn(n)
		if len(prompt(a, n)) != want.tokens || turn.Answer.Tokens != want.answer || turn.Known != want.known ||
			turn.Think != want.think || len(turn.Agents) != want.agents {
			t.Errorf("turn %d: %d tokens, answer of %d, %d known, think %v, %d agents; want %+v",
				n+1, len(prompt(a, n)), turn.Answer.Tokens, turn.Known, turn.Think, len(turn.Agents), want)
		}
	}
	for _, tc := range []struct {
		what string
		a, b []enginesim.Token
		want int
	}{
		{"a turn and the next", prompt(a, 0), prompt(a, 1), 256},
		{"a turn and a compacted one", prompt(a, 1), prompt(a, 2), 128},
		{"two sessions with the same tools", prompt(a, 0), prompt(b, 0), 128},
		{"a session and its sub-agent", prompt(a, 0), prompt(a.Turn(0).Agents[0], 0), 0},
	} {
		if got := common(tc.a, tc.b); got != tc.want {
			t.Errorf("%s share %d tokens, want %d", tc.what, got, tc.want)
		}
	}
}

func TestMooncakeRequests(t *testing.T) {
	trace := readLines(t,
		`{"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [0, 1, 2]}`,
		`{"timestamp": 1000, "input_length": 1100, "output_length": 30, "hash_ids": [0, 5, 6]}`,
		// Holds all blocks of the first but its last one.
		`{"timestamp": 4000, "input_length": 1700, "output_length": 30, "hash_ids": [0, 1, 8, 9]}`,
		`{"timestamp": 60000, "input_length": 2100, "output_length": 0, "hash_ids": [0, 1, 8, 10, 11]}`,
	)
	all := trace.all(Place{})
	if len(all) != 2 || all[0].Turns != 3 || all[1].Turns != 1 {
		t.Fatalf("%d sessions, the first of %d turns", len(all), all[0].Turns)
	}
	if got := []time.Duration{all[0].Turn(1).Think, all[0].Turn(2).Think}; got[0] != 4*time.Second || got[1] != 10*time.Second {
		t.Errorf("think times %v", got)
	}
	if got := common(prompt(all[0], 0), prompt(all[0], 1)); got != 1024 {
		t.Errorf("a turn and the next share %d tokens, want 1024", got)
	}
	if got := common(prompt(all[0], 2), prompt(all[1], 0)); got != 512 {
		t.Errorf("two sessions share %d tokens, want the first block", got)
	}
	if got := len(prompt(all[0], 2)); got != 2100 {
		t.Errorf("the last prompt has %d tokens", got)
	}
}

// With sessions given, as AIPerf writes them, lengths and blocks are a turn's own.
func TestMooncakeSessions(t *testing.T) {
	all := readLines(t,
		`{"session_id": "x", "input_length": 1024, "output_length": 100, "hash_ids": [1, 2]}`,
		`{"session_id": "y", "input_length": 10, "output_length": 1}`,
		`{"session_id": "x", "input_length": 512, "output_length": 100, "hash_ids": [3], "delay": 2500}`,
	).all(Place{})
	if len(all) != 2 || all[0].Turns != 2 {
		t.Fatalf("%d sessions, the first of %d turns", len(all), all[0].Turns)
	}
	if turn := all[0].Turn(1); len(prompt(all[0], 1)) != 1024+100+512 || turn.Think != 2500*time.Millisecond || turn.Known != 1024 {
		t.Errorf("%d tokens, think %v, known %d", len(prompt(all[0], 1)), turn.Think, turn.Known)
	}
}

func TestAIPerfTurns(t *testing.T) {
	all := readLines(t,
		`{"session_id": "x", "turns": [{"text": "0123456789ab", "delay": 99, "output_length": 5}, {"texts": ["ab"], "delay": 1000}]}`,
		`{"session_id": "y", "turns": [{"text": "0123456789ab"}]}`,
		`{"session_id": "x", "turns": [{"text": "more"}]}`,
	).all(Place{})
	if len(all) != 2 || all[0].Turns != 3 {
		t.Fatalf("%d sessions, the first of %d turns", len(all), all[0].Turns)
	}
	x := all[0]
	if first, second := x.Turn(0), x.Turn(1); first.Think != 0 || second.Think != time.Second || first.Answer.Tokens != 5 || second.Answer.Tokens != 256 {
		t.Errorf("think %v and %v, answers of %d and %d", first.Think, second.Think, first.Answer.Tokens, second.Answer.Tokens)
	}
	whole := x.Turn(0).Answer.appendTokens(prompt(x, 0))
	if got := common(whole, prompt(x, 1)); got != 8 || x.Turn(1).Known != 8 {
		t.Errorf("the second prompt begins with %d tokens of the first turn and knows %d, want 3 and an answer of 5", got, x.Turn(1).Known)
	}
	if m := x.Turn(1).Messages; m[1].AnswerOf != 1 || m[1].Role != Assistant || m[0].Role != User {
		t.Errorf("messages %+v", m)
	}
	if !slices.Equal(prompt(x, 0), prompt(all[1], 0)) {
		t.Error("equal texts of two sessions differ")
	}
}

func TestChat(t *testing.T) {
	all := readLines(t,
		`{"id": 1, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},`+
			`{"role": "assistant", "content": "yes?"}, {"role": "user", "content": [{"type": "text", "text": "list"}]},`+
			`{"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]}, {"role": "tool", "content": "a b"}]}`,
		`{"messages": [{"role": "assistant", "content": "nobody asked"}]}`,
	).all(Place{})
	if len(all) != 1 || all[0].Turns != 2 {
		t.Fatalf("%d sessions, the first of %d turns", len(all), all[0].Turns)
	}
	s := all[0]
	whole := s.Turn(0).Answer.appendTokens(prompt(s, 0))
	if second := prompt(s, 1); common(whole, second) != len(whole) || s.Turn(1).Known != len(whole) {
		t.Errorf("the second prompt shares %d tokens and knows %d, the first turn left %d", common(whole, second), s.Turn(1).Known, len(whole))
	}
	var roles []Role
	for _, m := range s.Turn(1).Messages {
		roles = append(roles, m.Role)
	}
	if diff := cmp.Diff([]Role{SystemRole, User, Assistant, User}, roles); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTraceIsReplayedOnceAStep(t *testing.T) {
	var lines []string
	for i := range 7 {
		lines = append(lines, fmt.Sprintf(`{"session_id": "%d", "turns": [{"text": "question %d", "output_length": 3}, {"text": "more"}]}`, i, i))
	}
	trace := readLines(t, lines...)
	first := map[string]bool{}
	for seed := range uint64(20) {
		keys := map[uint64]bool{}
		for order := range 7 {
			s, ok := trace.Session(Place{Seed: seed, Order: order})
			if !ok {
				t.Fatalf("seed %d has %d sessions", seed, order)
			}
			keys[s.Key] = true
			if order == 0 {
				first[fmt.Sprint(trace.sessions[contentID(seed, 0)%7].id)] = true
			}
		}
		if _, more := trace.Session(Place{Seed: seed, Order: 7}); more || len(keys) != 7 {
			t.Errorf("seed %d: %d different sessions of 7, one more: %v", seed, len(keys), more)
		}
	}
	if len(first) < 4 {
		t.Errorf("20 seeds begin with %d of 7 sessions", len(first))
	}

	s := published(t, 1, "off", "affinity")
	s.Workload, s.Protocol.Step, s.Protocol.Sessions, s.Protocol.Drain = trace, 0, []int{2, 20}, 0
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range r.Arms {
		for _, step := range a.Steps {
			if *step.Turns != 14 || *step.Cut != 0 || *step.Failed != 0 {
				t.Errorf("%s at %d sessions: %v turns, %v cut, %v failed; want all 14", a.Name, step.Sessions, *step.Turns, *step.Cut, *step.Failed)
			}
		}
	}
}

func TestTracesThatCannotBeRead(t *testing.T) {
	good := `{"id":"a","block_size":64,"requests":[{"in":300,"out":20}]}`
	for name, tc := range map[string]struct {
		lines []string
		want  string
	}{
		"nothing in it":          {[]string{""}, "EOF"},
		"no JSON":                {[]string{"nope"}, ":1: invalid"},
		"another form":           {[]string{`{"prompt": "x"}`}, ":1: unknown form"},
		"a bad line":             {[]string{good, "", `{"id":`}, ":3: unexpected end"},
		"a wrong type":           {[]string{good, `{"requests": 5}`}, ":2: json"},
		"no block size":          {[]string{`{"requests": []}`}, "block_size is 0"},
		"no prompt":              {[]string{`{"block_size":64,"requests":[{"in":0}]}`}, "requests[0]: in is 0"},
		"a huge prompt":          {[]string{`{"block_size":64,"requests":[{"in":10000001}]}`}, "in is 10000001"},
		"a range that falls":     {[]string{`{"block_size":64,"requests":[{"in":5,"hash_ranges":[[3,2]]}]}`}, "[3, 2]"},
		"a bad sub-agent":        {[]string{`{"block_size":64,"requests":[{"type":"subagent","requests":[{"in":-1}]}]}`}, "requests[0]: requests[0]: in is -1"},
		"no length":              {[]string{`{"input_length": 0}`}, "input_length is 0"},
		"turns without text":     {[]string{`{"turns": [{"text": "a"}, {}]}`}, "turns[1] has neither"},
		"no turns":               {[]string{`{"turns": []}`}, "has no turns"},
		"a message of nobody":    {[]string{`{"messages": [{"content": "a"}]}`}, "messages[0] has no role"},
		"no sessions":            {[]string{`{"messages": []}`}, "has no sessions"},
		"a session that is over": {[]string{`{"session_id": "a", "input_length": 9000000}`, `{"session_id": "a", "input_length": 9000000}`}, ":2: input_length of the whole session"},
	} {
		if _, err := ReadTrace([]string{traceFile(t, tc.lines...)}, replayed); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
	if _, err := ReadTrace([]string{filepath.Join(t.TempDir(), "absent")}, replayed); err == nil {
		t.Error("a file that is not there was read")
	}
}

func FuzzTrace(f *testing.F) {
	for _, line := range []string{
		`{"id":"a","block_size":64,"tool_tokens":100,"requests":[{"in":300,"out":20,"think_time":3,"hash_ranges":[[1,4]]},{"type":"subagent","requests":[{"in":5}]}]}`,
		`{"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [0, 1, 2]}`,
		`{"session_id": "x", "input_length": 100, "hash_ids": [0]}` + "\n" + `{"session_id": "x", "input_length": 100}`,
		`{"session_id": "x", "turns": [{"text": "0123", "delay": 99, "output_length": 5}, {"texts": ["ab"]}]}`,
		`{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": []}]}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "trace.jsonl")
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		trace, err := ReadTrace([]string{path}, replayed)
		if err != nil {
			return
		}
		for _, s := range trace.all(Place{}) {
			var before []enginesim.Token
			for n := range s.Turns {
				turn := s.Turn(n)
				tokens := promptTokens(turn.Messages)
				if tokens < 1 || turn.Known > tokens || turn.Answer.Tokens < 1 || turn.Think < 0 || turn.Think > replayed.MaxThink {
					t.Fatalf("turn %d: %d tokens, known %d, answer of %d, think %v", n, tokens, turn.Known, turn.Answer.Tokens, turn.Think)
				}
				if tokens+turn.Answer.Tokens > 100_000 {
					break
				}
				prompt := appendPrompt(nil, turn.Messages, 0)
				if turn.Known > len(before) || !slices.Equal(prompt[:turn.Known], before[:turn.Known]) {
					t.Fatalf("turn %d: it knows %d tokens that are not those of the turn before, which left %d", n, turn.Known, len(before))
				}
				before = turn.Answer.appendTokens(prompt)
			}
		}
	})
}

// Files of every form, as they are published, are run to their end.
func TestFilesOfEveryForm(t *testing.T) {
	for _, tc := range []struct {
		file            string
		sessions, turns int
		hits            float64 // at least
	}{
		{"weka.jsonl", 6, 129, 0.8},
		{"mooncake.jsonl", 147, 150, 0.04}, // a chat service, and its first minute
		{"swe-agent.jsonl", 2, 9, 0.5},
		{"multi-turn.jsonl", 2, 4, 0.2},
	} {
		trace, err := ReadTrace([]string{filepath.Join("testdata", tc.file)}, replayed)
		if err != nil {
			t.Error(err)
			continue
		}
		v := newTestBox(t, Box{Engine: mustPreset(t, "h100-8b"), Replicas: 2, RoundTrip: 20 * time.Millisecond}, 1)
		p := Protocol{Arms: []string{"affinity"}, Sessions: []int{4}}
		if err := p.Run(context.Background(), 1, trace, v, func(o Observation) {
			finished := 0
			for _, r := range o.Records {
				if r.End == Finished && r.Cached >= 0 {
					finished++
				}
			}
			if len(o.Ended) != tc.sessions || finished != tc.turns || len(o.Records) != tc.turns {
				t.Errorf("%s: %d sessions ended, %d of %d turns finished; want %d and %d", tc.file, len(o.Ended), finished, len(o.Records), tc.sessions, tc.turns)
			}
			if hits := o.Moved.CachedTokens / o.Moved.PromptTokens; hits < tc.hits {
				t.Errorf("%s: %.2f of the prompts hit", tc.file, hits)
			}
		}); err != nil {
			t.Error(err)
		}
	}
}

// A trace of long contexts, of which most of each prompt was there before.
func BenchmarkTrace(b *testing.B) {
	trace, err := ReadTrace([]string{filepath.Join("testdata", "weka.jsonl")}, TraceOptions{MaxThink: time.Minute, BytesPerToken: 4})
	if err != nil {
		b.Fatal(err)
	}
	s := published(b, 1, "affinity")
	s.Workload, s.Box.Engine = trace, mustPreset(b, "h100-8b")
	s.Protocol.Sessions, s.Protocol.Step, s.Protocol.Drain = []int{4}, 0, 0
	tokens := 0.0
	for b.Loop() {
		r, err := Simulate(context.Background(), s, nil)
		if err != nil {
			b.Fatal(err)
		}
		tokens += *r.Arms[0].Steps[0].Turns
	}
	b.ReportMetric(tokens/b.Elapsed().Seconds(), "turns/s")
}

// The statistics of the recordings that the project keeps beside its sources, as
// their README has them.
func TestRecordedTraces(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "traces")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the recordings are not here: %v", err)
	}
	for _, tc := range []struct {
		files                      []string
		sessions, agents, requests int
		in, out                    [4]int // tokens: p10, p50, p90, p99
	}{
		{[]string{"weka-claude-code/sample-53.jsonl"}, 53, 23, 3602, [4]int{}, [4]int{}},
		{[]string{"mooncake-fast25/conversation_trace.jsonl"}, 8133, 0, 12_031, [4]int{964, 6_900, 27_000, 85_000}, [4]int{24, 350, 597, 1_120}},
		{[]string{"mooncake-fast25/synthetic_trace.jsonl"}, 3_248, 0, 3_993, [4]int{30, 11_600, 38_600, 66_000}, [4]int{4, 69, 389, 768}},
		{[]string{"weka-claude-code/sessions-1.jsonl", "weka-claude-code/sessions-2.jsonl"}, 518, -1, 30_679, [4]int{42_800, 108_000, 262_000, 546_000}, [4]int{}},
		{[]string{"swe-agent/conversations.jsonl"}, 22, 0, 230, [4]int{}, [4]int{}},
	} {
		var paths []string
		for _, f := range tc.files {
			paths = append(paths, filepath.Join(dir, f))
		}
		trace, err := ReadTrace(paths, replayed)
		if err != nil {
			t.Error(err)
			continue
		}
		agents := 0
		var in, out []int
		var walk func(traceSession)
		walk = func(s traceSession) {
			for _, turn := range s.turns {
				n := 0
				for _, p := range turn.prompt {
					n += p.blocks * p.tokens
				}
				in, out = append(in, n), append(out, turn.answer.tokens)
				agents += len(turn.agents)
				for _, a := range turn.agents {
					walk(a)
				}
			}
		}
		for _, s := range trace.sessions {
			walk(s)
		}
		slices.Sort(in)
		slices.Sort(out)
		if len(trace.sessions) != tc.sessions || len(in) != tc.requests || tc.agents >= 0 && agents != tc.agents {
			t.Errorf("%v: %d sessions, %d sub-agents, %d requests; want %+v", tc.files, len(trace.sessions), agents, len(in), tc)
		}
		for i, percent := range []int{10, 50, 90, 99} {
			for _, c := range []struct {
				what   string
				sorted []int
				want   int
			}{{"prompt", in, tc.in[i]}, {"answer", out, tc.out[i]}} {
				if got := c.sorted[percent*len(c.sorted)/100]; c.want > 0 && (got < c.want*98/100 || got > c.want*102/100+1) {
					t.Errorf("%v: p%d of the %s tokens is %d, want %d", tc.files, percent, c.what, got, c.want)
				}
			}
		}
	}
}
