package vllm

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// What the engine tells of its caches is, rank by rank, what the arithmetic of blocks
// says of the conversations that went there, and the gateway's own estimate is near
// it: while there is room, when more came than fits, and after all was dropped.
func TestKVEventsFitTheArithmeticAndTheEstimate(t *testing.T) {
	if shared == nil {
		running(t) // which skips the test and says why
	}
	shared.stop() // two engines at once would take twice the memory
	e, err := newEngine(shared.bin, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	events := consecutivePorts(t, 2*ranks)
	replay := events + ranks
	e.flags = []string{"--kv-events-config", fmt.Sprintf(
		`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:%d", "replay_endpoint": "tcp://*:%d"}`, events, replay)}
	e.start(t)
	t.Cleanup(e.stop)
	config := filepath.Join(t.TempDir(), "warden.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "models:\n- engines:\n  - url: %s\n    kv_events: tcp://127.0.0.1:%d\n    kv_events_replay: tcp://127.0.0.1:%d\n",
		e.url, events, replay), 0o600); err != nil {
		t.Fatal(err)
	}
	g := warden.Gateway(t, nil, "--config", config)
	wardentest.WaitFor(t, 20*time.Second, "a connection to each rank", func() error {
		for _, r := range cachesOf(t, g) {
			if r.KVEvents == nil || !r.KVEvents.Connected {
				return fmt.Errorf("replica %d: %+v", r.Index, r.KVEvents)
			}
		}
		return nil
	})

	// Conversations that have nothing in common, but for less than a block.
	c := &cachedTalks{t: t, g: g, last: [ranks]map[string]int{{}, {}}}
	for turn := range 4 {
		for i := range 6 {
			c.turn(fmt.Sprintf("%c-%d", 'a'+i, i), turn)
		}
		c.expectRoom()
	}
	if len(c.last[0]) != 3 || len(c.last[1]) != 3 {
		t.Errorf("%d and %d conversations at the ranks, want 3 each", len(c.last[0]), len(c.last[1]))
	}

	for i := range 40 { // twice what both ranks hold
		c.turn(fmt.Sprintf("more-%d", i), 3)
	}
	c.expectFull()

	e.emptyCache(t)
	c.last = [ranks]map[string]int{{}, {}}
	for i := 0; len(c.last[0]) == 0 || len(c.last[1]) == 0; i++ { // a rank tells of the reset with its next request
		c.turn(fmt.Sprintf("after-%d", i), 0)
	}
	c.expectTold()
}

// cachedTalks holds conversations and knows what they leave on each rank.
type cachedTalks struct {
	t *testing.T
	g *wardentest.Gateway
	// last is the length of each conversation's last prompt, by rank.
	last [ranks]map[string]int
}

// turn takes the conversation's turn of that number, from 0.
func (c *cachedTalks) turn(name string, number int) {
	c.t.Helper()
	texts := []string{name + strings.Repeat(" says something of its own.", 12)}
	for i := range number {
		texts = append(texts, "an answer", strings.Repeat("More. ", 10*i+20))
	}
	r := route{path: chatPath}
	// With an answer of one token, nothing but the prompt is in the cache.
	a := ask(c.t, c.g.URL, r, r.body(talk(texts...), 1), session(name))
	tokens, _ := a.prompt()
	rank := strings.IndexByte("01", a.replica()[0])
	if rank < 0 || len(a.replica()) != 1 {
		c.t.Fatalf("served by replica %q", a.replica())
	}
	c.last[rank][name] = tokens
}

// blocks is what the arithmetic says a rank holds in tokens, if nothing was dropped.
func (c *cachedTalks) blocks(rank int) (tokens int64) {
	for _, n := range c.last[rank] {
		tokens += int64(n / blockSize * blockSize)
	}
	return tokens
}

