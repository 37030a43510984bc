package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/config"
)

// pause waits for a time of the run, shorter when it is over.
func pause(d time.Duration, over <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-over:
	}
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// rounds are the numbers below n again and again, each round in another order.
func rounds(r *rand.Rand, n int) func() int {
	var order []int
	return func() int {
		if len(order) == 0 {
			order = r.Perm(n)
		}
		i := order[0]
		order = order[1:]
		return i
	}
}

// disturb does things to a server, one after the other, with calm between them.
func (c *chaos) disturb(s *simulated, r *rand.Rand, over <-chan struct{}) {
	const cold = true // it has to be started again
	requests := func(spec string) func() bool {
		return func() bool {
			s.fail(spec + ",for=10s")
			if err := eventually(s.failing); err != nil {
				c.t.Errorf("%s: %s: %v", s, spec, err)
			}
			return !cold
		}
	}
	process := func(spec string, lasts time.Duration) func() bool {
		return func() bool {
			s.fail(spec)
			pause(lasts/chaosSpeed, nil)
			return cold
		}
	}
	rank := r.IntN(s.ranks)
	modes := []string{"500", "hang", "empty", "html", "nan", "renamed"}
	ways := []func() bool{
		process(fmt.Sprintf("die,rank=%d", rank), 7*time.Second),
		process(fmt.Sprintf("die,rank=%d,answers=4s", rank), 7*time.Second),
		process("stop", 3*time.Second),
		process("stop,timeout=2s", 4*time.Second),
		process("stop,timeout=10ms", 60*time.Second), // what it has not finished then hangs
		func() bool { s.kill(); return cold },
		func() bool {
			s.fail(fmt.Sprintf("freeze,rank=%d,for=10s", rank))
			pause(12*time.Second/chaosSpeed, nil)
			return !cold
		},
		requests("reset,count=5"),
		requests("reset,count=10,reused=true"),
		requests("cut,count=5,how=close"),
		requests("cut,count=5,how=reset"),
		requests("cut,count=5,how=end,after=2"),
		requests("slow-headers,count=5,delay=4s"),
		requests("busy,count=10"),
		requests("metrics,mode=" + modes[r.IntN(len(modes))]),
		func() bool {
			c.post(fmt.Sprintf("/api/models/%s/replicas/%d/drain", modelName, s.first))
			pause(between(r, 10*time.Millisecond, 300*time.Millisecond), nil)
			c.insist(fmt.Sprintf("/api/models/%s/replicas/%d/resume", modelName, s.first))
			return !cold
		},
	}
	if s == c.box[len(c.box)-1] {
		// The last one, so that the others keep their numbers.
		ways = append(ways, func() bool {
			c.reload(c.without(s))
			pause(between(r, 10*time.Millisecond, 500*time.Millisecond), nil)
			c.reload(c.config)
			return !cold
		})
	}
	next := rounds(r, len(ways))
	for {
		pause(between(r, 50*time.Millisecond, 500*time.Millisecond), over)
		select {
		case <-over:
			return
		default:
		}
		s.disturbed.Add(1)
		if ways[next()]() == cold {
			s.kill()
			pause(between(r, 0, 300*time.Millisecond), nil)
			s.restart()
		}
		if err := eventually(func() error { return c.ready(s) }); err != nil {
			c.t.Errorf("%s is not ready again: %v", s, err)
			return
		}
		s.disturbed.Add(1)
	}
}

// operate is what an operator does: other policies for a while, another
// threshold, a restart of the gateway.
func (c *chaos) operate(r *rand.Rand, over <-chan struct{}) {
	policies := []string{"off", "round-robin", "least-inflight", "session-hash"}
	next := rounds(r, 4)
	for {
		pause(between(r, 200*time.Millisecond, time.Second), over)
		select {
		case <-over:
			return
		default:
		}
		switch next() {
		case 0:
			c.policy.Add(1)
			c.patch(fmt.Sprintf(`{"policy":%q}`, policies[r.IntN(len(policies))]))
			pause(between(r, 50*time.Millisecond, 500*time.Millisecond), nil)
			for !c.patch(`{"policy":"affinity"}`) {
				pause(20*time.Millisecond, nil)
			}
			c.policy.Add(1)
		case 1:
			c.patch(fmt.Sprintf(`{"spill_threshold":%d}`, 2+r.IntN(10)))
		case 2:
			c.restart()
		case 3: // a file with a mistake
			c.life.Lock()
			if err := c.g.Reload(context.Background(), func() (*config.Config, error) { return nil, errors.New("no such key") }); err == nil {
				c.t.Error("a bad configuration was put in force")
			}
			c.life.Unlock()
		}
	}
}

// reload puts a configuration in force while the gateway runs.
func (c *chaos) reload(cfg *config.Config) {
	c.life.Lock()
	defer c.life.Unlock()
	if err := c.g.Reload(context.Background(), func() (*config.Config, error) { return cfg, nil }); err != nil {
		c.t.Errorf("reload: %v", err)
	}
}

// without is the configuration without a server.
func (c *chaos) without(s *simulated) *config.Config {
	cfg := *c.config
	m := cfg.Models[0]
	m.Engines = slices.DeleteFunc(slices.Clone(m.Engines), func(e config.Engine) bool { return e.URL.String() == "http://"+s.address })
	cfg.Models = []config.Model{m}
	return &cfg
}

// ready says which replica of a server is not ready.
func (c *chaos) ready(s *simulated) error {
	m, err := c.model()
	if err != nil {
		return err
	}
	if err := c.whole(m); err != nil {
		return err
	}
	for _, r := range m.Replicas[s.first : s.first+s.ranks] {
		if r.State != "ready" {
			return fmt.Errorf("replica %d is %s", r.Index, r.State)
		}
	}
	return nil
}

// whole says that replicas are missing.
func (c *chaos) whole(m modelRow) error {
	last := c.box[len(c.box)-1]
	if n := last.first + last.ranks; len(m.Replicas) != n {
		return fmt.Errorf("%d of %d replicas", len(m.Replicas), n)
	}
	return nil
}

// model is what the admin API shows; the gateway may be away.
func (c *chaos) model() (modelRow, error) {
	res, err := c.client.Get("http://" + c.config.Admin.Listen + "/api/models/" + modelName)
	if err != nil {
		return modelRow{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return modelRow{}, err
	}
	var m modelRow
	if res.StatusCode != http.StatusOK {
		return m, fmt.Errorf("%d %s", res.StatusCode, text)
	}
	return m, json.Unmarshal(text, &m)
}

func (c *chaos) post(path string) bool { return c.admin(http.MethodPost, path, "") }

// insist posts until it is taken: the gateway may be away.
func (c *chaos) insist(path string) {
	for !c.post(path) {
		pause(20*time.Millisecond, nil)
	}
}

func (c *chaos) patch(body string) bool {
	return c.admin(http.MethodPatch, "/api/models/"+modelName, body)
}

func (c *chaos) admin(method, path, body string) bool {
	req, err := http.NewRequest(method, "http://"+c.config.Admin.Listen+path, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return true
	}
	res, err := c.client.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode/100 == 2
}
