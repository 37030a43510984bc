package session

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lmwarden/internal/llmapi"
)

var start = time.Date(2026, 10, 4, 8, 0, 0, 0, time.UTC)

func table(t testing.TB, o Options) *Table {
	t.Helper()
	tab, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// named identifies the first request of a conversation by id.
func named(tab *Table, now time.Time, id string) Identity {
	return tab.Identify(now, Request{Model: "m", Header: head("X-Session-Id", id, "User-Agent", "opencode/1"), Facts: chat("u:" + id)})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxConversations: -1}, {IdleFor: -time.Second}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestTurnsAreCounted(t *testing.T) {
	tab := table(t, Options{})
	id := named(tab, start, "a")
	row := func() Conversation {
		t.Helper()
		c, ok := tab.Get(id.Key)
		if !ok {
			t.Fatal("the conversation is gone")
		}
		return c
	}
	want := Conversation{
		Key: id.Key, Name: id.Name, Model: "m", Source: "x-session-id", Client: "opencode", FirstSeen: start, LastSeen: start,
		PromptTokens: Unmeasured, CachedTokens: Unmeasured, CompletionTokens: Unmeasured,
	}
	check := func(what string) {
		t.Helper()
		if diff := cmp.Diff(want, row()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("identified")

	one := tab.Begin(start.Add(time.Second), id, "m")
	two := tab.Begin(start.Add(2*time.Second), id, "m")
	want.LastSeen, want.Turns, want.Open = start.Add(2*time.Second), 2, 2
	check("two turns open")

	one.End(start.Add(3*time.Second), llmapi.Usage{Known: true, Prompt: 100, Cached: 0, CacheState: llmapi.CacheReported, Completion: 7})
	want.LastSeen, want.Open, want.PromptTokens, want.CachedTokens, want.CompletionTokens = start.Add(3*time.Second), 1, 100, 0, 7
	check("one ended")
	one.End(start.Add(4*time.Second), llmapi.Usage{Known: true, Prompt: 999})
	check("ended twice")

	two.End(start.Add(5*time.Second), llmapi.Usage{})
	want.LastSeen, want.Open = start.Add(5*time.Second), 0
	check("ended without usage")

	three := tab.Begin(start.Add(6*time.Second), id, "m")
	three.End(start.Add(6*time.Second), llmapi.Usage{Known: true, Prompt: 200, CacheState: llmapi.CacheNull, Completion: 8})
	want.LastSeen, want.Turns = start.Add(6*time.Second), 3
	want.PromptTokens, want.CachedTokens, want.CompletionTokens = 200, Unmeasured, 8
	check("cached tokens not told")

	// A request that is no turn, and none at all.
	id.Turn = false
	tab.Begin(start.Add(6*time.Second), id, "m").End(start.Add(6*time.Second), llmapi.Usage{})
	check("a request that is no turn")
	tab.Begin(start, Identity{}, "m").End(start, llmapi.Usage{})
	tab.Begin(start, Identity{}, "m").Responded("resp_1")
	check("nothing")
}

func TestIdleConversationsExpire(t *testing.T) {
	tab := table(t, Options{IdleFor: time.Minute})
	quiet, open := named(tab, start, "quiet"), named(tab, start, "open")
	turn := tab.Begin(start, open, "m")
	if n := tab.Expire(start.Add(time.Minute)); n != 0 {
		t.Errorf("%d expired at their idle time, want none", n)
	}
	if n := tab.Expire(start.Add(time.Hour)); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
	if _, ok := tab.Get(quiet.Key); ok {
		t.Error("the idle conversation stayed")
	}
	turn.End(start.Add(time.Hour), llmapi.Usage{})
	if n := tab.Expire(start.Add(time.Hour + time.Minute)); n != 0 {
		t.Errorf("%d expired, but the turn ended only now", n)
	}
	// Expired rows count as gone before anyone sweeps them, by key and by history.
	late := start.Add(3 * time.Hour)
	if id := named(tab, late, "open"); !id.New || id.Key != open.Key {
		t.Errorf("after its idle time: %+v, want the same key, new", id)
	}
	if id := tab.Identify(late.Add(2*time.Hour), Request{Model: "m", Facts: chat("u:open", "a:hi", "u:more")}); id.Extends != (Key{}) || id.Key == open.Key {
		t.Errorf("the history of an expired conversation still leads to it: %+v", id)
	}
	if n := tab.Expire(late.Add(24 * time.Hour)); n != 1 || tab.Len() != 0 || len(tab.nodes) != 0 || len(tab.rows) != 0 {
		t.Errorf("%d expired, %d rows, %d nodes left", n, tab.Len(), len(tab.nodes))
	}
}

func TestOldestIdleLeavesFirst(t *testing.T) {
	tab := table(t, Options{MaxConversations: 3})
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second) }
	first, second, third := named(tab, at(0), "1"), named(tab, at(1), "2"), named(tab, at(2), "3")
	turn := tab.Begin(at(3), first, "m")
	named(tab, at(4), "2") // used again
	named(tab, at(5), "4")
	for id, want := range map[Key]bool{first.Key: true, second.Key: true, third.Key: false} {
		if _, ok := tab.Get(id); ok != want {
			t.Errorf("%s is there: %v, want %v", id.Name(), ok, want)
		}
	}
	// With nothing idle the table exceeds its bound, and returns to it.
	turns := []*Turn{turn}
	for i := range 5 {
		turns = append(turns, tab.Begin(at(6), named(tab, at(6), fmt.Sprint("open", i)), "m"))
	}
	if n := tab.Len(); n != 6 {
		t.Errorf("%d conversations with 6 open", n)
	}
	for _, u := range turns {
		u.End(at(7), llmapi.Usage{})
	}
	if n := tab.Len(); n != 3 {
		t.Errorf("%d conversations when all are idle, want 3", n)
	}
}

// TestTableKeepsItsPromises drives a small table at random and compares it with
// what must hold after every step.
func TestTableKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bound = 4
		tab, err := New(Options{MaxConversations: bound, IdleFor: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		now := start
		type open struct {
			id   Identity
			turn *Turn
		}
		var opened []open
		identify := func(t *rapid.T) Identity {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			words := []string{fmt.Sprint("u:", rapid.IntRange(0, 2).Draw(t, "opening"))}
			for range rapid.IntRange(0, 12).Draw(t, "turns") {
				words = append(words, fmt.Sprint("a:", rapid.IntRange(0, 1).Draw(t, "answer")), fmt.Sprint("u:", rapid.IntRange(0, 1).Draw(t, "question")))
			}
			r := Request{Model: "m", Facts: chat(words...)}
			if id := rapid.IntRange(0, 8).Draw(t, "id"); id > 0 {
				r.Header = head("X-Session-Id", fmt.Sprint(id))
			}
			id := tab.Identify(now, r)
			if again := tab.Identify(now, r); again.Key != id.Key || again.New {
				t.Fatalf("%v is %s, then %s (new %v)", words, id.Name, again.Name, again.New)
			}
			return id
		}
		t.Repeat(map[string]func(*rapid.T){
			"identify": func(t *rapid.T) { identify(t) },
			"begin": func(t *rapid.T) {
				id := identify(t)
				opened = append(opened, open{id, tab.Begin(now, id, "m")})
			},
			"end": func(t *rapid.T) {
				if len(opened) == 0 {
					t.Skip("nothing is open")
				}
				i := rapid.IntRange(0, len(opened)-1).Draw(t, "turn")
				opened[i].turn.End(now, llmapi.Usage{})
				opened[i].turn.End(now, llmapi.Usage{})
				opened = append(opened[:i], opened[i+1:]...)
			},
			"expire": func(t *rapid.T) { tab.Expire(now) },
			"": func(t *rapid.T) {
				counts := map[Key]int{}
				for _, o := range opened {
					counts[o.id.Key]++
				}
				for k, n := range counts {
					if c, ok := tab.Get(k); !ok || c.Open != n {
						t.Fatalf("%s has %d open requests, the table says %d (there: %v)", k.Name(), n, c.Open, ok)
					}
				}
				if n := tab.Len(); n > max(bound, len(counts)+1) {
					t.Fatalf("%d conversations, bound %d, %d of them open", n, bound, len(counts))
				}
				checkTable(t, tab)
			},
		})
	})
}

