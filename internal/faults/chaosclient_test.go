package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

// fate is how a request of the chaos run ended at its client.
type fate uint8

const (
	unsent    fate = iota
	noAnswer       // no connection, or one that ended before a head
	good           // a whole answer
	refused        // a status of 400 or more
	announced      // a stream that ends with an error event
	broken         // a body that ended in an error of the connection
	left           // the client did not wait
)

func (f fate) String() string {
	return [...]string{"unsent", "no answer", "good", "refused", "announced", "broken", "left"}[f]
}

// talker is a client in closed loop: one conversation after the other, turn
// after turn.
type talker struct {
	c    *chaos
	rand *rand.Rand
	n    int // its number
	talk int // the number of its conversation
}

// run talks until the requests are used up.
func (k *talker) run() {
	for k.c.more() {
		k.talk++
		k.conversation()
	}
}

// conversation is some turns of one history. What the model said is not in it,
// but a text that is as constant, so that bodies depend on nothing.
func (k *talker) conversation() {
	d := dialects[k.rand.IntN(len(dialects))]
	name := fmt.Sprintf("%d-%d-%d", k.c.seed, k.n, k.talk)
	var headers []string
	switch style := k.rand.IntN(4); {
	case d.path == completions.path: // has no history to know it by
		headers = []string{"X-Session-Id", "session-" + name}
	case style == 0: // by what it says
	case style == 1 && d.anthropic:
		headers = []string{"X-Claude-Code-Session-Id", "session-" + name}
	case style == 2 && d.anthropic: // a sub-agent of a session that others share
		headers = []string{"X-Claude-Code-Session-Id", fmt.Sprintf("session-shared-%d", k.n%3), "X-Claude-Code-Agent-Id", "agent-" + name}
	default:
		headers = []string{"X-Session-Id", "session-" + name}
	}
	var questions []string
	var home bond
	turns := 1 + k.rand.IntN(6)
	for turn := range turns {
		stream, usage := k.rand.IntN(2) == 0, k.rand.IntN(4) > 0
		more := ""
		if stream && usage && !d.anthropic && d.path != responses.path {
			more = `,"stream_options":{"include_usage":true}`
		}
		questions = append(questions, fmt.Sprintf("conversation %s, question %d [[tokens %d]]", name, turn, 1+k.rand.IntN(40)))
		body := d.talk(questions, stream, more)
		if !k.turn(d, body, stream, more != "", headers, &home) {
			return
		}
		pause(time.Duration(k.rand.IntN(int(40*time.Millisecond))), nil) // it thinks
		if k.rand.IntN(8) == 0 {
			k.turn(dialect{path: "/v1/messages/count_tokens"}, strings.Replace(messages.request("how long is this?", false, ""), `,"stream":false`, "", 1), false, false, headers, nil)
		}
	}
}

// talk is a request of a conversation: questions that were answered, and the
// newest.
func (d dialect) talk(questions []string, stream bool, more string) string {
	var history []string
	say := func(role, text string) { history = append(history, `{"role":"`+role+`","content":`+quoted(text)+`}`) }
	for i, q := range questions {
		if i > 0 {
			say("assistant", fmt.Sprint("answer ", i))
		}
		say("user", q)
	}
	body := d.request("x", stream, more)
	switch d.path {
	case completions.path:
		return strings.Replace(body, `"x"`, quoted(strings.Join(questions, "\n")), 1)
	case responses.path:
		return strings.Replace(body, `{"type":"message","role":"user","content":"x"}`, strings.Join(history, ","), 1)
	}
	return strings.Replace(body, `{"role":"user","content":"x"}`, strings.Join(history, ","), 1)
}

// bond is where a conversation lives as its client knows it.
type bond struct {
	replica string // empty: not known
	name    string
	calm    int64 // the disturbances of its server and of the policy when it was last seen there
}

// turn makes one request and checks its answer. It is false when the
// conversation has come to an end.
func (k *talker) turn(d dialect, body string, stream, usage bool, headers []string, home *bond) bool {
	c := k.c
	n, ok := c.next()
	if !ok {
		return false
	}
	id := requestName(n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a request that ends in no way is found by this
	defer cancel()
	patient := k.rand.IntN(25) > 0
	if !patient {
		stop := time.AfterFunc(time.Duration(k.rand.IntN(int(30*time.Millisecond))), cancel)
		defer stop.Stop()
	}
	before, calm := c.calm(home)
	a, err := c.ask(ctx, d.path, body, append(slices.Clone(headers), "X-Request-Id", id))
	if errors.Is(err, syscall.ECONNREFUSED) {
		c.violation(n, "the gateway refused the connection")
	}
	f := classify(d, stream, a, err)
	if f != good && ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.violation(n, "it has not ended after a minute")
		}
		f = left
	}
	c.fates[n].Store(uint32(f))
	c.statuses[n].Store(int32(a.status))
	c.verify(n, d, stream && !usage, f, a)
	switch {
	case home == nil:
		return true
	case f == noAnswer, f == refused && a.status == http.StatusServiceUnavailable:
		pause(100*time.Millisecond, nil) // as clients do before they try again
		return true
	case f != good:
		return true
	}
	c.follow(n, a, home, before, calm)
	return true
}

