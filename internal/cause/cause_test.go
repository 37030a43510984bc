package cause

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/llmapi"
)

var then = time.Date(2026, 10, 4, 12, 0, 0, 0, time.UTC)

// before is a turn that left 10,000 tokens on replica 1; after continues it there
// and found them all.
func before() Turn {
	return Turn{End: then, Prompt: 10_000, Cached: 9_000, Completion: 200, Replica: 1, Reason: "stayed", Sent: prompt(3)}
}

func after() Turn {
	return Turn{End: then.Add(time.Minute), Prompt: 10_700, Cached: 10_000, Completion: 200, Replica: 1, Reason: "stayed", Sent: prompt(5)}
}

func prompt(messages int) Prompt {
	p := Prompt{System: 1, Tools: 2, Attribution: 3}
	for i := range messages {
		p.Messages = append(p.Messages, llmapi.Sent{Hash: uint64(100 + i), At: uint32(1000 * i)})
	}
	return p
}

func TestCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(before, now *Turn, c *Cache)
		want   Verdict
	}{
		"all found":            {func(_, _ *Turn, _ *Cache) {}, Verdict{Cause: Fine}},
		"less than noticeable": {func(_, now *Turn, _ *Cache) { now.Cached -= 500 }, Verdict{Cause: Fine}},
		"a large block": {func(_, now *Turn, c *Cache) {
			now.Cached, c.Block = 8192, 1024
		}, Verdict{Cause: Fine}},
		"a prompt sent twice is found but for its last block": {func(b, now *Turn, _ *Cache) {
			now.Sent, now.Prompt, b.Prompt, now.Cached = b.Sent, 96, 96, 80
		}, Verdict{Cause: Fine}},
		"moved": {func(_, now *Turn, _ *Cache) {
			now.Replica, now.Reason, now.Cached = 2, "moved", 3504
		}, Verdict{Cause: Moved, Reread: 6496}},
		"moved and all found": {func(_, now *Turn, _ *Cache) { now.Replica, now.Reason = 2, "moved" }, Verdict{Cause: Fine}},
		"released and placed anew": {func(_, now *Turn, _ *Cache) {
			now.Replica, now.Reason, now.Cached = 2, "placed", 0
		}, Verdict{Cause: Moved, Reread: 10_000}},
		"spilled": {func(_, now *Turn, _ *Cache) {
			now.Replica, now.Reason, now.Cached = 2, "spilled", 0
		}, Verdict{Cause: Spilled, Reread: 10_000}},
		"home again after a spill": {func(b, now *Turn, _ *Cache) {
			b.Replica, b.Reason, now.Cached = 2, "spilled", 9_008
		}, Verdict{Cause: Spilled, Reread: 992}},
		"restarted": {func(_, now *Turn, _ *Cache) { now.Cold, now.Cached = true, 0 }, Verdict{Cause: Restarted, Reread: 10_000}},
		"the engine chose": {func(b, now *Turn, _ *Cache) {
			b.Replica, now.Replica, b.Reason, now.Reason, now.Cached = -1, -1, "off", "off", 3504
		}, Verdict{Cause: Balanced, Reread: 6496}},
		"the engine chose, but the prompt changed": {func(b, now *Turn, _ *Cache) {
			b.Replica, now.Replica, now.Sent.Tools, now.Cached = -1, -1, 9, 0
		}, Verdict{Changed, 10_000, placeOf(PartTools, 0, -1)}},
		"pinned elsewhere": {func(_, now *Turn, _ *Cache) {
			now.Replica, now.Reason, now.Cached = 0, "pinned", 0
		}, Verdict{Cause: Balanced, Reread: 10_000}},
		"attribution line": {func(_, now *Turn, _ *Cache) {
			now.Sent.System, now.Sent.Attribution, now.Cached = 7, 8, 0
		}, Verdict{Changed, 10_000, placeOf(PartAttribution, 0, -1)}},
		"system prompt": {func(_, now *Turn, _ *Cache) {
			now.Sent.System, now.Cached = 7, 0
		}, Verdict{Changed, 10_000, placeOf(PartSystem, 0, -1)}},
		"a message in the midst": {func(_, now *Turn, _ *Cache) {
			now.Sent.Messages[1].Hash, now.Cached = 7, 4000
		}, Verdict{Changed, 6000, placeOf(PartMessage, 1, 1000)}},
		"a history that was compacted": {func(_, now *Turn, _ *Cache) {
			now.Sent.Messages, now.Prompt, now.Cached = now.Sent.Messages[:2], 6000, 3504
		}, Verdict{Changed, 2480, placeOf(PartMessage, 2, -1)}},
		"evicted": {func(_, now *Turn, c *Cache) {
			now.Cached, c.Full = 16, then.Add(time.Second)
		}, Verdict{Cause: Evicted, Reread: 9_984}},
		"the cache was full long ago": {func(_, now *Turn, c *Cache) {
			now.Cached, c.Full = 16, then.Add(-time.Second)
		}, Verdict{Cause: Unknown, Reread: 9_984}},
		"nonsense of an engine": {func(b, now *Turn, _ *Cache) {
			b.Prompt, now.Prompt, now.Cached = -5, 0, -9
		}, Verdict{Cause: Fine}},
	} {
		b, now, c := before(), after(), Cache{Block: 16}
		tt.change(&b, &now, &c)
		if diff := cmp.Diff(tt.want, Of(&b, &now, c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	now := after()
	if v := Of(nil, &now, Cache{}); v != (Verdict{Cause: First}) {
		t.Errorf("the first turn: %+v", v)
	}
}

// What a book remembers is bounded, and of the conversations whose last turn is
// the latest.
func TestABookForgetsTheOldest(t *testing.T) {
	b := NewBook()
	key := func(i int) Key { return Key([]byte(fmt.Sprintf("%16d", i))) }
	long := after()
	long.Cached = 10_688
	long.Sent.Messages = slices.Repeat(long.Sent.Messages, 2000)
	per := long.size()
	n := 2 * maxBytes / per
	for i := range n {
		if v := b.Judge(key(i), long, Cache{}); v.Cause != First {
			t.Fatalf("conversation %d: %+v", i, v)
		}
		if v := b.Judge(key(0), long, Cache{}); i > 0 && v.Cause != Fine {
			t.Fatalf("one that is used all the time is forgotten after %d: %+v", i, v)
		}
	}
	if b.bytes > maxBytes || len(b.turns) != b.order.Len() || len(b.turns) < maxBytes/per-1 {
		t.Errorf("%d bytes of %d conversations", b.bytes, len(b.turns))
	}
	if v := b.Judge(key(1), long, Cache{}); v.Cause != First {
		t.Errorf("the oldest is remembered: %+v", v)
	}
}

func BenchmarkJudge(b *testing.B) {
	book, now := NewBook(), after()
	now.Sent = prompt(200)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		book.Judge(Key{byte(i)}, now, Cache{})
	}
}