// checkTable checks that the parts of a table agree.
func checkTable(t interface{ Fatalf(string, ...any) }, tab *Table) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	if len(tab.rows) != len(tab.list) {
		t.Fatalf("%d rows by key, %d in the list", len(tab.rows), len(tab.list))
	}
	links, idle := 0, 0
	for i, r := range tab.list {
		if r.index != i || tab.rows[r.key] != r {
			t.Fatalf("%s is not where it says", r.key.Name())
		}
		if (r.next == nil) != (r.open > 0) {
			t.Fatalf("%s with %d open requests is idle: %v", r.key.Name(), r.open, r.next != nil)
		}
		if r.next != nil {
			idle++
		}
		for _, l := range r.links[:r.known] {
			if links++; tab.nodes[l.sum] != r {
				t.Fatalf("%s: its link leads elsewhere", r.key.Name())
			}
		}
	}
	if links != len(tab.nodes) {
		t.Fatalf("%d links, %d nodes", links, len(tab.nodes))
	}
	last := int64(0)
	for r := tab.idle.next; r != &tab.idle; r = r.next {
		if idle--; r.last < last {
			t.Fatalf("the idle ring is not in order")
		}
		last = r.last
	}
	if idle != 0 {
		t.Fatalf("%d idle rows are not in the ring", idle)
	}
	for i, r := range tab.dirty {
		if r.dirty != i+1 || tab.rows[r.key] != r {
			t.Fatalf("%s is changed, but not there", r.key.Name())
		}
	}
}