// told is what the events say of each rank, and what the gateway estimates. The error
// says that events are missing, as before a rank's first.
func (c *cachedTalks) told() (told, estimated [ranks]int64, err error) {
	c.t.Helper()
	for i, r := range cachesOf(c.t, c.g) {
		if !r.KVEvents.Complete || r.KVEvents.Lost > 0 {
			err = fmt.Errorf("replica %d: %+v", i, *r.KVEvents)
		}
		told[i], estimated[i] = r.KVEvents.CachedTokens, r.Estimate
	}
	return told, estimated, err
}

// expectTold waits until the events tell of exactly the blocks of what went there.
func (c *cachedTalks) expectTold() {
	c.t.Helper()
	wardentest.WaitFor(c.t, 5*time.Second, "the events to tell of each block", func() error {
		told, _, err := c.told()
		if err != nil {
			return err
		}
		for rank := range told {
			if want := c.blocks(rank); told[rank] != want {
				return fmt.Errorf("rank %d: %d tokens told, the blocks make %d", rank, told[rank], want)
			}
		}
		return nil
	})
}

// expectRoom is expectTold, with an estimate that differs by less than a block and
// the answer of each conversation.
func (c *cachedTalks) expectRoom() {
	c.t.Helper()
	c.expectTold()
	told, estimated, err := c.told()
	if err != nil {
		c.t.Fatal(err)
	}
	for rank := range told {
		if most := int64(len(c.last[rank]) * (blockSize + 1)); max(told[rank]-estimated[rank], estimated[rank]-told[rank]) > most {
			c.t.Errorf("rank %d: %d tokens told, %d estimated", rank, told[rank], estimated[rank])
		}
	}
	c.t.Logf("with room: told %d, estimated %d", told, estimated)
}

// expectFull: a rank that was given more than it holds has all of its blocks but a
// few in use, and the estimate says so within a tenth.
func (c *cachedTalks) expectFull() {
	c.t.Helper()
	const capacity = rankBlocks * blockSize
	told, estimated, err := c.told()
	if err != nil {
		c.t.Fatal(err)
	}
	for rank := range told {
		if c.blocks(rank) < capacity {
			c.t.Fatalf("rank %d got %d tokens and holds %d: not full", rank, c.blocks(rank), capacity)
		}
		if told[rank] > capacity || told[rank] < capacity*9/10 {
			c.t.Errorf("rank %d is full with %d tokens and tells of %d", rank, capacity, told[rank])
		}
		if off := float64(estimated[rank]-told[rank]) / capacity; math.Abs(off) > 0.1 {
			c.t.Errorf("rank %d: %d tokens told, %d estimated", rank, told[rank], estimated[rank])
		}
	}
	c.t.Logf("full: told %d, estimated %d of %d", told, estimated, capacity)
}

// cacheOf is a replica of GET /api/models/{name} as far as its cache goes.
type cacheOf struct {
	Index    int   `json:"index"`
	Estimate int64 `json:"cached_tokens_estimate"`
	KVEvents *struct {
		Connected    bool   `json:"connected"`
		Complete     bool   `json:"complete"`
		CachedTokens int64  `json:"cached_tokens"`
		Lost         int64  `json:"lost_batches"`
		Problem      string `json:"problem"`
	} `json:"kv_events"`
}

func cachesOf(t *testing.T, g *wardentest.Gateway) []cacheOf {
	t.Helper()
	res, err := http.Get(g.Admin + "/api/models/" + modelName)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var m struct{ Replicas []cacheOf }
	if err := json.NewDecoder(res.Body).Decode(&m); err != nil || len(m.Replicas) != ranks {
		t.Fatalf("%v: %+v", err, m)
	}
	return m.Replicas
}

// consecutivePorts finds so many that are free and returns the first.
func consecutivePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first, free := l.Addr().(*net.TCPAddr).Port, 1
		for ; free < n; free++ {
			next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+free))
			if err != nil {
				break
			}
			next.Close()
		}
		l.Close()
		if free == n {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}
