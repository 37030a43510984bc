package enginesim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// stepsPlayer drives a rank through a recorded run: what arrives when, in steps, is the
// recording's, and what each step does is the rank's.
type stepsPlayer struct {
	t              *testing.T
	rank           *Rank
	system, growth int // bytes of the system prompt and of each turn
	names          map[uint64]string
	steps          int
}

// arrive adds a turn of a conversation, both counted from 0.
func (p *stepsPlayer) arrive(name string) {
	var k, turn int
	if _, err := fmt.Sscanf(name, "%d.%d", &k, &turn); err != nil {
		p.t.Fatalf("arrival %q: %v", name, err)
	}
	text := func(start string, n int) string {
		return (start + strings.Repeat("lorem ipsum ", n/12+1))[:n]
	}
	msgs := []Message{{Role: "system", Content: text(fmt.Sprintf("%d ", k), p.system)}}
	for n := range turn + 1 {
		if n > 0 { // the answers were noise, which comes back as other tokens
			msgs = append(msgs, Message{Role: "assistant", Content: strings.Repeat("?", crowdAnswer)})
		}
		msgs = append(msgs, Message{Role: "user", Content: text(fmt.Sprintf("%d.%d ", k, n), p.growth)})
	}
	id := uint64(len(p.names) + 1)
	p.names[id] = name
	s := Sequence{ID: id, Prompt: byteTokens.Render(msgs, nil, true), Output: make([]Token, crowdAnswer), Reason: ReasonLength}
	if err := p.rank.Add(&s); err != nil {
		p.t.Fatal(err)
	}
}

// step runs a step and returns what it did, in the recording's words.
func (p *stepsPlayer) step() string {
	p.steps++
	p.rank.Begin()
	var did []string
	for _, c := range p.rank.batch {
		did = append(did, fmt.Sprintf("%s:%d@%d", p.names[c.req.seq.ID], c.tokens, c.req.computed-c.tokens))
	}
	p.rank.End()
	return strings.Join(did, " ")
}

var decodes = regexp.MustCompile(`^(\d+\.\d+:1@\d+ ?)+$`)

// Given what arrived before which step, the model schedules and evicts as the real
// engine did: every request, chunk and cache hit of every step is the same.
func TestStepsAsRecorded(t *testing.T) {
	lines := recording(t, "steps.txt")
	runs, steps, preemptions := 0, 0, int64(0)
	title := regexp.MustCompile(`^system (\d+) turn (\d+) .*, rank \d$`)
	for _, line := range lines {
		m := title.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		runs++
		t.Run(line, func(t *testing.T) {
			p := stepsPlayer{t: t, rank: NewRank(mustPreset(t, "cpu-tiny")), names: make(map[uint64]string)}
			p.system, _ = strconv.Atoi(m[1])
			p.growth, _ = strconv.Atoi(m[2])
			for _, want := range section(t, lines, line) {
				switch want[0] {
				case '+':
					p.arrive(want[1:])
				case '*':
					more, err := strconv.Atoi(want[1:])
					if err != nil {
						t.Fatal(err)
					}
					for range more {
						if got := p.step(); !decodes.MatchString(got) {
							t.Fatalf("step %d: got %q, recorded only decodes", p.steps, got)
						}
					}
				default:
					if got := p.step(); got != want {
						t.Fatalf("step %d: got %q, recorded %q", p.steps, got, want)
					}
				}
			}
			steps += p.steps
			preemptions += p.rank.Stats().Preemptions
		})
	}
	if runs != 6 || steps != 1989 || preemptions == 0 {
		t.Errorf("%d runs of %d steps with %d preemptions in the recording, want 6, 1989 and some", runs, steps, preemptions)
	}
}