func TestTableIsSafeForConcurrentUse(t *testing.T) {
	tab := table(t, Options{MaxConversations: 50, IdleFor: time.Minute})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				now := start.Add(time.Duration(i) * time.Second)
				id := tab.Identify(now, Request{Model: "m", Header: head("X-Session-Id", fmt.Sprint(i%70)), Facts: chat("u:x", fmt.Sprint("a:", i), fmt.Sprint("u:", g))})
				turn := tab.Begin(now, id, "m")
				switch i % 10 {
				case 0:
					tab.Conversations(Query{Limit: 5})
				case 1:
					tab.Find(id.Name)
				case 2:
					tab.Expire(now)
				case 3:
					if err := tab.Save(discard{}, nil); err != nil {
						t.Error(err)
					}
				case 4:
					if _, err := tab.SaveChanges(discard{}, nil); err != nil {
						t.Error(err)
					}
				}
				turn.End(now, llmapi.Usage{Known: true, Prompt: 1})
			}
		})
	}
	wg.Wait()
	checkTable(t, tab)
	open := 0
	tab.walk(func(r *row) { open += r.open }, nil)
	if open != 0 {
		t.Errorf("%d requests are still open", open)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func TestWithdrawnRequestsLeaveNothing(t *testing.T) {
	tab := table(t, Options{})
	refused := named(tab, start, "refused")
	tab.Withdraw(refused)
	if tab.Len() != 0 || len(tab.nodes) != 0 {
		t.Errorf("%d conversations and %d places in the chain after a refused first request, want none", tab.Len(), len(tab.nodes))
	}
	first := named(tab, start, "a")
	tab.Begin(start, first, "m").End(start, llmapi.Usage{})
	tab.Withdraw(named(tab, start, "a")) // a later turn
	tab.Withdraw(first)                  // begun since
	if tab.Len() != 1 {
		t.Error("a conversation with a turn was withdrawn")
	}
}

// Hashes of histories are no secret: who makes one meet another tenant's must
// not get into the other's conversation.
func TestNoTenantFindsAnothersPlaceInTheChain(t *testing.T) {
	tab := table(t, Options{})
	id := tab.Identify(start, Request{Tenant: "a", Model: "m", Facts: chat("u:hello")})
	r := tab.rows[id.Key]
	for tenant, want := range map[string]*row{"a": r, "b": nil} {
		at := place{now: start.UnixMilli(), scope: scopeOf(tenant, "m")}
		if got := tab.at(at, r.links[0].sum); got != want {
			t.Errorf("tenant %s finds %v, want %v", tenant, got, want)
		}
	}
}