// classify tells a client's fate.
func classify(d dialect, stream bool, a answer, err error) fate {
	switch {
	case err != nil:
		return noAnswer
	case a.status >= 400:
		return refused
	case a.err != nil && d.errs != "" && strings.Contains(a.body, d.errs):
		return announced
	case a.err != nil:
		return broken
	case stream && (strings.Contains(a.body, `data: {"error"`) || strings.Contains(a.body, "event: error")):
		return announced // the engine's own, which ends as it likes
	}
	return good
}

// follow checks that a conversation which could stay has stayed.
func (c *chaos) follow(n int, a answer, home *bond, before int64, calm bool) {
	replica, name := a.replica(), a.header.Get("X-Warden-Conversation")
	switch a.decision() {
	case "moved", "placed":
		if calm && home.replica != "" && home.calm == before {
			if after, _ := c.calm(home); after == before {
				c.violation(n, "%s to %s, though %s could serve it", a.decision(), replica, home.replica)
			}
		}
	case "stayed":
		c.stayed.Add(1)
	case "spilled":
		c.spilled.Add(1)
		return
	default: // no policy of homes is in force
		*home = bond{}
		return
	}
	if home.name != "" && name != home.name {
		c.violation(n, "conversation %s became %s", home.name, name)
	}
	*home = bond{replica: replica, name: name}
	home.calm, calm = c.calm(home)
	if !calm {
		home.replica = ""
	}
}

// calm is a number that changes with every disturbance of a home's server and
// of the policy, and whether there is none now.
func (c *chaos) calm(home *bond) (n int64, calm bool) {
	p := c.policy.Load()
	if home == nil || home.replica == "" {
		return 0, false
	}
	for _, s := range c.box {
		for i := s.first; i < s.first+s.ranks; i++ {
			if fmt.Sprint(i) == home.replica {
				d := s.disturbed.Load()
				return d<<32 + p, d%2 == 0 && p%2 == 0
			}
		}
	}
	return 0, false
}

// verify compares what a client got with what engines wrote for it.
func (c *chaos) verify(n int, d dialect, noUsage bool, f fate, a answer) {
	attempts := c.tap.take(requestName(n))
	switch f {
	case good:
		if d.abortedWhole != "" && strings.Contains(a.body, `"finish_reason":"abort"`) || d.anthropic && strings.Contains(a.body, `"stop_reason":null}`) {
			c.violation(n, "an aborted answer looks finished: %.300s", a.body)
		}
	case refused:
		if a.fault() != "" {
			c.mu.Lock()
			c.refusals[a.fault()]++
			c.mu.Unlock()
			return // of the gateway's own
		}
	case announced:
		// An engine's own error may be followed by a mark of the end.
		if said, _, _ := strings.Cut(a.body, d.errs); strings.Contains(said, d.ends[0]) || strings.Contains(said, `"abort"`) {
			c.violation(n, "a stream that failed looks finished: %q", a.body)
		}
		return
	default:
		return
	}
	var seen []string
	for _, t := range attempts {
		said, err := t.answer()
		if err == nil && noUsage {
			said.body = withoutUsage(said.body)
		}
		if err == nil && said.status == a.status && said.body == a.body {
			return
		}
		seen = append(seen, fmt.Sprintf("%d %v %q", said.status, err, said.body))
	}
	c.violation(n, "the client got what no engine sent, %d %q; engines sent %q", a.status, a.body, seen)
}

// withoutUsage leaves out the event that tells the usage alone, as chat and
// completions streams have it.
func withoutUsage(body string) string {
	events := strings.SplitAfter(body, "\n\n")
	return strings.Join(slices.DeleteFunc(events, func(e string) bool { return strings.Contains(e, `"choices":[],`) }), "")
}

// ask is gateway.ask for a gateway that may end under it.
func (c *chaos) ask(ctx context.Context, path, body string, headers []string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text), err}, nil
}
